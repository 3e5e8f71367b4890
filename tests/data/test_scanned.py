"""Scanned objects: a box with a colour on every side, rendered as the scans are, shows from where it is seen."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qcn.data import scanned
from qcn.data.directions import has_elevations
from qcn.data.registry import load
from qcn.data.scanned import OBJECTS, Scan, Scenes, random_scenes, render
from qcn.direction import ROUND
from qcn.errors import MissingError, UsageError
from qcn.packages import installed

# The box's sides in its mesh: the outward normal, and the colour.
SIDES = {
    "front": ((1, 0, 0), (255, 0, 0)),
    "left": ((0, 1, 0), (0, 255, 0)),
    "back": ((-1, 0, 0), (0, 0, 255)),
    "right": ((0, -1, 0), (255, 255, 0)),
    "top": ((0, 0, 1), (255, 0, 255)),
    "bottom": ((0, 0, -1), (0, 255, 255)),
}


def write_box(folder: Path) -> Path:
    """A cube whose texture is a strip of six colours."""
    folder.mkdir(parents=True)
    lines, corners, width = [], [], 16
    strip = np.zeros((width, width * len(SIDES), 3), np.uint8)
    for place, (normal, colour) in enumerate(SIDES.values()):
        strip[:, place * width : (place + 1) * width] = colour
        out = np.array(normal)
        across = np.roll(out, 1)
        up = np.cross(out, across)
        for one, other in ((-1, -1), (1, -1), (1, 1), (-1, 1)):  # counter-clockwise, seen from outside
            x, y, z = 0.05 * (out + one * across + other * up)
            lines.append(f"v {x} {y} {z}")
            lines.append(f"vt {(place + 0.5) / len(SIDES)} 0.5")
            corners.append(f"{len(corners) + 1}/{len(corners) + 1}")
        a, b, c, d = corners[-4:]
        lines += [f"f {a} {b} {c}", f"f {a} {c} {d}"]
    (folder / "model.obj").write_text("\n".join(lines) + "\n")
    Image.fromarray(strip).save(folder / "texture.png")
    return folder


def views(*directions: tuple[int, int]) -> Scenes:
    """Of these azimuths and elevations, in plain light before grey."""
    azimuth, elevation = np.array(directions).T
    one = np.ones(len(directions))
    grey = np.full((len(one), scanned.PATCHES, scanned.PATCHES, 3), 0.5)
    return Scenes(azimuth, elevation, one, np.outer(one, [0.0, 0.0, 1.0]), 0 * one, one, grey)


def side_seen(picture: np.ndarray) -> str:
    """The side whose colour is in the middle of a picture."""
    middle = picture[:, 32, 32].astype(int)
    return min(SIDES, key=lambda side: np.abs(middle - SIDES[side][1]).sum())


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        scanned._mujoco()
    except MissingError as error:
        pytest.skip(str(error))
    return write_box(tmp_path_factory.mktemp("mesh") / "box")


def test_a_camera_sees_the_side_that_its_direction_says(box: Path) -> None:
    directions = {(0, 0): "front", (90, 0): "left", (180, 0): "back", (270, 0): "right", (30, 80): "top"}
    directions |= {(200, -80): "bottom", (80, 20): "left", (350, -20): "front"}
    pictures = render(box, views(*directions))
    assert pictures.shape == (len(directions), 3, 64, 64)
    assert [side_seen(picture) for picture in pictures] == list(directions.values())
    assert (np.abs(pictures[:, :, 2, 2].astype(int) - 128) <= 1).all()  # the background
    # At azimuth 45 the front is on the left of the picture, and the left side on the right; the top is above.
    corner = render(box, views((45, 30)))[0]
    rows = {"front": corner[:, 36, 24], "left": corner[:, 36, 40], "top": corner[:, 18, 32]}
    for side, pixel in rows.items():
        assert np.abs(pixel.astype(int) - SIDES[side][1]).max() < 40, side


def test_the_front_of_a_mesh_is_turned_to_azimuth_0(box: Path) -> None:
    around = views((0, 0), (90, 0), (180, 0), (270, 0))
    seen = [side_seen(picture) for picture in render(box, around, front=270)]
    assert seen == ["right", "front", "left", "back"]


def test_the_side_towards_the_lamp_is_brighter_in_the_objects_own_frame(box: Path) -> None:
    scenes = views((45, 0), (45, 0))
    lamps = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    lit = replace(scenes, lamp=lamps, strength=np.full(2, 0.6), ambient=np.full(2, 0.3))
    first, second = render(box, lit, front=0).astype(int)
    assert first[0, 32, 24] > second[0, 32, 24] + 50  # the front is red
    assert second[1, 32, 40] > first[1, 32, 40] + 50  # the left is green


def test_pictures_are_rendered_once_and_kept(tmp_path: Path, box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = {"box": Scan("box", 0), "other box": Scan("box", 90, symmetry=2)}
    monkeypatch.setattr(scanned, "OBJECTS", objects)
    monkeypatch.setattr(scanned, "CLASSES", tuple(objects))
    monkeypatch.setattr(scanned, "VIEWS", 20)
    monkeypatch.setattr(scanned, "random_scenes", lambda name: random_scenes(name, 20))
    models = tmp_path / "scanned" / "models"
    write_box(models / "box")
    splits = load("scanned", tmp_path)
    test = splits.tests["test"]
    assert (len(splits.train), len(splits.validation), len(test)) == (32, 4, 4)
    assert splits.train.symmetry == (1, 2) and has_elevations(splits.train)
    for name in scanned.FILES:
        (models / "box" / name).unlink()
    assert (load("scanned", tmp_path).train.images == splits.train.images).all()
    again = render(box, random_scenes("box", 20))
    assert (again == scanned.read(tmp_path / "scanned").images[:20]).all()  # the same every time

    path = tmp_path / "scanned" / scanned.kept(scanned.SIDE)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UsageError, match="damaged; delete the file"):
        load("scanned", tmp_path)


def test_a_network_can_be_trained_in_the_process_that_rendered(box: Path) -> None:
    """Training imports Triton, whose LLVM and Mesa's do not get on in any order: it would be a segmentation fault."""
    pytest.importorskip("mujoco")
    pytest.importorskip("triton")
    code = (
        "import sys; from pathlib import Path; from qcn.data.scanned import random_scenes, render\n"
        "render(Path(sys.argv[1]), random_scenes('box', 1))\n"
        "import triton.runtime"
    )
    done = subprocess.run([sys.executable, "-c", code, box], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_mesh_that_cannot_be_read_is_named(tmp_path: Path, box: Path) -> None:
    broken = write_box(tmp_path / "broken")
    (broken / "model.obj").write_text("v 0 0 0\n")
    with pytest.raises(UsageError, match=r"MuJoCo cannot read the mesh in .*broken"):
        render(broken, views((0, 0)))


def test_missing_meshes_are_named_with_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"100 of 100 files are missing.*model.obj.*mujoco_scanned_objects"):
        load("scanned", tmp_path)


@pytest.mark.parametrize(
    ("missing", "message"), [("mujoco", "pip install 'qcn-toolkit[scanned]'"), ("OSMesa", "apt install libosmesa6")]
)
def test_what_rendering_lacks_is_one_clear_error(missing: str, message: str) -> None:
    """In a process of its own: MuJoCo loads its renderer once."""
    if missing == "OSMesa" and not installed("mujoco"):
        pytest.skip("MuJoCo is not installed")
    code = f"""
import ctypes, os, sys
os.environ.pop("MUJOCO_GL", None)
load = ctypes.CDLL.__init__
def without(self, name, *rest, **more):
    if "OSMesa" in str(name):
        raise OSError("no such library")
    load(self, name, *rest, **more)
ctypes.CDLL.__init__ = without
from qcn.data import scanned
from qcn.errors import MissingError
if {missing!r} == "mujoco":
    scanned.installed = lambda module: False
try:
    scanned._mujoco()
except MissingError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(result.stdout.splitlines()) == 1
    assert message in result.stdout


def test_views_are_the_same_on_every_machine_and_cover_the_objects() -> None:
    assert len(OBJECTS) == 50 and len({scan.folder for scan in OBJECTS.values()}) == 50
    scenes = [random_scenes(name) for name in OBJECTS]
    azimuth = np.concatenate([one.azimuth for one in scenes])
    elevation = np.concatenate([one.elevation for one in scenes])
    assert (azimuth.min(), azimuth.max(), elevation.min(), elevation.max()) == (0, 359, -20, 80)
    counts = np.bincount(azimuth // 30)
    assert counts.min() > 0.9 * counts.mean()
    assert scenes[0].azimuth[:3].tolist() == [334, 229, 60]
    assert scenes[0].elevation[:3].tolist() == [27, 15, -12]
    assert {scan.symmetry for scan in OBJECTS.values()} == {ROUND, 1, 2, 4}

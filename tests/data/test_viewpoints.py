"""The rendered data set: its structure, what its pictures show, and the file it is kept in."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qcn.data.viewpoints import dataset as viewpoints
from qcn.data.viewpoints import raytrace
from qcn.data.viewpoints.dataset import DATASETS, DEMO, FULL, Variant, load_viewpoints, render
from qcn.data.viewpoints.light import LIGHTS, STEREO, Light
from qcn.data.viewpoints.raytrace import NOTHING, cast, decode
from qcn.data.viewpoints.solids import box, ellipsoid, view_axes
from qcn.data.viewpoints.toys import CATEGORIES, INSTANCES, Toy, toy
from qcn.direction import direction_vector
from qcn.errors import UsageError

CPU = torch.device("cpu")
TINY = Variant(size=16, elevations=(30, 60), azimuths=(0, 20, 180), lightings=(0, 1))
TRAIN = (4, 6, 7, 8, 9)
TOYS = [(category, instance) for category in range(len(CATEGORIES)) for instance in range(INSTANCES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where TINY has been rendered."""
    path = tmp_path_factory.mktemp("data") / "viewpoints"
    load_viewpoints(path, TINY)
    return path


def pictures(category: int, instance: int, elevations=(40,), azimuths=(40,), lights=LIGHTS[:1], size=48):
    """[E, A, L, 2, size, size]"""
    angles = np.array(elevations), np.array(azimuths)
    return raytrace.render(toy(category, instance, 0), *angles, lights, size=size, device=CPU)


def silhouettes(one: Toy, elevations=(40,), azimuths=(40,), size=48):
    """[E · A, size, size]"""
    azimuths, elevations = np.meshgrid(azimuths, elevations)
    return (cast(one, view_axes(azimuths.ravel(), elevations.ravel()), size, CPU) != NOTHING).numpy()


@pytest.fixture(scope="module")
def every_silhouette():
    """Of all toys, in the order of TOYS, from three elevations and six azimuths: [50, 18, 48, 48]."""
    return np.stack([silhouettes(toy(*which, 0), (30, 50, 70), FULL.azimuths[::3]) for which in TOYS])


# ---- structure -------------------------------------------------------------------------------------------------------


def test_the_structure_is_smallnorbs():
    assert FULL.shape == (5, 10, 9, 18, 6)
    assert np.prod(FULL.shape) == 48_600
    assert np.prod(DEMO.shape) == 5_400
    assert FULL.elevations == tuple(range(30, 75, 5))
    assert FULL.azimuths == tuple(range(0, 360, 20))


def test_order_labels_and_views(folder: Path):
    images = load_viewpoints(folder, TINY)
    assert images.images.shape == (5 * 10 * 2 * 3 * 2, 2, 16, 16)
    assert images.classes == ("animal", "human", "airplane", "truck", "car")
    # Lightings go fastest, then azimuths, elevations, instances, categories.
    at = (((3 * 10 + 7) * 2 + 1) * 3 + 2) * 2 + 1
    assert images.labels[at] == 3
    views = images.views
    assert (views.instance[at], views.elevation[at], views.azimuth[at], views.lighting[at]) == (7, 60, 180, 1)
    alone = pictures(3, 7, elevations=(60,), azimuths=(180,), lights=LIGHTS[1:2], size=16)
    np.testing.assert_array_equal(images.images[at], alone[0, 0, 0])


def test_entries_of_the_registry(folder: Path):
    assert [entry.name for entry in DATASETS] == [
        "viewpoints",
        "viewpoints-azimuth",
        "viewpoints-azimuth-pooled",
        "viewpoints-elevation",
        "viewpoints-elevation-pooled",
        "viewpoints-between",
        "viewpoints-dev",
        "viewpoints-demo",
    ]
    for entry in DATASETS:
        assert entry.classes == CATEGORIES
        assert entry.preprocessing.output_size(entry.size, entry.size) == (32, 32)
    splits = viewpoints._dataset("viewpoints-azimuth", "", "azimuth", False, TINY).load(folder)
    assert set(splits.train.views.instance) == set(TRAIN)
    assert set(splits.train.views.azimuth) == {0, 20}
    assert set(splits.tests["novel"].views.azimuth) == {180}


def test_new_toys_are_validated_on_too(folder: Path):
    splits = viewpoints._dataset("viewpoints", "", None, False, TINY).load(folder)
    trained = {image.tobytes() for image in splits.train.images}
    assert set(splits.train.views.instance) == set(TRAIN) and len(splits.train) == 5 * 5 * 2 * 3 * 2
    assert len(splits.validation) == 5 * 10 * 1 * 3 * 1 and set(splits.validation.views.elevation) == {60}
    for images in (splits.validation, *splits.tests.values()):
        assert not trained & {image.tobytes() for image in images.images}


def test_a_direction_of_view_points_from_the_toy_to_the_viewer():
    """The renderer's azimuth and elevation are those of `qcn.direction`, and no category is round."""
    azimuth, elevation = np.meshgrid(np.arange(0, 360, 20), np.arange(30, 75, 5))
    assert np.allclose(view_axes(azimuth, elevation)[..., 2, :], direction_vector(azimuth, elevation))


def test_the_angles_of_the_training_images_are_known():
    assert viewpoints.familiar("viewpoints-between")["azimuth"] == tuple(range(0, 360, 40))
    assert viewpoints.familiar("viewpoints-demo") == {"azimuth": (300, 320, 340, 0, 20, 40), "elevation": (30, 45, 60)}
    assert viewpoints.familiar("viewpoints-elevation") == {
        "azimuth": tuple(range(0, 341, 20)),
        "elevation": (30, 35, 40),
    }
    assert viewpoints.familiar("viewpoints")["elevation"][-1] == 70


def test_importing_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import qcn.data.viewpoints as v; print(len(v.DATASETS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "8"


# ---- geometry --------------------------------------------------------------------------------------------------------


def test_rays_meet_a_ball_where_the_formula_says():
    ball = Toy(0, 0, (ellipsoid((0.1, 0, 0.2), (0.5, 0.5, 0.5), 1.0),), -1.0)
    axes = view_axes([0, 75], [30, 60])
    met = cast(ball, axes, 64, CPU)
    t, _ = decode(met)
    line = (2 * np.arange(64) + 1) / 64 - 1
    for view, (right, up, towards) in enumerate(axes):
        middle = np.array([0.1, 0, 0.2])
        square = 0.25 - (line[None] - middle @ right) ** 2 - (-line[:, None] - middle @ up) ** 2
        inside = square > 1e-4
        expected = -(middle @ towards) - np.sqrt(np.maximum(square, 0))
        np.testing.assert_array_equal(met[view][torch.from_numpy(square < -1e-4)], NOTHING)
        np.testing.assert_allclose(t[view].numpy()[inside], expected[inside], atol=1e-4)


def test_rays_parallel_to_a_face_do_not_stray():
    cube = Toy(0, 0, (box((-0.4, 0.4), 0.4, (-0.4, 0.4), 1.0),), -1.0)
    for angles in ((0, 0), (90, 0), (0, 90)):
        seen = (cast(cube, view_axes(*angles)[None], 50, CPU) != NOTHING).numpy()[0]
        assert seen[15:35, 15:35].all()
        assert seen.sum() == 20 * 20


@pytest.mark.parametrize("category", range(5))
def test_solids_are_convex_and_within_their_bounds(category: int):
    """A point of an outline that another plane cuts off, or bounds that are too tight, would spoil a toy silently."""
    for instance in range(INSTANCES):
        one = toy(category, instance, 0)
        faces = 0
        for solid in one.solids:
            assert (solid.hull @ solid.planes[:, :3].T <= solid.planes[:, 3] + 1e-9).all()
            faces += len(solid.planes) + 1
        assert faces <= raytrace.FACES
    everywhere = np.array([[-1.0, -1, -1], [1, 1, 1], [1, -1, 1], [-1, 1, -1]]) * 2
    loose = replace(one, solids=tuple(replace(solid, hull=everywhere) for solid in one.solids))
    axes = view_axes([0, 40, 200], [30, 50, 70])
    assert torch.equal(cast(one, axes, 64, CPU), cast(loose, axes, 64, CPU))


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_same_seed_same_bytes():
    one = replace(TINY, instances=(2,))
    torch.manual_seed(1)
    first = render(one)
    torch.manual_seed(2)
    assert render(one).tobytes() == first.tobytes()
    assert render(replace(one, seed=1)).tobytes() != first.tobytes()


def test_the_middle_of_the_picture_holds_the_toy(every_silhouette):
    for seen in every_silhouette:
        assert seen[:, 8:40, 8:40].sum() > 0.98 * seen.sum()
        extent = max(seen.any(1).sum(1).max(), seen.any(2).sum(1).max()) / 48
        assert 0.45 < extent < 0.75


def test_every_picture_shows_something_on_plain_ground(folder: Path):
    images = load_viewpoints(folder, TINY).images
    assert (images.std((2, 3)) > 5).all()
    corner = images[:, :, 0, 0].reshape(-1, 2, 2)  # [.., lighting, eye]
    assert (corner > 150).all()
    assert (np.ptp(corner, axis=0) == 0).all()  # the ground is lit the same everywhere


@pytest.mark.parametrize("category", range(5))
def test_the_shadow_falls_away_from_the_lamp(category: int):
    left, right = Light(-60, 50, 0.8, 0.4), Light(60, 50, 0.8, 0.4)
    images = pictures(category, 3, lights=(left, right))[0, 0, :, 0].astype(int)  # [2, 48, 48]
    ground = ~silhouettes(toy(category, 3, 0), azimuths=(40 - STEREO / 2,), size=96)[0]
    ground = ground.reshape(48, 2, 48, 2).all((1, 3))
    columns = []
    for image in images:
        dark = ground & (image < image[0, 0] - 40)
        assert dark.sum() > 20
        columns.append(np.nonzero(dark)[1].mean())
    assert columns[0] > columns[1] + 3
    body = ~ground
    assert np.abs(images[0] - images[1])[body].mean() > 5  # and the toy itself is shaded differently


def test_a_toy_shades_itself():
    table = box((-0.5, 0.5), 0.5, (-0.3, -0.2), 0.8)
    ball = ellipsoid((0, 0, 0.15), (0.15, 0.15, 0.15), 0.8)
    lamp = (Light(0, 80, 0.8, 0.3),)
    bare, under = (
        raytrace.render(Toy(0, 0, solids, -0.3), np.array([45]), np.array([0]), lamp, size=48, device=CPU)[0, 0, 0, 0]
        for solids in ((table,), (table, ball))
    )
    # The table's top, well in front of where the ball is seen.
    row, column = int((1 + 0.2 * np.cos(np.pi / 4)) / 2 * 48) + 1, 24
    assert int(under[row, column]) < int(bare[row, column]) - 60
    assert under[row, 12] == bare[row, 12]


def test_all_lightings_differ():
    images = pictures(4, 0, lights=LIGHTS)[0, 0, :, 0].astype(int)
    for i in range(6):
        for j in range(i):
            assert np.abs(images[i] - images[j]).mean() > 3


def test_what_turns_less_changes_less():
    """From eye to eye (6°) less than from one azimuth to the next (20°), and that less than to the one after (40°)."""
    for category in range(5):
        eyes = pictures(category, 5, azimuths=FULL.azimuths)[0, :, 0].astype(float)  # [18, 2, 48, 48]
        one, two = (np.abs(eyes - np.roll(eyes, step, 0)).mean() for step in (1, 2))
        between = np.abs(eyes[:, 0] - eyes[:, 1]).mean()
        assert 1 < between < 0.8 * one
        assert one < 0.9 * two


def test_instances_of_a_category_differ(folder: Path):
    images = load_viewpoints(folder, TINY).images.astype(float).reshape(5, INSTANCES, -1)
    for category in images:
        apart = np.abs(category[:, None] - category).mean(-1)
        assert apart[~np.eye(INSTANCES, dtype=bool)].min() > 2


def test_the_area_of_a_silhouette_does_not_give_the_category_away(every_silhouette):
    area = every_silhouette.mean((2, 3)).reshape(len(CATEGORIES), INSTANCES, -1)
    test = [i for i in range(INSTANCES) if i not in TRAIN]
    truth = np.arange(len(CATEGORIES))[:, None, None]

    nearest = np.abs(area[:, test, :, None] - area[:, list(TRAIN)].mean((1, 2))).argmin(-1)
    assert (nearest == truth).mean() < 0.4
    edges = np.quantile(area, np.linspace(0, 1, 17)[1:-1])
    bins = np.digitize(area, edges)
    counts = np.stack([np.bincount(one[list(TRAIN)].ravel(), minlength=16) for one in bins])
    assert (counts[:, bins[:, test]].argmax(0) == truth).mean() < 0.4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_renders_the_same_pictures():
    here = pictures(2, 4, lights=LIGHTS)
    angles = np.array([40]), np.array([40])
    there = raytrace.render(toy(2, 4, 0), *angles, LIGHTS, size=48, device=torch.device("cuda"))
    assert (np.abs(here.astype(int) - there) > 2).mean() < 0.002


# ---- the file --------------------------------------------------------------------------------------------------------


def test_the_kept_file_is_what_was_rendered_and_nothing_is_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = replace(TINY, instances=(0,))
    rendered = load_viewpoints(tmp_path, one).images
    with monkeypatch.context() as patch:
        patch.setattr(raytrace, "render", None)
        kept = load_viewpoints(tmp_path, one).images
    np.testing.assert_array_equal(kept, rendered)
    np.testing.assert_array_equal(kept, render(one))


def test_the_name_of_the_file_tells_variants_apart(monkeypatch: pytest.MonkeyPatch):
    others = [replace(TINY, size=32), replace(TINY, seed=1), replace(TINY, azimuths=(0, 20, 200)), DEMO, FULL]
    assert len({variant.file_name for variant in [TINY, *others]}) == 6
    before = TINY.file_name
    monkeypatch.setattr(viewpoints, "RENDERER", viewpoints.RENDERER + 1)
    assert TINY.file_name != before


@pytest.mark.parametrize("damage", ["last byte", "first byte", "middle", "short", "empty"])
def test_a_damaged_file_is_refused(folder: Path, tmp_path: Path, damage: str):
    content = bytearray((folder / TINY.file_name).read_bytes())
    if damage == "short":
        content = content[:-100]
    elif damage == "empty":
        content = bytearray()
    else:
        content[{"last byte": -1, "first byte": 0, "middle": len(content) // 2}[damage]] ^= 1
    path = tmp_path / TINY.file_name
    path.write_bytes(content)
    with pytest.raises(UsageError, match="damaged; delete the file, and they are rendered again") as caught:
        load_viewpoints(tmp_path, TINY)
    assert str(path) in str(caught.value)

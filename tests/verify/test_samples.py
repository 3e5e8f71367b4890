"""Other images than the golden ones: the same every time, answered by weights that were held to the golden ones."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bundles import bundle_of
from PIL import Image
from plants import faulty_weights, trained

from qcn.data.fit import fit, read_picture
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.bundle import Bundle
from qcn.verify.parity import verify as parity
from qcn.verify.parity.samples import samples


def write_pictures(folder: Path, size: int = 24) -> None:
    generator = np.random.default_rng(0)
    for name in ("left/a.png", "left/b.JPG", "left/c.png", "right/d.ppm", "elsewhere/e.png", "f.png"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (size, size, 3), np.uint8)).save(path)
    (folder / "notes.txt").write_text("no picture")


def test_images_of_a_data_set(bundle: Bundle, data_dir: Path) -> None:
    chosen = samples(bundle, "mnist", 12, data_dir)
    golden = chosen.golden
    assert len(golden.rows) == 12 + chosen.edge_cases and chosen.edge_cases == 6
    assert set(golden.label[:12]) == set(range(10)) and golden.rows[-1] == "denormal"
    own = bundle.golden()
    assert np.array_equal(golden.input[-6:], own.input[-6:])  # the same edge cases, by the same pre-processing
    floor = abs(own.float32.pose - own.reference.pose).max()
    assert abs(golden.reference.pose[-6:] - own.reference.pose[-6:]).max() < 8 * floor
    again = samples(bundle, "mnist", 12, data_dir).golden
    assert again.rows == golden.rows and np.array_equal(again.reference.pose, golden.reference.pose)
    for verdict in parity.verify(bundle, ["torch", "native"], {}, True, golden):
        assert verdict.status in ("passed", "missing") and (verdict.images == 18 or verdict.status == "missing")


def test_pictures_in_a_folder(small: Bundle, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    chosen = samples(small, str(tmp_path / "pictures"), None, tmp_path).golden
    labels = dict(zip(chosen.rows, chosen.label, strict=True))
    left, right = map(small.manifest.classes.index, ("left", "right"))
    assert {row: labels[row] for row in chosen.rows[:6]} == {
        "left/a.png": left,
        "left/b.JPG": left,
        "left/c.png": left,
        "right/d.ppm": right,
        "elsewhere/e.png": -1,
        "f.png": -1,
    }
    few = samples(small, str(tmp_path / "pictures"), 4, tmp_path).golden
    assert sorted(row.rpartition("/")[0] for row in few.rows[:4]) == ["", "elsewhere", "left", "right"]
    pixels = np.asarray(Image.open(tmp_path / "pictures" / "left" / "a.png")).transpose(2, 0, 1)
    place = chosen.rows.index("left/a.png")
    spec = small.manifest.preprocessing
    mean, std = (np.array(of)[:, None, None] for of in (spec.mean, spec.std))
    np.testing.assert_allclose(chosen.input[place], (pixels / 255 - mean) / std, rtol=1e-6, atol=1e-7)
    assert [v.status for v in parity.verify(small, ["onnxruntime"], {}, False, chosen)] == ["passed"]


def test_splits_and_tables_have_labels_and_unreadable_files_are_left_out(small: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    for part in ("train", "val", "test"):
        write_pictures(folder / part)
    (folder / "test" / "left" / "broken.png").write_bytes(b"no png")
    chosen = samples(small, str(folder), None, tmp_path)
    labels = dict(zip(chosen.golden.rows, chosen.golden.label, strict=True))
    left, right = map(small.manifest.classes.index, ("left", "right"))
    assert len(labels) == 18 + 6 and chosen.unreadable == (
        f"{folder / 'test/left/broken.png'} is not a picture that Pillow can read",
    )
    assert labels["val/left/a.png"] == left and labels["train/right/d.ppm"] == right
    assert labels["test/elsewhere/e.png"] == labels["test/f.png"] == -1

    table = tmp_path / "list.csv"
    rows = [f"{path},{path.parent.name}" for path in sorted(folder.glob("*/left/*")) + sorted(folder.glob("*/right/*"))]
    table.write_text("\n".join(["path,label", *rows, f"{rows[-1]}\n" * 2]), encoding="utf-8")
    listed = samples(small, str(table), 100, tmp_path)
    assert listed.golden.label[:-6].tolist().count(left) == 9 and listed.golden.label[:-6].tolist().count(right) == 3
    assert len(listed.unreadable) == 1

    for number in range(4):
        (folder / f"{number}.png").write_bytes(b"no png")
    refused = r"too many files of .*pictures cannot be read \(4\), such as: .*\.png is not a picture"
    with pytest.raises(UsageError, match=refused):
        samples(small, str(folder), 100, tmp_path)


def test_pictures_of_any_size_become_images_as_the_bundle_says(small: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    write_pictures(folder, size=40)
    Image.new("RGBA", (640, 480), (200, 100, 50, 128)).save(folder / "wide.png")
    Image.new("L", (3, 700), 9).save(folder / "tall.png")
    chosen = samples(small, str(folder), None, tmp_path).golden
    assert chosen.image.shape == (14, 3, 24, 24) and chosen.input.shape == (14, 3, 24, 24)
    for row, image in zip(chosen.rows[:8], chosen.image, strict=False):
        assert np.array_equal(image, fit(read_picture(folder / row), (3, 24, 24), "crop"))
    spec = replace(small.manifest.preprocessing, fit="letterbox")
    letterbox = bundle_of(tmp_path / "letterbox", trained(0, 24), 24, 24, spec=spec)
    boxed = samples(letterbox, str(folder), None, tmp_path).golden
    assert (boxed.image[boxed.rows.index("wide.png")][:, :3] == 0).all()
    assert (chosen.image[chosen.rows.index("wide.png")] > 0).all()


def test_faulty_weights_are_not_their_own_judge(small: Bundle, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    faulty_weights(small)
    with pytest.raises(CheckFailed, match="does not answer the golden images as the trained network did"):
        samples(Bundle.open(small.folder), str(tmp_path / "pictures"), None, tmp_path)


def test_what_cannot_be_compared_on_is_refused(
    small: Bundle, bundle: Bundle, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(says: str, data: str, count: int | None = None) -> None:
        with pytest.raises(UsageError, match=says):
            samples(small, data, count, data_dir)

    refused("no data set or folder named 'mnst'; did you mean 'mnist'", "mnst")
    refused("mnist has other classes", "mnist")
    refused("has no pictures", str(tmp_path))
    refused("--images is for a data set or a folder", "golden", 3)
    refused("--images must be 1 or more", "mnist", 0)
    (tmp_path / "broken.png").write_bytes(b"no png")
    refused(r"broken\.png is not a picture that Pillow can read", str(tmp_path))
    with pytest.raises(MissingError, match="qcn datasets fetch mnist"):
        samples(bundle, "mnist", None, tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingError, match="need torch"):
        samples(bundle, "mnist", None, data_dir)
    assert samples(bundle, "golden", None, data_dir).edge_cases == 6

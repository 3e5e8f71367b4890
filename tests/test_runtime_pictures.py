"""What `Model.predict` takes: every way to have a picture gives the same pixels, and everything else is refused."""

import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

import qcn
from qcn.data.fit import read_picture
from qcn.errors import UsageError
from qcn.export.bundle import Bundle
from qcn.runtime import Model
from qcn.runtime.pictures import pixels_of

ROOT = Path(__file__).parents[1]
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(2, 0, 1)


@pytest.fixture
def model(bundle: Bundle) -> Model:
    return qcn.load(bundle.folder, "native")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    return tmp_path / "a.png"


class Pipe(io.RawIOBase):
    """A file object that cannot be rewound, as a socket or standard input."""

    def __init__(self, contents: bytes) -> None:
        self._left = io.BytesIO(contents)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._left.readinto(buffer)


WAYS: dict[str, Callable[[Path], Any]] = {
    "path": lambda file: file,
    "text": str,
    "bytes": lambda file: file.read_bytes(),
    "bytearray": lambda file: bytearray(file.read_bytes()),
    "memoryview": lambda file: memoryview(file.read_bytes()),
    "file": lambda file: file.open("rb"),
    "pipe": lambda file: Pipe(file.read_bytes()),
    "image": Image.open,
    "image in memory": lambda file: Image.fromarray(PIXELS),
    "array": lambda file: PIXELS,
    "tensor": lambda file: TENSOR,
    "tensor of floats": lambda file: TENSOR / 255,
    "tensor of half floats": lambda file: TENSOR.double().div(255).half(),
    "tensor with a gradient": lambda file: (TENSOR / 255).requires_grad_(),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_pixels(way: str, file: Path) -> None:
    picture = WAYS[way](file)
    assert np.array_equal(pixels_of(picture), PIXELS)
    if hasattr(picture, "close"):
        picture.close()


def test_one_picture_gives_an_answer_and_several_a_list(model: Model, file: Path) -> None:
    expected = model.predict(PIXELS)
    batch, tensors = np.stack([PIXELS] * 3), torch.stack([TENSOR] * 3)
    several: list[Any] = [[file] * 3, (file, PIXELS, TENSOR), (PIXELS for _ in range(3)), batch, tensors, iter(batch)]
    several.append([str(file), np.asfortranarray(PIXELS), PIXELS[::-1].copy()[::-1]])
    for pictures in several:
        answers = model.predict(pictures)
        assert isinstance(answers, list) and len(answers) == 3
        assert all(np.array_equal(answer.pose, expected.pose) for answer in answers)
        assert {answer.label for answer in answers} == {expected.label}
    assert model.predict([]) == model.predict(()) == model.predict(iter(())) == model.predict(batch[:0]) == []
    assert [answer.label for answer in model.stream(batch)] == [expected.label] * 3
    assert [answer.label for answer in model.predict([PIXELS] * 40)] == [expected.label] * 40


def test_more_than_a_batch_is_read_as_it_is_needed(model: Model) -> None:
    read: list[int] = []

    def pictures() -> Any:
        for number in range(50):
            read.append(number)
            yield PIXELS

    answers = model.stream(pictures(), batch=4)
    next(answers)
    assert len(read) == 4
    assert len(list(answers)) == 49


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I;16", "PA"])
def test_images_of_any_mode_are_what_their_files_are(mode: str, tmp_path: Path) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.arange(0, 65536, 64, np.uint16).reshape(32, 32))
    else:
        image = Image.fromarray(PIXELS).convert("P" if mode == "PA" else mode)
        image = image.convert("PA") if mode == "PA" else image
    found = pixels_of(image)
    assert found.dtype == np.uint8 and found.shape[2] in (1, 3)
    if mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image.save(tmp_path / "a.png")
        assert np.array_equal(found, read_picture(tmp_path / "a.png"))


def test_an_image_is_turned_as_its_file_is(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(PIXELS).save(tmp_path / "a.jpg", exif=exif)
    expected = read_picture(tmp_path / "a.jpg")
    assert expected.shape == (60, 40, 3)
    with Image.open(tmp_path / "a.jpg") as opened:
        assert np.array_equal(pixels_of(opened), expected)
        assert np.array_equal(pixels_of(opened.convert("RGB")), expected)
    assert np.array_equal(pixels_of((tmp_path / "a.jpg").read_bytes()), expected)


def test_floats_give_back_every_pixel() -> None:
    values = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    for kind in (torch.float16, torch.float32, torch.float64):
        assert np.array_equal(pixels_of(values.double().div(255).to(kind)), values.numpy())
    assert pixels_of(torch.tensor([[0.0, -0.0, 1.0]])).tolist() == [[0, 0, 255]]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (7, "a picture is a file's name, .* or a tensor, not int"),
        (None, "not NoneType"),
        ({"a.png": 1}, "not dict"),
        ({"a.png"}, "not set"),
        ([["a.png"]], "not list"),
        ("https://example.org/a.png", r"https://example.org/a.png is an address, not a file: download it first"),
        (Path("http://example.org/a.png"), "download it first"),
        (["HTTPS://example.org/a.png"], "download it first"),
        (b"", "the picture of 0 bytes is not a picture that Pillow can read"),
        (b"a.png", "the picture of 5 bytes is not a picture"),
        (io.StringIO("text"), "opened as text: open it in binary mode"),
        (np.zeros((4, 4), np.float32), r"an array is uint8, from 0 to 255, not float32 \[4, 4\]"),
        (np.zeros((4, 4), bool), "not bool"),
        (np.zeros(4, np.uint8), r"an array is \[H, W\] or \[H, W, C\], or \[N, H, W, C\] .*, not \[4\]"),
        (np.zeros((0, 4), np.uint8), r"not \[0, 4\]"),
        (np.zeros((2, 2, 8, 8, 3), np.uint8), r"not \[2, 2, 8, 8, 3\]"),
        (np.zeros((3, 28, 28), np.uint8), r"not \[3, 28, 28\]: array.transpose\(1, 2, 0\)"),
        (np.zeros((9, 28, 28), np.uint8), r"not \[9, 28, 28\]: array\[..., None\] makes \[N, H, W, 1\]"),
        (torch.zeros(28, 28, 3), r"\[C, H, W\] with 1 to 4 channels, not \[28, 28, 3\]: tensor.permute\(2, 0, 1\)"),
        (torch.zeros(9, 28, 28), r"not \[9, 28, 28\]: tensor\[:, None\] makes \[N, 1, H, W\]"),
        (torch.zeros(28, 28, dtype=torch.int64), "uint8, or floats from 0 to 1, not int64"),
        (torch.full((28, 28), 2.0), r"from 0 \(black\) to 1 \(white\), not from 2 to 2"),
        (torch.full((28, 28), torch.nan), "not from nan to nan"),
        (torch.zeros(28), r"not \[28\]"),
        (Image.new("F", (4, 4)), "the F image of 4×4 cannot be read as a picture: floating-point"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_picture_is_refused_with_what_it_is(model: Model, wrong: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        model.predict(wrong)


def test_a_file_that_cannot_be_read_is_refused(model: Model, file: Path) -> None:
    with file.open("rb") as closed:
        pass
    with pytest.raises(UsageError, match=r"a\.png cannot be read: .*closed"):
        model.predict(closed)
    with file.open("rb") as used:
        used.read()
        with pytest.raises(UsageError, match=r"a\.png is not a picture"):
            model.predict(used)
    for contents in (file.read_bytes()[:3000], io.BytesIO(file.read_bytes()[:3000])):
        with pytest.raises(UsageError, match="cannot be read as a picture"):
            model.predict(contents)
    with pytest.raises(UsageError, match="stream takes several pictures, not one str"):
        next(model.stream("a.png"))


USER = """
import io
from pathlib import Path

import numpy as np
from PIL import Image
from typing_extensions import assert_type

import qcn

model = qcn.load("bundle")
array = np.zeros((8, 8), np.uint8)
assert_type(model, qcn.Model)
for one in (
    model.predict("photo.jpg"),
    model.predict(Path("photo.jpg")),
    model.predict(b""),
    model.predict(io.BytesIO(b"")),
    model.predict(Path("photo.jpg").open("rb")),
    model.predict(Image.new("L", (8, 8))),
    model.predict(array),
    next(model.stream(["photo.jpg"])),
):
    assert_type(one, qcn.Answer)
for several in (
    model.predict(["photo.jpg"]),
    model.predict(("photo.jpg", array)),
    model.predict(Path("holiday").glob("*.jpg")),
    model.predict(image for image in [array]),
    model.predict(list(array)),
):
    assert_type(several, list[qcn.Answer])
assert_type(model.predict("photo.jpg").label, str)
assert_type(model.predict("photo.jpg").probability, float)
assert_type(model.predict("photo.jpg").top(3), list[tuple[str, float]])
assert_type(qcn.__version__, str)
model.predict(7)
"""


@pytest.mark.slow
def test_mypy_sees_the_types_of_the_installed_package(tmp_path: Path) -> None:
    """In an environment without torch, where the package lies as a wheel puts it there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for name in ("numpy", "PIL", "safetensors", "rich", "typer"):
        module = sys.modules.get(name) or __import__(name)
        (packages / name).symlink_to(Path(str(module.__file__)).parent)
    for part in ("__init__.py", "py.typed"):
        assert (ROOT / "qcn" / part).is_file()
    shutil.copytree(ROOT / "qcn", packages / "qcn", ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("export", "calibrate"):
        shutil.copytree(ROOT / part, packages / "qcn" / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "user.py").write_text(USER)
    words = ["--strict", "--config-file=", f"--python-executable={tmp_path / 'venv/bin/python'}", "user.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    errors = [line for line in said.splitlines() if ": error: " in line]
    assert len(errors) == 1 and 'No overload variant of "predict"' in errors[0], said

"""Any picture to the image that a network stores: by the definition in whole numbers, from all kinds of files."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from qcn.data.fit import Fit, fit, read_picture
from qcn.errors import UsageError

RNG = np.random.default_rng(0)


def weights(n: int, m: int) -> NDArray[np.int64]:
    """[m, n] of the definition in `qcn.data.fit`."""
    i, j = np.arange(n), np.arange(m)[:, None]
    w = np.maximum(0, 2 * max(n, m) - np.abs((2 * i + 1) * m - (2 * j + 1) * n))
    total = w.sum(1, keepdims=True)
    return (2 * w * 2**22 + total) // (2 * total)


def by_definition(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.int64]:
    across = np.minimum(
        255, (np.einsum("hwc,jw->hjc", pixels.astype(np.int64), weights(pixels.shape[1], width)) + 2**21) >> 22
    )
    return np.minimum(255, (np.einsum("hwc,jh->jwc", across, weights(pixels.shape[0], height)) + 2**21) >> 22)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_resize_is_the_definition_to_the_last_bit(channels: int) -> None:
    for trial in range(60):
        rows, columns, height, width = (int(side) for side in RNG.integers(1, 200, 4))
        pixels = RNG.integers(0, 256, (rows, columns, channels), dtype=np.uint8)
        if trial % 3 == 0:
            pixels = (pixels // 128 * 255).astype(np.uint8)
        found = fit(pixels, (channels, height, width), "stretch")
        assert np.array_equal(found, by_definition(pixels, height, width).transpose(2, 0, 1)), pixels.shape


def test_an_image_of_the_right_size_stays_as_it_is() -> None:
    pixels = RNG.integers(0, 256, (28, 28, 1), dtype=np.uint8)
    for how in ("crop", "letterbox", "stretch"):
        assert np.array_equal(fit(pixels, (1, 28, 28), how), pixels.transpose(2, 0, 1))  # type: ignore[arg-type]


def test_crop_takes_the_middle_and_letterbox_keeps_all() -> None:
    wide = np.zeros((20, 60), np.uint8)
    wide[:, 20:40] = 200
    assert (fit(wide, (1, 20, 20), "crop") == 200).all()
    boxed = fit(wide, (1, 30, 30), "letterbox")[0]
    assert (boxed[:10] == 0).all() and (boxed[20:] == 0).all() and (boxed[10:20, 11:19] == 200).all()


@pytest.mark.parametrize("how", ["crop", "letterbox", "stretch"])
def test_every_shape_gives_the_shape_asked_for(how: Fit) -> None:
    for rows, columns in ((1, 1), (1, 500), (500, 1), (480, 640), (3, 7)):
        for shape in ((1, 28, 28), (3, 64, 64), (3, 30, 90)):
            assert fit(np.full((rows, columns, 3), 77, np.uint8), shape, how).shape == shape


def test_channels_are_converted_as_pillow_does_and_never_guessed() -> None:
    colour = RNG.integers(0, 256, (9, 9, 3), dtype=np.uint8)
    assert np.array_equal(fit(colour, (1, 9, 9), "crop")[0], np.asarray(Image.fromarray(colour).convert("L")))
    grey = colour[..., :1]
    assert np.array_equal(fit(grey, (3, 9, 9), "crop"), np.repeat(grey.transpose(2, 0, 1), 3, axis=0))
    stereo = colour[..., :2]
    assert np.array_equal(fit(stereo, (2, 9, 9), "crop"), stereo.transpose(2, 0, 1))
    for pixels, channels in ((grey, 2), (colour, 2), (stereo, 1), (stereo, 3)):
        with pytest.raises(UsageError, match="cannot be made from the other"):
            fit(pixels, (channels, 9, 9), "crop")


def test_transparent_pixels_lie_on_white() -> None:
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = 0, 255, 128
    assert fit(pixels, (3, 1, 3), "stretch")[0].tolist() == [[255, 0, 127]]


def test_what_is_not_a_picture_is_refused() -> None:
    for wrong in (np.zeros((4, 4), np.float32), np.zeros((4,), np.uint8), np.zeros((0, 4), np.uint8)):
        with pytest.raises(UsageError, match="a picture is uint8"):
            fit(wrong, (1, 4, 4), "crop")  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".webp", ".jpg"])
def test_files_of_every_kind(tmp_path: Path, suffix: str) -> None:
    picture = Image.fromarray(np.kron(RNG.integers(0, 256, (3, 4, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8)))
    path = tmp_path / f"a{suffix}"
    picture.save(path, **({"quality": 95} if suffix in (".jpg", ".webp") else {}))
    found = read_picture(path)
    assert found.shape == (48, 64, 3)
    assert np.abs(found.astype(int) - np.asarray(picture)).mean() < (6 if suffix in (".jpg", ".webp") else 1e-9)


def test_modes(tmp_path: Path) -> None:
    grey = RNG.integers(0, 256, (5, 6), dtype=np.uint8)
    deep = grey.astype(np.uint16) * 257
    cases = {
        "L": (Image.fromarray(grey), grey[..., None]),
        "16 bit": (Image.fromarray(deep), grey[..., None]),
        "1": (Image.fromarray(grey > 127), ((grey > 127) * 255).astype(np.uint8)[..., None]),
        "LA": (
            Image.merge("LA", [Image.fromarray(grey), Image.new("L", (6, 5), 255)]),
            np.repeat(grey[..., None], 3, 2),
        ),
        "P": (Image.fromarray(grey).convert("P"), np.repeat(grey[..., None], 3, 2)),
    }
    for name, (picture, expected) in cases.items():
        path = tmp_path / f"{name}.png"
        picture.save(path)
        assert np.array_equal(read_picture(path), expected), name


def test_exif_says_which_way_is_up(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    found = read_picture(tmp_path / "a.png")
    assert found.shape == (8, 4, 3) and found[0, -1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
def test_every_orientation_is_turned_as_pillow_does(tmp_path: Path, suffix: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 3), np.uint8)
    for orientation in (*range(1, 9), 0, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.{suffix}"
        Image.fromarray(pixels).save(path, exif=exif)
        with Image.open(path) as opened:
            assert np.array_equal(read_picture(path), np.asarray(ImageOps.exif_transpose(opened)))


def test_an_orientation_in_xmp_turns_nothing(tmp_path: Path) -> None:
    """Pillow would turn it. libqcn does not look there, and answers must be equal."""
    xmp = b'<x:xmpmeta><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></x:xmpmeta>'
    Image.fromarray(np.zeros((4, 8, 3), np.uint8)).save(tmp_path / "a.jpg", xmp=xmp)
    with Image.open(tmp_path / "a.jpg") as opened:
        assert ImageOps.exif_transpose(opened).size == (4, 8)
    assert read_picture(tmp_path / "a.jpg").shape == (4, 8, 3)


def test_unreadable_files_say_so_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("not a picture")
    Image.fromarray(np.zeros((50, 50, 3), np.uint8)).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:60])
    Image.fromarray(np.zeros((5, 5), np.float32)).save(tmp_path / "float.tiff")
    for name in ("empty.png", "text.jpg", "half.png", "float.tiff", "none.png"):
        with pytest.raises(UsageError) as raised:
            read_picture(tmp_path / name)
        assert name in str(raised.value) and "\n" not in str(raised.value), name

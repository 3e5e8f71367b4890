"""libqcn's pre-processing against Python's, bit by bit: pictures of any size, any channels, any place in memory."""

import ctypes
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from bundles import bundle_of, made_once
from numpy.typing import NDArray
from pictures import drawn

from qcn.data.fit import Fit, fit
from qcn.data.numpy_preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import MANIFEST_SHA256
from qcn.libqcn.binding import Image, ModelParams
from qcn.names import MANIFEST
from qcn.networks.model import qcn_tiny

LIBRARY = Path(__file__).parents[1] / "build" / "libqcn.so"
FITS: tuple[Fit, ...] = get_args(Fit)
SPECS = {
    1: Preprocessing(resize=40, crop=32, mean=(0.1307,), std=(0.3081,)),
    2: Preprocessing(resize=48, crop=32, standardise="image"),
    3: Preprocessing(mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616)),
}
SIZES = (
    *((1, 1), (1, 9), (31, 33), (32, 32), (64, 64), (67, 41), (96, 96)),
    *((240, 321), (480, 640), (1081, 1917), (2, 1500), (1, 16384), (16384, 1)),
)


class Model:
    """As much of qcn.h as pre-processing takes."""

    def __init__(self, bundle: Bundle) -> None:
        self.shape = bundle.manifest.input.shape
        self.library = ctypes.CDLL(str(LIBRARY))
        self.library.qcn_last_error.restype = ctypes.c_char_p
        self.model = ctypes.c_void_p()
        params = ModelParams(ctypes.sizeof(ModelParams), backend=1)  # native, without a self-test
        self._succeed(
            self.library.qcn_model_load(os.fsencode(bundle.folder), ctypes.byref(params), ctypes.byref(self.model))
        )

    def preprocess(self, pixels: NDArray[Any], reverse: bool = False) -> NDArray[np.float32]:
        """[H, W, C], in any memory layout, to what the network sees. ValueError: what the library says against it."""
        height, width, channels = pixels.shape
        kind = {np.dtype(np.uint8): 0, np.dtype(np.float32): 1}[pixels.dtype]
        strides = pixels.strides[1], pixels.strides[0], pixels.strides[2]
        place, size = pixels.ctypes.data, ctypes.sizeof(Image)
        image = Image(size, place, width, height, channels, kind, *strides, int(reverse), 0)
        out = np.full(self.shape, np.nan, np.float32)
        answer = out.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._succeed(self.library.qcn_preprocess(self.model, ctypes.byref(image), answer))
        return out

    def _succeed(self, status: int) -> None:
        if status:
            raise ValueError(self.library.qcn_last_error().decode())


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Bundle]:
    """Bundles of untrained networks of 1, 2 and 3 channels, whose input is 32×32."""
    if not LIBRARY.exists():
        pytest.skip("there is no build/libqcn.so: make build/libqcn.so")

    def make(folder: Path) -> None:
        torch.manual_seed(0)
        for channels, spec in SPECS.items():
            bundle_of(folder / str(channels), qcn_tiny(channels, 10).eval(), 32, 32, spec=spec)

    folder = made_once(tmp_path_factory, "fit", make)
    return {channels: Bundle.open(folder / str(channels)) for channels in SPECS}


@contextmanager
def fitting(bundle: Bundle, how: Fit, folder: Path) -> Iterator[tuple[Model, Bundle]]:
    """The same network with its pictures fitted in this way, and the library's model of it."""
    altered = json.loads((bundle.folder / MANIFEST).read_text())
    altered["preprocessing"]["fit"] = how
    text = json.dumps(altered).encode()
    for path in bundle.folder.iterdir():
        if path.is_file() and path.name not in (MANIFEST, MANIFEST_SHA256):
            (folder / path.name).hardlink_to(path)
    (folder / MANIFEST).write_bytes(text)
    (folder / MANIFEST_SHA256).write_text(f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n")
    model = Model(Bundle.open(folder))
    try:
        yield model, Bundle.open(folder)
    finally:
        model.library.qcn_model_free(model.model)


def input_of(bundle: Bundle, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """By Python's definition."""
    manifest = bundle.manifest
    return preprocess(fit(pixels, manifest.image, manifest.preprocessing.fit)[None], manifest.preprocessing)[0]


def picture(height: int, width: int, channels: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(drawn(channels, height, width).transpose(1, 2, 0))


@pytest.mark.parametrize("how", FITS)
@pytest.mark.parametrize(("channels", "wanted"), [(1, 1), (3, 1), (4, 1), (1, 3), (3, 3), (4, 3), (2, 2)])
def test_the_library_sees_what_python_sees(
    bundles: dict[int, Bundle], channels: int, wanted: int, how: Fit, tmp_path: Path
) -> None:
    with fitting(bundles[wanted], how, tmp_path) as (model, bundle):
        for size in SIZES:
            pixels = picture(*size, channels)
            expected = input_of(bundle, pixels)
            assert np.array_equal(model.preprocess(pixels), expected), size
            # One channel after the other, from below, mirrored, between other bytes, and with the last colour first:
            # it is the same picture.
            planar = np.ascontiguousarray(pixels.transpose(2, 0, 1)).transpose(1, 2, 0)
            below = np.ascontiguousarray(pixels[::-1, ::-1])[::-1, ::-1]
            sparse = np.full((size[0] + 1, size[1] + 3, channels + 1), 99, np.uint8)[1:, 3:, :channels]
            sparse[...] = pixels
            reversed_ = pixels.copy()
            reversed_[..., : min(channels, 3)] = pixels[..., : min(channels, 3)][..., ::-1]
            assert np.array_equal(model.preprocess(planar), expected), size
            assert np.array_equal(model.preprocess(below), expected), size
            assert np.array_equal(model.preprocess(sparse), expected), size
            assert np.array_equal(model.preprocess(reversed_, reverse=True), expected), size


def test_random_pictures_are_seen_alike(bundles: dict[int, Bundle], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for how in FITS:
        (tmp_path / how).mkdir()
        with fitting(bundles[3], how, tmp_path / how) as (model, bundle):
            for _ in range(100):
                size = (int(side) for side in rng.integers(1, 300, 2))
                pixels = rng.integers(0, 256, (*size, rng.choice([1, 3, 4])), dtype=np.uint8)
                if rng.random() < 0.3:
                    pixels = (pixels // 128 * 255).astype(np.uint8)
                assert np.array_equal(model.preprocess(pixels), input_of(bundle, pixels)), pixels.shape


def test_a_constant_picture_is_exactly_zero(bundles: dict[int, Bundle], tmp_path: Path) -> None:
    with fitting(bundles[2], "stretch", tmp_path) as (model, _):
        for value in (0, 7, 255):
            assert (model.preprocess(np.full((53, 71, 2), value, np.uint8)) == 0).all()


@pytest.mark.parametrize("channels", SPECS)
def test_floats_of_the_data_sets_size_differ_in_a_last_bit_at_most(
    bundles: dict[int, Bundle], channels: int, tmp_path: Path
) -> None:
    from qcn.data.preprocess import preprocess as of_floats

    with fitting(bundles[channels], "crop", tmp_path) as (model, bundle):
        manifest = bundle.manifest
        floats = (picture(*manifest.image[1:], channels) / 255).astype(np.float32)
        for odd in (None, np.nan):
            if odd is not None:
                floats[20, 20, channels - 1] = odd
            tensor = torch.from_numpy(floats.transpose(2, 0, 1).copy())[None]
            expected = of_floats(tensor, manifest.preprocessing)[0].numpy()
            found = model.preprocess(floats)
            assert np.array_equal(np.isnan(found), np.isnan(expected)) and np.isnan(found).any() == (odd is not None)
            np.testing.assert_array_max_ulp(np.nan_to_num(found), np.nan_to_num(expected), maxulp=1)


def test_what_has_no_one_way_is_refused(bundles: dict[int, Bundle]) -> None:
    models = {channels: Model(bundle) for channels, bundle in bundles.items()}
    for channels, wanted in ((1, 2), (3, 2), (4, 2), (2, 1), (2, 3), (5, 3)):
        with pytest.raises(
            ValueError, match=f"has {channels} channels, and the network takes {wanted}: there is no way"
        ):
            models[wanted].preprocess(picture(64, 64, channels))
    for size in ((63, 64), (64, 65), (480, 640)):
        with pytest.raises(ValueError, match="floats are taken in the size of the network's images, 32×32"):
            models[1].preprocess(np.zeros((*size, 1), np.float32))
    with pytest.raises(ValueError, match=r"floats are taken in .* 32×32 with 3 channels, not 32×32 with 1"):
        models[3].preprocess(np.zeros((32, 32, 1), np.float32))
    with pytest.raises(ValueError, match="at most 16384×16384 pixels, not 1×16385"):
        models[1].preprocess(np.zeros((16385, 1, 1), np.uint8))
    for model in models.values():
        model.library.qcn_model_free(model.model)

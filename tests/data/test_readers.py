"""Readers of the official formats: right on small files, and one clear line for every bad file."""

import hashlib
import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import official
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qcn.data import checksums, cifar10, registry, smallnorb
from qcn.data.binary import read_bytes
from qcn.data.imageset import Splits
from qcn.data.mnist import read_idx
from qcn.errors import QcnError, UsageError


def everything(splits: Splits) -> int:
    return sum(map(len, (splits.train, splits.validation, *splits.tests.values())))


# ---- MNIST ----


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist(tmp_path, suffix):
    written = official.write_mnist(tmp_path / "mnist", suffix)
    splits = registry.load("mnist", tmp_path)
    test = splits.tests["test"]
    assert np.array_equal(test.images, written["t10k"][:, None])
    assert test.labels.tolist() == [i % 10 for i in range(20)]
    assert test.labels.dtype == np.int64
    assert (len(splits.train), len(splits.validation)) == (30, 10)
    assert test.images.flags.writeable  # torch.from_numpy warns otherwise


IMAGES = official.idx(np.zeros((40, 28, 28)))
LABELS = official.idx(np.arange(40) % 10)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"", "truncated: 0 bytes are too few for its header"),
        ("train-images-idx3-ubyte", IMAGES[:9], "too few for its header"),
        ("train-images-idx3-ubyte", IMAGES[:-1], "truncated: 31,375 bytes, but by its header it has 40×28×28, 31,376"),
        ("train-images-idx3-ubyte", IMAGES + b"!", "too long: 31,377 bytes"),
        ("train-images-idx3-ubyte", LABELS, "magic number 0x00000801, not 0x00000803"),
        ("train-images-idx3-ubyte", struct.pack(">4I", 0x803, *[2**32 - 1] * 3), "truncated: 16 bytes"),
        ("train-images-idx3-ubyte", official.idx(np.zeros((40, 32, 32))), "images of 32×32 pixels, not 28×28"),
        ("train-images-idx3-ubyte", official.idx(np.zeros((39, 28, 28))), "39 images but labels of shape"),
        ("train-images-idx3-ubyte", official.idx(np.zeros((0, 28, 28))), "no images"),
        ("train-images-idx3-ubyte", b" \n<!DOCTYPE html><html><body>404</body></html>", "is a web page, not data"),
        ("train-labels-idx1-ubyte", LABELS[:-1] + b"\x0a", "label 10 is out of range"),
        ("train-images-idx3-ubyte", b"\x1f\x8b" + bytes(50), "truncated or damaged gzip"),
    ],
)
def test_bad_mnist_file(tmp_path, file, content, message):
    official.write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / file).write_bytes(content)
    with pytest.raises(UsageError) as error:
        registry.load("mnist", tmp_path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "mnist" / "train-"))
    assert f"delete the file and get it again with: qcn datasets fetch mnist --data-dir {tmp_path}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cut", [1, 8, 1000])
def test_truncated_gzip(tmp_path, cut):
    official.write_mnist(tmp_path / "mnist", ".gz")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(UsageError, match=r"t10k-images-idx3-ubyte\.gz: truncated or damaged gzip"):
        registry.load("mnist", tmp_path)


def test_damaged_gzip(tmp_path):
    official.write_mnist(tmp_path / "mnist", ".gz")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UsageError, match="truncated or damaged gzip"):
        registry.load("mnist", tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("file", ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
def test_altered_labels_or_pixels_are_refused(tmp_path, file, suffix):
    """What no reader can see: every byte of the file is possible, but it is not the official one."""
    official.write_mnist(tmp_path / "mnist", suffix)
    registry.load("mnist", tmp_path)
    path = tmp_path / "mnist" / f"{file}{suffix}"
    content = bytearray(read_bytes(path).tobytes())
    content[-1] ^= 1
    before = path.stat()
    official.write(path, bytes(content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if nothing had been written
    says = (
        rf"{file}{suffix}: was altered: its contents have md5 \w{{32}}, the official file's \w{{32}}; delete the file"
    )
    for _ in range(2):
        with pytest.raises(UsageError, match=says):
            registry.load("mnist", tmp_path)


def test_the_md5_of_a_file_is_worked_out_once(tmp_path, monkeypatch):
    official.write_mnist(tmp_path, ".gz")
    (tmp_path / checksums.RECORD).unlink()
    names = registry.find("mnist").contents
    right = {name: hashlib.md5(read_bytes(tmp_path / f"{name}.gz").data).hexdigest() for name in names}
    some = replace(registry.find("mnist"), contents=right)
    read = []
    monkeypatch.setattr(checksums, "read_bytes", lambda path: read.append(path.name) or read_bytes(path))
    checksums.check(some, tmp_path)
    assert sorted(read) == sorted(f"{name}.gz" for name in names)
    checksums.check(some, tmp_path)
    assert len(read) == 4
    first = tmp_path / "train-labels-idx1-ubyte.gz"
    first.write_bytes(first.read_bytes())  # the same, written anew
    checksums.check(some, tmp_path)
    assert read[4:] == [first.name]
    for broken in ("", "[]", "{", '{"train-labels-idx1-ubyte": 7}'):
        (tmp_path / checksums.RECORD).write_text(broken)
        checksums.check(some, tmp_path)
    assert len(read) == 5 + 4 * 4
    monkeypatch.setattr(checksums, "write_text", lambda path, text: path.joinpath("no").write_text(text))
    (tmp_path / checksums.RECORD).unlink()
    checksums.check(some, tmp_path)  # where nothing may be written it is checked each time
    assert not (tmp_path / checksums.RECORD).exists()


def test_every_file_of_an_official_data_set_has_its_md5():
    for dataset in registry.DATASETS.values():
        served = {
            Path(member).name
            for file in dataset.files
            for member in getattr(file, "members", (file.name.removesuffix(".gz"),))
        }
        assert set(dataset.contents) == served
        assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in dataset.contents.values())


# ---- CIFAR-10 ----


@pytest.fixture
def cifar_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "RECORDS", 20)
    official.write_cifar10(tmp_path / "cifar-10-batches-bin", 20)
    return tmp_path / "cifar-10-batches-bin"


def test_cifar10(cifar_folder):
    splits = registry.load("cifar10", cifar_folder.parent)
    test = splits.tests["test"]
    assert test.images.shape == (20, 3, 32, 32)
    assert [test.images[7, c, 3, 4] for c in range(3)] == [5, 15, 25]
    assert test.labels[13] == 3
    assert (len(splits.train), len(splits.validation)) == (90, 10)
    assert test.images.flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(19 * 3073), "58,387 bytes, not 61,460"),  # cut at the end of a record: no header tells
        (bytes(20 * 3073 - 1), "61,459 bytes, not 61,460"),
        (b"<html>no</html>", "is a web page"),
        (b"\x0b" + bytes(20 * 3073 - 1), "label 11 is out of range"),
    ],
)
def test_bad_cifar10_file(cifar_folder, content, message):
    (cifar_folder / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(UsageError, match=message) as error:
        registry.load("cifar10", cifar_folder.parent)
    assert "data_batch_3.bin: " in str(error.value)


# ---- SVHN ----


def test_svhn(tmp_path):
    official.write_svhn(tmp_path / "svhn")
    test = registry.load("svhn", tmp_path).tests["test"]
    assert test.images.shape == (40, 3, 32, 32)
    assert test.images[17, :, 5, 9].tolist() == [17, 5, 9]
    assert test.labels[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]  # the label 10 is the digit 0


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"X": np.zeros((32, 32, 3, 39), np.uint8)}, "39 images but labels of shape"),
        ({"X": np.zeros((28, 28, 3, 40), np.uint8)}, r"X is uint8 \[28, 28, 3, 40\], not uint8 \[32, 32, 3, N\]"),
        ({"X": np.zeros((32, 32, 3, 40))}, "X is float64"),
        ({"y": np.full((40, 1), 11, np.uint8)}, "labels other than the integers 1 to 10"),
        ({"y": np.zeros((40, 1), np.uint8)}, "labels other than the integers 1 to 10"),
        ({"y": np.full((40, 1), 1.5)}, "labels other than the integers 1 to 10"),
        ({"y": {"a": 1}}, "labels other than the integers 1 to 10"),
    ],
)
def test_bad_svhn_matrix(tmp_path, replaced, message):
    official.write_svhn(tmp_path / "svhn", **replaced)
    with pytest.raises(UsageError, match=message):
        registry.load("svhn", tmp_path)


@pytest.mark.parametrize("content", [b"", b"no matlab file at all" * 50, b"<!doctype html>", bytes(4000)])
def test_svhn_file_that_is_no_mat(tmp_path, content):
    official.write_svhn(tmp_path / "svhn")
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(content)
    with pytest.raises(
        UsageError, match=r"test_32x32\.mat: (damaged, or not a Matlab 5 file|is a web page|has no matrix)"
    ):
        registry.load("svhn", tmp_path)


def test_svhn_without_labels(tmp_path):
    from scipy.io import savemat

    official.write_svhn(tmp_path / "svhn")
    savemat(tmp_path / "svhn" / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 4), np.uint8)})
    with pytest.raises(UsageError, match="has no matrix named y"):
        registry.load("svhn", tmp_path)


def test_truncated_svhn(tmp_path):
    official.write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UsageError, match=r"damaged, or not a Matlab 5 file|has no matrix"):
        registry.load("svhn", tmp_path)


# ---- smallNORB ----


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_smallnorb(tmp_path, suffix):
    official.write_smallnorb(tmp_path / "smallnorb", suffix)
    images = smallnorb.read(tmp_path / "smallnorb")
    assert images.images.shape == (900, 2, 96, 96)
    assert images.views is not None
    assert np.array_equal(images.images[:, 0, 50, 50], images.labels + 10 * images.views.instance)
    assert np.array_equal(images.images[:, 1, 7, 90] * 10, images.views.azimuth)
    assert set(images.views.elevation) == set(range(30, 75, 5))
    assert set(images.views.azimuth) <= set(range(0, 360, 20))
    assert set(images.views.lighting) == {3}
    splits = registry.load("smallnorb", tmp_path)
    assert everything(splits) == 900
    assert set(splits.tests["test"].views.instance) == {0, 1, 2, 3, 5}


def norb_header(magic: int, *numbers: int) -> bytes:
    return struct.pack(f"<{1 + len(numbers)}I", magic, *numbers)


CATEGORY, INFO = (table[::9] for table in official.norb_tables(official.NORB_TRAIN))
WRONG_AZIMUTH = INFO.copy()
WRONG_AZIMUTH[7, 2] = 3


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("dat", b"\x55\x4c", "too few for its header"),
        ("dat", official.norb(CATEGORY), "magic number 0x1E3D4C54, not 0x1E3D4C55"),
        ("dat", norb_header(0x1E3D4C55, 2**31, 1, 1, 1), "a matrix of 2147483648 dimensions, not 4"),
        ("dat", norb_header(0x1E3D4C55, 4, *[2**32 - 1] * 4), "truncated: 24 bytes"),
        ("dat", official.norb(np.zeros((450, 2, 32, 32), np.uint8)), "pairs of [2, 32, 32], not [2, 96, 96]"),
        ("cat", official.norb(CATEGORY)[:-2], "truncated"),
        ("cat", official.norb(CATEGORY) + b"\0", "too long"),
        ("cat", official.norb(CATEGORY[1:]), "450 images but labels of shape [449]"),
        ("cat", official.norb(CATEGORY + 1), "label 5 is out of range"),
        ("cat", official.norb(CATEGORY - 1), "label -1 is out of range"),
        ("info", official.norb(INFO[1:]), "a table of [449, 4], not [450, 4]"),
        ("info", official.norb(WRONG_AZIMUTH), "azimuth must be one of 0, 2, 4"),
        ("info", b"<html>moved</html>", "is a web page"),
    ],
)
def test_bad_smallnorb_file(tmp_path, kind, content, message):
    official.write_smallnorb(tmp_path / "smallnorb")
    (tmp_path / "smallnorb" / f"{official.NORB_TRAIN}-{kind}.mat").write_bytes(content)
    with pytest.raises(UsageError) as error:
        registry.load("smallnorb", tmp_path)
    assert message in str(error.value)
    assert official.NORB_TRAIN in str(error.value)


# ---- any bytes at all ----

GOOD_STARTS = (
    b"",
    b"\x1f\x8b\x08",
    b"\0\0\x08\x03",
    b"\0\0\x08\x01",
    norb_header(0x1E3D4C55, 4),
    norb_header(0x1E3D4C54, 1),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(GOOD_STARTS), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(tmp_path, start, rest):
    path = tmp_path / "file"
    path.write_bytes(start + rest)
    for read in (
        lambda: read_idx(path, 3),
        lambda: read_idx(path, 1),
        lambda: smallnorb.read_matrix(path, smallnorb.BYTES, 4),
        lambda: smallnorb.read_matrix(path, smallnorb.INTEGERS, 1),
    ):
        try:
            read()
        except QcnError as error:
            assert "\n" not in str(error)


@given(shape=st.lists(st.integers(0, 5), min_size=3, max_size=3), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_written_is_read(tmp_path, shape, seed):
    array = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    official.write(tmp_path / "i", official.idx(array))
    official.write(tmp_path / "n", official.norb(array.astype(int)))
    assert np.array_equal(read_idx(tmp_path / "i", 3), array)
    assert np.array_equal(smallnorb.read_matrix(tmp_path / "n", smallnorb.INTEGERS, 3), array)

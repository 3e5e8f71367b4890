"""The registry of data sets: consistent, light to import, clear where files are missing, right on the real files."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from qcn.data import registry
from qcn.errors import MissingError, UsageError

REAL = Path(__file__).parents[2] / "data"


def test_registry_agrees_with_itself():
    assert set(registry.DATASETS) >= {"mnist", "fashion-mnist", "cifar10", "svhn", "smallnorb", "smallnorb-azimuth"}
    for name, dataset in registry.DATASETS.items():
        assert dataset.name == name
        assert set(dataset.augmentation) == {"paper", "best"}
        for file in dataset.files:
            assert len(bytes.fromhex(file.md5)) == hashlib.md5().digest_size
        assert len({file.md5 for file in dataset.files}) == len(dataset.files)


def test_unknown_name_suggests_the_near_one():
    with pytest.raises(UsageError, match="did you mean 'fashion-mnist'"):
        registry.find("fashion_mnist")


def test_importing_the_registry_stays_light():
    code = "import qcn.data.registry, sys; print([m for m in ('torch', 'scipy', 'PIL', 'rich') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("name", [name for name, dataset in registry.DATASETS.items() if dataset.files])
def test_missing_files_are_named_with_the_command_that_brings_them(tmp_path, name):
    dataset = registry.find(name)
    with pytest.raises(MissingError) as error:
        registry.load(name, tmp_path)
    assert str(tmp_path / dataset.folder) in str(error.value)
    assert f"qcn datasets fetch {name} --data-dir {tmp_path}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "train", "first_test_labels", "mean_test_pixel"),
    [
        ("mnist", 60_000, [7, 2, 1, 0, 4, 1, 4, 9, 5, 9], 33.7912),
        ("fashion-mnist", 60_000, [9, 2, 1, 1, 6, 1, 4, 6, 5, 7], 73.1466),
        ("cifar10", 50_000, [3, 8, 8, 0, 6, 6, 1, 6, 3, 1], 121.5292),
    ],
)
def test_real_files(name, train, first_test_labels, mean_test_pixel):
    if not (REAL / registry.find(name).folder).is_dir():
        pytest.skip(f"the real {name} is not in {REAL}")
    splits = registry.load(name, REAL)
    test = splits.tests["test"]
    assert len(splits.train) + len(splits.validation) == train
    assert len(splits.validation) == pytest.approx(train / 10, abs=5)
    assert len(test) == 10_000
    assert test.labels[:10].tolist() == first_test_labels
    assert test.images.mean() == pytest.approx(mean_test_pixel, abs=1e-3)
    dataset = registry.find(name)
    assert test.images.shape[1:] == (dataset.channels, dataset.size, dataset.size)

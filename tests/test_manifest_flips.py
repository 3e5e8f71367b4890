"""A manifest that was altered where no other file's hash shows it: libqcn and Python refuse it, hash made right or not.

Every field of pre-processing and every name of a class is altered in several ways. Before, none of it was seen by
libqcn's self-test, which began behind pre-processing.
"""

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import bundle_of
from libqcn_load import BAD_BUNDLE, OK, WRONG_ANSWER, load

from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.bundle.manifest import MANIFEST_SHA256
from qcn.networks.model import qcn_tiny
from qcn.verify.parity.preprocessing import check_preprocessing

SIDE = 28
SPECS = {
    "crop": Preprocessing(crop=SIDE, mean=(0.1307, 0.4), std=(0.3081, 0.2)),
    "resize": Preprocessing(resize=SIDE, mean=(0.1307, 0.4), std=(0.3081, 0.2)),
    "resize and crop": Preprocessing(resize=SIDE + 8, crop=SIDE, standardise="image"),
}
Record = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    torch.manual_seed(0)
    network = qcn_tiny(2, 5).eval()
    folder = tmp_path_factory.mktemp("flips")
    return {name: bundle_of(folder / name, network, SIDE, SIDE, spec=spec) for name, spec in SPECS.items()}


def flips(record: Record) -> Iterator[Callable[[Record], None]]:
    """Changes of the manifest, one at a time."""

    def put(name: str, value: object) -> Callable[[Record], None]:
        return lambda changed: changed["preprocessing"].__setitem__(name, value)

    spec, sides = record["preprocessing"], record["image"]
    for side in ("resize", "crop"):
        for value in (None, 1, SIDE - 1, SIDE, SIDE + 1, SIDE + 8, SIDE + 9, 2 * SIDE, 10_000):
            if value != spec[side]:
                yield put(side, value)
    other = "image" if spec["standardise"] == "dataset" else "dataset"
    means: Record = {"mean": [], "std": []} if other == "image" else {"mean": [0.5, 0.5], "std": [0.5, 0.5]}
    yield lambda changed: changed["preprocessing"].update(standardise=other, **means)
    yield put("standardise", other)
    yield lambda changed: changed["preprocessing"].update(mean=[0.5, 0.5], std=[0.5, 0.5])
    for name, channel in itertools.product(("mean", "std"), range(len(spec["mean"]))):
        before = spec[name][channel]
        for value in (before * (1 + 1e-6), before * 1.01, before * 2, -before, before + 1, 0.0, 1e30):
            yield put(name, [*spec[name][:channel], value, *spec[name][channel + 1 :]])
    for name in ("mean", "std"):
        if spec[name]:
            yield put(name, spec[name][::-1])
    for image in ([sides[0], sides[1] + 1, sides[2]], [sides[0], sides[1], 2 * sides[2]], [1, *sides[1:]]):
        yield lambda changed, image=image: changed.__setitem__("image", image)  # type: ignore[misc]
    names = record["classes"]
    for index in range(len(names)):
        for renamed in ("another", names[index] + "s", names[index].upper(), "é"):
            yield lambda changed, i=index, new=renamed: changed["classes"].__setitem__(i, new)  # type: ignore[misc]
    for order in itertools.islice(itertools.permutations(names), 1, None, 7):
        yield lambda changed, order=order: changed.__setitem__("classes", list(order))  # type: ignore[misc]


def python_refuses(folder: Path) -> bool:
    """As `qcn verify-parity` judges."""
    try:
        return check_preprocessing(Bundle.open(folder)).status == "failed"
    except UsageError:
        return True


@pytest.mark.parametrize("name", SPECS)
def test_altered_pre_processing_and_classes_are_refused(made: dict[str, Bundle], tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(made[name].folder, tmp_path / "bundle"))
    manifest, sums = folder / MANIFEST, folder / MANIFEST_SHA256
    honest, honest_sums = manifest.read_text(encoding="utf-8"), sums.read_bytes()
    assert load(folder) == (OK, "") and not python_refuses(folder)
    passed, count = [], 0
    for flip in flips(json.loads(honest)):
        record = json.loads(honest)
        flip(record)
        assert record != json.loads(honest)
        text = json.dumps(record).encode()
        manifest.write_bytes(text)
        sums.write_bytes(honest_sums)
        status, said = load(folder)
        assert status == BAD_BUNDLE and "manifest.sha256" in said, said
        sums.write_bytes(f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode())  # by whoever altered it
        count += 1
        difference = {key: value for key, value in record.items() if value != json.loads(honest)[key]}
        if load(folder)[0] not in (BAD_BUNDLE, WRONG_ANSWER):
            passed.append(("libqcn", difference))
        if not python_refuses(folder):
            passed.append(("Python", difference))
    assert passed == [] and count > 50
    print(f"{name}: {count} flips")


def test_without_the_self_test_the_hash_of_the_manifest_still_counts(made: dict[str, Bundle], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made["crop"].folder, tmp_path / "bundle"))
    assert load(folder, self_test=0)[0] == OK
    manifest = folder / MANIFEST
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("class0", "classO"), encoding="utf-8")
    status, said = load(folder, self_test=0)
    assert status == BAD_BUNDLE and "was altered" in said
    (folder / MANIFEST_SHA256).unlink()
    status, said = load(folder, self_test=0)
    assert status == BAD_BUNDLE and "is missing" in said

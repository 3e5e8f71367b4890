"""The shared cases of manifests, by Python's reader. libqcn's reader is held to the same (deploy/tests).

Those in other-formats/ are wrong about files that libqcn never opens: it takes them, and Python does not.
"""

from pathlib import Path

import pytest

from qcn.errors import UsageError
from qcn.export.bundle.manifest import Manifest

FOLDER = Path(__file__).parent / "manifests"
GOOD, BAD, OTHERS = (sorted((FOLDER / verdict).glob("*.json")) for verdict in ("good", "bad", "other-formats"))


def test_there_are_cases() -> None:
    assert len(GOOD) >= 4 and len(BAD) >= 25, f"{FOLDER} has {len(GOOD)} good and {len(BAD)} bad manifests"


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_manifest_is_read_and_written_again(path: Path) -> None:
    manifest = Manifest.from_json(path.read_bytes())
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize("path", [*BAD, *OTHERS], ids=lambda path: path.stem)
def test_a_bad_manifest_is_refused(path: Path) -> None:
    with pytest.raises(UsageError):
        Manifest.from_json(path.read_bytes())

"""Reports say which network they are of."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plants import honest
from test_report import report, verdict

from qcn import records
from qcn.confidence import Confidence
from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.bundle.digest import manifest_sums
from qcn.export.bundle.manifest import MANIFEST_SHA256
from qcn.verify.report.merge import merge


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Another network under the same name, with the same source in its manifest."""
    return honest(tmp_path_factory.mktemp("other") / "bundle", seed=1)


def test_the_hash_is_of_the_network_and_not_of_what_else_is_in_a_bundle(small: Bundle, other: Bundle) -> None:
    before, network = small.manifest_sha256, small.manifest.network_sha256
    assert before == hashlib.sha256((small.folder / MANIFEST).read_bytes()).hexdigest()
    with small.adding("model.fused.onnx", "onnx-fused", "fp32", "qcn export {bundle}") as draft:
        draft.path.write_bytes(b"another file")
    again = Bundle.open(small.folder)
    assert small.manifest_sha256 == again.manifest_sha256 != before
    assert again.manifest.network_sha256 == network
    assert other.manifest.source == small.manifest.source and other.manifest.network_sha256 != network
    warmer = replace(small.manifest, confidence=Confidence(2.0, 0.01))
    assert warmer.network_sha256 != network
    assert replace(small.manifest, classes=small.manifest.classes[::-1]).network_sha256 != network
    text = (small.folder / MANIFEST).read_bytes() + b"\n"  # of which it is the same manifest
    (small.folder / MANIFEST).write_bytes(text)
    (small.folder / MANIFEST_SHA256).write_bytes(manifest_sums(text))
    assert Bundle.open(small.folder).manifest_sha256 == hashlib.sha256(text).hexdigest()


def test_devices_are_merged_by_network(tmp_path: Path) -> None:
    """Two bundles of one network merge, whatever else is in them."""
    good = report(verdict("native", "model.onnx", 1.0), status="passed")

    def put(name: str, **more: Any) -> Path:
        records.write(tmp_path / name / "report.json", replace(good, **more))
        return tmp_path / name

    merged = merge([put("orin"), put("gate", manifest_sha256="8" * 64)], None, 0.1, "")
    assert [one.status for one in merged.fleet.devices] == ["passed", "passed"]
    assert [one.manifest_sha256[0] for one in merged.fleet.devices] == ["1", "8"]

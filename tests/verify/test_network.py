"""Figures say which network and which files they are of: those of another are refused, unless that is asked for."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundles import made_once
from command import Command
from graphs import graph, put_graph
from plants import honest
from test_report import benchmark, report, verdict

from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.bundle.manifest import MANIFEST_SHA256, manifest_sums
from qcn.networks.confidence import Confidence
from qcn.storage import records
from qcn.verify.parity.results import make_report, read_report
from qcn.verify.parity.samples import samples
from qcn.verify.parity.verify import verify
from qcn.verify.report.merge import merge
from qcn.verify.speed.latency import Speed, summarise
from qcn.verify.speed.timings import benchmark_record, read_benchmark
from qcn.verify.speed.turns import TimingPlan

ONLY = ("--backends", "onnxruntime")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Another network under the same name, with the same source in its manifest."""
    return Bundle.open(made_once(tmp_path_factory, "other-network", lambda folder: honest(folder, seed=1)))


def timed(bundle: Bundle, path: Path, file: str = "model.onnx") -> Path:
    """The file of a benchmark of a bundle, with times that anything is faster than."""
    speed = Speed("onnxruntime", file, "fp32", 1, latency_ms=summarise([[1e6]]))
    records.write(path, benchmark_record(bundle, TimingPlan(), [speed], "qcn benchmark"))
    return path


def reported(bundle: Bundle, path: Path) -> Path:
    chosen = samples(bundle, "golden", None, bundle.folder)
    records.write(path, make_report(bundle, chosen, verify(bundle, ["onnxruntime"], {}), "qcn verify-parity", True))
    return path


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


def test_a_report_shows_no_benchmark_of_another_bundle(
    small: Bundle, other: Bundle, tmp_path: Path, qcn: Command
) -> None:
    check = ("verify-parity", small.folder, *ONLY, "--report", tmp_path / "report", "--benchmark")
    code, said = qcn(*check, timed(other, tmp_path / "other.json"))
    assert code == 2 and "other.json is of another network: planted (network " in " ".join(said.split())
    assert "measure this bundle with: qcn benchmark" in " ".join(said.split())
    own = timed(small, tmp_path / "own.json")
    code, said = qcn(*check, own)
    assert code == 0, said
    found = read_report(tmp_path / "report" / "report.json")
    assert found.benchmark == read_benchmark(own) and not found.contradictions()
    assert (
        found.manifest_sha256 == small.manifest_sha256
        and found.files["model.onnx"] == found.benchmark.files["model.onnx"]
    )
    model = graph(small)
    model.doc_string = "made again"
    put_graph(small, model)
    code, said = qcn(*check, own)
    assert code == 2 and "own.json is of another model.onnx than the bundle has" in " ".join(said.split())


def test_a_baseline_of_another_network_must_be_asked_for(
    small: Bundle, other: Bundle, tmp_path: Path, qcn: Command
) -> None:
    short = ("--duration", 0.05, "--set", "warmup=0", "--set", "runs=1")
    for command, before, more in (
        ("verify-parity", reported(other, tmp_path / "report.json"), ()),
        ("benchmark", timed(other, tmp_path / "timed.json"), short),
    ):
        check = (command, small.folder, *ONLY, *more, "--baseline", before)
        code, said = qcn(*check)
        words = " ".join(said.split())
        assert code == 2 and f"{before} is of another network: planted (network " in words, said
        assert "the setting other_network allows it" in words
        code, said = qcn(*check, "--set", "other_network")
        assert code == 0, said
    assert qcn("verify-parity", small.folder, *ONLY, "--baseline", reported(small, tmp_path / "own.json"))[0] == 0


def test_devices_are_merged_by_network(tmp_path: Path, qcn: Command) -> None:
    """Two bundles of one network merge, whatever else is in them; figures of another network do not."""
    good = report(verdict("native", "model.onnx", 1.0), status="passed", benchmark=benchmark())
    elsewhere = replace(good, network_sha256="9" * 64, benchmark=None)

    def put(name: str, **more: Any) -> Path:
        records.write(tmp_path / name / "report.json", replace(good, **more))
        return tmp_path / name

    merged = merge([put("orin"), put("gate", manifest_sha256="8" * 64)], None, 0.1, "")
    assert [one.status for one in merged.fleet.devices] == ["passed", "passed"]
    assert [one.manifest_sha256[0] for one in merged.fleet.devices] == ["1", "8"]
    for change, words in (
        ({"network_sha256": "9" * 64}, "its benchmark is of another network: toys (network 999999999999…)"),
        ({"files": {**benchmark().files, "model.onnx": "7" * 64}}, "its benchmark is of another model.onnx than"),
    ):
        shed = put("shed", benchmark=replace(benchmark(), **change))
        (device,) = merge([shed], None, 0.1, "").fleet.devices
        assert device.status == "failed" and device.reasons[0].startswith(words)
    records.write(tmp_path / "before" / "orin" / "report.json", elsewhere)
    check = ("report", "merge", tmp_path / "orin", "--out", tmp_path / "f.html", "--baseline", tmp_path / "before")
    code, said = qcn(*check)
    assert code == 2 and "is of another network: toys (network 999999999999…)" in " ".join(said.split())
    assert qcn(*check, "--other-network")[0] == 0


def test_what_was_timed_is_named(small: Bundle, tmp_path: Path) -> None:
    record = read_benchmark(timed(small, tmp_path / "own.json"))
    assert record.files == {"model.onnx": small.find("model.onnx").sha256}
    with pytest.raises(ValueError, match=r"'model\.onnx' was timed, and its sha256 is missing"):
        replace(record, files={})

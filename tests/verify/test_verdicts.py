"""The record of `qcn verify-parity`, its comparison with an earlier one, and the check of pre-processing."""

import json
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command import Command
from graphs import graph, put_graph
from onnx import helper, numpy_helper
from plants import FAULTS

from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.bundle import Bundle
from qcn.libqcn import binding
from qcn.storage import records
from qcn.verify.parity.compare import Share, Turn
from qcn.verify.parity.preprocessing import check_preprocessing
from qcn.verify.parity.results import (
    Images,
    ParityReport,
    check_baseline,
    make_report,
    read_report,
    status_lines,
    table,
)
from qcn.verify.parity.samples import samples
from qcn.verify.parity.verdict import PREPROCESSING, Status, Verdict, conclude, overall
from qcn.verify.parity.verify import verify

KEY = "onnxruntime: model.onnx (fp32)"


@pytest.fixture
def bundle(small: Bundle) -> Bundle:
    return small


def report_of(bundle: Bundle) -> ParityReport:
    """By way of the file: what is read is what was written."""
    chosen = samples(bundle, "golden", None, bundle.folder)
    report = make_report(bundle, chosen, verify(bundle, ["onnxruntime"], {}, True), "qcn verify-parity X", True)
    path = bundle.folder.parent / "made.json"
    records.write(path, report)
    json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # strict
    assert read_report(path) == report
    return report


def test_the_record_has_what_a_report_needs(bundle: Bundle) -> None:
    found = report_of(bundle)
    assert found.status == "passed" and found.images == Images("golden", 12, 6)
    assert found.reference is not None and found.reference.of == 6
    one = found.backends[KEY]
    assert one.agreement == Share.count(12, 12) and one.accuracy == found.reference and one.seconds > 0
    histogram = one.outputs["pose"].histogram
    assert histogram is not None and sum(histogram.counts) == 12 * 4 * 3
    names = [(stage.layer, stage.iteration, stage.quantity) for stage in one.stages]
    assert names[:3] == [("capsules1", 1, quantity) for quantity in ("mean", "variance", "logit")]
    assert names[6:8] == [("capsules1", None, "activation"), ("capsules1", None, "pose")]
    assert names[-1] == ("classes", 2, "logit") and all(stage.passed for stage in one.stages)
    checked = [stage.name for stage in one.stages if stage.arithmetic]
    assert checked == [f"{layer}/iteration1/{of}" for layer in ("capsules2", "classes") for of in ("mean", "variance")]
    assert one.first_wrong is None


def not_finite(bundle: Bundle) -> None:
    """The second logit of every image divided by zero, from the first layer on."""
    model = graph(bundle)
    zero = numpy_helper.from_array(np.array([1, 0, 1, 1], np.float32), "zero")
    model.graph.initializer.append(zero)
    (last,) = (node for node in model.graph.node if node.output[0] == "logit")
    last.output[0] = "logit.finite"
    model.graph.node.append(helper.make_node("Div", ["logit.finite", "zero"], ["logit"]))
    onnx.checker.check_model(model)
    put_graph(bundle, model)


def test_what_is_not_finite_fails_and_is_strict_json(bundle: Bundle) -> None:
    not_finite(bundle)
    found = report_of(Bundle.open(bundle.folder))
    one = found.backends[KEY]
    assert found.status == one.status == "failed" and one.first_wrong == "logit"
    logit = one.outputs["logit"]
    assert logit.not_finite == 12 and logit.share == float("inf")
    assert logit.histogram is not None and logit.histogram.counts[-1] == 12
    assert "logit is not finite in 12 places" in one.reasons


def beside(bundle: Bundle, name: str) -> None:
    """Another value under a stage's name than the one that the graph goes on with: the answers stay right."""
    model = graph(bundle)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{name}.own" if one == name else one for one in names]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1.01), "more"))
    model.graph.node.append(helper.make_node("Mul", [f"{name}.own", "more"], [name]))
    put_graph(bundle, model)


def test_a_stage_beyond_its_tolerance_fails_in_the_terminal_and_on_the_page(
    bundle: Bundle, tmp_path: Path, qcn: Command
) -> None:
    """Where it is looked at: no line says that a stage is beyond what is allowed under a verdict that passed."""
    stage = "capsules1/iteration2/mean"
    beside(bundle, stage)
    only = ("verify-parity", bundle.folder, "--backends", "onnxruntime")
    code, said = qcn(*only)
    assert code == 0 and stage not in said and "times what is allowed" not in said, said
    code, said = qcn(*only, "--report", tmp_path)
    reason = f"its answers are within what is allowed, but {stage} is off by"
    assert code == 1 and reason in said and f"failed    {KEY}" in said, said
    assert reason in (tmp_path / "report.html").read_text(encoding="utf-8")
    one = read_report(tmp_path / "report.json").backends[KEY]
    assert one.status == "failed" and one.first_wrong == stage and all(errors.passed for errors in one.outputs.values())
    assert [stage for stage in one.stages if not stage.passed]
    failures = [
        case.get("name")
        for case in ET.parse(tmp_path / "junit.xml").iter("testcase")
        if case.find("failure") is not None
    ]
    assert failures == ["answers as the trained network does", stage]


def test_a_baseline_is_not_to_be_worse_than(bundle: Bundle, tmp_path: Path) -> None:
    now = report_of(bundle)
    path = tmp_path / "before.json"
    verdict = now.backends[KEY]
    floor = verdict.outputs["pose"].noise_floor

    def with_pose(floors: float, status: Status = "passed") -> ParityReport:
        pose = replace(verdict.outputs["pose"], max_abs=floors * floor)
        return replace(now, backends={KEY: replace(verdict, status=status, outputs={"pose": pose})})

    check_baseline(path, now, now, True)
    check_baseline(path, with_pose(4.6), with_pose(9.0), True)  # not twice as far
    with pytest.raises(CheckFailed, match=r"pose of onnxruntime: model\.onnx \(fp32\) is off by .*, and was by"):
        check_baseline(path, with_pose(4.4), with_pose(9.0), True)
    check_baseline(path, with_pose(0.1), with_pose(0.9), True)  # within one noise floor nothing is worse
    with pytest.raises(CheckFailed, match="passed, and is failed"):
        check_baseline(path, now, with_pose(0.9, "failed"), True)
    fewer, both = ({**rest, "other: file (fp32)": verdict} for rest in ({}, now.backends))
    check_baseline(path, replace(now, backends=both), replace(now, backends=fewer), True)  # one was not asked for
    with pytest.raises(CheckFailed, match=r"onnxruntime: model\.onnx \(fp32\) passed, and is not there any more"):
        check_baseline(path, replace(now, backends=both), replace(now, backends=fewer), False)
    with pytest.raises(UsageError, match="has none of the backends that were compared"):
        check_baseline(path, replace(now, backends={}), now, True)
    with pytest.raises(UsageError, match="used the images 'mnist'"):
        check_baseline(path, replace(now, images=Images("mnist", 12, 6)), now, True)


def test_only_what_verify_parity_wrote_is_read(tmp_path: Path) -> None:
    """Another's file is refused in one line; tests/test_records.py has what may be wrong with it."""
    path = tmp_path / "report.json"
    for text in ("{", "[]", "{}", "[" * 100_000, '"\\ud800"'):
        path.write_text(text)
        with pytest.raises(UsageError, match="this is not what `qcn verify-parity --report` writes"):
            read_report(path)


def test_the_whole_is_as_its_parts(bundle: Bundle) -> None:
    def verdicts(*results: tuple[str, Any]) -> list[Verdict]:
        return [Verdict(backend, "file", "fp32", status, ("why",)) for backend, status in results]

    preprocessing = (PREPROCESSING, "passed")
    assert overall(verdicts(("a", "passed"), ("b", "missing"), preprocessing), by_name=False) == "passed"
    assert overall(verdicts(("a", "passed"), ("b", "missing"), preprocessing), by_name=True) == "missing"
    assert (
        overall(verdicts(("a", "missing"), preprocessing), by_name=False) == "missing"
    )  # pre-processing alone proves nothing
    assert overall(verdicts(("a", "passed"), (PREPROCESSING, "missing")), by_name=True) == "passed"
    assert overall(verdicts(("a", "passed"), (PREPROCESSING, "failed")), by_name=False) == "failed"
    with pytest.raises(MissingError, match="a could not run file: why"):
        conclude(verdicts(("a", "missing"), (PREPROCESSING, "missing")), by_name=False)
    results = verdicts(("a", "passed"), ("b", "missing"), ("c", "failed"), ("d", "missing"))
    assert [name for _, name, _ in status_lines(results, by_name=True)] == [
        "c: file (fp32)",
        "b: file (fp32), d: file (fp32)",
        "a: file (fp32)",
    ]
    assert status_lines(results, by_name=False)[-1] == ("missing", "b: file (fp32), d: file (fp32)", ["why"])
    shown = table(results, samples(bundle, "golden", None, bundle.folder))
    # The labels of few golden images are no test of accuracy.
    assert shown.row_count == 2 and [column.header for column in shown.columns][-1] == "same class"
    turned = replace(results[0], turn=Turn("golden 0", degrees=0.01, noise_floor=0.001, allowed=0.02, largest=0.015))
    shown = table([turned, *results[1:]], samples(bundle, "golden", None, bundle.folder))
    assert (shown.columns[-1].header, [*shown.columns[-1].cells]) == ("direction turned by", ["", "0.015°"])
    shown = table(results, replace(samples(bundle, "golden", None, bundle.folder), name="mnist"))
    assert [list(column.cells)[-1] for column in shown.columns][:3] == ["reference", "mnist", "fp64"]
    assert shown.columns[-1].header == "accuracy"
    assert shown.row_count == 3 and "/6 (" in list(shown.columns[-1].cells)[-1]


def test_pre_processing_is_checked_by_libqcn_by_torch_or_not_at_all(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library(*functions: str) -> Any:
        raise MissingError("libqcn is not built")

    monkeypatch.setattr(binding, "load_library", no_library)
    verdict = check_preprocessing(bundle)
    assert verdict.status == "passed" and verdict.runner.startswith("torch") and verdict.images == 11
    FAULTS["channels swapped in pre-processing"].plant(bundle)
    verdict = check_preprocessing(Bundle.open(bundle.folder))
    assert verdict.status == "failed" and "channels 0, 2" in verdict.reasons[0]
    monkeypatch.setitem(sys.modules, "torch", None)
    verdict = check_preprocessing(Bundle.open(bundle.folder))
    assert verdict.status == "missing" and "libqcn is not built" in verdict.reasons[0]

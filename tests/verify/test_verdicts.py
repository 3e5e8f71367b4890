"""The record of `qcn verify-parity`, its comparison with an earlier one, and the check of pre-processing."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import graph, put_graph
from onnx import helper, numpy_helper
from plants import FAULTS, honest

from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.bundle import Bundle
from qcn.verify import native, parity
from qcn.verify.parity import PREPROCESSING, Verdict, conclude, overall
from qcn.verify.preprocessing import check_preprocessing
from qcn.verify.records import number, strict
from qcn.verify.samples import samples
from qcn.verify.verdicts import check_baseline, read_baseline, record, table, told


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return honest(tmp_path / "bundle")


def made(bundle: Bundle, bisect: bool = True) -> dict[str, Any]:
    chosen = samples(bundle, "golden", None, bundle.folder)
    verdicts = parity.verify(bundle, ["onnxruntime"], {}, bisect)
    found: dict[str, Any] = json.loads(
        json.dumps(strict(record(bundle, chosen, verdicts, "qcn verify-parity X", True)), allow_nan=False)
    )
    return found


def test_the_record_has_what_a_report_needs(bundle: Bundle) -> None:
    found = made(bundle)
    assert found["status"] == "passed" and found["data"] == {"name": "golden", "images": 12, "edge_cases": 6}
    assert found["reference"]["accuracy"]["of"] == 6
    one = found["backends"]["onnxruntime: model.onnx"]
    assert one["agreement"]["right"] == 12 and one["accuracy"] == found["reference"]["accuracy"]
    histogram = one["outputs"]["pose"]["histogram"]
    assert sum(histogram["counts"]) == 12 * 4 * 3 and len(histogram["edges"]) == len(histogram["counts"]) + 1
    names = [(stage["layer"], stage["iteration"], stage["quantity"]) for stage in one["stages"]]
    assert names[:3] == [("capsules1", 1, quantity) for quantity in ("mean", "variance", "activation")]
    assert names[6:8] == [("capsules1", None, "activation"), ("capsules1", None, "pose")]
    assert names[-1] == ("classes", 2, "activation") and all(stage["passed"] for stage in one["stages"])
    assert one["first_wrong"] is None


def not_finite(bundle: Bundle) -> None:
    """The second activation of every image divided by zero, from the first layer on."""
    model = graph(bundle)
    zero = numpy_helper.from_array(np.array([1, 0, 1, 1], np.float32), "zero")
    model.graph.initializer.append(zero)
    (last,) = (node for node in model.graph.node if node.output[0] == "activation")
    last.output[0] = "activation.finite"
    model.graph.node.append(helper.make_node("Div", ["activation.finite", "zero"], ["activation"]))
    onnx.checker.check_model(model)
    put_graph(bundle, model)


def test_what_is_not_finite_fails_and_is_strict_json(bundle: Bundle) -> None:
    not_finite(bundle)
    found = made(Bundle.open(bundle.folder))
    one = found["backends"]["onnxruntime: model.onnx"]
    assert found["status"] == one["status"] == "failed" and one["first_wrong"] == "activation"
    assert one["outputs"]["activation"]["not_finite"] == 12
    assert one["outputs"]["activation"]["noise_floor_multiple"] == "inf"
    assert one["outputs"]["activation"]["histogram"]["counts"][-1] == 12
    assert "activation is not finite in 12 places" in one["reasons"]


def test_a_flip_has_its_names_and_its_place(bundle: Bundle) -> None:
    FAULTS["the graph of another model"].plant(bundle)
    found = made(Bundle.open(bundle.folder))
    one = found["backends"]["onnxruntime: model.onnx"]
    flip = next(flip for flip in one["flips"] if not flip["tie"])
    classes = list(bundle.manifest.classes)
    assert flip["row"] == bundle.golden().rows[flip["index"]]
    assert flip["expected_name"] == classes[flip["expected"]] and flip["found_name"] == classes[flip["found"]]
    assert one["agreement"]["right"] == 12 - sum(not flip["tie"] for flip in one["flips"])


def test_a_baseline_is_not_to_be_worse_than(bundle: Bundle, tmp_path: Path) -> None:
    now = made(bundle)
    path = tmp_path / "before.json"

    def before(**changes: Any) -> None:
        then = copy.deepcopy(now)
        then["backends"]["onnxruntime: model.onnx"]["outputs"]["pose"] |= changes
        path.write_text(json.dumps(then))

    def check(record: dict[str, Any], asked: bool = True) -> None:
        check_baseline(read_baseline(path), record, asked)

    multiple = now["backends"]["onnxruntime: model.onnx"]["outputs"]["pose"]["noise_floor_multiple"]
    assert multiple > 0
    before()
    check(now)
    worse = copy.deepcopy(now)
    pose = worse["backends"]["onnxruntime: model.onnx"]["outputs"]["pose"]
    pose["noise_floor_multiple"] = 9.0
    before(noise_floor_multiple=4.6)
    check(worse)  # not twice as far
    before(noise_floor_multiple=4.4)
    with pytest.raises(
        CheckFailed, match=r"pose of onnxruntime: model\.onnx is off by 9 noise floors, and was by 4\.4"
    ):
        check(worse)
    before(noise_floor_multiple=0.1)
    pose["noise_floor_multiple"] = 0.9
    check(worse)  # within one noise floor nothing is worse
    worse["backends"]["onnxruntime: model.onnx"]["status"] = "failed"
    with pytest.raises(CheckFailed, match="passed, and is failed"):
        check(worse)
    before()
    fewer = {**now, "backends": {"other: file": now["backends"]["onnxruntime: model.onnx"]}}
    path.write_text(json.dumps({**now, "backends": {**now["backends"], **fewer["backends"]}}))
    check(fewer)  # one of the two was not asked for
    with pytest.raises(CheckFailed, match=r"onnxruntime: model\.onnx passed, and is not there any more"):
        check(fewer, asked=False)
    for content in ("{", "[]", "{}", "[" * 100_000, json.dumps({**now, "backends": {}})):
        path.write_text(content)
        with pytest.raises(UsageError, match=r"is not a report|has none of what was compared"):
            check(now)
    path.write_text(json.dumps({**now, "data": {"name": "mnist"}}))
    with pytest.raises(UsageError, match="of the images 'mnist'"):
        check(now)


def test_the_whole_is_as_its_parts(bundle: Bundle) -> None:
    def verdicts(*given: tuple[str, Any]) -> list[Verdict]:
        return [Verdict(backend, "file", "fp32", status, ("why",)) for backend, status in given]

    seen = (PREPROCESSING, "passed")
    assert overall(verdicts(("a", "passed"), ("b", "missing"), seen), asked=False) == "passed"
    assert overall(verdicts(("a", "passed"), ("b", "missing"), seen), asked=True) == "missing"
    assert overall(verdicts(("a", "missing"), seen), asked=False) == "missing"  # pre-processing alone proves nothing
    assert overall(verdicts(("a", "passed"), (PREPROCESSING, "missing")), asked=True) == "passed"
    assert overall(verdicts(("a", "passed"), (PREPROCESSING, "failed")), asked=False) == "failed"
    with pytest.raises(MissingError, match="a could not run file: why"):
        conclude(verdicts(("a", "missing"), (PREPROCESSING, "missing")), asked=False)
    given = verdicts(("a", "passed"), ("b", "missing"), ("c", "failed"), ("d", "missing"))
    assert [name for _, name, _ in told(given, asked=True)] == ["c: file", "b: file, d: file", "a: file"]
    assert told(given, asked=False)[-1] == ("missing", "b: file, d: file", ["why"])
    shown = table(given, samples(bundle, "golden", None, bundle.folder))
    assert [list(column.cells)[-1] for column in shown.columns][:2] == ["reference", "float64, golden"]
    assert shown.row_count == 3 and "/6 (" in list(shown.columns[-1].cells)[-1]


def test_pre_processing_is_checked_by_libqcn_by_torch_or_not_at_all(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library(*functions: str) -> Any:
        raise MissingError("libqcn is not built")

    monkeypatch.setattr(native, "load_library", no_library)
    verdict = check_preprocessing(bundle)
    assert verdict.status == "passed" and verdict.runner.startswith("torch") and verdict.images == 11
    FAULTS["channels swapped in pre-processing"].plant(bundle)
    verdict = check_preprocessing(Bundle.open(bundle.folder))
    assert verdict.status == "failed" and "channels 0, 2" in verdict.reasons[0]
    monkeypatch.setitem(sys.modules, "torch", None)
    verdict = check_preprocessing(Bundle.open(bundle.folder))
    assert verdict.status == "missing" and "libqcn is not built" in verdict.reasons[0]


def test_what_no_number_and_no_text_can_be() -> None:
    """Another's JSON may have whole numbers of any length, and halves of characters."""
    assert number(10**400) is None and number(-(10**400)) is None and number(True) is None
    assert number(10**18) == 1e18
    assert strict({"\ud800": ["a\udcff", float("nan"), 10**400]}) == {r"\ud800": [r"a\udcff", "nan", 10**400]}

"""The report: three files that agree, no word of a bundle that becomes markup, and a page that a browser shows well."""

import io
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import pytest
from chromium import Browser

from qcn.export.bundle import Bundle
from qcn.verify.report import charts, files, heat, summary
from qcn.verify.report.pictures import png

FLOOR = 1e-7
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x01"
LONG = "engines/fp16-b1-8-64-sm90-trt8.6.1-with-a-very-long-name-that-has-no-place-to-break.engine"


def errors(multiple: float, allowed: float = 16.0) -> dict[str, Any]:
    edges = [-6 + 0.25 * i for i in range(49)]
    at = min(47, max(0, int((math.log10(multiple) + 6) / 0.25)))
    counts = [0] * 48
    counts[at - 2 : at + 1] = [5, 9, 1]
    return {
        "max_abs": multiple * FLOOR,
        "noise_floor": FLOOR,
        "noise_floor_multiple": multiple,
        "tolerance": allowed * FLOOR,
        "histogram": {"edges": edges, "counts": counts},
    }


def stages(wrong: bool) -> list[dict[str, Any]]:
    found = []
    for layer in ("capsules1", "classes"):
        for iteration, quantities in ((1, ("mean", "variance")), (2, ("mean", "variance")), (None, ("pose",))):
            for quantity in quantities:
                beyond = wrong and (layer, iteration) == ("classes", 2)
                note = {"note": "3 values underflow"} if beyond else {}
                measured = errors(5e4 if beyond else 1.5)
                found.append({"layer": layer, "iteration": iteration, "quantity": quantity, "passed": not beyond})
                found[-1] |= {**measured, "range": note}
    return found


def verdict(backend: str, file: str, multiple: float, **more: Any) -> dict[str, Any]:
    passed = multiple <= 16
    return {
        "backend": backend,
        "file": file,
        "precision": "fp32",
        "status": "passed" if passed else "failed",
        "reasons": [] if passed else [f"pose is off by {multiple:.3g} noise floors"],
        "runner": backend,
        "images": 21,
        "deterministic": passed,
        "pose_degrees": 1e-5,
        "accuracy": {"right": 15, "of": 16, "low": 0.717, "high": 0.989},
        "agreement": {"right": 21, "of": 21, "low": 0.845, "high": 1.0},
        "flips": [],
        "outputs": {"activation": errors(0.5), "pose": errors(multiple)},
        "stages": stages(not passed),
        "first_wrong": None if passed else "classes/iteration2/mean",
        **more,
    }


def flip(row: str, tie: bool) -> dict[str, Any]:
    names = {"expected_name": "cat", "found_name": "dog"}
    return {"row": row, "index": 0, "expected": 1, "found": 2, **names, "margin": 1e-3, "tie": tie}


def record(wrong: bool = True) -> dict[str, Any]:
    backends = {"onnxruntime: model.onnx": verdict("onnxruntime", "model.onnx", 3.0)}
    if wrong:
        turned = [flip("test 0: cat", False), flip("test 1: cat", True)]
        backends[f"tensorrt: {LONG}"] = verdict("tensorrt", LONG, 5e4, flips=turned)
    backends["torch-cuda: weights.safetensors"] = {"status": "missing", "reasons": ["no CUDA device here"]}
    return {
        "schema": 1,
        "bundle": "toys",
        "source": {"run": "runs/demo"},
        "command": "qcn verify-parity runs/demo/bundle --report runs/demo/report",
        "environment": {"processor": "a processor", "gpu": None, "packages": {"numpy": "2.0"}},
        "data": {"name": "golden", "images": 21, "edge_cases": 5},
        "status": "failed" if wrong else "passed",
        "reference": {"accuracy": {"right": 15, "of": 16, "low": 0.717, "high": 0.989}},
        "backends": backends,
    }


def speed(backend: str, median: float, **more: Any) -> dict[str, Any]:
    latency = {"min": 0.9 * median, "p50": median, "p90": 1.1 * median, "p95": 1.2 * median, "p99": 1.5 * median}
    counted = {"edges": [0.9 * median, median, 1.5 * median], "counts": [40, 9], "longer": 1}
    about = {"backend": backend, "file": "model.onnx", "batch": 1, "missing": "", "runs": 50, "unstable": True}
    cold = {"open_ms": 400.0, "first_answer_ms": 20.0, "host_mib": 120.0, "device_mib": None}
    return {**about, "latency_ms": latency, "histogram": counted, "cold": cold, "images_per_second": 10.0, **more}


def benchmark() -> dict[str, Any]:
    speeds = [speed("onnxruntime", 30.0), speed("native", 9.0), speed("tensorrt", 0.2, variant="without CUDA graph")]
    speeds += [speed("native", 80.0, batch=8), {"backend": "pt2", "batch": 1, "missing": "torch is not installed"}]
    return {"command": "qcn benchmark runs/demo/bundle", "results": {str(i): one for i, one in enumerate(speeds)}}


IMAGES = {
    "test 0: cat": np.arange(2 * 8 * 9, dtype=np.uint8).reshape(2, 8, 9),
    "test 1: cat": np.zeros((3, 8, 9), np.uint8),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files.write(tmp_path, record(), IMAGES, benchmark())
    return tmp_path


def test_three_files_are_written(tmp_path: Path) -> None:
    paths = files.write(tmp_path / "new", record(), IMAGES, benchmark())
    assert [path.name for path in paths] == ["report.json", "junit.xml", "report.html"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_the_json_is_strict_and_has_everything(tmp_path: Path) -> None:
    given = record()
    given["backends"]["onnxruntime: model.onnx"]["outputs"]["pose"]["max_abs"] = math.nan
    given["backends"]["onnxruntime: model.onnx"]["outputs"]["pose"]["noise_floor_multiple"] = math.inf
    files.write(tmp_path, given, {}, benchmark())
    found = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    pose = found["backends"]["onnxruntime: model.onnx"]["outputs"]["pose"]
    assert (pose["max_abs"], pose["noise_floor_multiple"]) == ("nan", "inf")
    assert found["benchmark"] == benchmark() and found["command"] == given["command"]


def test_junit_counts_what_failed(folder: Path) -> None:
    root = ET.fromstring((folder / "junit.xml").read_text())
    assert root.tag == "testsuites" and [suite.tag for suite in root] == ["testsuite"] * 3
    for suite in root:
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases)) and suite.get("errors") == "0"
        assert suite.get("failures") == str(len(suite.findall("testcase/failure")))
        assert suite.get("skipped") == str(len(suite.findall("testcase/skipped")))
        assert all(case.get("name") and case.get("classname") == suite.get("name") for case in cases)
    honest, wrong, missing = root
    assert honest.get("failures") == "0" and honest.get("tests") == "13"  # the verdict, two outputs, ten stages
    failed = {case.get("name") for case in wrong.findall("testcase") if case.find("failure") is not None}
    beyond = {"classes/iteration2/mean", "classes/iteration2/variance"}
    assert failed == {"answers as the trained network does", "output pose"} | beyond
    (skipped,) = missing.findall("testcase/skipped")
    assert skipped.get("message") == "no CUDA device here"
    for name in ("tests", "failures", "skipped"):
        assert root.get(name) == str(sum(int(suite.get(name, "")) for suite in root))


def test_a_backend_that_passed_has_no_failure(tmp_path: Path) -> None:
    """A stage beside the answers may leave its tolerance: CI must not read that as another verdict."""
    given = record(wrong=False)
    given["backends"]["onnxruntime: model.onnx"]["stages"] = stages(wrong=True)
    given["backends"]["onnxruntime: model.onnx"]["seconds"] = 1.5
    files.write(tmp_path, given, {})
    root = ET.fromstring((tmp_path / "junit.xml").read_text())
    assert root.get("failures") == "0" and root[0].get("time") == "1.500"


def test_the_verdict_is_in_plain_words() -> None:
    def words(*statuses: str) -> tuple[str, str]:
        given = {"backends": {str(i): {"status": status} for i, status in enumerate(statuses)}}
        return summary.verdict(summary.table(given))

    assert words("passed", "passed") == ("passed", "Every backend answers as the trained network does.")
    assert words("passed", "missing")[1] == "Every backend that ran answers as the trained network does."
    assert words("passed", "failed")[1] == "1 of 2 backends does not answer as the trained network does."
    assert words("failed", "failed", "passed", "missing")[1].startswith("2 of 3 backends do not answer")
    assert words("failed")[1].startswith("The backend does not")
    assert words("missing")[0] == words()[0] == "missing"
    assert words("nonsense", "passed")[0] == "failed"


@pytest.mark.parametrize("given", [{}, {"backends": {"a: b": {}}}, {"backends": {"a: b": {"status": "missing"}}}])
def test_what_is_missing_does_not_break_it(tmp_path: Path, given: dict[str, Any]) -> None:
    files.write(tmp_path, given, {}, {"results": {"x": {"batch": 1}}})
    page = (tmp_path / "report.html").read_text()
    assert "not answer as" in page if "a: b" in page and "missing" not in str(given) else "Nothing could be" in page


def cut_down(value: Any) -> Iterator[Any]:
    """Every variant of a record with one entry gone, null, in words, or a number that it cannot be."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: one for name, one in value.items() if name != key}
            yield {**value, key: None}
            yield {**value, key: "nan"}
            if isinstance(inner, int | float):
                yield from ({**value, key: odd} for odd in (-1, 0, 1e300, -1e-300))
            for variant in cut_down(inner):
                yield {**value, key: variant}
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for variant in cut_down(value[0]):
            yield [variant, *value[1:]]
    elif isinstance(value, list) and value and isinstance(value[0], int | float):
        yield from ([odd, *value[1:]] for odd in (-1e300, 1e300, None, "nan"))


def test_any_entry_may_be_missing_or_wrong() -> None:
    whole = {**record(), "benchmark": benchmark()}
    variants = list(cut_down(whole))
    assert len(variants) > 500
    for variant in variants:
        assert "</html>" in files.page(variant, IMAGES)
        ET.fromstring(files.junit(variant))


def test_no_word_of_a_bundle_becomes_markup(tmp_path: Path) -> None:
    given = record()
    key = f"onnxruntime: {EVIL}"
    hostile = verdict(EVIL, EVIL, 5e4, precision=EVIL, reasons=[EVIL], first_wrong=EVIL, runner=EVIL)
    hostile["flips"] = [{**flip(EVIL, False), "expected_name": EVIL, "found_name": EVIL, "margin": EVIL}]
    hostile["outputs"] = {EVIL: errors(5e4), "pose": {**errors(2.0), "max_abs": EVIL}}
    hostile["stages"][0] |= {"layer": EVIL, "quantity": EVIL, "range": {"note": EVIL}, "passed": False}
    given["backends"] = {key: hostile, "b": {"status": "missing", "reasons": [EVIL]}}
    given |= {"bundle": EVIL, "command": EVIL, "environment": {EVIL: EVIL}, "data": {"name": EVIL, "images": EVIL}}
    timed = {"command": EVIL, "results": {EVIL: {**speed(EVIL, 3.0), "variant": EVIL, "file": EVIL, "runs": EVIL}}}
    files.write(tmp_path, given, {EVIL: IMAGES["test 0: cat"]}, timed)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page and "<img src=x" not in page and page.count("&lt;script&gt;") > 20
    assert len(re.findall("<img ", page)) == 1
    ET.fromstring((tmp_path / "junit.xml").read_text())


@pytest.mark.parametrize(("channels", "width"), [(1, 9), (2, 20), (3, 9), (4, 42)])
def test_pictures_are_whole(channels: int, width: int) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    image = np.random.default_rng(0).integers(0, 256, (channels, 8, 9)).astype(np.uint8)
    with image_module.open(io.BytesIO(png(image))) as opened:
        found = np.asarray(opened)
    assert found.shape[:2] == (8, width)
    np.testing.assert_array_equal(
        found.transpose(2, 0, 1) if channels == 3 else found[:, :9], image if channels == 3 else image[0]
    )
    if channels in (2, 4):
        np.testing.assert_array_equal(found[:, -9:], image[-1])


def test_pictures_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        png(np.zeros((1, 2, 2), np.float32))  # type: ignore[arg-type]


def test_a_heat_map_has_layers_down_and_iterations_across() -> None:
    found = heat.heat_map("a", verdict("tensorrt", "x", 5e4))
    assert found is not None and [layer for layer, _ in found.rows] == ["capsules1", "classes"]
    assert found.groups == [("iteration 1", 2), ("iteration 2", 2), ("output", 1)]
    assert found.columns == ["mean", "variance", "mean", "variance", "pose"]
    beyond = [[cell is not None and cell.shade > heat.SHADES for cell in cells] for _, cells in found.rows]
    assert beyond == [[False] * 5, [False, False, True, True, False]]
    assert found.notes == [f"classes, iteration 2, {name}: 3 values underflow" for name in ("mean", "variance")]
    few = heat.heat_map(
        "a", {"stages": [one for one in stages(False) if one["layer"] == "classes" or one["iteration"]]}
    )
    assert few is not None and few.rows[0][1][-1] is None


def test_charts_lie_where_the_figures_say() -> None:
    (low, high) = axis = charts.error_axis([errors(1e4), errors(0.1)])
    assert low <= -2 and high == 5
    drawn = charts.error_histogram(errors(1e4, allowed=100.0), axis)
    assert drawn is not None and drawn.limit == pytest.approx(100 * (2 - low) / (high - low))
    assert all(bar.x >= 0 and bar.x + bar.width <= 100 + 1e-9 and 0 < bar.height <= charts.HEIGHT for bar in drawn.bars)
    assert max(bar.x for bar in drawn.bars) > drawn.limit  # what is beyond is seen beyond
    good = charts.error_histogram(errors(0.1), charts.error_axis([errors(0.1)]))
    assert good is not None and good.limit is not None and max(bar.x for bar in good.bars) < good.limit < 100
    strips, ticks = charts.latency_strips([speed("a", 1.0), speed("b", 100.0), {}])
    first, second, none = strips
    assert first is not None and second is not None and none is None
    assert 0 <= first.low < first.median < first.ninety < first.high < second.low and second.high <= 100
    assert ticks and all(0 < tick.x < 100 for tick in ticks)
    assert charts.latency_histogram(speed("a", 1.0)).bars  # type: ignore[union-attr]


def test_it_needs_no_torch() -> None:
    code = "import sys, qcn.verify.report.files as _; sys.exit(bool({'torch', 'PIL', 'onnx'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_from_the_command_line(bundle: Bundle, tmp_path: Path) -> None:
    """As `make demo` ends: a benchmark, then parity with a report that shows both."""

    def qcn(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "qcn", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    timed = tmp_path / "timed.json"
    one = ("--backends", "torch")
    result = qcn("benchmark", bundle.folder, *one, "--duration", 0.1, "--warmup", 0, "--json", timed)
    assert result.returncode == 0, result.stderr
    result = qcn("verify-parity", bundle.folder, *one, "--report", tmp_path / "report", "--benchmark", timed)
    assert result.returncode == 0, result.stderr
    assert str(tmp_path / "report" / "report.html") in result.stdout
    found = json.loads((tmp_path / "report" / "report.json").read_text())
    assert found["benchmark"] == json.loads(timed.read_text()) and found["status"] == "passed"
    page = (tmp_path / "report" / "report.html").read_text()
    for words in ("Every backend answers as", "One image", "iteration 2", "activation", "to repeat", "qcn benchmark"):
        assert words.lower() in page.lower(), words
    result = qcn("verify-parity", bundle.folder, *one, "--benchmark", timed)
    assert result.returncode == 2 and "--report" in result.stderr
    timed.write_text("[]")
    result = qcn("verify-parity", bundle.folder, *one, "--report", tmp_path / "report", "--benchmark", timed)
    assert result.returncode == 2 and "is not a result of `qcn benchmark`" in result.stderr


BROWSER = chromium.find()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt install chromium")
@pytest.mark.parametrize("wrong", [True, False])
def test_in_a_browser(tmp_path: Path, wrong: bool) -> None:
    files.write(tmp_path, record(wrong), IMAGES, benchmark())
    page = tmp_path / "report.html"
    image_module = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    with Browser(str(BROWSER), tmp_path / "profile") as browser:
        brightness = {}
        for width in (390, 1280):
            for dark in (False, True):
                browser.show(page, width, dark)
                assert browser.ask("document.documentElement.scrollWidth") == width  # no sideways scrolling
                outside = "[...document.querySelectorAll('main > *, section > :not(.scroll)')]"
                outside += f".filter(e => e.getBoundingClientRect().right > {width}).length"
                assert browser.ask(outside) == 0
                browser.screenshot(tmp_path / "shot.png", whole=False)
                with image_module.open(tmp_path / "shot.png") as shot:
                    assert shot.width == width
                    brightness[width, dark] = float(np.asarray(shot.convert("L")).mean())
        assert min(brightness[w, False] for w in (390, 1280)) > 180
        assert max(brightness[w, True] for w in (390, 1280)) < 90
        heading = "1 of 2 backends does not" if wrong else "Every backend that ran answers"
        assert heading in browser.ask("document.querySelector('h1').innerText")
        assert browser.ask("document.documentElement.lang") == "en" and heading in browser.ask("document.title")
        sections = browser.ask("[...document.querySelectorAll('h2')].map(e => e.innerText.trim())")
        expected = [
            "Backends",
            "Not run here",
            "Speed",
            "Errors",
            "Layer by layer",
            "Changed decisions",
            "To repeat it",
        ]
        assert [name for name in sections if name in expected] == expected
        assert browser.ask("document.querySelectorAll('svg[role=img]:not([aria-label])').length") == 0
        assert browser.ask("document.querySelectorAll('img:not([alt]), thead th:not([scope])').length") == 0
        assert browser.ask("[...document.images].filter(i => i.naturalWidth > 0).length") == (2 if wrong else 0)
        assert browser.ask("document.querySelectorAll('td.h7').length") == (2 if wrong else 0)
        assert browser.ask("document.body.innerText").count("no CUDA device here") == 1
        browser.print(tmp_path / "report.pdf")
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert browser.complaints == []
    assert {address for address in browser.requests if not address.startswith("data:")} == {page.as_uri()}

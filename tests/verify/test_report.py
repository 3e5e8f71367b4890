"""The report: three files that agree, no word of a bundle that becomes markup, and a page that a browser shows well."""

import io
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import pytest
from bundles import answering
from chromium import Browser
from command import call

from qcn.direction import Directions
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import BundleSource
from qcn.verify.machine import Environment
from qcn.verify.parity.compare import EDGES, Errors, Flip, Share, Turn
from qcn.verify.parity.results import Images, ParityReport, read_report
from qcn.verify.parity.stages import ComparedStage, Range
from qcn.verify.parity.verdict import Verdict
from qcn.verify.report import charts, files, heat, summary
from qcn.verify.report.answers import answers
from qcn.verify.report.pictures import png
from qcn.verify.speed.cold import Cold
from qcn.verify.speed.latency import Latency, Speed
from qcn.verify.speed.timings import Benchmark
from qcn.verify.speed.turns import TimingPlan
from qcn.verify.words import Histogram, count, share, share_of_allowed

FLOOR = 1e-7
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x01"
LONG = "engines/fp16-b1-8-64-sm90-trt8.6.1-with-a-very-long-name-that-has-no-place-to-break.engine"
NETWORK = "2" * 64
FILES = dict.fromkeys(("model.onnx", "weights.safetensors", LONG), "3" * 64)
MACHINE = Environment("a processor", 2, None, None, None, None, None, None, "Linux", "3.11", "0", {"numpy": "2.0"})


def errors(floors: float, allowed: float = 16.0, histogram: bool = True) -> Errors:
    counts = [0] * (len(EDGES) - 1)
    at = min(len(counts) - 1, max(2, int((math.log10(floors / allowed) - EDGES[0]) / 0.5)))
    counts[at - 2 : at + 1] = [5, 9, 1]
    drawn = Histogram(EDGES, tuple(counts)) if histogram else None
    worst = floors * FLOOR
    return Errors(worst, worst / 3, worst / 2, worst, 1.0, floors, FLOOR, allowed * FLOOR, 0, drawn)


def stages(wrong: bool) -> tuple[ComparedStage, ...]:
    found = []
    for layer in ("capsules1", "classes"):
        for iteration, quantities in ((1, ("mean", "variance")), (2, ("mean", "variance")), (None, ("pose",))):
            for quantity in quantities:
                beyond = wrong and (layer, iteration) == ("classes", 2)
                measured = errors(5e4 if beyond else 1.5, histogram=False)
                found.append(
                    ComparedStage(layer, iteration, quantity, measured, Range(4.0, 1e-6, 0, 3 if beyond else 0))
                )
    return tuple(found)


def verdict(backend: str, file: str, floors: float, **more: Any) -> Verdict:
    passed = floors <= 16
    about: dict[str, Any] = {
        "backend": backend,
        "file": file,
        "precision": "fp32",
        "status": "passed" if passed else "failed",
        "reasons": () if passed else (f"pose is {errors(floors).words()}",),
        "runner": backend,
        "seconds": 1.5,
        "images": 21,
        "deterministic": passed,
        "pose_degrees": 1e-5,
        "accuracy": Share(15, 16, 0.717, 0.989),
        "agreement": Share(21, 21, 0.845, 1.0),
        "outputs": {"logit": errors(0.5), "pose": errors(floors)},
        "stages": stages(not passed),
        "first_wrong": None if passed else "classes/iteration2/mean",
    }
    return Verdict(**{**about, **more})


def flip(row: str, tie: bool) -> Flip:
    return Flip(row, 0, "cat", "dog", 1e-3, tie)


def missing(reason: str = "no CUDA device here") -> Verdict:
    return Verdict("torch-cuda", "weights.safetensors", "fp16", "missing", (reason,))


def record(wrong: bool = True, timed: bool = True) -> ParityReport:
    found = [verdict("onnxruntime", "model.onnx", 3.0)]
    if wrong:
        found.append(verdict("tensorrt", LONG, 5e4, flips=(flip("test 0: cat", False), flip("test 1: cat", True))))
    found.append(missing())
    return report(*found, benchmark=benchmark() if timed else None)


def report(*verdicts: Verdict, **more: Any) -> ParityReport:
    source = BundleSource("0" * 64, "qcn-tiny", "best", 3, "toys", "0" * 64)
    command = "qcn verify-parity runs/demo/bundle --report runs/demo/report"
    backends = {one.key: one for one in verdicts}
    result = ParityReport(
        schema=5,
        bundle="toys",
        source=source,
        manifest_sha256="1" * 64,
        network_sha256=NETWORK,
        files=FILES,
        command=command,
        environment=MACHINE,
        images=Images("golden", 21, 5),
        by_name=False,
        status="failed",
        reference=Share(15, 16, 0.717, 0.989),
        backends=backends,
    )
    return replace(result, **more)


def speed(backend: str, median: float, **more: Any) -> Speed:
    latency = Latency(median, 0.9 * median, 2 * median, median, 1.1 * median, 1.2 * median, 1.5 * median)
    about: dict[str, Any] = {
        "runs": 50,
        "unstable": True,
        "latency_ms": latency,
        "histogram": Histogram((0.9 * median, median, 1.5 * median), (40, 9), 1),
        "cold": Cold(400.0, 20.0, 120.0, None),
        "images_per_second": 10.0,
    }
    return Speed(backend, "model.onnx", "fp32", **{"batch": 1, **about, **more})


def benchmark(*speeds: Speed) -> Benchmark:
    results = speeds or (
        speed("onnxruntime", 30.0),
        speed("native", 9.0),
        speed("tensorrt", 0.2, variant="without CUDA graph"),
        speed("native", 80.0, batch=8),
        Speed("pt2", "model.pt2", "fp32", 1, "torch is not installed"),
    )
    command = "qcn benchmark runs/demo/bundle"
    files = {one.file: FILES.get(one.file, "3" * 64) for one in results if one.latency_ms}
    return Benchmark(4, "toys", NETWORK, files, command, TimingPlan(), MACHINE, {one.key: one for one in results})


IMAGES = {
    "test 0: cat": np.arange(2 * 8 * 9, dtype=np.uint8).reshape(2, 8, 9),
    "test 1: cat": np.zeros((3, 8, 9), np.uint8),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files.write(tmp_path, record(), IMAGES)
    return tmp_path


def test_the_json_is_strict_and_has_everything(folder: Path) -> None:
    json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    assert read_report(folder / "report.json") == record()


def test_the_page_shows_what_the_network_sees_and_from_where(bundle: Bundle, tmp_path: Path) -> None:
    golden = bundle.golden()
    logit, pose = np.zeros_like(golden.reference.logit), np.zeros_like(golden.reference.pose)
    labels = np.full_like(golden.label, -1)  # of an edge case
    labels[:3], logit[:3, 3], pose[:3, 3] = (3, 4, 5), 9.0, ((0, 2, 0), (0, -2, 0), (2, 0, 2))
    golden = replace(golden, label=labels, reference=answering(golden.reference, logit=logit, pose=pose))
    directions = Directions((1,) * 10, True, (), (30.0,))
    manifest = replace(bundle.manifest, direction=directions, known=None)
    left, right, front = shown = answers(manifest, golden)
    assert [one.direction for one in shown] == [
        "azimuth 90°, elevation 0° (± 30°)",
        "azimuth 270°, elevation 0° (± 30°)",
        "azimuth 0°, elevation 45° (± 30°)",
    ]
    # From above with the front at the top, an object's left is on the left.
    places = [(one.compass.x, one.compass.y) for one in shown if one.compass]
    assert np.allclose(places, [(-62, 0), (62, 0), (0, -62)])
    assert (left.right, right.right, front.right, right.label) == (True, False, False, "4")
    files.write(tmp_path, record(), {}, answers=shown)
    html = (tmp_path / "report.html").read_text()
    assert html.count('class="camera"') == 3 and html.count("it is ") >= 2 and right.direction in html
    without = answers(replace(manifest, direction=None), golden)
    assert [one.compass for one in without] == [None] * 3 and without[0].answer == left.answer


def test_junit_counts_what_failed(folder: Path) -> None:
    root = ET.fromstring((folder / "junit.xml").read_text())
    assert root.tag == "testsuites" and [suite.tag for suite in root] == ["testsuite"] * 3
    for suite in root:
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases)) and suite.get("errors") == "0"
        assert suite.get("failures") == str(len(suite.findall("testcase/failure")))
        assert suite.get("skipped") == str(len(suite.findall("testcase/skipped")))
        assert all(case.get("name") and case.get("classname") == suite.get("name") for case in cases)
    honest, wrong, skipped = root
    assert (
        honest.get("failures") == "0" and honest.get("tests") == "14"
    )  # the verdict, two outputs, decisions, ten stages
    failed = {case.get("name") for case in wrong.findall("testcase") if case.find("failure") is not None}
    beyond = {"classes/iteration2/mean", "classes/iteration2/variance"}
    assert failed == {"answers as the trained network does", "output pose", "decisions"} | beyond
    (why,) = skipped.findall("testcase/skipped")
    assert why.get("message") == "no CUDA device here"
    for name in ("tests", "failures", "skipped"):
        assert root.get(name) == str(sum(int(suite.get(name, "")) for suite in root))
    assert (honest.get("time"), root.get("time")) == ("1.500", "3.000")


def test_a_backend_that_passed_has_no_failure(tmp_path: Path) -> None:
    """A stage beside the answers may leave its tolerance: CI must not read that as another verdict."""
    files.write(tmp_path, report(verdict("onnxruntime", "model.onnx", 3.0, stages=stages(wrong=True))), {})
    assert ET.fromstring((tmp_path / "junit.xml").read_text()).get("failures") == "0"


def test_errors_are_shares_of_what_is_allowed_everywhere(folder: Path) -> None:
    """3,533 noise floors are few in fp16: a number of them says nothing to one who does not know the scale."""
    half = verdict("torch-cuda", "weights.safetensors", 3.0, precision="fp16", stages=())
    half = replace(half, outputs={"logit": errors(3533, 32768), "pose": errors(2510, 32768)})
    files.write(folder, report(half), {})
    assert any("11 % of what is allowed" in line for line in half.lines())
    for name in ("junit.xml", "report.html"):
        text = (folder / name).read_text()
        assert "11 %" in text and "3,533" not in text and "3.5e+03" not in text, name
    assert "noise floors" not in "".join([*half.lines(), (folder / "report.html").read_text()])


def test_shares_in_words() -> None:
    assert [share(value) for value in (0.0, 0.0041, 0.41, 1.0, 9.51, 59.0, math.inf)] == [
        *("0 %", "0.41 %", "41 %", "100 %", "9.5×", "59×", "∞")
    ]
    assert share_of_allowed(0.41) == "41 % of what is allowed"
    assert share_of_allowed(9.51) == "9.5 times what is allowed" and count(3.1e5) == "3.1·10⁵"


def test_the_headline_is_in_plain_words() -> None:
    def words(*statuses: Any) -> tuple[str, str]:
        found = [Verdict("a", str(i), "fp32", status) for i, status in enumerate(statuses)]
        return summary.headline(summary.in_order(report(*found)))

    assert words("passed", "passed") == ("passed", "Every backend answers as the trained network does.")
    assert words("passed", "missing")[1] == "Every backend that ran answers as the trained network does."
    assert words("passed", "failed")[1] == "1 of 2 backends does not answer as the trained network does."
    assert words("failed", "failed", "passed", "missing")[1].startswith("2 of 3 backends do not answer")
    assert words("failed")[1].startswith("The backend does not")
    assert words("missing")[0] == words()[0] == "missing"


@pytest.mark.parametrize(
    "verdicts",
    [
        (),
        (missing(),),
        (Verdict("a", "b", "fp32", "failed", ("it does not run",)),),
        (verdict("a", "b", 1.0, outputs={"logit": errors(1.0)}, pose_degrees=None, stages=()),),
        (verdict("a", "b", 1.0, outputs={"logit": replace(errors(1.0), not_finite=3)}, status="failed"),),
        (verdict("a", "b", 1.0, outputs={"input": replace(errors(1.0), tolerance=0.0)}, status="failed"),),
        (verdict("a", "b", 1.0, outputs={"pose": replace(errors(1.0), max_abs=0.0, noise_floor=1e-300)}),),
        (verdict("a", "b", 1.0, stages=(replace(stages(False)[0], errors=None),)),),
    ],
)
def test_whatever_is_not_known_is_left_out(tmp_path: Path, verdicts: tuple[Verdict, ...]) -> None:
    """A network without poses, a backend that does not run, errors that are not finite or none."""
    empty = replace(report(*verdicts), reference=None, benchmark=benchmark(speed("a", 1.0, cold=None, histogram=None)))
    files.write(tmp_path, empty, {})
    assert read_report(tmp_path / "report.json") == empty
    ET.fromstring((tmp_path / "junit.xml").read_text())
    page = (tmp_path / "report.html").read_text()
    assert "</html>" in page and "None" not in re.sub("<p>None: every image", "", page)


def test_a_turn_of_directions_is_shown_and_fails(tmp_path: Path) -> None:
    far = Turn("test 0: cat", degrees=0.5, noise_floor=0.001, allowed=0.016, largest=0.75)
    near, off = verdict("a", "b", 1.0, turn=replace(far, degrees=0.01, largest=0.01)), verdict("c", "b", 1.0, turn=far)
    assert near.derived == "passed" and off.derived == "failed"
    said = "the direction of test 0: cat turns by 0.5°, where 0.016° is allowed"
    assert off.settled().reasons == (said,)
    assert any("directions within 0.01° (0.016° allowed, noise 0.001°, for test 0: cat)" in one for one in near.lines())
    shown = report(near, off.settled())
    files.write(tmp_path, shown, {})
    assert read_report(tmp_path / "report.json") == shown
    page = (tmp_path / "report.html").read_text()
    assert "direction turned by" in page and "0.75°" in page and said in (tmp_path / "junit.xml").read_text()
    files.write(tmp_path / "without", report(verdict("a", "b", 1.0)), {})
    assert "direction turned by" not in (tmp_path / "without" / "report.html").read_text()


def test_a_command_in_a_reason_is_shown_as_code(tmp_path: Path) -> None:
    files.write(tmp_path, report(missing("run `qcn <doctor>` there")), {})
    assert "run <code>qcn &lt;doctor&gt;</code> there" in (tmp_path / "report.html").read_text()


def test_no_word_of_a_bundle_becomes_markup(tmp_path: Path) -> None:
    odd = replace(stages(True)[0], layer=EVIL, quantity=EVIL, range=Range(1.0, 1.0, 0, 0, EVIL), half=True)
    hostile = replace(
        verdict(EVIL, EVIL, 5e4, precision=EVIL, reasons=(EVIL,), first_wrong=EVIL, runner=EVIL, inside=EVIL),
        flips=(Flip(EVIL, 0, EVIL, EVIL, 1e-3, False),),
        outputs={EVIL: errors(5e4), "pose": errors(2.0)},
        stages=(odd, *stages(True)),
    )
    timed = benchmark(replace(speed(EVIL, 3.0), variant=EVIL, file=EVIL, precision=EVIL))
    evil = report(
        hostile,
        missing(EVIL),
        bundle=EVIL,
        command=EVIL,
        environment=replace(MACHINE, processor=EVIL, packages={EVIL: EVIL}),
        images=Images(EVIL, 3, 1),
        benchmark=replace(timed, command=EVIL),
    )
    files.write(tmp_path, evil, {EVIL: IMAGES["test 0: cat"]})
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


def test_a_heat_map_has_layers_down_and_iterations_across() -> None:
    found = heat.heat_map(verdict("tensorrt", "x", 5e4))
    assert found is not None and [layer for layer, _ in found.rows] == ["capsules1", "classes"]
    assert found.groups == [("iteration 1", 2), ("iteration 2", 2), ("output", 1)]
    assert found.columns == ["mean", "variance", "mean", "variance", "pose"]
    beyond = [[cell is not None and cell.shade > heat.SHADES for cell in cells] for _, cells in found.rows]
    assert beyond == [[False] * 5, [False, False, True, True, False]]
    assert [note.partition(":")[0] for note in found.notes] == [
        "classes/iteration2/mean",
        "classes/iteration2/variance",
    ]
    assert all("3 underflow" in note for note in found.notes)
    few = tuple(one for one in stages(False) if one.layer == "classes" or one.iteration)
    shown = heat.heat_map(verdict("a", "b", 1.0, stages=few))
    assert shown is not None and shown.rows[0][1][-1] is None
    assert heat.heat_map(verdict("a", "b", 1.0, stages=())) is None


def test_charts_lie_where_the_figures_say() -> None:
    (low, high) = axis = charts.error_axis([errors(1e4), errors(0.1)])
    assert low <= -3 and high >= 2
    drawn = charts.error_chart(errors(1e4, allowed=100.0), axis)
    assert drawn is not None and drawn.limit == pytest.approx(100 * (0 - low) / (high - low))
    assert all(bar.x >= 0 and bar.x + bar.width <= 100 + 1e-9 and 0 < bar.height <= charts.HEIGHT for bar in drawn.bars)
    assert max(bar.x for bar in drawn.bars) > drawn.limit  # what is beyond is seen beyond
    good = charts.error_chart(errors(0.1), charts.error_axis([errors(0.1)]))
    assert good is not None and good.limit is not None and max(bar.x for bar in good.bars) < good.limit < 100
    timed = [one.latency_ms for one in (speed("a", 1.0), speed("b", 100.0)) if one.latency_ms]
    (first, second), ticks = charts.latency_strips(timed)
    assert 0 <= first.low < first.median < first.ninety < first.high < second.low and second.high <= 100
    assert ticks and all(0 < tick.x < 100 for tick in ticks)
    histogram = speed("a", 1.0).histogram
    assert histogram is not None and charts.latency_chart(histogram).bars


def test_from_the_command_line(bundle: Bundle, tmp_path: Path) -> None:
    """As `make demo` ends: a benchmark, then parity with a report that shows both."""
    timed = tmp_path / "timed.json"
    one = ("--backends", "torch")
    result = call("benchmark", bundle.folder, *one, "--duration", 0.1, "--set", "warmup=0", "--json", timed)
    assert result.returncode == 0, result.stderr
    result = call("verify-parity", bundle.folder, *one, "--report", tmp_path / "report", "--benchmark", timed)
    assert result.returncode == 0, result.stderr
    assert str(tmp_path / "report" / "report.html") in result.stdout
    found = read_report(tmp_path / "report" / "report.json")
    assert found.status == "passed" and found.benchmark is not None
    assert json.loads(json.dumps(asdict(found.benchmark))) == json.loads(timed.read_text())
    page = (tmp_path / "report" / "report.html").read_text()
    for words in ("Every backend answers as", "One image", "iteration 2", "logit", "to repeat", "qcn benchmark"):
        assert words.lower() in page.lower(), words
    result = call("verify-parity", bundle.folder, *one, "--benchmark", timed)
    assert result.returncode == 2 and "--report" in result.stderr
    timed.write_text("[]")
    result = call("verify-parity", bundle.folder, *one, "--report", tmp_path / "report", "--benchmark", timed)
    assert result.returncode == 2 and "is not what `qcn benchmark --json` writes" in result.stderr


BROWSER = chromium.find()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt install chromium")
@pytest.mark.parametrize("wrong", [True, False])
def test_in_a_browser(tmp_path: Path, wrong: bool) -> None:
    files.write(tmp_path, record(wrong), IMAGES)
    page = tmp_path / "report.html"
    image_module = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    with Browser(str(BROWSER), tmp_path / "profile") as browser:
        brightness = {}
        for width in (390, 1280):
            for dark in (False, True):
                browser.show(page, width, dark)
                browser.check_width(width)
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
            "Not tested here",
            "Speed",
            "Deviations",
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


def test_dark_means_near_what_is_allowed() -> None:
    """Twelve per cent of it is far from the limit, and must not look like a warning."""
    shades = []
    for part in (0.0, 0.005, 0.06, 0.12, 0.4, 0.7, 0.8, 1.0):
        stage = replace(stages(False)[0], errors=errors(16 * part if part else 1e-9, histogram=False))
        found = heat.heat_map(verdict("a", "b", 1.0, stages=(stage,)))
        cell = found.rows[0][1][0] if found else None
        assert cell is not None
        shades.append(cell.shade)
    assert shades == [0, 0, 2, 3, 4, 5, 6, 6] and heat.SHADES == 6


def test_accuracy_comes_first_and_a_deviation_is_not_called_an_error(tmp_path: Path) -> None:
    """`Largest error 12 %` reads as twelve wrong answers of a hundred; it is a share of what is allowed."""
    tested = replace(record(wrong=False), images=Images("mnist", 64, 0))
    tiles = summary.tiles(tested)
    assert tiles[0] == ("right answers", "15 of 16", "71.7 to 98.9 %; by the worst backend")
    assert ("allowed deviation used", "19 %", "at most, by onnxruntime: model.onnx (fp32)") in tiles
    files.write(tmp_path, tested, {})
    page = (tmp_path / "report.html").read_text()
    assert "largest error" not in page and page.index("right answers") < page.index("allowed deviation used")
    assert "The trained network itself is right for 15 of 16" in page


def test_golden_images_are_no_test_of_accuracy(folder: Path) -> None:
    """8 of 16 right reads as an accuracy of 50 %."""
    page = (folder / "report.html").read_text()
    assert "right answers" not in page and "15 of 16" not in page and "itself is right for" not in page
    assert "right answers" not in [name for name, *_ in summary.tiles(record(wrong=False))]


def test_unstable_times_are_marked_wherever_they_are_shown(tmp_path: Path) -> None:
    def marks(unstable: bool) -> int:
        timed = benchmark(speed("native", 9.0, unstable=unstable))
        files.write(tmp_path, report(verdict("native", "x", 1.0), benchmark=timed), {})
        return len(re.findall(">unstable<|, unstable<", (tmp_path / "report.html").read_text()))

    assert marks(False) == 0 and marks(True) == 4  # the tile, the strip, the table, the histogram


def test_charts_that_are_the_same_fold(tmp_path: Path) -> None:
    same = [verdict(name, "model.onnx", 3.0) for name in ("onnxruntime", "torch", "native")]
    other = verdict("tensorrt", "model.onnx", 12.0)
    files.write(tmp_path, report(*same, other), {})
    page = (tmp_path / "report.html").read_text()
    drawn = page[page.index("<h2>Deviations") : page.index("<h2>Layer by layer")]
    captions = re.findall("<figcaption>(.*?)</figcaption>", drawn)
    # All activations look the same; the poses of one backend are further off.
    assert [len(re.findall("<span>", caption)) for caption in captions] == [4, 3, 1]
    assert all(f"{one.key}: 19 %<" in captions[1] for one in same)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt install chromium")
def test_a_table_beyond_the_edge_of_a_phone_shows_it(tmp_path: Path) -> None:
    """A shadow at the edge that goes on; none where all is seen, and none on a wide screen."""
    files.write(tmp_path, record(), IMAGES)
    right = "parseFloat(getComputedStyle(document.querySelector('.scroll'), '::after').opacity)"
    left = right.replace("after", "before")
    with Browser(str(BROWSER), tmp_path / "profile") as browser:
        browser.show(tmp_path / "report.html", 390)
        assert browser.ask("document.querySelector('.scroll').scrollWidth") > 390
        browser.wait_for(f"{right} > 0.9 && {left} < 0.1")  # the style follows when the page was drawn
        browser.ask("document.querySelector('.scroll').scrollLeft = 1e6")
        browser.wait_for(f"{right} < 0.1 && {left} > 0.9")
        browser.show(tmp_path / "report.html", 1280)
        browser.screenshot(tmp_path / "shot.png", whole=False)  # so that it is drawn
        wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth <= e.clientWidth)"
        wide += ".map(e => parseFloat(getComputedStyle(e, '::after').opacity))"
        browser.wait_for(f"(seen => seen.length > 0 && Math.max(...seen) === 0)({wide})")

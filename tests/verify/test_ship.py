"""`qcn ship-check`: each limit met and not met, what cannot be told, exit codes, JUnit, JSON, and the page."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import with_directions
from command import Command
from PIL import Image
from plants import CLASSES, FAULTS, SIZE
from test_report import EVIL, IMAGES, MACHINE, record, speed, verdict

from qcn.data.imageset import ImageSet, Views
from qcn.direction import Directions, direction_vector
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.evaluate.evaluation import evaluate
from qcn.evaluate.rates import Answers
from qcn.evaluate.request import Request
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import Batch, BundleSource
from qcn.export.pipeline import FROM_RUN
from qcn.export.targets import Gpu
from qcn.intervals import wilson
from qcn.storage import records
from qcn.storage.measured import Measured, SplitError
from qcn.verify.machine import Graphics
from qcn.verify.parity.compare import Share
from qcn.verify.report import files
from qcn.verify.report.junit import junit
from qcn.verify.ship import judge
from qcn.verify.ship.check import _off, choose, is_here
from qcn.verify.ship.judge import LimitRow
from qcn.verify.ship.limits import Angle, LatencyLimit, Limits, parse_angle, parse_latency
from qcn.verify.ship.outcome import Ship, conclude, overall
from qcn.verify.speed.nvml import State

SHORT = ("--set", "duration=0")
BY_ONNXRUNTIME = ("--backend", "onnxruntime", *SHORT)


def limits(**texts: str) -> Limits:
    names = ("accuracy", "calibration_error", "latency", "memory", "energy", "direction_error")
    return Limits.parse(**{name: texts.get(name) for name in names})


def test_limits_are_read() -> None:
    assert limits(accuracy="0.94").accuracy == limits(accuracy=" 94 %").accuracy == 0.94
    assert limits(calibration_error="5%").calibration_error == 0.05
    assert parse_latency("5ms@p99") == parse_latency("5 ms") == parse_latency("0.005s@p99") == LatencyLimit(5.0, "p99")
    assert parse_latency("800us@p50") == LatencyLimit(pytest.approx(0.8), "p50")
    assert limits(memory="1GiB").memory == 1024 and limits(memory="2MB").memory == pytest.approx(2e6 / 2**20)
    assert limits(energy="0.03J").energy == pytest.approx(30) and limits(energy="30mJ").energy == 30
    assert parse_angle("20deg@p50") == parse_angle("20°") == Angle(20.0, "p50")
    assert limits(direction_error="45 deg@p90").direction_error == Angle(45.0, "p90")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("latency", text) for text in ("5@p99", "5ms@p999", "0 ms", "0ms@p99", "nan", "nanms", "5ms@", "", "-5ms")],
        *[("latency", text) for text in ("infms", "1e999ms", "5MS", "5 min", "p99", "5ms@p99@p50", "5,5ms", "٥ms")],
        *[("direction_error", text) for text in ("20", "20deg@p51", "0deg", "20ms", "", "-1deg", "20deg@")],
        *[("accuracy", text) for text in ("0", "1", "94", "100%", "nan", "inf", "-0.5", "0.94x", "", "1e-999")],
        *[("calibration_error", text) for text in ("0", "2", "nan", "5 percent")],
        *[("memory", text) for text in ("200", "0MiB", "200 mJ", "nanGiB", "-1GB")],
        *[("energy", text) for text in ("30", "30W", "0mJ", "nan J")],
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused_in_one_line(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="such as") as caught:
        limits(**{name: text})
    assert f"'{text}'" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("right", "of", "limit", "status"),
    [
        (960, 1000, 0.94, "passed"),
        (940, 1000, 0.94, "not shown"),
        (945, 1000, 0.94, "not shown"),
        (930, 1000, 0.94, "not shown"),
        (900, 1000, 0.94, "failed"),
        (16, 16, 0.94, "not shown"),  # all right, and far too few to tell
        (0, 16, 0.94, "failed"),
    ],
)
def test_an_accuracy_is_judged_by_its_interval(right: int, of: int, limit: float, status: str) -> None:
    row = judge.accuracy("test", Share.count(right, of), limit)
    assert row.status == status and row.value == right / of and row.limit == limit
    low, high = wilson(right, of)
    assert (low >= limit) == (status == "passed") and (high < limit) == (status == "failed")
    assert f"{100 * low:.2f} to {100 * high:.2f} %" in row.found


@pytest.mark.parametrize(
    ("right", "of", "limit"), [(945, 1000, 0.94), (930, 1000, 0.94), (61, 64, 0.9), (50, 100, 0.52)]
)
def test_so_many_images_would_settle_it(right: int, of: int, limit: float) -> None:
    """With the same share of right answers, the limit is outside of the interval then, and was inside before."""
    row = judge.accuracy("test", Share.count(right, of), limit)
    (found,) = re.findall(r"about ([\d,]+) images", row.note)
    needed = int(found.replace(",", ""))
    share = right / of

    def inside(images: int) -> bool:
        """Wilson's interval, for a share that need not be a count."""
        return abs(share - limit) <= 1.959963984540054 * (limit * (1 - limit) / images) ** 0.5

    assert row.status == "not shown" and needed > of and inside(needed - 1) and not inside(needed)
    assert ("is met" in row.note) == (share > limit)


def test_a_share_that_equals_its_limit_is_never_told_from_it() -> None:
    assert "no number of images" in judge.accuracy("test", Share.count(94, 100), 0.94).note


def test_times_memory_and_energy_are_judged_by_what_was_measured() -> None:
    timed = speed("native", 4.0, unstable=False, energy_mj=20.0, energy_of="the board")  # p99 is 6 ms, memory 120 MiB
    for most, status in ((6.1, "passed"), (5.9, "failed")):
        assert judge.latency(timed, LatencyLimit(most, "p99"), "").status == status
    assert judge.latency(timed, LatencyLimit(4.1, "p50"), "").status == "passed"
    assert [judge.memory(timed, most, "").status for most in (121.0, 119.0)] == ["passed", "failed"]
    assert [judge.energy(timed, most, "").status for most in (20.0, 19.0)] == ["passed", "failed"]
    assert [judge.calibration("test", 0.03, True, most).status for most in (0.03, 0.02)] == ["passed", "failed"]
    assert judge.latency(timed, None, "").status == judge.memory(timed, None, "").status == "no limit"


def test_what_was_not_measured_is_not_tested_and_never_passed() -> None:
    timed = speed("native", 4.0, cold=None, unstable=False)
    lacking = replace(timed, latency_ms=None, missing="no CUDA device here")
    for row in (
        judge.energy(timed, 1e9, ""),
        judge.memory(timed, 1e9, ""),
        judge.latency(lacking, LatencyLimit(1e9, "p99"), ""),
        judge.parity(verdict("a", "b", 1.0, status="missing", reasons=("no CUDA",)), verdict("preprocessing", "", 1.0)),
    ):
        assert row.status == "not tested" and row.note, row
    gpu = replace(speed("tensorrt", 4.0), compute_ms=timed.latency_ms)
    assert judge.memory(gpu, 1e9, "").status == "not tested"  # that of the host alone is not all


def test_a_figure_of_another_machine_decides_nothing() -> None:
    row = judge.latency(speed("native", 4.0), LatencyLimit(1e9, "p99"), "this machine is not jetson-orin")
    assert row.status == "not tested" and "on this machine" in row.found and "jetson-orin" in row.note


def test_unstable_times_and_no_calibration_are_said_where_they_are_shown() -> None:
    assert "unstable" in judge.latency(speed("native", 4.0, unstable=True), LatencyLimit(9.0, "p99"), "").found
    assert "not calibrated" in judge.calibration("test", 0.03, False, None).found


def test_the_target_is_this_machine_only_if_it_is() -> None:
    nano = replace(MACHINE, jetson="NVIDIA Jetson Orin Nano Developer Kit")
    assert is_here("this", MACHINE) and not is_here("jetson-orin", MACHINE)
    assert is_here("jetson-orin", nano) and not is_here("jetson-thor", nano)
    with_gpu = replace(MACHINE, gpu=Graphics(Gpu("a GPU", 89).name, 89, State()))
    assert is_here("sm89", with_gpu) and not is_here("sm90", with_gpu) and not is_here("sm89", MACHINE)


def test_the_whole_is_as_its_worst_row() -> None:
    def rows(*statuses: Any) -> tuple[LimitRow, ...]:
        return tuple(LimitRow("x", "" if status == "no limit" else "at most 1", "2", status) for status in statuses)

    assert overall(rows("passed", "no limit")) == "passed"
    assert overall(rows("passed", "not tested")) == "not tested"
    assert overall(rows("not tested", "not shown")) == "not shown"
    assert overall(rows("not shown", "failed", "not tested")) == "failed"
    assert overall((LimitRow("energy", "", "–", "not tested"),)) == "passed"  # of which nothing was asked


def shipped(*rows: LimitRow, **more: Any) -> Ship:
    about: dict[str, Any] = {
        "schema": 2,
        "bundle": "toys",
        "source": BundleSource("0" * 64, "qcn-tiny", "best", 3, "toys", "0" * 64),
        "manifest_sha256": "1" * 64,
        "network_sha256": "2" * 64,
        "command": "qcn ship-check runs/demo/bundle --min-accuracy 0.94",
        "environment": MACHINE,
        "status": overall(rows),
        "backend": "native",
        "file": "weights.safetensors",
        "precision": "fp32",
        "data": "toys",
        "target": "this",
        "target_is_here": True,
        "calibrated": False,
        "measured": Measured("toys", "2026-11-16", (SplitError("test", 1000, 40, 0.02),)),
        "rows": rows,
        "not_tested": ("model.onnx: not what ships by native",),
        "seconds": 9.5,
    }
    return Ship(**{**about, **more})


ACCURATE = judge.accuracy("test", Share.count(960, 1000), 0.94)
SLOW = judge.latency(speed("native", 9.0), LatencyLimit(5.0, "p99"), "")
UNMETERED = judge.energy(speed("native", 9.0), 30.0, "")


def test_it_ends_as_it_should() -> None:
    conclude(shipped(ACCURATE))
    with pytest.raises(
        CheckFailed, match=r"Do not ship: p99 latency failed\. .*13\.5 ms, unstable; limit: at most 5 ms"
    ):
        conclude(shipped(ACCURATE, SLOW, UNMETERED))
    with pytest.raises(CheckFailed, match="not shown"):
        conclude(shipped(judge.accuracy("test", Share.count(94, 100), 0.9)))
    with pytest.raises(MissingError, match=r"energy was not tested on this machine.*nvidia-ml-py"):
        conclude(shipped(ACCURATE, UNMETERED))


def test_junit_has_a_case_for_each_limit() -> None:
    rows = (ACCURATE, judge.accuracy("novel", Share.count(94, 100), 0.9), SLOW, UNMETERED)
    root = ET.fromstring(junit(record(wrong=False), shipped(*rows, judge.memory(speed("native", 9.0), None, ""))))
    assert root.get("name") == "qcn ship-check"
    suite = root[0]
    assert suite.get("name") == "may ship: toys" and [suite.get(key) for key in ("tests", "failures", "skipped")] == [
        *("4", "2", "1")
    ]
    kinds = {case.get("name"): [child.tag for child in case if child.tag != "system-out"] for case in suite}
    assert kinds == {
        "accuracy on test": [],
        "accuracy on novel": ["failure"],
        "p99 latency": ["failure"],
        "energy": ["skipped"],
    }
    assert root.get("failures") == "2" and len(root) == 3  # with the suites of parity


def test_the_first_screen_says_what_a_manager_asks(tmp_path: Path) -> None:
    far = judge.latency(speed("native", 9.0), LatencyLimit(5.0, "p99"), "this machine is not jetson-orin")
    ship = shipped(ACCURATE, far, target="jetson-orin", target_is_here=False)
    paths = files.write(tmp_path, record(wrong=False), IMAGES, ship)
    assert [path.name for path in paths] == ["report.json", "ship.json", "junit.xml", "report.html"]
    assert records.load(Ship, tmp_path / "ship.json", "qcn ship-check") == ship
    page = (tmp_path / "report.html").read_text()
    text = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", page[page.index("<main") :]))
    order = [text.index(words) for words in ("Not decided:", "Measured on: a processor", "To run on: jetson-orin")]
    order += [text.index(words) for words in ("96.0 %", "Checks", "at least 94 %", "Not tested", "Backends")]
    assert order == sorted(order)
    assert "96.00 % right of 1,000 images of toys, test" in text and "2026-11-16" in text


def test_no_word_of_a_bundle_becomes_markup(tmp_path: Path) -> None:
    row = replace(ACCURATE, name=EVIL, found=EVIL, note=EVIL, asked=EVIL)
    evil = dict.fromkeys(("bundle", "command", "file", "backend", "data", "target", "precision"), EVIL)
    split = SplitError("<script>", 10, 1, 0.1)
    ship = shipped(
        row,
        replace(row, status="failed"),
        **evil,
        target_is_here=False,
        not_tested=(EVIL,),
        measured=Measured("<script>alert(3)</script>", "2026-11-16", (split,)),
    )
    files.write(tmp_path, record(), IMAGES, ship)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page and "<img src=x" not in page and page.count("&lt;script&gt;") > 12
    ET.fromstring((tmp_path / "junit.xml").read_text())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise in folders named for the classes: right by chance, as often as `evaluated` says."""
    folder, generator = tmp_path_factory.mktemp("pictures") / "noise", np.random.default_rng(0)
    for split, count in (("train", 5), ("val", 2), ("test", 12)):
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (SIZE, SIZE, 3), np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


def test_directions_are_judged_where_answers_are_right() -> None:
    """By the nearest equivalent, at a percentile; a round class and an unknown view do not count."""
    azimuth = np.array([0.0, 90, 180, 200, 10, np.nan, 0])
    labels = np.array([0, 0, 1, 1, 2, 0, 0])
    views = Views(labels, np.zeros(7, int), azimuth, labels)  # type: ignore[arg-type]
    images = ImageSet(np.zeros((7, 1, 1, 1), np.uint8), labels, ("car", "cup", "ball"), views)
    logit = np.eye(3, dtype=np.float32)[labels]
    logit[6] = [0, 0, 1]  # wrong
    vectors = direction_vector(np.array([10, 60, 5, 10, 0, 0, 0]), np.full(7, 0)).astype(np.float32)
    answers = Answers(logit, logit.astype(np.float64), None, np.repeat(vectors[:, None], 3, 1))
    directions = Directions((1, 2, 0), True, (), (10.0,))
    off = _off(images, answers, directions)
    assert off is not None and off.tolist() == pytest.approx([10, 30, 5, 10], rel=1e-5)
    tilted = replace(answers, pose=answers.pose + np.float32([0, 0, 9]))  # type: ignore[operator]
    level = _off(images, tilted, replace(directions, elevation=False))
    assert level is not None and level.tolist() == pytest.approx(off.tolist(), rel=1e-5)
    met, not_met = (judge.direction("test", off, Angle(degrees, "p50")) for degrees in (10.1, 9.0))
    assert (met.status, not_met.status) == ("passed", "failed") and met.value == pytest.approx(10)
    assert met.found == "10°, of 4 images that are answered right" and met.asked == "at most 10.1°"
    assert judge.direction("test", off, Angle(25.0, "p99")).status == "failed"
    assert judge.direction("test", off, None).status == "no limit"
    assert _off(replace(images, views=None), answers, directions) is None
    assert judge.direction("test", None, Angle(9.0, "p50")).status == "not tested"


def test_directions_are_asked_of_networks_and_images_that_have_them(
    small: Bundle, pictures: Path, tmp_path: Path, qcn: Command
) -> None:
    place = ("--dataset", pictures, "--data-dir", tmp_path, "--backend", "onnxruntime", *SHORT)
    ask = ("ship-check", small.folder, *place, "--max-direction-error", "20deg@p50")
    code, said = qcn(*ask)
    assert code == 2 and "tells no directions: leave out --max-direction-error" in said, said
    with_directions(small)
    code, said = qcn(*ask)
    assert code == 3 and "p50 direction error on test" in said and "the images have no views" in " ".join(said.split())


def evaluated(bundle: Bundle, pictures: Path, data: Path) -> Share:
    request = Request(str(pictures), data_dir=data, out=data / "evaluation", backend="onnxruntime")
    (result,) = evaluate(bundle.folder, request).results
    return Share.count(result.overall.total - result.overall.wrong, result.overall.total)


def test_from_the_command_line(small: Bundle, pictures: Path, tmp_path: Path, qcn: Command) -> None:
    """Met limits end with 0 and leave the files; the accuracy is that of `qcn evaluate`; limits not met end with 1."""
    right = evaluated(small, pictures, tmp_path)
    assert right.of == 48 and 0 < right.low < right.high < 1
    place = ("--dataset", pictures, "--data-dir", tmp_path, "--backend", "onnxruntime", *SHORT)
    ask = ("ship-check", small.folder, *place)
    met = ("--min-accuracy", right.low * 0.999, "--max-latency", "60s", "--max-memory", "64GiB")
    report = tmp_path / "report"
    files_to = ("--report", report)
    code, said = qcn(*ask, *met, "--set", "max_calibration_error=99.9%", *files_to)
    assert code == 0 and "Ready to ship" in said, said
    found = records.load(Ship, report / "ship.json", "qcn ship-check")
    assert found.status == "passed" and (found.backend, found.file) == ("onnxruntime", "model.onnx")
    by_name = {row.name: row for row in found.rows}
    assert by_name["accuracy on test"].value == right.right / right.of and not found.calibrated
    assert [row.status for row in found.rows] == [*["passed"] * 5, by_name["energy"].status]
    root = ET.parse(report / "junit.xml").getroot()
    assert root.get("failures") == "0" and root[0].get("tests") == "5"
    assert "Ready to ship" in (report / "report.html").read_text()
    assert any("weights.safetensors" in what for what in found.not_tested)
    code, said = qcn(*ask, "--min-accuracy", (1 + right.high) / 2, "--max-latency", "1us@p50")
    assert code == 1 and "Do not ship: accuracy on test, p50 latency failed" in said, said
    code, said = qcn("ship-check", small.folder, "--backend", "onnxruntime", *SHORT, "--max-latency", "60s", *files_to)
    assert code == 0, said  # of a device without test images
    assert [row.status for row in records.load(Ship, report / "ship.json", "qcn ship-check").rows[:2]] == [
        "not tested"
    ] * 2
    code, said = qcn(*ask, "--max-latency", "60s", "--target", "jetson-orin")
    assert code == 3 and "p99 latency was not tested on jetson-orin" in said, said


def test_a_planted_fault_does_not_ship(small: Bundle, pictures: Path, tmp_path: Path, qcn: Command) -> None:
    """One that accuracy does not show: the limits are met, and it is not the trained network."""
    FAULTS["a transposed pose"].plant(small)
    ask = ("ship-check", small.folder, "--dataset", pictures, "--data-dir", tmp_path, *BY_ONNXRUNTIME)
    code, said = qcn(*ask, "--min-accuracy", "0.0001%", "--report", tmp_path)
    assert code == 1 and "answers as the trained network failed" in said and "pose is off by" in said, said
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["answers as the trained network"]


def test_a_file_that_does_not_run_does_not_ship(small: Bundle, pictures: Path, tmp_path: Path, qcn: Command) -> None:
    FAULTS["a truncated graph"].plant(small)
    ask = ("ship-check", small.folder, "--dataset", pictures, "--data-dir", tmp_path, *BY_ONNXRUNTIME)
    code, said = qcn(*ask, "--min-accuracy", "1%", "--max-latency", "60s", "--report", tmp_path)
    assert code == 1 and "it does not run" in said, said
    statuses = [row.status for row in records.load(Ship, tmp_path / "ship.json", "qcn ship-check").rows]
    assert statuses == ["not tested", "not tested", "failed", "not tested", "not tested", "not tested"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "no limit was given"),
        (("--min-accuracy", "nan"), "'nan'"),
        (("--min-accuracy", "0.9", "--target", "jetson-orion"), "jetson-orin"),
        (("--min-accuracy", "0.9", "--backend", "onnx"), "no backend named 'onnx'"),
        (("--min-accuracy", "0.9", "--set", "file=model.onx"), "did you mean 'model.onnx'"),
        (("--min-accuracy", "0.9", "--backend", "pt2"), "no file for the backend pt2"),
        (("--min-accuracy", "0.9"), "name a folder of pictures with --dataset"),
        (("--min-accuracy", "0.9", "--report", __file__), "--report names a folder"),
        (("--min-accuracy", "0.9", "--set", "duration=nan"), "--duration"),
    ],
)
def test_wrong_usage_ends_with_two_in_one_line(small: Bundle, qcn: Command, options: Any, says: str) -> None:
    code, said = qcn("ship-check", small.folder, *options)
    assert code == 2 and says in said and said.strip().count("\n") == 0, said


def test_what_ships_is_what_would_be_loaded(small: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(small, "auto", None, False).key == "native: weights.safetensors (fp32)"
    assert choose(small, "auto", "model.onnx", False).key == "onnxruntime: model.onnx (fp32)"
    assert choose(small, "torch", None, False).key == "torch: weights.safetensors (fp32)"
    with small.adding("engines/other.engine", "trt", "fp16", FROM_RUN, batch=Batch(1, 4, 8)) as draft:
        draft.path.write_bytes(b"of a machine that this is not")
        draft.facts = {"flavour": "tensorrt", "version": "0.0.1", "gpu": "Other", "sm": 1}
    assert choose(small, "auto", None, False).key == "native: weights.safetensors (fp32)"
    monkeypatch.setenv("QCN_LIBRARY", "/no/such/library")
    assert choose(small, "auto", None, False).key == "onnxruntime: model.onnx (fp32)"

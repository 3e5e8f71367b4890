"""`qcn report merge`: many devices on one page, what is worse than before, and what is missing or does not belong."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import chromium
import pytest
from chromium import Browser
from command import Command
from test_report import EVIL, LONG, MACHINE, benchmark, errors, missing, report, speed, stages, verdict

from qcn.storage import records
from qcn.verify.parity.compare import Flip, Share
from qcn.verify.parity.results import Images, ParityReport
from qcn.verify.report.merge import FleetReport, merge, page
from qcn.verify.words import Histogram

BROWSER = chromium.find()
TIE = Flip("test 1: cat", 1, "cat", "dog", 1e-7, True)
JETSON = replace(MACHINE, processor="Cortex-A78AE", cores=6, jetson="Jetson Orin Nano", power_mode="15W")


def put(folder: Path, *verdicts: Any, **more: Any) -> Path:
    """A device's folder with a report that passed."""
    records.write(folder / "report.json", report(*verdicts, **{"status": "passed", **more}))
    return folder


def gate(folder: Path, milliseconds: float = 9.0, energy: float = 30.0, floors: float = 1.0, **more: Any) -> Path:
    timed = benchmark(speed("native", milliseconds, energy_mj=energy, unstable=False), speed("native", 70.0, batch=8))
    found = verdict("native", "model.onnx", floors, **more)
    return put(folder, found, missing(), benchmark=timed, status=found.status)


def orin(folder: Path) -> Path:
    engine = verdict("tensorrt", LONG, 2.0, precision="fp16")
    on_gpu = (
        replace(speed("tensorrt", ms, variant=way), file=LONG, precision="fp16")
        for ms, way in ((0.4, ""), (0.7, "no graph"))
    )
    return put(
        folder, engine, verdict("native", "weights.safetensors", 1.0), environment=JETSON, benchmark=benchmark(*on_gpu)
    )


@pytest.fixture
def run(qcn: Command, tmp_path: Path) -> Any:
    def merged(*arguments: object) -> tuple[int, str, FleetReport | None]:
        out = tmp_path / "fleet.html"
        code, said = qcn("report", "merge", *arguments, "--out", out)
        record = out.with_suffix(".json")
        return code, " ".join(said.split()), records.load(FleetReport, record, "") if record.exists() else None

    return merged


def test_devices_by_backends(run: Any, tmp_path: Path) -> None:
    code, said, fleet = run(gate(tmp_path / "gate"), orin(tmp_path / "orin"))
    assert code == 0 and "Every device answers as the trained network does." in said
    assert [device.name for device in fleet.devices] == ["gate", "orin"]
    first, second = (device.backends for device in fleet.devices)
    assert (first[0].latency_ms, first[0].batch, first[0].energy_mj, first[0].right.right) == (9.0, 1, 30.0, 15)
    assert second[0].latency_ms == 0.4, "the faster of its ways"
    assert (first[1].status, first[1].latency_ms) == ("missing", None)
    text = (tmp_path / "fleet.html").read_text()
    assert "right answers" not in text  # golden images are no test of accuracy
    for words in ("0.4 ms", "30 mJ", "tensorrt on orin", "no CUDA device here", "Jetson Orin Nano"):
        assert words in text, words
    assert json.loads((tmp_path / "fleet.json").read_text())["baseline"] is None


def test_a_device_that_fails_or_has_no_report_fails_the_whole(run: Any, tmp_path: Path) -> None:
    devices = [gate(tmp_path / "gate"), gate(tmp_path / "shed", floors=5e4), tmp_path / "barn", tmp_path / "cellar"]
    (tmp_path / "cellar").mkdir()
    (tmp_path / "cellar" / "report.json").write_text('{"schema": 5}')
    code, said, fleet = run(*devices)
    assert code == 1 and "Of 4 devices, 1 failed and 2 were not checked." in said
    assert [device.status for device in fleet.devices] == ["passed", "failed", "missing", "missing"]
    assert "shed: native: model.onnx (fp32): pose is off by" in said
    assert f"barn: there is no {tmp_path}/barn/report.json: qcn verify-parity BUNDLE --report" in said
    assert "cellar: it has no report that can be read" in said and "bundle is missing" in said
    code, said, _ = run(tmp_path / "barn")
    assert code == 2 and "none of these devices has a report" in said
    edited = tmp_path / "shed" / "report.json"
    edited.write_text(json.dumps({**json.loads(edited.read_text()), "status": "passed"}))
    code, said, fleet = run(tmp_path / "shed")
    assert code == 1 and fleet.devices[0].status == "failed", "whatever it says of itself"


def passed(**more: Any) -> ParityReport:
    """A report that is called passed, whatever else it says."""
    return report(verdict("native", "model.onnx", 1.0, **{"status": "passed", "reasons": (), **more}), status="passed")


def off_by(largest: float, **more: Any) -> dict[str, Any]:
    return {"logit": replace(errors(1.0), max_abs=largest, **more), "pose": errors(1.0)}


BEYOND = Histogram((-1.0, 0.0, 0.5, 1.0), (5, 0, 2))
WRONG = Flip("test 0: cat", 0, "cat", "dog", 1.0, False)


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        (report(status="passed"), "the report is called passed, but nothing was measured"),
        (report(missing(), status="passed"), "the report is called passed, but nothing was measured"),
        (report(missing(), replace(missing(), backend="a"), status="passed", by_name=True), "nothing was measured"),
        (replace(passed(), backends={"a": missing()}), "a: the entry is of torch-cuda: weights.safetensors (fp16)"),
        (
            report(verdict("native", "x", 1.0), missing(), status="passed", by_name=True),
            "the report is called passed, but what was measured is missing",
        ),
        (passed(outputs=off_by(1e6)), "called passed, but logit is off by 1e+06: 6.2·10¹¹ times what is allowed"),
        (passed(outputs=off_by(0.0)), "called passed, but logit is off by 5e-08 on average, but by 0 at most"),
        (passed(outputs=off_by(1e-7, not_finite=3)), "called passed, but logit is not finite in 3 places"),
        (passed(outputs=off_by(1e-7, histogram=BEYOND)), "logit has 2 values beyond what is allowed in its histogram"),
        (passed(outputs={}), "called passed, but nothing was measured"),
        (passed(images=0), "called passed, but nothing was measured"),
        (passed(images=3, agreement=Share.count(3, 3)), "compared on 3 images, and the report is on 21"),
        (passed(reasons=("pose is upside down",)), "called passed, but pose is upside down"),
        (passed(stages=stages(True)), "called passed, but classes/iteration2/mean is off by"),
        (passed(agreement=None), "21 of 21 images keep their class by its list of changes, but it has no count"),
        (passed(agreement=Share.count(0, 21)), "keep their class by its list of changes, but its count is 0 of 21"),
        (passed(accuracy=Share.count(0, 16)), "right for 0 of 16 images and the trained network for 15 of 16, with 0 "),
        (passed(accuracy=None), "right for 0 of 0 images and the trained network for 15 of 16"),
        (passed(flips=(WRONG,), agreement=Share.count(20, 21)), "called passed, but 1 of 21 images get another class"),
        (passed(flips=(replace(WRONG, tie=True),)), "called passed, but test 0: cat is called a tie, but its margin"),
        (passed(status="missing", reasons=("no GPU",)), "called missing, but it has answers"),
        (passed(status="untrusted", outputs={}, stages=()), "called untrusted, but it does not say why"),
        (passed(status="failed"), "called failed, but nothing is wrong in what was measured"),
        (replace(passed(), images=Images("golden", 21, 22)), "22 of 21 images are edge cases"),
    ],
)
def test_a_report_that_contradicts_itself_has_failed(
    run: Any, tmp_path: Path, forged: ParityReport, words: str
) -> None:
    """Whatever status it gives itself; and it is no baseline."""
    records.write(tmp_path / "shed" / "report.json", forged)
    code, said, fleet = run(tmp_path / "shed")
    assert code == 1 and words in said, said
    assert "as the trained network does" not in (tmp_path / "fleet.html").read_text().split("</h1>")[0]
    assert fleet.devices[0].status == "failed" and fleet.devices[0].reasons
    records.write(tmp_path / "before" / "gate" / "report.json", forged)
    code, said, _ = run(gate(tmp_path / "gate"), "--baseline", tmp_path / "before")
    assert code == 2 and "gate/report.json contradicts itself: " in said


def test_a_backend_may_fail_on_other_images() -> None:
    """As an engine does on fresh images (`--run`): that contradicts nothing."""
    failed = verdict("tensorrt", LONG, 5e4, images=64, agreement=Share.count(64, 64), accuracy=None)
    assert not report(failed).contradictions()


def test_a_report_of_nothing_was_not_checked(run: Any, tmp_path: Path) -> None:
    for name, honest in (("empty", report(status="missing")), ("bare", report(missing(), status="missing"))):
        records.write(tmp_path / name / "report.json", honest)
        code, said, fleet = run(tmp_path / name)
        assert code == 1 and "Of 1 device, 1 was not checked." in said and fleet.devices[0].status == "missing"
        assert ("nothing was measured" if name == "empty" else "no CUDA device here") in fleet.devices[0].reasons[0]


def test_numbers_that_cannot_be_are_refused(run: Any, tmp_path: Path) -> None:
    whole = json.loads(records.text(passed()))
    (key,) = whole["backends"]
    for place, change, words in (
        ("outputs", {"logit": {**whole["backends"][key]["outputs"]["logit"], "max_abs": -1.0}}, "must be 0 or more"),
        ("agreement", {"right": 22, "of": 21, "low": 0.0, "high": 1.0}, "22 of 21 is not a share"),
    ):
        altered = {**whole, "backends": {key: {**whole["backends"][key], place: change}}}
        (tmp_path / "shed").mkdir(exist_ok=True)
        (tmp_path / "shed" / "report.json").write_text(json.dumps(altered))
        code, said, fleet = run(gate(tmp_path / "gate"), tmp_path / "shed")
        assert code == 1 and words in said and fleet.devices[1].status == "missing"


def test_a_tolerance_that_was_set_by_hand_is_said(run: Any, tmp_path: Path) -> None:
    records.write(tmp_path / "shed" / "report.json", passed(outputs=off_by(1e6, tolerance=1e7)))
    code, said, fleet = run(tmp_path / "shed", gate(tmp_path / "gate"))
    assert code == 0 and "within tolerances that were set by hand on shed." in said
    assert "shed: native: model.onnx (fp32): logit was allowed 1e+07, more than 16 noise floors" in said
    assert fleet.devices[0].by_hand and not fleet.devices[1].by_hand


def test_what_does_not_belong_together_is_refused(run: Any, tmp_path: Path) -> None:
    first = gate(tmp_path / "gate")
    other = report(verdict("native", "x", 1.0), status="passed")
    for name, wrong, words in (
        (
            "network",
            replace(other, network_sha256="1" * 64),
            "is a report on another network than gate",
        ),
        ("images", replace(other, images=Images("mnist", 64, 5)), "was checked on 64 images of mnist, 5 of them edge"),
    ):
        records.write(tmp_path / name / "report.json", wrong)
        code, said, fleet = run(first, tmp_path / name)
        assert code == 2 and words in said and fleet is None
    code, said, _ = run(first, gate(tmp_path / "again" / "gate"))
    assert code == 2 and f"the device gate is given twice: {first} and {tmp_path}/again/gate" in said
    for more, words in (
        (("--baseline", tmp_path / "none"), "is not a folder"),
        (("--baseline", tmp_path / "again" / "gate"), "has no earlier report of gate"),
        (("--max-regression", "-1"), "must be 0 or more"),
    ):
        code, said, _ = run(first, *more)
        assert code == 2 and words in said


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"milliseconds": 11.0}, "native: model.onnx (fp32), batch 1: 22 % slower, and 10 % is allowed"),
        ({"energy": 40.0}, "33 % more energy"),
        ({"floors": 9.0}, "pose of native: model.onnx (fp32) is off by 9e-07, and was by 1e-07"),
        ({"accuracy": Share(14, 16, 0.6, 0.97), "flips": (TIE,)}, "is right for 14 of 16 images, and was for 15"),
        ({"precision": "fp16"}, "native: model.onnx (fp32) passed, and is not there any more"),
    ],
)
def test_what_drifted_since_the_baseline(run: Any, tmp_path: Path, now: dict[str, Any], words: str) -> None:
    before = gate(tmp_path / "before" / "gate")
    same = shutil.copytree(before, tmp_path / "gate")
    code, said, _ = run(same, "--baseline", tmp_path / "before")
    assert code == 0 and "The device answers as the trained network does, and none is worse than before." in said
    code, said, fleet = run(
        gate(tmp_path / "gate", **now), "--baseline", tmp_path / "before", "--max-regression", "0.1"
    )
    assert code == 1 and words in said and "1 is worse than in the baseline" in said
    assert len(fleet.devices[0].drift) == 1 and words in (tmp_path / "fleet.html").read_text()


def test_a_device_of_the_baseline_must_not_vanish(run: Any, tmp_path: Path) -> None:
    gate(tmp_path / "before" / "gate"), gate(tmp_path / "before" / "shed")
    code, said, _ = run(gate(tmp_path / "gate"), "--baseline", tmp_path / "before")
    assert code == 1 and "shed: it is in the baseline, and has no report now" in said


def evil(folder: Path) -> Path:
    return put(folder, verdict(EVIL, EVIL, 5e4), bundle=EVIL, status="failed", command=EVIL)


def test_no_word_of_a_report_becomes_markup(tmp_path: Path) -> None:
    shown = page(merge([evil(tmp_path / "gate")], None, 0.1, EVIL), "fleet.json")
    assert "<script" not in shown and "<img src=x" not in shown and "\x01" not in shown


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt install chromium")
def test_in_a_browser(run: Any, tmp_path: Path) -> None:
    gate(tmp_path / "before" / "gate", milliseconds=4.0)
    devices = [gate(tmp_path / "gate"), orin(tmp_path / "orin"), gate(tmp_path / "shed", floors=5e4), tmp_path / "barn"]
    run(*devices, "--baseline", tmp_path / "before")
    shown = tmp_path / "fleet.html"
    with Browser(str(BROWSER), tmp_path / "profile") as browser:
        for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
            browser.show(shown, width, dark)
            browser.check_width(width)
            browser.screenshot(tmp_path / f"{width}-{'dark' if dark else 'light'}.png")
        sections = browser.ask("[...document.querySelectorAll('h2')].map(h => h.innerText)")
        assert [
            name for name in sections if name in ("Devices and backends", "Speed", "Not tested", "To repeat it")
        ] == [
            "Devices and backends",
            "Speed",
            "Not tested",
            "To repeat it",
        ]
        assert (
            browser.ask("document.querySelectorAll('svg[role=img]:not([aria-label]), thead th:not([scope])').length")
            == 0
        )
    assert browser.complaints == []
    assert set(browser.requests) <= {shown.as_uri(), "data:,"}

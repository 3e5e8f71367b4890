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
from test_report import EVIL, LONG, MACHINE, benchmark, missing, report, speed, verdict

from qcn import records
from qcn.verify.parity.compare import Share
from qcn.verify.parity.results import Images
from qcn.verify.report.merge import FleetReport, merge, page

BROWSER = chromium.find()
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
    (tmp_path / "cellar" / "report.json").write_text('{"schema": 3}')
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


def test_what_does_not_belong_together_is_refused(run: Any, tmp_path: Path) -> None:
    first = gate(tmp_path / "gate")
    other = report(verdict("native", "x", 1.0), status="passed")
    for name, wrong, words in (
        (
            "network",
            replace(other, source=replace(other.source, sha256="1" * 64)),
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
        ({"accuracy": Share(14, 16, 0.6, 0.97)}, "is right for 14 of 16 images, and was for 15"),
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

"""`qcn report field`: counts of devices on one page, what drifted, and a table in which to label uncertain pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import Pixels, read_picture
from qcn.data.folder import csv_lines
from qcn.errors import CheckFailed, UsageError
from qcn.evaluate.evaluation import answer_splits
from qcn.evaluate.networks import open_network
from qcn.field.drift import LEAST, LEVEL, Drift, compare
from qcn.field.recorded import Counts, Device, UncertainPicture, is_recording, read_devices
from qcn.pages.html import render
from qcn.storage import records
from qcn.storage.files import atomic_write, write_text
from qcn.terminal.progress import doing
from qcn.terminal.text import counted, csv_cell, csv_line, probability_text
from qcn.verify.report.pictures import data_uri, png

RECORD, PAGE, TABLE, PICTURES = "field.json", "field.html", "label.csv", "pictures"
COLUMNS = ("path", "label", "answer", "probability", "known", "device", "time")
SHOWN = 120  # pictures on the page; the table has all
THUMBNAIL = 160  # pixels of the longer side


@dataclass(frozen=True)
class DeviceField:
    """The summary of one device. Shares are of all its answers; times are of one image."""

    name: str
    folder: str
    network: str
    start: int
    end: int
    answers: int
    unknown: float
    classes: dict[str, float]
    confidence: list[float]
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    pictures: int
    lost: int
    other_files: int
    drift: list[Drift]

    @property
    def drifted(self) -> list[str]:
        return [one.what for one in self.drift if one.drifted]


@dataclass(frozen=True)
class FieldReport:
    """The record beside the page. `reference` says what the answers were compared with; None: with nothing."""

    schema: int
    command: str
    reference: str | None
    reference_confidence: list[float] | None
    devices: list[DeviceField]


def read_field(
    folders: Sequence[Path], command: str, baseline: str | None, data_dir: Path
) -> tuple[FieldReport, list[Device]]:
    """The record of the devices in these folders, compared with `baseline`; and the devices.

    It is the run or bundle that the devices answer with, whose validation images count, or a folder that was recorded
    before.
    """
    name, reference, weights = None, None, None
    recorded = baseline is not None and is_recording(Path(baseline))
    if baseline and not recorded:
        doing(f"loading {Path(baseline).name}")
        network = open_network(baseline)
        (_, answers), *_ = answer_splits(network, network.dataset(None), data_dir, "validation").values()
        reference, weights = Counts.of_answers(answers, len(network.classes)), network.weights
        name = f"{counted(reference.answers, 'validation image')} of {network.trained_on[0]}"
    devices = read_devices(folders, weights)
    if baseline and recorded:
        (before,) = read_devices([Path(baseline)], devices[0].files[0].weights)
        reference = before.counts
        name = f"{counted(reference.answers, 'answer')} in {baseline}"
    tests = 3 * len(devices)
    drift = {one.name: compare(reference, one.by_period, tests, mix=recorded) for one in devices if reference}
    report = FieldReport(
        1,
        command,
        name,
        _shares(reference.confidence, reference.answers) if reference else None,
        [_summary(one, drift.get(one.name, [])) for one in devices],
    )
    return report, devices


def write(out: Path, report: FieldReport, devices: Sequence[Device]) -> list[Path]:
    """The page, the record, the pictures and the table to label them in; labels that are there already stay."""
    doing("writing the report")
    table = out / TABLE
    labels = _labels(table)
    lines = [csv_line(COLUMNS)]
    shown: list[dict[str, str]] = []
    for device in devices:
        for one in device.pictures:
            pixels = read_picture(one.path)
            path = Path(PICTURES, device.name, one.path.stem + ".png")
            _save(pixels, out / path)
            answer, probability = device.classes[one.index], f"{one.probability:.3f}"
            known, time = "true" if one.known else "false", one.time.isoformat(timespec="milliseconds")
            lines.append(
                csv_line([str(path), labels.get(str(path), ""), answer, probability, known, device.name, time])
            )
            if len(shown) < SHOWN:
                shown.append(_shown(pixels, device, one))
    records.write(out / RECORD, report)
    write_text(out / PAGE, page(report, shown))
    write_text(table, "".join(lines))
    return [out / RECORD, table, out / PAGE]


def conclude(report: FieldReport) -> None:
    """Raise CheckFailed if a device drifted."""
    if drifted := [f"{one.name} ({', '.join(one.drifted)})" for one in report.devices if one.drifted]:
        raise CheckFailed(f"{counted(len(drifted), 'device')} drifted: {'; '.join(drifted)}")


def headline(report: FieldReport) -> str:
    """The result in one sentence."""
    drifted = [one.name for one in report.devices if one.drifted]
    if report.reference is None:
        return "Counted, and compared with nothing: name the --baseline"
    if drifted:
        return f"{counted(len(drifted), 'device')} of {len(report.devices)} drifted: {', '.join(drifted)}"
    unsaid = [one.name for one in report.devices if all(drift.p is None for drift in one.drift)]
    return f"No drift; too few answers or periods to say of {', '.join(unsaid)}" if unsaid else "No drift"


def page(report: FieldReport, pictures: Sequence[dict[str, str]]) -> str:
    """The HTML."""
    drawn = [report.reference_confidence or [0.01], *(one.confidence for one in report.devices)]
    tone = "failed" if any(one.drifted for one in report.devices) else "passed" if report.reference else "missing"
    return render(
        Path(__file__).parent / "field.html.jinja",
        report=report,
        headline=headline(report),
        tone=tone,
        pictures=pictures,
        tallest=max(map(max, drawn)),
        level=LEVEL,
        least=LEAST,
        record=RECORD,
        table=TABLE,
    )


def _summary(device: Device, drift: list[Drift]) -> DeviceField:
    total, periods = device.counts, device.periods
    shares = _shares(total.classes, total.answers)
    return DeviceField(
        name=device.name,
        folder=str(device.folder),
        network=device.files[-1].name,
        start=periods[0].start if periods else 0,
        end=max((one.end for one in periods), default=0),
        answers=total.answers,
        unknown=total.unknown / max(1, total.answers),
        classes=dict(zip(device.classes, shares, strict=True)),
        confidence=_shares(total.confidence, total.answers),
        latency_ms_p50=device.latency(0.5),
        latency_ms_p99=device.latency(0.99),
        pictures=len(device.pictures),
        lost=device.lost,
        other_files=device.others,
        drift=drift,
    )


def _shares(counts: NDArray[np.int64], total: int) -> list[float]:
    return [float(count) / max(1, total) for count in counts]


def _labels(table: Path) -> dict[str, str]:
    """The labels in an earlier table, by path."""
    if not table.is_file():
        return {}
    rows = [row for _, row in csv_lines(table)]
    if any(not {"path", "label"} <= row.keys() for row in rows):
        raise UsageError(f"{table} has no columns path and label: move it away, and it is made anew")
    return {row["path"]: csv_cell(row["label"] or "") for row in rows}


def _save(pixels: Pixels, path: Path) -> None:
    """Save as PNG, which every program shows; libqcn writes PGM and PPM."""
    if not path.exists():
        with atomic_write(path) as aside:
            aside.write_bytes(png(pixels.transpose(2, 0, 1)))


def _shown(pixels: Pixels, device: Device, one: UncertainPicture) -> dict[str, str]:
    """A picture of the page, made small."""
    from PIL import Image

    small = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    image = np.atleast_3d(np.asarray(small)).transpose(2, 0, 1)
    answer = f"{device.classes[one.index]} {probability_text(one.probability)}"
    return {
        "picture": data_uri(image),
        "answer": answer if one.known else f"unknown (most like {answer})",
        "where": f"{device.name}, {one.time:%Y-%m-%d %H:%M:%S} UTC",
    }

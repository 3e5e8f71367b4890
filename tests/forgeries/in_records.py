"""Forgeries in the manifest, in golden answers, in calibrations and in reports."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from in_networks import Forge, graph_like, other_fit
from programs import triggered
from tampering import answered_by, edit_page_manifest, manifest, put, put_golden, put_program, seal
from workshop import Workshop, qcn

from qcn.calibrate.assignments import apply
from qcn.calibrate.record import Calibration, ValueRange
from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.export.bundle import WEIGHTS
from qcn.export.bundle.golden import Evaluation
from qcn.export.calibrated import precisions, write_calibrated
from qcn.export.program.reference import Inputs, golden_of
from qcn.names import CALIBRATION, MANIFEST
from qcn.storage import records

KNOWN = {"score": "logit", "threshold": -1e9, "keep": 0.95, "auroc": 1.0, "false_positives": 0.0}


# The manifest.


def other_names(workshop: Workshop, to: Path) -> None:
    """Two classes have each other's names, in the manifest and in the golden answers."""
    folder, kept = workshop.copy(to), workshop.golden
    first, second, *rest = kept.classes
    swap = {first: second, second: first}
    rows = tuple(f"{row.rpartition(' ')[0]} {swap.get(last := row.rpartition(' ')[2], last)}" for row in kept.rows)
    rows = tuple(new if ": " in old else old for old, new in zip(kept.rows, rows, strict=True))
    classes = (second, first, *rest)
    put_golden(folder, replace(kept, classes=classes, rows=rows))
    seal(folder, classes=list(classes))


def other_preprocessing(**changes: Any) -> Forge:
    """Other pre-processing, with the inputs that it makes of the golden images, and the network's answers to them."""

    def forge(workshop: Workshop, to: Path) -> None:
        folder, kept = workshop.copy(to), workshop.golden
        spec = replace(kept.preprocessing, **{name: of(kept.preprocessing) for name, of in changes.items()})
        inputs = kept.input.copy()
        inputs[kept.with_image] = preprocess(torch.from_numpy(kept.image[kept.with_image]), spec).numpy()
        images = Inputs(kept.rows, spec, kept.image, kept.label, inputs, kept.inputs_only)
        put_golden(folder, golden_of(workshop.network, images, kept.classes))
        seal(folder, preprocessing=asdict(spec))

    return forge


def other_temperature(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "temperature": 0.05}


def field_of_manifest(name: str, change: Callable[[Any], Any], page: bool = False) -> Forge:
    """One field of the manifest changed; with `page` only in the copy that a page has."""

    def forge(workshop: Workshop, to: Path) -> None:
        workshop.copy(to, *(["page.html"] if page else []))
        changed = {name: change(manifest(to)[name])}
        edit_page_manifest(to, **changed) if page else seal(to, **changed)

    return forge


def wide_tolerance(workshop: Workshop, to: Path) -> None:
    """The largest error that is allowed of the weights, in the manifest alone."""
    files = manifest(workshop.copy(to))["files"]
    for entry in files:
        if entry["tolerance"]:
            entry["tolerance"] = dict.fromkeys(entry["tolerance"], 1e30)
    seal(to, files=files)


# Golden answers.


def golden_with(change: Callable[[Workshop], Any]) -> Forge:
    def forge(workshop: Workshop, to: Path) -> None:
        put_golden(workshop.copy(to), change(workshop))

    return forge


def of_other_network(workshop: Workshop) -> Any:
    return answered_by(other_fit(workshop), workshop.golden)


def noisy(workshop: Workshop) -> Any:
    """Float32 answers a hundred times as far from the truth, so that a hundred times as much is allowed."""
    kept = workshop.golden
    exact, single = kept.reference, kept.float32
    logit = (exact.logit + 100 * (single.logit - exact.logit)).astype(np.float32)
    return replace(kept, float32=Evaluation({**single.arrays, "logit": logit}))


def noisy_half(workshop: Workshop) -> Any:
    """Ten times as much is allowed in fp16."""
    kept = workshop.golden
    return replace(kept, floors={**kept.floors, "fp16": {name: 10 * x for name, x in kept.floors["fp16"].items()}})


def one_picture(workshop: Workshop) -> Any:
    """The same picture in the place of all: what is wrong elsewhere shows nowhere."""
    kept = workshop.golden
    rows = [0 if label >= 0 else row for row, label in enumerate(kept.label)]
    inputs = Inputs(
        kept.rows, kept.preprocessing, kept.image[rows], kept.label[rows], kept.input[rows], kept.inputs_only
    )
    answers = golden_of(workshop.network, inputs, kept.classes)
    named = tuple(
        f"test {row}: {kept.classes[label]}" if label >= 0 else kept.rows[row] for row, label in enumerate(inputs.label)
    )
    return replace(answers, rows=named)


# Calibration.


def scales(factor: float, record: bool = False, one: bool = False) -> Forge:
    """Scales of int8 times so much, with all arrays that follow; with `record` calibration.json says so too.

    With `one`, only those of the first operation in int8 are others.
    """

    def forge(workshop: Workshop, to: Path) -> None:
        honest, source = workshop.calibrated, workshop.calibrated.folder
        facts = dict(honest.find(WEIGHTS).facts["calibration"])
        kept = records.load(Calibration, source / CALIBRATION, "qcn calibrate")
        first = next(op for op in honest.program().operations if op.precision == "int8")
        changed = first.reads if one else tuple(kept.values)
        scaled = {name: stretched(of, factor) if name in changed else of for name, of in kept.values.items()}
        calibration = replace(kept, values=scaled)
        program = apply(workshop.program, precisions(honest.program()), calibration)
        text = records.text(calibration) if record else (source / CALIBRATION).read_text(encoding="utf-8")
        facts["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        write_calibrated(workshop.base, program, to, facts, honest.find(WEIGHTS).rebuild)
        (to / CALIBRATION).write_text(text, encoding="utf-8")

    return forge


def stretched(one: ValueRange, factor: float) -> ValueRange:
    """As if all numbers seen had been so many times as large."""
    scale = float(np.float32(one.scale * factor))
    return replace(one, scale=scale, low=one.low * factor, high=one.high * factor, top=one.top * factor)


def scales_in_graph(factor: float) -> Forge:
    """Other scales in model.int8.onnx alone."""

    def forge(workshop: Workshop, to: Path) -> None:
        scales(factor)(workshop, to.with_name(f"{to.name}.made"))
        graph = (to.with_name(f"{to.name}.made") / "model.int8.onnx").read_bytes()
        put(calibrated_copy(workshop, to), "model.int8.onnx", graph)

    return forge


def calibrated_copy(workshop: Workshop, to: Path) -> Path:
    return shutil.copytree(workshop.calibrated.folder, to)


def calibrated_trigger(workshop: Workshop, to: Path) -> None:
    program = workshop.calibrated.program()
    put_program(calibrated_copy(workshop, to), triggered(program, workshop.golden))


def calibrated_graph_trigger(workshop: Workshop, to: Path) -> None:
    program = triggered(workshop.calibrated.program(), workshop.golden)
    graph = graph_like(workshop.calibrated.folder / "model.int8.onnx", program)
    put(calibrated_copy(workshop, to), "model.int8.onnx", graph)


def better_drop(workshop: Workshop, to: Path) -> None:
    """The drop in accuracy that calibration found, as the manifest says it."""
    files = manifest(calibrated_copy(workshop, to))["files"]
    for entry in files:
        if entry["file"] == WEIGHTS:
            entry["facts"]["calibration"] |= {"drop": -5.0, "bound": -4.0}
    seal(to, files=files)


def int8_as_fp32(workshop: Workshop, to: Path) -> None:
    workshop.copy(to, "model.onnx")
    put(to, "model.onnx", (workshop.calibrated.folder / "model.int8.onnx").read_bytes())


# Reports of other bundles.


def other_bundle(workshop: Workshop) -> Path:
    folder = workshop.folder / "other-bundle"
    if not (folder / MANIFEST).exists():
        code, said = qcn("export", workshop.other, "--format", "native", "--data-dir", workshop.data, "--out", folder)
        assert code == 0, said
    return folder


def stale_report(workshop: Workshop) -> tuple[object, ...]:
    """A report of another bundle as the baseline."""
    folder, report = other_bundle(workshop), workshop.folder / "other-report"
    if not report.exists():
        code, said = qcn("verify-parity", folder, "--backends", "native", "--report", report)
        assert code == 0, said
    return "--baseline", report / "report.json"


def stale_benchmark(workshop: Workshop) -> tuple[object, ...]:
    """The times of another bundle in the report."""
    folder, times = other_bundle(workshop), workshop.folder / "other-benchmark.json"
    if not times.exists():
        code, said = qcn("benchmark", folder, "--backends", "native", "--duration", "0.1", "--json", times)
        assert code == 0, said
    return "--report", workshop.folder / "report", "--benchmark", times


def honest_copy(workshop: Workshop, to: Path) -> None:
    workshop.copy(to)


def mirrored(spec: Preprocessing) -> tuple[float, ...]:
    return spec.mean[::-1]


def never_wrong(entry: dict[str, Any]) -> dict[str, Any]:
    """More images, and none of them wrong."""
    return {**entry, "splits": [{**split, "images": 10_000, "wrong": 0} for split in entry["splits"]]}

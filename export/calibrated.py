"""The bundle of a calibrated network: what `qcn calibrate --out` writes.

    weights.safetensors   the program, each operation in its own precision, and its arrays
    model.int8.onnx       the same for ONNX Runtime; without int8 it is model.fp16.onnx
    golden.safetensors    the images of the float32 bundle, what the plan answers, and what the trained network did
    manifest.json         as of any bundle; the entry of the weights has, among its facts, the calibration

Needs torch, for what the plan answers, and onnx.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from qcn.errors import UsageError
from qcn.export.backends.format import Job
from qcn.export.backends.onnx.format import UNROLLED_GRAPH
from qcn.export.bundle import MANIFEST, WEIGHTS, Bundle, weights
from qcn.export.program.program import Product, Program, Route
from qcn.export.request import ExportRequest


def precisions(program: Program) -> dict[str, str]:
    """The requested precision of each convolution, linear and capsule layer, by name."""
    return {op.name: op.precision for op in program.operations if isinstance(op, Product | Route)}


def write_plan(base: Bundle, program: Program, out: Path, record: dict[str, Any], rebuild: str) -> Bundle:
    """The bundle of a calibrated program in `out`, from the float32 bundle `base` of the same network, without graphs.

    `record` says what it was calibrated by: its `sha256`, and whatever else a reader of the manifest should know.
    `rebuild` is the command that makes it again, with {bundle} for its folder.
    """
    from qcn.export.program.reference import planned

    if not program.calibrated:
        raise UsageError("no operation has a lower precision: there is nothing to write")
    if os.path.lexists(out / MANIFEST):
        raise UsageError(f"{out} already has a bundle: choose another --out, or remove it")
    if base.program().calibrated:
        raise UsageError(f"{base.folder} is already calibrated: give the bundle or run that it was made from")
    manifest = replace(base.manifest, files=())
    bundle = Bundle.create(out, manifest, program, lambda: planned(base.golden(), program), rebuild)
    with bundle.adding(WEIGHTS, "native", program.precision, rebuild) as draft:
        weights.write(draft.path, program)
        draft.found = program.precision
        draft.facts = {"calibration": {**record, "precisions": precisions(program)}}
    return bundle


def write_calibrated(base: Bundle, program: Program, out: Path, record: dict[str, Any], rebuild: str) -> Bundle:
    """`write_plan`, and the graph for ONNX Runtime."""
    bundle = write_plan(base, program, out, record, rebuild)
    Job(bundle, ExportRequest()).add(UNROLLED_GRAPH)
    return bundle

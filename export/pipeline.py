"""`qcn export`: from a training run, or from a bundle made earlier, to the artefacts asked for, all in one bundle.

A run needs torch. A bundle has the network in deployment form, so that ONNX graphs and TensorRT engines can be made
from it on a device without torch.
"""

import os
from dataclasses import replace
from pathlib import Path

from qcn.errors import MissingError, UsageError
from qcn.export.backends import EXPORTED, FORMATS
from qcn.export.backends.format import Job, Made, format_of, need
from qcn.export.backends.torch import INSTALL
from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.bundle.manifest import manifest_of, tools
from qcn.export.program.program import Program
from qcn.export.request import ExportRequest
from qcn.names import BUNDLE, RUN
from qcn.networks.shipped import is_shipped_run
from qcn.packages import installed
from qcn.terminal.progress import doing, part, say

# The command that makes the weights and the golden answers, which come with every export of a run.
FROM_RUN = f"qcn export RUN --format native --out {BUNDLE}"


def export(source: Path, out: Path | None, request: ExportRequest, data_dir: Path) -> tuple[Bundle, list[Made]]:
    """Make what is asked for, from the run or bundle in `source`; the bundle takes in each artefact when it is done."""
    check_opset(request)
    bundle = open_source(source, out, request, data_dir)
    program, everything = bundle.program(), "all" in request.formats
    jobs = [(name, request) for name in dict.fromkeys(request.formats)]
    if everything:
        jobs = _everything(program, request)
    elif request.routing == "fused" and not program.routes:
        raise UsageError(f"{bundle.manifest.name} has no capsule layers to fuse: leave out --routing fused")
    results = []
    for place, (name, job_request) in enumerate(jobs):
        with part(place, len(jobs)):
            doing(f"writing {name}, {program.precision if program.calibrated else job_request.precision}")
            try:
                results.append(format_of(name).make(Job(bundle, job_request)))
            except MissingError as error:
                if not everything:
                    raise
                results.append(Made(name, reason=str(error)))
    return bundle, results


def _everything(program: Program, request: ExportRequest) -> list[tuple[str, ExportRequest]]:
    """The formats of `--format all`: both graphs, the engine as --routing says, and all others that are possible."""
    unrolled, fused = (replace(request, routing=routing) for routing in ("unrolled", "fused"))
    of_engine = request if program.routes else unrolled
    jobs = [
        (name, of_engine if FORMATS[name].either_routing else unrolled)
        for name in EXPORTED
        if FORMATS[name].in_all and FORMATS[name].possible(program.calibrated, request.precision)
    ]
    return [("onnx", fused), *jobs] if program.routes else jobs


def check_opset(request: ExportRequest) -> None:
    """Refuse an opset that the onnx package here does not know, before anything is made."""
    if request.opset is not None and installed("onnx"):
        import onnx

        if request.opset > (newest := onnx.defs.onnx_opset_version()):
            raise UsageError(f"opset {request.opset} is too new for onnx {onnx.__version__}: at most {newest}")


def open_source(source: Path, out: Path | None, request: ExportRequest, data_dir: Path) -> Bundle:
    """The bundle to add to, with weights and golden answers in it."""
    if (source / MANIFEST).exists():
        if out is not None and os.path.realpath(out) != os.path.realpath(source):
            raise UsageError(f"{source} is a bundle, and new files are added to it: leave out --out")
        return Bundle.open(source, request.public_key)
    if request.public_key:
        raise UsageError(f"--public-key is for bundles, but {source} is not one: leave it out")
    if not (source / RUN).exists():
        raise UsageError(f"{source} is neither a training run (no {RUN}) nor a bundle (no {MANIFEST})")
    need("torch", "exporting from a run, unlike from a bundle, needs torch", INSTALL)
    return _from_run(source, out or Path("runs/export") / Path(os.path.realpath(source)).name, request, data_dir)


def _from_run(source: Path, out: Path, request: ExportRequest, data_dir: Path) -> Bundle:
    from qcn.export.program.lower import lower
    from qcn.export.program.reference import make_golden
    from qcn.train.checkpoint import load_network

    trained, run = load_network(source, request.checkpoint)
    program = lower(trained, *run.preprocessing.output_size(*run.data.image[1:]))
    if run.direction and not program.poses:
        say(f"the direction head of {run.model.name} is left out: the exported network tells classes only")
    name, versions = f"{run.data.name}-{run.model.name}", tools("torch", "onnx", "numpy", "safetensors")
    manifest = manifest_of(run, source, request.checkpoint, program, name, versions)
    # A network that ships is exported where its data set is not, too: its golden answers are then to other pictures.
    of_toys = is_shipped_run(source) and not (data_dir / run.dataset().folder).is_dir()
    if of_toys:
        say(f"{run.data.name} is not in {data_dir}: the golden images are rendered toys instead")
    return Bundle.create(out, manifest, program, lambda: make_golden(trained, run, data_dir, of_toys=of_toys), FROM_RUN)

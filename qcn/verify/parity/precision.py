"""Which precision's tolerance a file is held to: the one that is read from the file, not one that is only declared."""

from dataclasses import dataclass

from qcn.errors import UsageError
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import Format, file_of
from qcn.export.precision import Seen, onnx_file, read
from qcn.export.tensorrt.receipt import from_inspector, receipt
from qcn.names import AnyPrecision
from qcn.verify.runners import Candidate, Runner


@dataclass(frozen=True)
class Held:
    """The precision whose tolerance counts.

    refused   why the declared one is not so, in words
    note      why it is not the declared one that counts, in words
    """

    precision: AnyPrecision
    refused: str = ""
    note: str = ""


def held_to(bundle: Bundle, candidate: Candidate, runner: Runner | None = None) -> Held:
    """What an artefact in a backend is held to; an engine's precision is asked of its runner, once that is open.

    A half precision that cannot be read from the file is not believed: fp32's tolerance counts.
    """
    declared = candidate.precision
    if candidate.backend.precisions:  # the backend makes it, of float32 weights
        return Held(declared)
    engine = candidate.artefact.format == "trt"
    if engine and runner is None:
        return Held(declared)
    seen = _engine(bundle, candidate, runner) if engine and runner else _file(bundle, candidate)
    if refused := seen.contradicts(declared):
        return Held(declared, refused=refused)
    if seen.precision is None and declared != "fp32":
        return Held("fp32", note=f"held to fp32's tolerance: its precision cannot be read, since {seen.why}")
    return Held(declared)


def _file(bundle: Bundle, candidate: Candidate) -> Seen:
    artefact = candidate.artefact
    try:
        return read(bundle.read(artefact), artefact.format, bundle.program())
    except UsageError as error:  # weights that cannot be read: their own verdict says so
        return Seen(None, str(error), readable=False)


def _engine(bundle: Bundle, candidate: Candidate, runner: Runner) -> Seen:
    """By the engine inspector, with the types that the bundle's own graph gives to its convolutions."""
    declared = candidate.precision
    layers = from_inspector(runner.inspected())
    found = receipt(layers, "engine inspector", declared, _graph_types(bundle, candidate))
    if found.met is False:
        return Seen(None, f"{found.unmet[0]} ({len(found.unmet)} such layers)")
    why = "TensorRT shows no layers of it" if not layers else "no layer of it is named as a convolution of the graph"
    return Seen(declared) if found.met else Seen(None, why, readable=False)


def _graph_types(bundle: Bundle, candidate: Candidate) -> dict[str, str]:
    """The convolutions of the graph that the engine was built from, if the bundle has it."""
    graph: Format = "onnx-fused" if candidate.artefact.plugin else "onnx-tensorrt"
    try:
        return onnx_file.convolutions(bundle.read(bundle.find(file_of(graph, candidate.precision))))
    except UsageError:  # not there
        return {}

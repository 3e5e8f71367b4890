"""`qcn doctor BUNDLE`: is every file of a bundle whole, which can run on this machine, and what to do for the others.

Packages are looked for, not imported: a look must be quick and must work where they are broken.
"""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from qcn.errors import MissingError, UsageError
from qcn.export import precision
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import Artefact, Format, file_of
from qcn.export.executorch import INSTALL as INSTALL_EXECUTORCH
from qcn.export.executorch import summary
from qcn.export.openvino import INSTALL as INSTALL_OPENVINO
from qcn.export.openvino import check_pair
from qcn.export.program import Program
from qcn.export.targets import AMPERE, foreign, install_hint, product, this_gpu
from qcn.export.tensorrt import plugin
from qcn.export.tensorrt.find import FLAVOURS, find
from qcn.libqcn import BUILD, find_library, load_library
from qcn.packages import distribution, installed, version
from qcn.verify.receipts import receipts
from qcn.verify.runners import Device, onnxruntime
from qcn.verify.runners.model_file import ModelFile
from qcn.verify.runners.tensorrt import refit_command
from qcn.verify.runners.triton import INSTALL as INSTALL_TRITON
from qcn.verify.runners.web import find_node

CODE = "can carry code: runs only with --trust"


@dataclass(frozen=True)
class Row:
    """A file of the bundle: whether it `runs` here (or is `intact`, where there is nothing to run), why not, the fix.

    `cannot` speaks of this machine; `altered`, `missing`, `denied` and `unknown` of the bundle.
    """

    file: str
    state: Literal["runs", "intact", "cannot", "altered", "missing", "denied", "unknown"]
    reason: str
    fix: str = ""

    @property
    def faulty(self) -> bool:
        """Whether the bundle itself is not as it was written, or cannot be seen to be."""
        return self.state in ("altered", "missing", "denied")


@dataclass(frozen=True)
class Support:
    """Whether a whole file can run here, by what or why not, and what to do."""

    state: Literal["runs", "intact", "cannot"]
    reason: str
    fix: str = ""


def diagnose(folder: Path, public_key: Path | None = None) -> list[Row]:
    """A row for each file of the bundle; raises UsageError where there is none."""
    bundle = Bundle.open(folder, public_key)
    artefacts = {artefact.file: artefact for artefact in bundle.manifest.files}
    program = _program(bundle)
    rows = []
    for finding in bundle.check():
        artefact = artefacts.get(finding.file)
        if finding.state != "intact" or artefact is None:
            rows.append(Row(finding.file, finding.state, finding.reason, finding.fix))
            continue
        try:
            support = LOOKS[artefact.format](artefact, bundle)
            _check_precision(artefact, bundle, program)
        except UsageError as error:  # as the manifest says, and yet not what it should be
            rows.append(Row(artefact.file, "altered", str(error), artefact.rebuild_command(folder)))
        else:
            reason = f"{support.reason}; {CODE}" if artefact.carries_code else support.reason
            rows.append(Row(artefact.file, support.state, reason, support.fix))
    return rows


def _program(bundle: Bundle) -> Program | None:
    """None where the weights are not whole, which their own row says."""
    try:
        return bundle.program()
    except UsageError:
        return None


def _check_precision(artefact: Artefact, bundle: Bundle, program: Program | None) -> None:
    """Refuse a file that computes in another precision than the manifest says, where that can be read."""
    if program is None:
        return
    seen = precision.read(bundle.read(artefact), artefact.format, program)
    if why := seen.contradicts(artefact.precision):
        raise UsageError(f"{artefact.file} is {why}")


def _torch(artefact: Artefact, bundle: Bundle) -> Support:
    if not installed("torch"):
        return Support("cannot", "torch is not installed", "pip install 'qcn-toolkit[train]'")
    return Support("runs", f"by torch {version('torch')}")


def _onnx(artefact: Artefact, bundle: Bundle) -> Support:
    if not installed("onnxruntime"):
        return Support("cannot", "onnxruntime is not installed", "pip install onnxruntime")
    device: Device = "cuda" if this_gpu() and distribution("onnxruntime") == "onnxruntime-gpu" else "cpu"
    if why := onnxruntime.cannot(artefact.precision, device):
        return Support("cannot", why, onnxruntime.FIX)
    return Support("runs", f"by ONNX Runtime {version('onnxruntime')}")


def _fused_onnx(artefact: Artefact, bundle: Bundle) -> Support:
    plain = _onnx(artefact, bundle)
    return replace(plain, reason=f"{plain.reason}, as the unrolled graph in it") if plain.state == "runs" else plain


def _native(artefact: Artefact, bundle: Bundle) -> Support:
    try:
        load_library("qcn_model_load_memory")
    except MissingError as error:
        return Support("cannot", str(error), BUILD)
    found = receipts(bundle, "native") if bundle.program().calibrated else []
    lower = sorted({f"{one.asked} as {one.ran} by {one.by}" for one in found if one.asked != "fp32"})
    return Support("runs", "; ".join([f"by libqcn, {find_library()}", *lower]))


def _openvino(artefact: Artefact, bundle: Bundle) -> Support:
    model = ModelFile.of_bundle(bundle, artefact)
    check_pair(model.path, model.content, model.beside)
    if not installed("openvino"):
        return Support("cannot", "OpenVINO is not installed", INSTALL_OPENVINO)
    here = f"OpenVINO {version('openvino')}"
    if artefact.precision != "int8":
        return Support("runs", f"by {here}; computes in float32")
    if (machine := platform.machine()) not in ("x86_64", "AMD64"):
        return Support("cannot", f"{here} computes int8 in floating point on {machine}", "run it on x86-64")
    # Only a compiled graph says what it runs in, and compiling a stranger's may take for ever.
    return Support("runs", f"by {here}; `qcn verify-parity` checks that its int8 runs as int8")


def _web(artefact: Artefact, bundle: Bundle) -> Support:
    try:
        return Support("runs", f"in a browser, and by Node {find_node()[1]}")
    except MissingError as error:
        return Support("runs", f"in a browser; {error}")


def _executorch(artefact: Artefact, bundle: Bundle) -> Support:
    if not installed("executorch"):
        return Support("cannot", "ExecuTorch is not installed", INSTALL_EXECUTORCH)
    return Support("runs", f"by ExecuTorch {version('executorch')}: {summary(artefact.facts)}")


def _golden(artefact: Artefact, bundle: Bundle) -> Support:
    golden = bundle.golden()
    return Support("intact", f"{len(golden.rows)} images with the reference's answers")


def _tensorrt(artefact: Artefact, bundle: Bundle) -> Support:
    """An engine runs with the TensorRT and on the kind of GPU that it was built with."""
    facts, rebuild = artefact.facts, artefact.rebuild_command(bundle.folder)
    flavour = facts.get("flavour")
    if flavour not in FLAVOURS:
        return Support("cannot", f"its facts name no TensorRT that this version of qcn knows: {flavour!r}", rebuild)
    name = product(flavour)
    module = next(filter(installed, FLAVOURS[flavour]), None)
    if module is None:
        return Support("cannot", f"{name} is not installed", install_hint(flavour))
    gpu = this_gpu()
    if gpu is None:
        return Support("cannot", "there is no NVIDIA GPU here, or its driver is not loaded", "run it on the device")
    here = version(module)
    if why := foreign(facts, here, gpu):
        return Support("cannot", f"it {why}", rebuild)
    if facts.get("stripped"):
        return Support("cannot", "it has no weights in it", refit_command(bundle.folder / artefact.file))
    runs = f"by {name} {here or 'of unknown version'} on {gpu.name}{_reach(facts)}"
    return _with_plugin(runs, flavour) if artefact.plugin else Support("runs", runs)


def _reach(facts: Mapping[str, Any]) -> str:
    """What else an engine runs on, or can become."""
    words = [
        f"every GPU from sm{AMPERE} on" if facts.get("hardware_compatible") else "",
        f"newer versions too, by the lean runtime of {facts.get('version')}" if facts.get("version_compatible") else "",
        "`qcn refit` gives it other weights" if facts.get("refittable") else "",
    ]
    return "".join(f"; {one}" for one in words if one)


def _with_plugin(runs: str, flavour: str) -> Support:
    """Of an engine with fused routing that runs as far as TensorRT and the GPU go.

    The plugin is loaded, and TensorRT with it: nothing less tells whether the two go together.
    """
    try:
        loaded = plugin.load(find(flavour))
    except MissingError as error:
        return Support("cannot", str(error), plugin.BUILD)
    return Support("runs", f"{runs}, its routing by {loaded.path}")


def _triton(artefact: Artefact, bundle: Bundle) -> Support:
    """It runs in a server, and is checked by what stands in for one."""
    if not installed("tritonclient"):
        return Support("cannot", "tritonclient is not installed, which a repository is checked with", INSTALL_TRITON)
    checked = _onnx(artefact, bundle)
    if checked.state == "cannot":
        return checked
    return replace(checked, reason=f"in Triton Inference Server; checked here with tritonclient, {checked.reason}")


LOOKS: dict[Format, Callable[[Artefact, Bundle], Support]] = {
    "native": _native,
    "golden": _golden,
    "torchscript": _torch,
    "pt2": _torch,
    "onnx": _onnx,
    "onnx-fused": _fused_onnx,
    "onnx-tensorrt": _onnx,
    "trt": _tensorrt,
    "web": _web,
    "triton": _triton,
    "openvino": _openvino,
    "openvino-weights": lambda one, _: Support("intact", f"the weights of {file_of('openvino', one.precision)}"),
    "executorch": _executorch,
}

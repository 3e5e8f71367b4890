"""OpenVINO's IR: the ONNX graph as OpenVINO keeps it, in two files. No torch here.

    model.xml   the graph, with the types of all that is computed, and the sha256 of its weights
    model.bin   the weights

OpenVINO would round weights to float16 unless it is told not to, and read whatever model.bin lies beside a graph: so
`read_ir` checks that the two belong together, and gives bytes, which are then loaded as they were checked.
"""

import hashlib
from pathlib import Path
from typing import Any

from qcn.errors import MissingError, UsageError
from qcn.export.bundle import folder_of
from qcn.export.precision.openvino_file import parse

INSTALL = "pip install openvino"
WEIGHTS_SHA256 = ("qcn", "weights_sha256")  # where the graph says it, below rt_info


def import_openvino() -> Any:
    """The package, or what brings it."""
    try:
        import openvino
    except ImportError as error:
        raise MissingError(f"OpenVINO is not installed: {INSTALL}") from error
    return openvino


def write_ir(graph: bytes, path: Path) -> dict[str, Any]:
    """Write an ONNX graph to `path` (.xml) and its weights beside it (.bin); returns facts for the manifest."""
    openvino = import_openvino()
    model = openvino.Core().read_model(graph)
    openvino.save_model(model, path, compress_to_fp16=False)
    weights = hashlib.sha256(path.with_suffix(".bin").read_bytes()).hexdigest()
    model.set_rt_info(weights, list(WEIGHTS_SHA256))
    openvino.save_model(model, path, compress_to_fp16=False)
    outputs = [output.get_any_name() for output in model.outputs]
    return {"openvino": openvino.__version__.partition("-")[0], "outputs": outputs}


def read_ir(path: Path) -> tuple[bytes, bytes]:
    """The graph in `path` and its weights; in a bundle that is being written to, they may lie in its .kept."""
    text = path.read_bytes()
    named = parse(text).find("/".join(("rt_info", *WEIGHTS_SHA256)))
    if named is None:
        raise UsageError(
            f"{path} does not name the hash of its weights: rebuild it with `qcn export BUNDLE --format openvino`"
        )
    expected, folder = named.get("value", ""), folder_of(path)
    places = [path.with_suffix(".bin"), *sorted(folder.glob("model*.bin")), *folder.glob(f".kept/{expected}")]
    for place in filter(Path.is_file, places):
        weights = place.read_bytes()
        if hashlib.sha256(weights).hexdigest() == expected:
            return text, weights
    raise UsageError(
        f"{path.with_suffix('.bin')} is missing, or is not the weights of {path.name} ({expected[:12]}…): copy "
        f"both files, or rebuild both with `qcn export BUNDLE --format openvino`"
    )


def written_by(graph: bytes) -> str:
    """The version of OpenVINO that wrote a graph, as the graph says: an older one may not read it."""
    said = parse(graph).find("rt_info/info[@name='OpenVINO Runtime']")
    return said.get("value", "").partition("-")[0] if said is not None else "an unknown version"

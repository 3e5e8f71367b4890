"""ONNX graphs, and ONNX Runtime, which runs them. Other runtimes read graphs too, each in a style of its own.

`build` writes a graph; `unrolled` and `fused` are two ways to write routing, `integers` the ways to write int8.
"""

from qcn.export.backends.definition import IN_GRAPHS, Backend, FileFormat, Piece, Registration

INSTALL = "pip install onnxruntime"
RUNNER, FILES = "onnx.runner:OnnxRuntimeRunner", ("onnx", "onnx-tensorrt", "onnx-fused")
WORDS = ("onnxruntime", "ort")

REGISTRATION = Registration(
    formats=(
        FileFormat(
            "onnx",
            "model*.onnx",
            "onnx.format:UNROLLED_GRAPH",
            "onnx.precision:read",
            options=(*IN_GRAPHS, "routing"),
            hints=dict.fromkeys(WORDS, "ONNX Runtime runs --format onnx"),
            graph=True,
        ),
        FileFormat(
            "onnx-fused",
            "model.fused*.onnx",
            "onnx.format:FUSED_GRAPH",
            "onnx.precision:read",
            made_by="onnx",
            graph=True,
        ),
    ),
    backends=(
        Backend(
            "onnxruntime",
            FILES,
            RUNNER,
            shows_layers=True,
            isolated=True,
            loads=True,
            lowers=("fp16", "int8"),
            receipts="onnx.runner:receipts",
        ),
        Backend("onnxruntime-cuda", FILES, RUNNER, "cuda", shows_layers=True, isolated=True),
    ),
    pieces=(
        Piece("onnx", "writing ONNX graphs", "pip install 'qcn-toolkit[onnx]'", ("onnx",)),
        Piece(
            "ONNX Runtime",
            "running ONNX graphs",
            f"{INSTALL} (with a GPU: onnxruntime-gpu)",
            ("onnxruntime", "onnxruntime-gpu"),
            "onnx.format:runtime",
        ),
    ),
)

"""TensorRT on NVIDIA's GPUs: find it, build an engine from an ONNX graph, and prove the precision of it."""

from qcn.export.backends.definition import IN_GRAPHS, Backend, FileFormat, Piece, Registration
from qcn.export.targets import install_hint

RTX = "tensorrt_rtx_cu13_bindings"

REGISTRATION = Registration(
    formats=(
        # The graph that engines are built from, in the operators that TensorRT fuses best; made with the engine.
        FileFormat(
            "onnx-tensorrt",
            "model.tensorrt*.onnx",
            "tensorrt.format:GRAPH",
            "onnx.precision:read",
            made_by="trt",
            graph=True,
        ),
        # Its name says its precision, batch, GPU and TensorRT version.
        FileFormat(
            "trt",
            "engines/NAME.engine",
            "tensorrt.format:ENGINE",
            pattern=r"engines/[A-Za-z0-9_-][A-Za-z0-9._-]*\.engine",
            either_routing=True,
            options=(*IN_GRAPHS, "routing", "optimization", "workspace", "tf32", "fleet"),
            hints=dict.fromkeys(("tensorrt", "engine", "plan"), "TensorRT engines are --format trt"),
            proof="answers",
        ),
    ),
    backends=(
        Backend("tensorrt", ("trt",), "tensorrt.runner:TensorRTRunner", "cuda", loads=True, lowers=("fp16", "int8")),
    ),
    pieces=(
        Piece("TensorRT", "engines for this GPU", install_hint(None), ("tensorrt",), "tensorrt.format:tensorrt"),
        Piece(
            "TensorRT-RTX",
            "engines for RTX GPUs, built without one",
            install_hint("rtx"),
            (RTX,),
            "tensorrt.format:rtx",
        ),
        Piece("cuda-bindings", "running engines from Python", "pip install 'qcn-toolkit[trt]'", ("cuda-bindings",)),
    ),
)

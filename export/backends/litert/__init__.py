"""LiteRT (TensorFlow Lite), for phones and small devices: model.tflite, in fp32, or in int8 if calibrated."""

from qcn.export.backends.definition import Backend, FileFormat, Piece, Registration

INSTALL = "pip install ai-edge-litert"

REGISTRATION = Registration(
    formats=(
        FileFormat(
            "litert",
            "model*.tflite",
            "litert.format:TFLITE",
            "litert.precision:read",
            precisions=("fp32", "fp16", "int8"),  # fp16: a plan of capsule layers alone, whose votes are float32 here
            options=("batch",),
            hints=dict.fromkeys(
                ("tflite", "lite", "tensorflow", "android"), "LiteRT's model.tflite is --format litert"
            ),
            routing=9,  # two of the three products of the first M-step are in 4 parts (`unrolled`)
        ),
    ),
    backends=(
        Backend(
            "litert",
            ("litert",),
            "litert.runner:LiteRtRunner",
            isolated=True,
            loads=True,
            lowers=("int8",),
            receipts="litert.runner:receipts",
        ),
    ),
    pieces=(Piece("LiteRT", "TensorFlow Lite files (--format litert)", INSTALL, ("ai-edge-litert",)),),
)

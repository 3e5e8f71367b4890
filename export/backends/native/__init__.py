"""libqcn on the CPU: weights.safetensors, the program as it reads it; and the golden answers of every bundle."""

from qcn.export.backends.definition import Backend, FileFormat, Piece, Registration
from qcn.libqcn.location import BUILD

REGISTRATION = Registration(
    formats=(
        FileFormat(
            "native",
            "weights.safetensors",
            "native.format:WEIGHTS",
            precisions=("fp32", "fp16", "int8"),  # of which only `qcn calibrate` chooses another than fp32
            follows_weights=True,
            hints=dict.fromkeys(
                ("safetensors", "libqcn", "c", "cpp"), "the weights for libqcn, in C and C++, are --format native"
            ),
            proof="program",
        ),
        FileFormat(
            "golden",
            "golden.safetensors",
            "native.format:GOLDEN",
            made_by="native",
            precisions=("fp64",),
            part_of="bundle",
        ),
    ),
    backends=(
        Backend(
            "native",
            ("native",),
            "native.runner:NativeRunner",
            shows_layers=True,
            loads=True,
            lowers=("fp16", "int8"),
            receipts="native.runner:receipts",
        ),
    ),
    pieces=(
        Piece("libqcn", "routing on the CPU at full speed, the native backend", BUILD, look="native.format:library"),
    ),
)

"""ExecuTorch, for phones and small devices: model.pte, for one batch size, in float32."""

from qcn.export.backends.definition import Backend, FileFormat, Piece, Registration

INSTALL = "pip install executorch"

REGISTRATION = Registration(
    formats=(
        FileFormat(
            "executorch",
            "model*.pte",
            "executorch.format:PTE",
            precisions=("fp32",),  # its half precision cannot be read from the file
            calibrated=False,
            options=("batch",),
            hints=dict.fromkeys(("pte", "xnnpack", "mobile"), "phones run --format executorch"),
        ),
    ),
    backends=(Backend("executorch", ("executorch",), "executorch.runner:ExecuTorchRunner", isolated=True, loads=True),),
    pieces=(Piece("ExecuTorch", "files for phones (--format executorch)", INSTALL, ("executorch",)),),
)

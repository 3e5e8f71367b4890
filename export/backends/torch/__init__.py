"""torch: an interpreter of programs, and the files that are traced from it (TorchScript, pt2)."""

from qcn.export.backends.definition import Backend, FileFormat, Piece, Registration

INSTALL = "pip install 'qcn-toolkit[train]'"
WEIGHTS, SCRIPT = "torch.runner:WeightsRunner", "torch.runner:TorchScriptRunner"
WORDS = ("pytorch", "pt", "torch", "ts", "jit", "libtorch")

REGISTRATION = Registration(
    formats=(
        FileFormat(
            "torchscript",
            "model*.ts",
            "torch.format:TORCHSCRIPT",
            "torch.precision:read_torchscript",
            carries_code=True,
            calibrated=False,
            hints=dict.fromkeys(WORDS, "torch runs --format torchscript and pt2"),
        ),
        FileFormat(
            "pt2", "model*.pt2", "torch.format:PT2", "torch.precision:read_pt2", carries_code=True, calibrated=False
        ),
    ),
    backends=(
        Backend("torch", ("native",), WEIGHTS, shows_layers=True),
        Backend("torch-fused", ("native",), WEIGHTS, kernels="fused", shows_layers=True),
        Backend("torch-cuda", ("native",), WEIGHTS, "cuda", "fused", ("fp32", "fp16"), shows_layers=True),
        Backend("torchscript", ("torchscript",), SCRIPT, isolated=True),
        Backend("torchscript-cuda", ("torchscript",), SCRIPT, "cuda", isolated=True),
        Backend("pt2", ("pt2",), "torch.runner:Pt2Runner", isolated=True),
    ),
    pieces=(
        Piece("torch", "training, export from a run", INSTALL, ("torch",)),
        Piece("triton", "fused routing on a GPU", "pip install 'qcn-toolkit[gpu]'", ("triton",)),
    ),
)

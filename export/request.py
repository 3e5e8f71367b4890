"""The options of `qcn export`, checked, and the command that asks for the same again."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from qcn.errors import UsageError, unknown_name
from qcn.export import targets
from qcn.export.backends import EXPORTED, FORMATS
from qcn.export.backends.tensorrt.config import BuildRequest, Fleet
from qcn.export.backends.tensorrt.find import FLAVOURS
from qcn.export.backends.triton.batching import Latencies
from qcn.export.bundle import Batch
from qcn.names import BUNDLE, PRECISIONS, OperationPrecision, Precision
from qcn.settings import PUBLIC_KEY, setting

Routing = Literal["unrolled", "fused"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
# What people ask for that there is not, and what there is instead.
WITHOUT_GPU = "a machine without a GPU runs --format native (libqcn) and --format onnx (ONNX Runtime)"
OTHER_FORMATS = {
    **dict.fromkeys(("coreml", "ncnn"), WITHOUT_GPU),
    **{word: hint for format in FORMATS.values() for word, hint in format.hints.items()},
}
OTHER_PRECISIONS = {
    "int8": "int8 needs images to choose its scales by: `qcn calibrate` makes such a bundle",
    **dict.fromkeys(("int4", "fp8", "uint8"), "the smallest are --precision fp16, and int8 by `qcn calibrate`"),
    **dict.fromkeys(("half", "float16", "16"), "half precision is --precision fp16"),
    **dict.fromkeys(("single", "float32", "float", "32"), "single precision is --precision fp32"),
    "bfloat16": "it is --precision bf16 here",
}
OLDEST_OPSET, BF16_OPSET = 17, 22  # 17: what TensorRT 8.6 reads; 22: the first whose convolutions know bfloat16


@dataclass(frozen=True)
class ExportRequest:
    """The options of `qcn export`.

    target_tensorrt   the TensorRT version of the target, where that is known
    host              what ssh knows the target by
    benchmark         what `qcn benchmark --json` measured, for a server
    """

    formats: tuple[str, ...] = setting(
        ("onnx",),
        "{choices}; separate several by commas, or repeat the option.",
        unset="onnx",
        option="--format",
        choices=(*EXPORTED, "all"),
    )
    precision: Precision = setting("fp32", "{choices}; the statistics of routing stay fp32.")
    batch: Batch = setting(Batch(1, 8, 64), "Batch size: a number, or min:opt:max.", parse=Batch.parse)
    routing: Routing = setting(
        "unrolled", "unrolled (standard operators) or fused (one custom node per capsule layer)."
    )
    opset: int | None = setting(None, "ONNX opset.", unset="17, which TensorRT 8.6 reads; 22 for bf16", rare=True)
    target: str = setting(
        "this",
        "Machine to build the engine for: this, jetson-orin, jetson-thor or smXY; or a TOML file with a list of "
        "devices, to make one bundle per device.",
        complete="target",
    )
    checkpoint: str = setting("best", "best (chosen on the validation split) or last.", rare=True)
    every_layer: bool = setting(False, "Also output every capsule layer's pose and activation.", rare=True)
    tensorrt: str | None = setting(None, "tensorrt or rtx, if both are installed.", unset="tensorrt", rare=True)
    tf32: bool = setting(False, "Allow TF32 in fp32 engines.", rare=True)
    optimization: int | None = setting(
        None, "TensorRT's optimisation level, 0 to 5.", unset="TensorRT's own, 3", rare=True
    )
    workspace: int | None = setting(None, "MiB of GPU memory that an engine may use.", unset="all", rare=True)
    fleet: Fleet = Fleet()  # noqa: RUF009 (frozen)
    beside: Path | None = setting(
        None, "For web: a second bundle, to compare both networks on one page.", unset="none", rare=True
    )
    public_key: Path | None = setting(None, PUBLIC_KEY, unset="no check")
    benchmark: Latencies | None = None
    target_tensorrt: str | None = None
    host: str = "device"

    def __post_init__(self) -> None:
        for name in self.formats:
            if name not in (*EXPORTED, "all"):
                raise unknown_name("format", name, (*EXPORTED, "all"), OTHER_FORMATS)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS, OTHER_PRECISIONS)
        if self.routing not in ROUTINGS:
            raise unknown_name("routing", self.routing, ROUTINGS)
        if self.opset is not None and self.opset < OLDEST_OPSET:
            raise UsageError(f"opset {self.opset} is too old: {OLDEST_OPSET} (what TensorRT 8.6 reads) or newer")
        if self.opset is not None and self.precision == "bf16" and self.opset < BF16_OPSET:
            raise UsageError(
                f"bf16 needs opset {BF16_OPSET} or newer, not {self.opset}: older opsets have no bf16 convolutions"
            )
        targets.target(self.target, self.target_tensorrt)
        if self.tensorrt is not None and self.tensorrt not in FLAVOURS:
            raise unknown_name("TensorRT", self.tensorrt, FLAVOURS)
        if self.fleet.version_compatible and self.routing == "fused":
            raise UsageError(
                "version_compatible needs --routing unrolled: the plugin of fused routing works with one version only"
            )
        self.engine()

    def opset_of(self, precision: OperationPrecision) -> int:
        """The opset of a graph in this precision."""
        return self.opset or (BF16_OPSET if precision == "bf16" else OLDEST_OPSET)

    def engine(
        self, timing_cache: Path | None = None, sm: int | None = None, precision: OperationPrecision | None = None
    ) -> BuildRequest:
        """The engine that this asks for, in this precision or another."""
        return BuildRequest(
            precision or self.precision,
            self.batch,
            tf32=self.tf32,
            optimization=self.optimization,
            workspace=self.workspace,
            timing_cache=timing_cache,
            sm=sm,
            fleet=self.fleet,
        )

    def command(self, format: str, calibrated: bool = False) -> str:
        """The command that asks for the same of a bundle; a `calibrated` one has its own precision."""
        options = FORMATS[format].options
        valued: dict[str, object] = {
            "--format": format,
            "--precision": None if calibrated else self.precision,
            "--batch": self.batch,
            "--routing": self.routing if self.routing != "unrolled" else None,
            "--benchmark": self.benchmark and shlex.quote(str(self.benchmark.file)),
        }
        valued = {name: value for name, value in valued.items() if name[2:] in ("format", "precision", *options)}
        numbers = {"opset": self.opset, "optimization": self.optimization, "workspace": self.workspace}
        rare = ["every_layer"] if self.every_layer else []
        rare += [f"{name}={value}" for name, value in numbers.items() if value is not None and name in options]
        rare += ["tf32"] if self.tf32 and "tf32" in options else []
        rare += [f"beside={shlex.quote(str(self.beside))}"] if self.beside and "beside" in options else []
        rare += self.fleet.asked if "fleet" in options else []
        words = [f"{option} {value}" for option, value in valued.items() if value is not None]
        return " ".join(("qcn export", BUNDLE, *words, *(f"--set {name}" for name in rare)))

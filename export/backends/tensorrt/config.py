"""The engine to build, and the configuration of TensorRT's builder for it."""

import ctypes
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from qcn.errors import BuildError, MissingError, UsageError, unknown_name
from qcn.export import targets
from qcn.export.backends.tensorrt.find import TensorRT
from qcn.export.backends.tensorrt.progress import BuildLog
from qcn.export.bundle.manifest import Batch
from qcn.names import PRECISIONS, OperationPrecision
from qcn.settings import setting

# Kernels that TensorRT takes from other libraries: the library's name and a function of it.
_BORROWED = {
    "CUBLAS": ("libcublas.so", "cublasCreate_v2"),
    "CUBLAS_LT": ("libcublasLt.so", "cublasLtCreate"),
    "CUDNN": ("libcudnn.so", "cudnnCreate"),
}


@dataclass(frozen=True)
class Fleet:
    """Options of an engine for many machines, or for a network that will be trained again."""

    version_compatible: bool = setting(
        False, "Build an engine that newer TensorRT versions run too, by the lean runtime of this one.", rare=True
    )
    hardware_compatible: bool = setting(False, "Build an engine for every GPU from Ampere (sm80) on.", rare=True)
    refittable: bool = setting(False, "Build an engine whose weights `qcn export --refit` can replace.", rare=True)
    stripped: bool = setting(False, "Build an engine without weights; `qcn export --refit` adds them.", rare=True)

    @property
    def asked(self) -> list[str]:
        """The names of the options that are on."""
        return [name for name, on in asdict(self).items() if on]


@dataclass(frozen=True)
class BuildRequest:
    """The engine to build.

    precision       fp32, fp16, bf16, or int8 of a calibrated network: that of the graph given, which the engine must
                    then show
    batch           the batches it takes, and the one it is to be fastest at
    tf32            let float32 convolutions round their inputs to 10 bits of mantissa
    optimization    TensorRT's builder optimisation level, 0 (fastest build) to 5; None: its own, 3
    workspace       MiB of GPU memory that kernels may use; None: all there is
    timing_cache    file that keeps the kernels' timings between builds
    sm              the compute capability to build for, where it is not this machine's (TensorRT-RTX only)
    fleet           what it gives up speed for, to serve more than one machine or network
    """

    precision: OperationPrecision
    batch: Batch
    tf32: bool = False
    optimization: int | None = None
    workspace: int | None = None
    timing_cache: Path | None = None
    sm: int | None = None
    fleet: Fleet = Fleet()

    def __post_init__(self) -> None:
        if self.precision not in (precisions := (*PRECISIONS, "int8")):
            raise unknown_name("precision", self.precision, precisions)
        if self.optimization is not None and not 0 <= self.optimization <= 5:
            raise UsageError(f"optimisation level {self.optimization} is not one of 0 to 5")
        if self.workspace is not None and self.workspace < 1:
            raise UsageError(f"a workspace of {self.workspace} MiB is too small: 1 or more")


def check_support(request: BuildRequest, tensorrt: TensorRT) -> None:
    """Refuse what this TensorRT does not have, before anything is parsed."""
    if request.precision == "bf16" and not hasattr(tensorrt.module.DataType, "BF16"):
        raise MissingError(f"bf16 needs TensorRT 10 or newer, this is {tensorrt}; use --precision fp16")
    if request.sm is not None and request.sm not in tensorrt.known_sms:
        raise UsageError(f"{tensorrt} cannot build for sm{request.sm} here; build on such a machine")
    _check_fleet(request.fleet, tensorrt)


def _check_fleet(fleet: Fleet, tensorrt: TensorRT) -> None:
    if fleet.stripped and not hasattr(tensorrt.module.BuilderFlag, "STRIP_PLAN"):
        raise MissingError(f"stripped needs TensorRT 10 or newer, this is {tensorrt}; use refittable")
    if tensorrt.flavour == "rtx" and fleet.version_compatible:
        raise MissingError(f"{tensorrt} has no lean runtime, which other versions need to run its engines")
    if tensorrt.flavour == "rtx" and fleet.hardware_compatible:
        raise UsageError(f"an engine of {tensorrt} runs on every GPU that it supports: leave out hardware_compatible")
    if fleet.hardware_compatible and targets.on_jetson():
        raise MissingError("TensorRT builds no hardware-compatible engines on a Jetson: leave out hardware_compatible")
    if tensorrt.flavour == "rtx" and fleet.asked and targets.this_gpu() is None:
        raise MissingError(f"{tensorrt} can build such engines ({', '.join(fleet.asked)}) only with a GPU")


def configure(builder: Any, network: Any, request: BuildRequest, tensorrt: TensorRT) -> tuple[Any, list[str]]:
    """The builder's configuration, and the names of the tactic sources that had to be left out."""
    trt, config = tensorrt.module, builder.create_builder_config()
    if not request.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)  # on by default
    if not tensorrt.strongly_typed and request.precision in ("fp16", "int8"):
        config.set_flag(trt.BuilderFlag.FP16)
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    if not tensorrt.strongly_typed and request.precision == "int8":
        config.set_flag(trt.BuilderFlag.INT8)  # what Q/DQ pairs need; without them it would be calibrated
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # the receipt is read from it
    if not tensorrt.strongly_typed:  # 8.6: else an engine has one context, and libqcn one per session and batch size
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    if request.optimization is not None:
        config.builder_optimization_level = request.optimization
    if request.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace << 20)
    if request.sm is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{request.sm}"), 0)
    _set_fleet(config, request.fleet, trt)
    _set_batch(config, builder, network, request)
    return config, _leave_out_borrowed(config, tensorrt)


def _set_fleet(config: Any, fleet: Fleet, trt: Any) -> None:
    if fleet.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        config.set_flag(trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME)  # it is code for the host, which an engine must not bring
    if fleet.hardware_compatible:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    if fleet.refittable or fleet.stripped:
        config.set_flag(trt.BuilderFlag.REFIT)
    if fleet.stripped:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)


def _set_batch(config: Any, builder: Any, network: Any, request: BuildRequest) -> None:
    profile, dynamic = builder.create_optimization_profile(), False
    sizes = request.batch
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        batch, *rest = tensor.shape
        if -1 in rest:
            raise BuildError(f"input '{tensor.name}' is {list(tensor.shape)}: only its batch may be open")
        if batch == -1:
            dynamic = True
            profile.set_shape(tensor.name, *((size, *rest) for size in astuple(sizes)))
        elif sizes != Batch(batch, batch, batch):
            raise BuildError(
                f"the graph's batch is fixed at {batch}, but {sizes} was requested; export it with --batch {sizes}"
            )
    if dynamic:
        config.add_optimization_profile(profile)


def _leave_out_borrowed(config: Any, tensorrt: TensorRT) -> list[str]:
    """Take cuDNN and cuBLAS from the tactic sources where they cannot be loaded: TensorRT would fail on them."""
    sources, left_out = config.get_tactic_sources(), []
    for name, (library, function) in _BORROWED.items():
        source = getattr(tensorrt.module.TacticSource, name, None)  # TensorRT 11 and TensorRT-RTX have none of them
        if source is None or not sources >> int(source) & 1:
            continue
        # TensorRT 8.6 was linked for CUDA 12 or 11 and cuDNN 8: what a newer CUDA brings is of no use to it.
        majors = ((8,) if name == "CUDNN" else (12, 11)) if tensorrt.version < (10,) else (13, 12, 11, 9, 8)
        if not any(_loads(f"{library}.{major}", function) for major in majors):
            sources &= ~(1 << int(source))
            left_out.append(name)
    if left_out:
        config.set_tactic_sources(sources)
    return left_out


def _loads(library: str, function: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(library), function)  # a stand-in without functions does not count
    except OSError:
        return False


def load_timings(config: Any, path: Path | None, tensorrt: TensorRT, log: BuildLog) -> Any | None:
    """Attach the timing cache; a broken or foreign one is replaced. TensorRT-RTX times nothing, so it keeps none."""
    if path is None or tensorrt.flavour == "rtx":
        return None
    if path.is_file():
        cache = config.create_timing_cache(path.read_bytes())
        if cache is not None and config.set_timing_cache(cache, False):
            return cache
        log.errors.clear()  # the cache's, not the build's
        log.warnings.append(f"the timing cache {path} is broken, or of another GPU or TensorRT: it is begun anew")
    cache = config.create_timing_cache(b"")
    config.set_timing_cache(cache, False)
    return cache

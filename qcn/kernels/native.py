"""The routing operator on the CPU: `libqcn` (deploy/kernels/em_routing.h) through ctypes."""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from qcn.errors import MissingError, UsageError
from qcn.kernels.shapes import Inputs, Layer, check_rotors, check_upstream, output_shapes
from qcn.libqcn.location import load_library
from qcn.limits import MAX_THREADS

FIELDS = (
    *("batch", "channels", "height", "width"),
    *("window_height", "window_width", "stride", "parents", "iterations", "shared", "unit", "logit"),
)


class _Shape(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in FIELDS)


def available() -> bool:
    """Whether `forward` and `backward` can be called."""
    return not why_not()


def why_not() -> str:
    """What is missing and the command that fixes it; empty if nothing is missing."""
    return _load()[1]


def instruction_set() -> str:
    """The instruction set that the library chose for this CPU, such as "neon"."""
    return str(_library().qcn_instruction_set().decode())


def set_threads(threads: int) -> None:
    """Set the threads of the calls that follow; 0: one per core. The results are the same bits for any number."""
    if not 0 <= threads <= MAX_THREADS:
        raise UsageError(f"the number of threads must be from 0 to {MAX_THREADS}, not {threads}")
    _library().qcn_set_threads(threads)


def forward(inputs: Inputs, layer: Layer, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Route a map of capsules; all tensors float32, on the CPU.

    pose [B, C, 3, H, W], activation [B, C, H, W], rotation [kh, kw, C, J, 3, 3] (or [1, 1, C, J, 3, 3]: the same at
    all places of the window), beta_u [J], beta_a [J] -> pose [B, J, 3, H', W'], activation [B, J, H', W'] (or, with
    `logit`, its logit), and what `save` keeps for `backward`: iterations·7·B·H'·W'·J numbers, in the library's order.
    """
    pose, activation, saved = output_shapes(inputs, layer)
    out = [inputs[0].new_empty(shape) for shape in (pose, activation, saved if save else (0,))]
    _call("qcn_routing_forward", _shape(inputs, layer), *_inputs(inputs), *out[:2], out[2] if save else None)
    return out[0], out[1], out[2]


def has_half() -> bool:
    """Whether the library routes in float16 arithmetic on this CPU (`half_forward`)."""
    return available() and str(_library().qcn_half_instruction_set().decode()) != instruction_set()


def half_forward(inputs: Inputs, layer: Layer) -> tuple[Tensor, Tensor]:
    """The outputs of `forward` by a layer in fp16; all tensors are float32 all the same."""
    out_pose, out_activation = (inputs[0].new_empty(shape) for shape in output_shapes(inputs, layer)[:2])
    pose, activation, rotation, *betas = _inputs(inputs)
    shape = _shape(inputs, layer)
    prepared = torch.empty(_library().qcn_routing_half_bytes(shape), dtype=torch.uint8)
    _call("qcn_routing_half_prepare", shape, rotation, prepared)
    _call("qcn_routing_half_forward", shape, pose, activation, prepared, *betas, out_pose, out_activation, None)
    return out_pose, out_activation


def backward(
    inputs: Inputs, layer: Layer, statistics: Tensor, grad_pose: Tensor, grad_activation: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of the five inputs of `forward`, given those of its pose and activation and what it saved."""
    check_upstream(output_shapes(inputs, layer), statistics, grad_pose, grad_activation)
    arrays = _readable(statistics=statistics, grad_pose=grad_pose, grad_activation=grad_activation)
    grads = tuple(x.new_zeros(x.shape) for x in inputs)  # zeros: what an empty batch gives
    _call("qcn_routing_backward", _shape(inputs, layer), *_inputs(inputs), *arrays, *grads)
    return grads


def rotation(theta: Tensor, axis: Tensor) -> Tensor:
    """The rotations [..., 3, 3] of the rotors of `theta` [...] and `axis` [..., 3]; float32, on the CPU."""
    check_rotors(theta, axis)
    out = theta.new_empty((*theta.shape, 3, 3))
    _rotors("qcn_rotation_forward", *_readable(theta=theta, axis=axis), out)
    return out


def rotation_backward(theta: Tensor, axis: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `rotation`'s arguments."""
    check_rotors(theta, axis, grad)
    by_theta, by_axis = theta.new_empty(theta.shape), axis.new_empty(axis.shape)
    _rotors("qcn_rotation_backward", *_readable(theta=theta, axis=axis, grad=grad), by_theta, by_axis)
    return by_theta, by_axis


def _rotors(name: str, theta: Tensor, *tensors: Tensor) -> None:
    if theta.numel():
        library = _library()
        status = getattr(library, name)(theta.numel(), theta.data_ptr(), *(x.data_ptr() for x in tensors))
        if status:
            raise UsageError(f"rotation: {library.qcn_routing_status(status).decode()}")


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or why there is none."""
    size: dict[str, tuple[Any, int]] = {
        "qcn_routing_forward": (ctypes.POINTER(_Shape), 8),
        "qcn_routing_backward": (ctypes.POINTER(_Shape), 13),
        "qcn_routing_half_prepare": (ctypes.POINTER(_Shape), 2),
        "qcn_routing_half_forward": (ctypes.POINTER(_Shape), 8),
        "qcn_rotation_forward": (ctypes.c_size_t, 3),
        "qcn_rotation_backward": (ctypes.c_size_t, 5),
    }
    try:
        others = ("qcn_routing_status", "qcn_instruction_set", "qcn_half_instruction_set", "qcn_routing_half_bytes")
        library = load_library(*size, *others, "qcn_set_threads")
    except MissingError as error:
        return None, str(error)
    for name, (first, arrays) in size.items():
        function = getattr(library, name)
        function.argtypes = [first, *([ctypes.c_void_p] * arrays)]
        function.restype = ctypes.c_int
    library.qcn_routing_status.argtypes = [ctypes.c_int]
    library.qcn_routing_status.restype = ctypes.c_char_p
    library.qcn_instruction_set.restype = library.qcn_half_instruction_set.restype = ctypes.c_char_p
    library.qcn_routing_half_bytes.argtypes = [ctypes.POINTER(_Shape)]
    library.qcn_routing_half_bytes.restype = ctypes.c_size_t
    library.qcn_set_threads.argtypes = [ctypes.c_int]
    library.qcn_set_threads.restype = None
    return library, ""


def _library() -> ctypes.CDLL:
    library, missing = _load()
    if library is None:
        raise MissingError(missing)
    return library


def _call(name: str, shape: _Shape, *tensors: Tensor | None) -> None:
    library = _library()
    if shape.batch == 0:
        return
    status = getattr(library, name)(shape, *(None if x is None else x.data_ptr() for x in tensors))
    if status:
        fields = ", ".join(f"{field} {getattr(shape, field)}" for field in FIELDS)
        raise UsageError(f"routing: {library.qcn_routing_status(status).decode()} ({fields})")


def _inputs(inputs: Inputs) -> list[Tensor]:
    return _readable(**dict(zip(("pose", "activation", "rotation", "beta_u", "beta_a"), inputs, strict=True)))


def _readable(**tensors: Tensor) -> list[Tensor]:
    """The tensors as the library reads them, one number after the other."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise UsageError(f"routing: {name} must be float32 on the CPU, not {tensor.dtype} on {tensor.device}")
    return [tensor.contiguous() for tensor in tensors.values()]


def _shape(inputs: Inputs, layer: Layer) -> _Shape:
    (batch, channels, _, height, width), rotation = inputs[0].shape, inputs[2]
    window, stride, iterations, unit, logit = layer
    shared = rotation.shape[:2] == (1, 1) and window != (1, 1)
    sizes = (batch, channels, height, width, *window, stride, rotation.shape[3])
    return _Shape(*sizes, iterations, shared, unit, logit)

"""The fused operator as torch knows it: `torch.ops.qcn.route`, with gradients and shapes for torch.compile.

It runs in `native` (libqcn) on a CPU and in `cuda` (Triton) on a GPU; both have the same `forward` and `backward`. It
is registered with torch.library's own calls, not with `custom_op`, whose wrapping takes longer than a small kernel.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qcn.kernels import native
from qcn.kernels.shapes import Inputs, Layer, check_rotors, output_shapes

LIBRARY = torch.library.Library("qcn", "DEF")
LIBRARY.define(
    "route(Tensor pose, Tensor activation, Tensor rotation, Tensor beta_u, Tensor beta_a, "
    "int[2] window, int stride, int iterations, bool unit, bool logit, bool save, "
    "bool half=False) -> (Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "route_backward(Tensor pose, Tensor activation, Tensor rotation, Tensor beta_u, Tensor beta_a, "
    "Tensor statistics, Tensor grad_pose, Tensor grad_activation, "
    "int[2] window, int stride, int iterations, bool unit, bool logit) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
LIBRARY.define("rotation(Tensor theta, Tensor axis) -> Tensor")
LIBRARY.define("rotation_backward(Tensor theta, Tensor axis, Tensor grad) -> (Tensor, Tensor)")

# pose [B, C, 3, H, W], activation [B, C, H, W], rotation [kh, kw, C, J, 3, 3] (or [1, 1, …], shared by all places)
# -> pose [B, J, 3, H', W'], activation [B, J, H', W'] (with `logit` its logit, z), statistics (what `save` keeps for
# the gradients)
# `half` allows the arithmetic of a fp16 Route, without gradients; a CPU's kernels here are float32 all the same
route = torch.ops.qcn.route.default
route_backward = torch.ops.qcn.route_backward.default
# theta [..., J], axis [..., J, 3] -> [..., J, 3, 3]; on CUDA parents are last in memory, as its kernels read them
rotation = torch.ops.qcn.rotation.default
rotation_backward = torch.ops.qcn.rotation_backward.default


def _kernels(tensor: Tensor) -> ModuleType:
    """The module whose `forward` and `backward` run where `tensor` is."""
    if tensor.is_cuda:
        from qcn.kernels import launch

        return launch
    return native


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, layer, (save, *half) = _parsed(arguments)
    narrow = {"half": True} if any(half) and inputs[0].is_cuda else {}
    return _kernels(inputs[0]).forward(inputs, layer, save, **narrow)


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, layer, _ = _parsed((*arguments[:5], *arguments[8:]))
    return _kernels(inputs[0]).backward(inputs, layer, *arguments[5:8])


def _parsed(arguments: tuple[Any, ...]) -> tuple[Inputs, Layer, tuple[Any, ...]]:
    """The inputs, how they are routed, and what else `route` was told."""
    window, *options = arguments[5:10]
    return arguments[:5], Layer(tuple(window), *options), arguments[10:]


def _rotation(theta: Tensor, axis: Tensor) -> Tensor:
    return _kernels(theta).rotation(theta, axis)


def _rotation_backward(theta: Tensor, axis: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _kernels(theta).rotation_backward(theta, axis, grad)


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            pose, activation, statistics = route(*arguments)
        ctx.save_for_backward(*arguments[:5], statistics)
        ctx.options, ctx.others = arguments[5:10], len(arguments) - 5
        ctx.mark_non_differentiable(statistics)
        return pose, activation, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_pose: Tensor, grad_activation: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return *route_backward(*ctx.saved_tensors, grad_pose, grad_activation, *ctx.options), *[None] * ctx.others


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, axis: Tensor) -> Tensor:
        ctx.save_for_backward(theta, axis)
        with torch._C._AutoDispatchBelowAutograd():
            return rotation(theta, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return rotation_backward(*ctx.saved_tensors, grad)


def _like_route(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, layer, (save, *_) = _parsed(arguments)
    pose, activation, saved = output_shapes(inputs, layer)
    like, statistics = inputs[0].new_empty, saved if save else (0,)
    return like(pose), like(activation), like(statistics, dtype=torch.float32)


def _like_inputs(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in arguments[:5])


def _like_rotation(theta: Tensor, axis: Tensor) -> Tensor:
    check_rotors(theta, axis)
    if theta.device.type == "cuda":
        return theta.new_empty(*theta.shape[:-1], 3, 3, theta.shape[-1]).movedim(-1, -3)
    return theta.new_empty(*theta.shape, 3, 3)


def _like_angles(theta: Tensor, axis: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return theta.new_empty(theta.shape), axis.new_empty(axis.shape)


for device in ("CPU", "CUDA"):
    LIBRARY.impl("route", _forward, device)
    LIBRARY.impl("route_backward", _backward, device)
    LIBRARY.impl("rotation", _rotation, device)
    LIBRARY.impl("rotation_backward", _rotation_backward, device)
LIBRARY.impl("route", _Route.apply, "Autograd")
LIBRARY.impl("rotation", _Rotation.apply, "Autograd")
# Not impl(…, "Meta"): there all tensors are on the device "meta", and the layout depends on the true device.
torch.library.register_fake("qcn::route", _like_route, lib=LIBRARY)
torch.library.register_fake("qcn::route_backward", _like_inputs, lib=LIBRARY)
torch.library.register_fake("qcn::rotation", _like_rotation, lib=LIBRARY)
torch.library.register_fake("qcn::rotation_backward", _like_angles, lib=LIBRARY)

"""Routing on CUDA as torch sees it: allocates, chooses the tiles, launches the kernels."""

import math
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from qcn.kernels.shapes import Inputs, Layer, Shape, check_upstream, output_shapes
from qcn.kernels.triton_backward import (
    CHILD_WARPS,
    backward_children_kernel,
    backward_windows_kernel,
    fold_kernel,
    tile_children,
)
from qcn.kernels.triton_half import PARENTS, groups, half_kernel, half_windows
from qcn.kernels.triton_rotation import backward as rotation_backward
from qcn.kernels.triton_rotation import forward as rotation
from qcn.kernels.triton_routing import (
    COEFFICIENTS,
    INTERPRETED,
    WARPS,
    Geometry,
    forward_kernel,
    repair_kernel,
    tile_windows,
)

__all__ = ["backward", "forward", "rotation", "rotation_backward"]

# Programs that a multiprocessor runs at a time: what the registers of 4 warps allow.
RESIDENT = 2
# What a step over the children costs by how many lanes of a warp, with a window each, share the rotors that it loads:
# measured on an H200. With more lanes 1; with one, and the children over several warps, 1.6.
STEP_COST = {2: 1.12, 1: 1.45}
# What half precision costs beside its children, in their steps: timed on an H200 (benchmarks/routing.py --only half).
# A child takes as long as in float32 there, though it has two thirds of the instructions; more windows run at a time.
HALF_START = 15
# By children: programs for each multiprocessor, and windows that one has at least.
PROGRAMS, FEWEST_WINDOWS = 48, 16
# Multiply and add in one instruction: the default of today's Triton, but not of its next version.
FUSED: dict[str, Any] = {} if INTERPRETED else {"enable_fp_fusion": True}


def forward(inputs: Inputs, layer: Layer, save: bool, half: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Parents' poses and activations, and what the backward needs of each iteration (empty unless `save`).

    With `half` and without `save`, in half precision where that should be faster.
    """
    shapes = output_shapes(inputs, layer)
    geometry = _geometry(inputs, layer, shapes[1])
    pose, activation, rotation, beta_u, beta_a = inputs
    windows = shapes[2][2]
    out_pose, out_activation = pose.new_empty(shapes[0]), pose.new_empty(shapes[1])
    statistics = pose.new_empty(shapes[2] if save else (0,), dtype=torch.float32)
    if windows == 0:
        return out_pose, out_activation, statistics
    split = _child_split(geometry, windows, 2, pose.device)
    half_split = _half_split(geometry, windows, pose.device) if half and not save else 0
    one_each = triton.cdiv(windows, tile_windows(1, split, geometry.padded_parents))
    # Two windows per thread halve the loads. One is better where the GPU has room for all windows at once.
    windows_per_thread = 1 if one_each <= RESIDENT * _multiprocessors(pose.device) else 2
    children = (pose.contiguous(), activation.contiguous())
    parents = (beta_u.float().contiguous(), beta_a.float().contiguous(), out_pose, out_activation)
    cancelled = torch.empty(windows, dtype=torch.int32, device=pose.device)
    tensors = (*children, _parents_last(rotation), *parents, statistics, cancelled)
    constants = {"G": geometry, "SAVE": save, "K": split}
    options = {"num_warps": WARPS, **FUSED}
    with torch.cuda.device_of(pose):
        if half_split:
            half_kernel[(triton.cdiv(windows, half_windows(half_split)),)](
                *children, _by_fours(rotation), *parents, cancelled, windows, G=geometry, K=half_split, **options
            )
        else:
            forward_kernel[(triton.cdiv(one_each, windows_per_thread),)](
                *tensors, windows, **constants, WINDOWS_PER_THREAD=windows_per_thread, **options
            )
        # Most of its programs only look whether a window is marked: with fewer registers, more of them at a time.
        repair_kernel[(one_each,)](*tensors, windows, **constants, maxnreg=128, **options)
    return out_pose, out_activation, statistics


def backward(
    inputs: Inputs, layer: Layer, statistics: Tensor, grad_pose: Tensor, grad_activation: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of `forward`'s five inputs."""
    shapes = output_shapes(inputs, layer)
    check_upstream(shapes, statistics, grad_pose, grad_activation)
    geometry = _geometry(inputs, layer, shapes[1])
    _, _, rotation, beta_u, beta_a = inputs
    children, parents, windows = geometry.children, geometry.parents, shapes[2][2]
    if windows == 0:
        return tuple(map(torch.zeros_like, inputs))
    pose, activation, turned = inputs[0].contiguous(), inputs[1].contiguous(), _parents_last(rotation)

    def scratch(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=pose.device)

    coefficients = scratch(windows, layer.iterations * COEFFICIENTS.value, parents)
    grad_beta = scratch(2, windows, parents)
    split = _child_split(geometry, windows, 1, pose.device)
    window_tiles = triton.cdiv(windows, tile_windows(1, split, geometry.padded_parents))
    child_tiles = triton.cdiv(children, tile_children(geometry.padded_parents))
    chunks = PROGRAMS * _multiprocessors(pose.device) / child_tiles
    per_chunk = max(FEWEST_WINDOWS, _power_of_2(windows / chunks))  # a power of two: few kernels to compile
    chunks = triton.cdiv(windows, per_chunk)
    grad_child = scratch(windows, 4, children)
    partial = scratch(chunks, children, 9, parents)
    out_pose, out_activation = torch.empty_like(pose), torch.empty_like(activation)
    block = 128
    arrays, betas = (pose, activation, turned), (beta_u.float().contiguous(), beta_a.float().contiguous())
    upstream = (statistics, grad_pose.contiguous(), grad_activation.contiguous())
    with torch.cuda.device_of(pose):
        backward_windows_kernel[(window_tiles,)](
            *(*arrays, *betas, *upstream, coefficients, grad_beta, windows),
            **{"G": geometry, "K": split, "num_warps": WARPS, **FUSED},
        )
        backward_children_kernel[(child_tiles, chunks)](
            *(*arrays, coefficients, grad_child, partial, windows),
            **{"G": geometry, "PER_CHUNK": per_chunk, "num_warps": CHILD_WARPS, **FUSED},
        )
        fold_kernel[(triton.cdiv(activation.numel(), block),)](
            grad_child, out_pose, out_activation, activation.numel(), G=geometry, BLOCK=block
        )
    places = rotation.shape[0] * rotation.shape[1]
    grad_rotation = partial.unflatten(1, (-1, places * geometry.channels)).sum((0, 1))  # [places·C, 9, J]
    grad_rotation = grad_rotation.view(*rotation.shape[:3], 3, 3, parents).permute(0, 1, 2, 5, 3, 4).contiguous()
    grad_beta_u, grad_beta_a = grad_beta[0].sum(0).to(beta_u.dtype), grad_beta[1].sum(0).to(beta_a.dtype)
    return out_pose, out_activation, grad_rotation.to(rotation.dtype), grad_beta_u, grad_beta_a


def _geometry(inputs: Inputs, layer: Layer, out: Shape) -> Geometry:
    """`out` is the shape [B, J, H', W'] of the parents' activations."""
    _, channels, _, height, width = inputs[0].shape
    rotation, (_, parents, rows, columns) = inputs[2], out
    return Geometry(
        channels=channels,
        height=height,
        width=width,
        window_height=layer.window[0],
        window_width=layer.window[1],
        stride=layer.stride,
        rows=rows,
        columns=columns,
        children=layer.window[0] * layer.window[1] * channels,
        parents=parents,
        padded_parents=max(1, triton.next_power_of_2(parents)),
        iterations=layer.iterations,
        unit=layer.unit,
        logit=layer.logit,
        shared=rotation.shape[:2] != layer.window,
    )


def _parents_last(rotation: Tensor) -> Tensor:
    """[kh, kw, C, J, 3, 3] in the order the kernels read it: [kh, kw, C, 3, 3, J]."""
    return rotation.permute(0, 1, 2, 4, 5, 3).float().contiguous()


def _by_fours(rotation: Tensor) -> Tensor:
    """[kh, kw, C, J, 3, 3] as the half-precision kernel reads it: [kh·kw·⌈C/4⌉, 3, 16 parents, 4 children, x y z 0]."""
    channels, parents = rotation.shape[2:4]
    padded = F.pad(rotation.half(), (0, 1, 0, 0, 0, PARENTS.value - parents, 0, -channels % 4))
    return padded.unflatten(2, (-1, 4)).flatten(0, 2).permute(0, 3, 2, 1, 4).contiguous()


def _multiprocessors(device: torch.device) -> int:
    return 4 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


def _tensor_cores(device: torch.device) -> bool:
    """Whether it multiplies float16 matrices as the kernels do: from compute capability 8.0 on."""
    return INTERPRETED or torch.cuda.get_device_properties(device).major >= 8


def _child_split(geometry: Geometry, windows: int, windows_per_thread: int, device: torch.device) -> int:
    """Over how many threads the children of a window are split: the fewest steps, weighed by what a step costs.

    It decides the order of the sums and so the last bits of the result: it follows from the shape and the GPU alone.
    """
    most = min(tile_windows(1, 1, geometry.padded_parents), triton.next_power_of_2(geometry.children))
    splits = (2**i for i in range(most.bit_length()))
    return min(splits, key=lambda split: _cost(geometry, windows, windows_per_thread, device, split))


def _cost(geometry: Geometry, windows: int, windows_per_thread: int, device: torch.device, split: int) -> float:
    parents = geometry.padded_parents
    rounds = _rounds(windows, tile_windows(windows_per_thread, split, parents), device)
    sharing = tile_windows(1, split, parents) // WARPS
    return rounds * triton.cdiv(geometry.children, split) * STEP_COST.get(sharing, 1.0 if sharing else 1.6)


def _half_split(geometry: Geometry, windows: int, device: torch.device) -> int:
    """Over how many warps the children of a window are split in half precision; 0 where float32 should be faster."""
    if geometry.parents > PARENTS.value or not _tensor_cores(device):
        return 0
    fours = geometry.window_height * geometry.window_width * groups(geometry.channels)

    def cost(split: int) -> float:
        return HALF_START + _rounds(windows, half_windows(split), device) * 4 * triton.cdiv(fours, split)

    half, single = min((1, 2, 4), key=cost), _child_split(geometry, windows, 2, device)
    return half if cost(half) < _cost(geometry, windows, 2, device, single) else 0


def _rounds(windows: int, of_a_program: int, device: torch.device) -> int:
    """How many programs run one after the other."""
    return triton.cdiv(triton.cdiv(windows, of_a_program), RESIDENT * _multiprocessors(device))


def _power_of_2(x: float) -> int:
    """The nearest power of two, and at least 1."""
    return int(2 ** max(0, round(math.log2(x))))

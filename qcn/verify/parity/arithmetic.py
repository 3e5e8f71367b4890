"""Are the statistics of routing those of float32 arithmetic on what the backend itself routed?

In every precision the children of a capsule layer are given to routing as float32, and its statistics are float32. So
those of the first iteration, where each child is shared out evenly, are known to float32's rounding from the children
that the backend gave out, however far its convolutions rounded: the tolerance is fp32's. That finds sums made in half
precision for any weights; against the reference they hide behind what fp16 may be off by. (Votes of later iterations
are made in the backend's precision, so there is no such bound for those.) Of a calibrated
network the floor is what float32 makes of these children, and what votes rounded to float16 do where a layer in fp16
makes even the first ones so: fused kernels do, graphs do not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Step
from qcn.export.program import Array, Route
from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR
from qcn.verify.parity.compare import Errors, errors


@dataclass(frozen=True)
class Layer:
    """A capsule layer: its operation, its rotations [h, w, C, J, 3, 3], and whether all of its votes are in float16."""

    op: Route
    rotation: Array
    half: bool = False


def layers(bundle: Bundle, graph: bool = True) -> list[Layer]:
    """The capsule layers whose children are another capsule layer's, which backends give out.

    `graph` says that routing is written out in the file, where the first votes are float32 in every precision.
    """
    program = bundle.program()
    made = {value.name for op in program.routes for value in op.outputs}
    half = program.calibrated and not graph
    return [
        Layer(op, program.rotation(op), half and op.precision == "fp16")
        for op in program.routes
        if made >= set(op.reads)
    ]


def check(
    layer: Layer, quantity: str, found: Mapping[str, Array], exact: Step, single: Step, plan: bool
) -> Errors | None:
    """The mean or variance of the first iteration against float64 arithmetic on the backend's own children.

    `exact` and `single` are the reference's, for the noise floor of what is not a calibrated network's `plan`. None
    where the backend does not show the children, or shows what has another shape.
    """
    given, pose, activation = (
        found.get(name) for name in (f"{layer.op.name}/iteration1/{quantity}", layer.op.pose, layer.op.activation)
    )
    if given is None or pose is None or activation is None:
        return None
    count = len(getattr(exact, quantity))
    place = ("mean", "variance").index(quantity)
    own = first_statistics(layer, pose[:count], activation[:count])[place]
    reference = getattr(exact, quantity)
    if own.shape != reference.shape or given[:count].shape != own.shape or not np.isfinite(own).all():
        return None
    if not plan:
        return errors(given[:count], own, own + (getattr(single, quantity) - reference), "fp32")
    rounded = first_statistics(layer, pose[:count], activation[:count], np.float32, layer.half)[place]
    return errors(given[:count], own, rounded, "plan" if layer.half else "fp32")


def first_statistics(
    layer: Layer, pose: Array, activation: Array, type_: type = np.float64, half: bool = False
) -> tuple[Array, Array]:
    """The first M-step: pose [n, C, 3, H, W], activation [n, C, H, W] -> mean and variance [n, J, 3, p].

    In `type_`; with `half`, votes are made of float16 numbers and rounded to them.
    """
    pose, activation = pose.astype(type_), activation.astype(type_)
    kh, kw = layer.op.window
    step = layer.op.stride
    rotation: Array = np.broadcast_to(layer.rotation.astype(type_), (kh, kw, *layer.rotation.shape[2:]))
    if half:
        rotation, pose = (x.astype(np.float16).astype(type_) for x in (rotation, pose))
    windows = np.lib.stride_tricks.sliding_window_view
    poses = windows(pose, (kh, kw), (3, 4))[:, :, :, ::step, ::step]  # [n, C, 3, H', W', kh, kw]
    weights = windows(activation, (kh, kw), (2, 3))[:, :, ::step, ::step]  # [n, C, H', W', kh, kw]
    weights = weights / rotation.shape[3]
    votes = np.einsum("xycjhk,nckabxy->njhabcxy", rotation, poses, optimize=True)
    votes = votes.astype(np.float16).astype(type_) if half else votes
    mass = weights.sum((1, 4, 5))[:, None, None]  # [n, 1, 1, H', W']
    shared = weights.transpose(0, 2, 3, 1, 4, 5)[:, None, None]  # [n, 1, 1, H', W', C, kh, kw]
    mean = (shared * votes).sum((5, 6, 7)) / (mass + MASS_FLOOR)
    squared = (votes - mean[..., None, None, None]) ** 2
    variance = (shared * squared).sum((5, 6, 7)) / (mass + MASS_FLOOR) + VARIANCE_FLOOR
    return mean.reshape(*mean.shape[:3], -1), variance.reshape(*variance.shape[:3], -1)

"""Are the statistics of routing those of float32 arithmetic on what the backend itself routed?

In every precision the children of a capsule layer are given to routing as float32, and its statistics are float32. So
those of the first iteration, where each child is shared out evenly, are known to float32's rounding from the children
that the backend gave out, however far its convolutions rounded: the tolerance is fp32's. That finds sums made in half
precision for any weights; against the reference they hide behind what fp16 may be off by.

A graph in fp16 makes the votes of its second iteration in float16. Backends do so in two ways: they round a vote once,
or after each of its three products (ONNX Runtime on ARM). Where the means are those of votes made in such a way, the
variances must be of the same votes, to float32's rounding. Where they are of neither, there is no such bound.

Of a calibrated network the floor of the first iteration is what float32 makes of these children, and what votes rounded
to float16 do where a layer in fp16 makes even the first ones so: fused kernels do, graphs do not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np

from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.tolerance import noise_floor
from qcn.export.program.program import Array, Route
from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR
from qcn.verify.parity.compare import Errors, errors

Way = Literal["once", "each"]
# The ways of making a vote in float16, and by what shares of itself another order of adding may move it before it is
# rounded: in "each" there is but one order.
NUDGE = 2.0**-23
WAYS: dict[Way, tuple[float, ...]] = {"once": (NUDGE, -NUDGE), "each": (0.0,)}


@dataclass(frozen=True)
class RoutingLayer:
    """A capsule layer: its operation, its rotations [h, w, C, J, 3, 3], beta_u and beta_a [J].

    first, later   whether the votes of the first and of later iterations are in float16
    """

    op: Route
    rotation: Array
    beta_u: Array
    beta_a: Array
    first: bool = False
    later: bool = False


def layers(bundle: Bundle, precision: str, graph: bool = True) -> list[RoutingLayer]:
    """The capsule layers whose children are another capsule layer's, which backends give out.

    `graph` says that routing is written out in the file, where the first votes are float32 in every precision. A
    calibrated network has each layer in its own precision.
    """
    program = bundle.program()
    routed = {value.name for op in program.routes for value in op.outputs}
    result = []
    for op in (op for op in program.routes if routed >= set(op.reads)):
        half = (op.precision if program.calibrated else precision) == "fp16"
        first = half and program.calibrated and not graph
        betas = (program.arrays[op.beta_u], program.arrays[op.beta_a])
        result.append(RoutingLayer(op, program.rotation(op), *betas, first, half and graph))
    return result


def check(layer: RoutingLayer, name: str, quantity: str, outputs: Mapping[str, Array], golden: Golden) -> Errors | None:
    """The mean or variance of an iteration, such as capsules2/iteration1, against float64 arithmetic on the backend's
    own children.

    None where that cannot be known: the backend does not show the children, or shows what has another shape.
    """
    exact, single = (of.arrays[f"{name}/{quantity}"] for of in (golden.reference, golden.float32))
    arrays = {key: outputs[key][: len(exact)] for key in _needed(layer, name) if key in outputs}
    if len(arrays) < len(_needed(layer, name)) or arrays[f"{name}/{quantity}"].shape != exact.shape:
        return None
    if name.endswith("/iteration1"):
        return _first(layer, name, quantity, arrays, golden, noise_floor(exact, single))
    return _second(layer, name, arrays) if layer.later and quantity == "variance" else None


def _needed(layer: RoutingLayer, name: str) -> list[str]:
    statistics = [f"{step}/{of}" for step in {name, f"{layer.op.name}/iteration1"} for of in ("mean", "variance")]
    return [layer.op.pose, layer.op.activation, *statistics]


def _first(
    layer: RoutingLayer, name: str, quantity: str, arrays: Mapping[str, Array], golden: Golden, floor: float
) -> Errors | None:
    place, children = ("mean", "variance").index(quantity), (arrays[layer.op.pose], arrays[layer.op.activation])
    reported, own = arrays[f"{name}/{quantity}"], statistics(layer, *children)[place]
    if own.shape != reported.shape or not np.isfinite(own).all():
        return None
    if golden.plan:
        floor = noise_floor(
            own, statistics(layer, *children, type_=np.float32, half="once" if layer.first else None)[place]
        )
    return errors(reported, own, floor, "plan" if layer.first else "fp32")


def _second(layer: RoutingLayer, name: str, arrays: Mapping[str, Array]) -> Errors | None:
    """Check the variance, if the mean shows which votes it is made of."""
    before = tuple(arrays[f"{layer.op.name}/iteration1/{of}"] for of in ("mean", "variance"))
    children = (arrays[layer.op.pose], arrays[layer.op.activation])
    result = []
    for way, nudges in WAYS.items():
        own = statistics(layer, *children, before, half=way)
        nearby = [statistics(layer, *children, before, np.float32, way, nudge) for nudge in nudges]
        compared = []
        for place, of in enumerate(("mean", "variance")):
            if own[place].shape != arrays[f"{name}/{of}"].shape or not np.isfinite(own[place]).all():
                return None
            floor = max(noise_floor(own[place], one[place]) for one in nearby)
            compared.append(errors(arrays[f"{name}/{of}"], own[place], floor, "plan"))
        mean, variance = compared
        if mean.passed:
            result.append(variance)
    return min(result, key=lambda one: one.share, default=None)


def statistics(
    layer: RoutingLayer,
    pose: Array,
    activation: Array,
    before: tuple[Array, ...] | None = None,
    type_: type = np.float64,
    half: Way | None = None,
    nudge: float = 0.0,
) -> tuple[Array, Array]:
    """The first M-step: pose [n, C, 3, H, W], activation [n, C, H, W] -> mean and variance [n, J, 3, p].

    With the mean and variance `before`, the second. In `type_`; with `half`, votes are made of float16 numbers and
    rounded to them in that way, "once" after they were moved by the share `nudge` of themselves.
    """
    pose, activation = pose.astype(type_), activation.astype(type_)
    (kh, kw), step = layer.op.window, layer.op.stride
    rotation: Array = np.broadcast_to(layer.rotation.astype(type_), (kh, kw, *layer.rotation.shape[2:]))
    if half:
        rotation, pose = _half(rotation), _half(pose)
    windows = np.lib.stride_tricks.sliding_window_view
    poses = windows(pose, (kh, kw), (3, 4))[:, :, :, ::step, ::step]  # [n, C, 3, H', W', kh, kw]
    active = windows(activation, (kh, kw), (2, 3))[:, :, ::step, ::step].transpose(0, 2, 3, 1, 4, 5)
    votes = _votes(rotation, poses, half, nudge)
    n, parents, *_ = votes.shape
    votes = votes.reshape(n, parents, 3, math.prod(layer.op.shape[1:]), -1)  # [n, J, 3, p, I]
    child = active.reshape(n, 1, *votes.shape[3:])  # [n, 1, p, I]
    r = child / parents if before is None else child * _shares(layer, votes, child, *(x.astype(type_) for x in before))
    r = r[:, :, None]
    mass = r.sum(-1) + MASS_FLOOR
    mean = (r * votes).sum(-1) / mass
    variance = (r * (votes - mean[..., None]) ** 2).sum(-1) / mass + VARIANCE_FLOOR
    return mean, variance


def _votes(rotation: Array, poses: Array, half: Way | None, nudge: float) -> Array:
    """[n, J, 3, H', W', C, kh, kw]."""
    if half == "each":
        products = (np.einsum("xycjh,ncabxy->njhabcxy", rotation[..., k], poses[:, :, k]) for k in range(3))
        return reduce(lambda total, product: _half(total + product), products, np.zeros((), poses.dtype))
    votes: Array = np.einsum("xycjhk,nckabxy->njhabcxy", rotation, poses, optimize=True)
    return _half(votes * votes.dtype.type(1 + nudge)) if half else votes


def _shares(layer: RoutingLayer, votes: Array, child: Array, mean: Array, variance: Array) -> Array:
    """The share of each child in each parent [n, J, p, I], after an M-step with equal shares."""
    children = votes.shape[-1]
    beta_u, beta_a = (beta.astype(votes.dtype)[:, None] for beta in (layer.beta_u, layer.beta_a))
    log_spread = np.log(variance).sum(2) / 2  # [n, J, p]
    z = beta_a - (3 * beta_u + log_spread) * child.sum(-1) * (2 / children)
    if layer.op.mode == "unit":
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
    distance = ((votes - mean[..., None]) ** 2 / (2 * variance[..., None])).sum(2)
    logit = (-np.logaddexp(0, -z) - log_spread)[..., None] - distance
    power = np.exp(logit - logit.max(1, keepdims=True))
    shares: Array = power / power.sum(1, keepdims=True)
    return shares


def _half(x: Array) -> Array:
    return x.astype(np.float16).astype(x.dtype)

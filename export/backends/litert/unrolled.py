"""Routing in LiteRT's built-in operators: the formula of `qcn/routing.py`, its iterations written out.

Votes lie as [3, I, N, J]: axes, the I = C·k·k children of a window, the N = n·B windows at n positions of B images, and
J parents innermost, where LiteRT's softmax is. So four sides suffice, whatever belongs to parents is broadcast over the
children in long runs, and -1 in a reshape is always N.

    children    [1, I, N, 3], one gather
    votes       one product of matrices: with R [3, I, 3, J]
    iterations  as in `qcn.export.backends.onnx.unrolled`: the first M-step by convolutions, in the class layer with the
                variance of the votes; later ones by sums about the means of the iteration before
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qcn.export.backends.litert.graph import LiteGraph, LiteTensor
from qcn.export.program.program import POSE_PRODUCTS, Array, Route, Shape
from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR

PARTS = 4  # of long sums; `routing` in the registration counts them
AS_KERNEL = (4, 3, 0, 1, 2, 5)  # R [h, w, C, J, 3, 3] as a kernel [3, J, h, w, C, 3]
BY_CHILD = (4, 2, 0, 1, 5, 3)  # … and by axis, child, axis of the pose, parent


@dataclass(frozen=True)
class Parents:
    """A layer's parents after an M-step: mean and variance [3, 1, N, J], ½ Σ ln σ² and the score z [1, 1, N, J]."""

    mean: LiteTensor
    variance: LiteTensor
    log_spread: LiteTensor
    z: LiteTensor


class UnrolledLayer:
    """A capsule layer on a `map` [C, H, W] of capsules: `write` adds it."""

    def __init__(self, g: LiteGraph, op: Route, map: Shape, arrays: Mapping[str, Array], rotation: Array) -> None:
        self.g, self.op = g, op
        self.C, self.height, self.width = map
        self.rotation = np.broadcast_to(rotation, (*op.window, *rotation.shape[2:]))
        self.beta_u, self.beta_a = arrays[op.beta_u], arrays[op.beta_a]
        self.J, rows, columns = op.shape
        self.I, self.n = math.prod(op.window) * self.C, rows * columns

    def write(self, pose: LiteTensor, activation: LiteTensor) -> tuple[LiteTensor, LiteTensor]:
        """Add the layer: pose [B, H, W, 3C] and activation [B, H, W, C] -> those of its parents."""
        g, op = self.g, self.op
        _, rows, columns = op.shape
        votes, active = self.votes(pose), self.children("active", activation)
        with g.scope("iteration1"):
            parents = self.first_m_step(pose, activation, votes, active)
        for t in range(2, op.iterations + 1):
            with g.scope(f"iteration{t}"):
                parents = self.iteration(parents, votes, active)
        mean = g.reshape("mean.places", parents.mean, 3, self.n, -1, self.J)
        z = g.reshape("z.places", parents.z, self.n, -1, self.J)
        mean, z = g.transpose("mean", mean, 2, 1, 3, 0), g.transpose("z", z, 1, 0, 2)
        z = g.reshape("z.map", z, -1, rows, columns, self.J)
        active = g.sigmoid("activation", z) if op.ending == "sigmoid" else z
        return g.reshape("pose.map", mean, -1, rows, columns, 3 * self.J), active

    def first_m_step(self, pose: LiteTensor, activation: LiteTensor, votes: LiteTensor, active: LiteTensor) -> Parents:
        """The first M-step, in which each child is shared out evenly."""
        g, C, area = self.g, self.C, self.height * self.width
        axes = g.reshape("axes", pose, -1, area, C, 3)
        weighted = g.binary("MUL", "weighted", axes, g.reshape("weights", activation, -1, area, C, 1))
        kernel = self.rotation.transpose(AS_KERNEL)
        # Over the children of a place, then over places: fewer terms one behind the other, and so less rounding.
        mass = self._products("mass", g.sum("active", activation, 3), np.ones((1, 1, *self.op.window, 1, 1)))
        sums = self._products("sums", weighted, kernel)
        safe = g.binary("ADD", "mass.safe", mass, g.number("floor", MASS_FLOOR))
        mean = g.binary("DIV", "mean", sums, safe)
        if self.n == 1:
            even = g.binary("MUL", "even", active, g.number("share", 1 / self.J))
            apart = g.binary("SUB", "apart", votes, mean)
            squared = g.binary("MUL", "squared", apart, apart)
            return self._parents(mass, safe, mean, self._over_children("spread", g.binary("MUL", "r", squared, even)))
        # Σ r·(v − μ)² = Σ r·v² − μ²·(S + 2·floor), since μ is Σ r·v over S + floor: without a vote.
        left = g.gather("left", axes, 3, [p for p, _, _ in POSE_PRODUCTS])
        right = g.gather("right", weighted, 3, [q for _, q, _ in POSE_PRODUCTS])
        elements = [kernel[..., p] * kernel[..., q] * times for p, q, times in POSE_PRODUCTS]
        squares = self._products("squares", g.binary("MUL", "products", left, right), np.stack(elements, -1))
        safer = g.binary("ADD", "mass.safer", safe, g.number("floor", MASS_FLOOR))
        mean_square = g.binary("MUL", "mean_square", g.binary("MUL", "mean_mass", mean, safer), mean)
        return self._parents(mass, safe, mean, g.binary("SUB", "spread", squares, mean_square))

    def _products(self, name: str, maps: LiteTensor, kernel: Array) -> LiteTensor:
        """Convolve maps [B, H·W, C, x] by a kernel [a, b, h, w, C, x], shared out among parents -> [a, 1, N, b].

        XNNPACK adds up to 4,800 products one behind the other, with a rounding each. So they are made in parts of fewer
        children, which are then added.
        """
        g, (a, b, *window, C, x) = self.g, kernel.shape
        maps = g.reshape(f"{name}.maps", maps, -1, self.height, self.width, C * x)
        weight = (kernel / self.J).reshape(a * b, *window, C * x).astype(np.float32)
        bias, edges = np.zeros(a * b, np.float32), sorted({x * (C * part // PARTS) for part in range(PARTS + 1)})
        total, *rest = (
            g.convolution(
                f"{name}.conv",
                g.channels(f"{name}.part", maps, start, end),
                weight[..., start:end],
                bias,
                self.op.stride,
                padding=0,
            )
            for start, end in pairwise(edges)
        )
        for part in rest:
            total = g.binary("ADD", f"{name}.total", total, part)
        out = g.reshape(f"{name}.places", total, -1, self.n, a, b)
        return g.reshape(name, g.transpose(f"{name}.axes", out, 2, 1, 0, 3), a, 1, -1, b)

    def children(self, name: str, maps: LiteTensor) -> LiteTensor:
        """Maps [B, H, W, C·x] -> the windows' children [1, I, N, x]."""
        g, op = self.g, self.op
        rows, columns = (
            np.arange(side)[:, None] + op.stride * np.arange(out)  # [k, H']
            for side, out in zip(op.window, op.shape[1:], strict=True)
        )
        places = (rows[:, None, :, None] * self.width + columns[:, None, :]).ravel()  # [k·k·n]
        sides = maps.shape[3] // self.C
        flat = g.reshape(f"{name}.flat", maps, -1, self.height * self.width, self.C, sides)
        first = g.transpose(f"{name}.first", flat, 2, 1, 0, 3)  # [C, H·W, B, x]
        return g.reshape(name, g.gather(f"{name}.windows", first, 1, places.tolist()), 1, self.I, -1, sides)

    def votes(self, pose: LiteTensor) -> LiteTensor:
        """[3, I, N, J]."""
        g, child = self.g, self.children("child", pose)
        turns = self.rotation.transpose(BY_CHILD).reshape(3, self.I, 3, self.J)
        rotation = g.constant("rotation", np.ascontiguousarray(turns, np.float32))
        return g.node("BATCH_MATMUL", "votes", (3, self.I, child.shape[2], self.J), child, rotation)

    def iteration(self, old: Parents, votes: LiteTensor, active: LiteTensor) -> Parents:
        """An E-step with the parents as they were, and an M-step by sums about the means that they had."""
        g = self.g
        apart = g.binary("SUB", "apart", votes, old.mean)  # d = v − μ
        squared = g.binary("MUL", "squared", apart, apart)
        weight = g.binary("DIV", "weight", g.number("half", 0.5), old.variance)
        distance = g.sum("distance", g.binary("MUL", "weighted", squared, weight), 0)
        prior = g.binary("SUB", "prior", self._log_sigmoid(old.z), old.log_spread)
        logit = g.binary("SUB", "logit", prior, distance)
        r = g.binary("MUL", "r", g.node("SOFTMAX", "share", logit.shape, logit, beta=1.0), active)
        mass = self._over_children("mass", r)
        first = self._over_children("first", g.binary("MUL", "r_apart", apart, r))
        second = self._over_children("second", g.binary("MUL", "r_squared", squared, r))
        safe = g.binary("ADD", "mass.safe", mass, g.number("floor", MASS_FLOOR))
        # Σ r·v = Σ r·d + μ·S; and with δ = new μ − μ, Σ r·(d − δ)² = Σ r·d² + δ·(δ·S − 2·Σ r·d).
        sums = g.binary("ADD", "sums", first, g.binary("MUL", "old_sums", old.mean, mass))
        mean = g.binary("DIV", "mean", sums, safe)
        moved = g.binary("SUB", "moved", mean, old.mean)
        pull = g.binary(
            "SUB", "pull", g.binary("MUL", "moved_mass", moved, mass), g.binary("ADD", "twice", first, first)
        )
        spread = g.binary("ADD", "spread", second, g.binary("MUL", "correction", moved, pull))
        return self._parents(mass, safe, mean, spread)

    def _over_children(self, name: str, x: LiteTensor) -> LiteTensor:
        """The sum over children: [x, I, N, J] -> [x, 1, N, J]."""
        return self.g.sum(name, x, 1)

    def _parents(self, mass: LiteTensor, safe: LiteTensor, mean: LiteTensor, spread: LiteTensor) -> Parents:
        """The variance from Σ r·(v − μ)², and from it the score behind the activation."""
        g = self.g
        spread = g.unary("RELU", "spread.positive", spread)  # rounding may leave a little less than nothing
        spread = g.binary("DIV", "spread.mean", spread, safe)
        variance = g.binary("ADD", "variance", spread, g.number("epsilon", VARIANCE_FLOOR))
        logs = g.sum("log_variance.sum", g.unary("LOG", "log_variance", variance), 0)
        log_spread = g.binary("MUL", "log_spread", logs, g.number("half", 0.5))
        cost = g.binary("ADD", "cost", log_spread, g.constant("beta_u", 3 * self.beta_u))
        expected = g.binary("MUL", "mass.expected", mass, g.number("per_expected", 2 * self.J / self.I))
        score = g.binary("MUL", "cost.mass", cost, expected)
        z = g.binary("SUB", "score", g.constant("beta_a", self.beta_a), score)
        if self.op.mode == "unit":
            norm = g.unary("SQRT", "norm", g.sum("norm.square", g.binary("MUL", "z.square", z, z), 3))
            z = g.binary("DIV", "score.unit", z, g.binary("MAXIMUM", "norm.safe", norm, g.number("least", 1e-12)))
        return Parents(mean, variance, log_spread, z)

    def _log_sigmoid(self, z: LiteTensor) -> LiteTensor:
        """min(z, 0) − ln(1 + exp(−|z|)), which cannot overflow."""
        g = self.g
        power = g.unary("EXP", "z.power", g.unary("NEG", "z.below", g.unary("ABS", "z.abs", z)))
        tail = g.unary("LOG", "z.tail", g.binary("ADD", "z.one_more", power, g.number("one", 1.0)))
        return g.binary("SUB", "log_active", g.binary("MINIMUM", "z.negative", z, g.number("zero", 0.0)), tail)

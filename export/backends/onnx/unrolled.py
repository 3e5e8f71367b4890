"""Routing in standard ONNX operators: the formula of `qcn/routing.py`, its iterations written out one after the other.

How it is arranged decides its speed, since every operator is a pass over memory. Votes lie as [B, I, 3, J·n]: n
positions innermost, then parents, so that whatever belongs to a parent is broadcast over the children in long runs. No
loops, no slices:

    children    the I = C·k·k children of the windows at n positions        one gather
    votes       R_i u_i for all parents of a child                          one product of matrices
    iteration1  r is uniform, so Σ a·v and Σ a·v² are convolutions of the maps with R and with products of R's elements;
                in the class layer, whose votes agree to many digits, Σ a·(v − μ)² is made of the votes: they are few
    iteration2… d = v − μ of the iteration before; with it the distances of the E-step, and Σ r·d and Σ r·d², from which
                the new mean and variance follow without cancellation; sums over children are products with ones

That is for ONNX Runtime, which runs one operator after the other. TensorRT makes one kernel of a whole region of
pointwise operators and keeps nothing of it in memory, votes included: see `qcn.export.backends.tensorrt.layers`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import TensorProto

from qcn.export.backends.onnx.graph import TYPES, GraphValue, OnnxGraph
from qcn.export.program.program import POSE_PRODUCTS, Array, Route, Shape
from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR


@dataclass(frozen=True)
class Parents:
    """A layer's parents after an M-step: mean and variance [B, 3, J, n], ½ Σ ln σ² and the score z [B, 1, J, n]."""

    mean: GraphValue
    variance: GraphValue
    log_spread: GraphValue
    z: GraphValue


BY_CHILD, AS_KERNEL = (2, 0, 1, 4, 3, 5), (4, 3, 2, 5, 0, 1)  # R [h, w, C, J, 3, 3], axes of the vote before the pose


class Matrices:
    """A layer's rotations [h, w, C, J, 3, 3] in the file, as often as they are needed."""

    def __init__(self, g: OnnxGraph, op: Route, rotation: Array) -> None:
        self.g, self.J = g, op.parents
        self.rotation = np.broadcast_to(rotation, (*op.window, *rotation.shape[2:]))
        self.window, self.C = op.window, rotation.shape[2]

    def rotations(self) -> Array:
        """[I, 3, J, 3]: R by child, axis of the vote, parent, axis of the pose."""
        return self.rotation.transpose(BY_CHILD).reshape(-1, 3, self.J, 3)

    def by_child(self, name: str, type: int) -> GraphValue:
        """[I, 3·J, 3], for products with poses."""
        return self.g.weight(name, self.rotations().reshape(-1, 3 * self.J, 3), type)

    def means(self, name: str) -> GraphValue:
        """[3·J, C·3, h, w]: the kernel of Σ r·v where each child is shared out evenly."""
        return self._kernel(name, self.rotation.transpose(AS_KERNEL))

    def squares(self, name: str) -> GraphValue:
        """[3·J, C·6, h, w]: the kernel of Σ r·v² of the products of poses."""
        elements = self.rotation.transpose(AS_KERNEL)  # [3, J, C, 3, h, w]
        products = [elements[:, :, :, p] * elements[:, :, :, q] * times for p, q, times in POSE_PRODUCTS]
        return self._kernel(name, np.stack(products, 3))

    def _kernel(self, name: str, weight: Array) -> GraphValue:
        kernel = (weight / self.J).reshape(3 * self.J, -1, *self.window)
        return self.g.weight(name, kernel.astype(np.float32))


class RotorNodes(Matrices):
    """A layer's rotations as rotors [h, w, C, J, 4] in the file, from which the rest is computed.

    All of it is constant: ONNX Runtime does so once, when it loads the graph, and the file is a tenth as large.
    """

    def __init__(self, g: OnnxGraph, op: Route, rotors: Array) -> None:
        self.g, self.J, self.window, self.C = g, op.parents, op.window, rotors.shape[2]
        with g.scope("rotors"):
            rotor = g.cast("float", g.weight("half", rotors), TensorProto.FLOAT)
            length = g.node(
                "Sqrt", "length", g.reduce("ReduceSum", "square", g.node("Mul", "squares", rotor, rotor), 4)
            )
            w, x, y, z = (self._component(g.node("Div", "unit", rotor, length), i) for i in range(4))
            one, two = g.number("one", 1.0), g.number("two", 2.0)

            def twice(sign: str, a: GraphValue, b: GraphValue, c: GraphValue, d: GraphValue) -> GraphValue:
                product = g.node(sign, "sum", g.node("Mul", "first", a, b), g.node("Mul", "second", c, d))
                return g.node("Mul", "twice", two, product)

            def rest(a: GraphValue, b: GraphValue) -> GraphValue:
                return g.node("Sub", "rest", one, twice("Add", a, a, b, b))

            elements = [rest(y, z), twice("Sub", x, y, w, z), twice("Add", x, z, w, y)]
            elements += [twice("Add", x, y, w, z), rest(x, z), twice("Sub", y, z, w, x)]
            elements += [twice("Sub", x, z, w, y), twice("Add", y, z, w, x), rest(x, y)]
            matrix = g.node("Concat", "elements", *elements, axis=4)
            scaled = g.node("Mul", "scaled", matrix, g.number("scale", op.scale or 1.0))
            whole = g.integers("window", *op.window, self.C, self.J, 9)
            self.matrices = g.reshape("matrices", g.node("Expand", "whole", scaled, whole), 0, 0, 0, 0, 3, 3)

    def by_child(self, name: str, type: int) -> GraphValue:
        turned = self.g.node("Transpose", f"{name}.children", self.matrices, perm=BY_CHILD)
        return self.g.cast(f"{name}.cast", self.g.reshape(name, turned, -1, 3 * self.J, 3), type)

    def means(self, name: str) -> GraphValue:
        return self._shared(name, self._elements(name), 3)

    def squares(self, name: str) -> GraphValue:
        g, elements = self.g, self._elements(name)
        left, right = (
            g.node("Gather", f"{name}.{side}", elements, g.integers(f"{name}.{side}.axes", *axes), axis=3)
            for side, axes in zip(("left", "right"), list(zip(*POSE_PRODUCTS, strict=True))[:2], strict=True)
        )
        times = np.array([times for _, _, times in POSE_PRODUCTS], np.float32)[:, None, None]
        products = g.node("Mul", f"{name}.products", left, right)
        return self._shared(name, g.node("Mul", f"{name}.times", products, g.weight("times", times)), len(times))

    def _component(self, rotor: GraphValue, index: int) -> GraphValue:
        return self.g.node("Gather", "component", rotor, self.g.integers("index", index), axis=4)

    def _elements(self, name: str) -> GraphValue:
        return self.g.node("Transpose", f"{name}.elements", self.matrices, perm=AS_KERNEL)

    def _shared(self, name: str, weight: GraphValue, sides: int) -> GraphValue:
        kernel = self.g.reshape(f"{name}.kernel", weight, 3 * self.J, sides * self.C, *self.window)
        return self.g.node("Div", name, kernel, self.g.number("parents", self.J))


class UnrolledLayer:
    """A capsule layer on a `map` [C, H, W] of capsules: `write` adds it. C, I, J and n as at the top of this file."""

    CLASS_VOTES: ClassVar[bool] = True  # whether the class layer's first variance is made of its votes

    def __init__(self, g: OnnxGraph, op: Route, map: Shape, arrays: Mapping[str, Array]) -> None:
        self.g, self.op = g, op
        self.C, self.height, self.width = map
        self.turns = RotorNodes(g, op, arrays[op.rotation]) if op.scale else Matrices(g, op, arrays[op.rotation])
        self.beta_u, self.beta_a = arrays[op.beta_u], arrays[op.beta_a]
        self.J, rows, columns = op.shape
        self.I, self.n = math.prod(op.window) * self.C, rows * columns

    def write(self, pose: GraphValue, activation: GraphValue) -> tuple[GraphValue, GraphValue]:
        """Add the layer: pose [B, C, 3, H, W] and activation [B, C, H, W] -> those of its parents.

        Votes are made in the operation's precision; statistics, and what comes out, are float32.
        """
        g, op = self.g, self.op
        _, rows, columns = op.shape
        poses = g.cast("pose.float", pose, TensorProto.FLOAT)
        activations = g.cast("activation.float", activation, TensorProto.FLOAT)
        with g.scope("iteration1"):
            parents = self.first_m_step(poses, activations)
        if op.iterations > 1:
            votes = self.votes(g.cast("pose.votes", pose, TYPES[op.precision]))
            active = self.children("active", activations)
        for t in range(2, op.iterations + 1):
            with g.scope(f"iteration{t}"):
                parents = self.iteration(parents, votes, active)
        mean = g.node("Transpose", "mean", parents.mean, perm=[0, 2, 1, 3])
        z = g.reshape("z", parents.z, 0, op.parents, rows, columns)
        active = g.sigmoid("parents.activation", z) if op.ending == "sigmoid" else z
        return g.reshape("parents.pose", mean, 0, 0, 0, rows, columns), active

    def first_m_step(self, pose: GraphValue, activation: GraphValue) -> Parents:
        """The first M-step, in which each child is shared out evenly."""
        g, C, area = self.g, self.C, self.height * self.width
        axes = g.reshape("axes", pose, 0, C, 3, area)
        weighted = g.node("Mul", "weighted", axes, g.reshape("weights", activation, 0, C, 1, area))
        # Over the children of a place, then over places: fewer terms one behind the other, and so less rounding.
        active = g.reduce("ReduceSum", "active", activation, 1)
        ones = g.weight("mass.weight", np.full((1, 1, *self.op.window), np.float32(1 / self.J)))
        mass = self._convolution("mass", active, ones, 1)  # [B, 1, 1, n]
        sums = self._convolution("sums", weighted, self.turns.means("sums.weight"), 3 * C)
        safe = g.node("Add", "mass.safe", mass, g.number("floor", MASS_FLOOR))
        mean = g.node("Div", "mean", sums, safe)
        if self.n == 1 and self.CLASS_VOTES:
            votes, active = self.votes(pose), self.children("active.children", activation)
            even = g.node("Mul", "even", active, g.number("share", 1 / self.J))
            return self._parents(mass, safe, mean, self.spread_of_votes(votes, even, mean))
        return self._parents(mass, safe, mean, self.spread_of_maps(axes, weighted, safe, mean))

    def spread_of_maps(self, axes: GraphValue, weighted: GraphValue, safe: GraphValue, mean: GraphValue) -> GraphValue:
        """Σ r·(v − μ)² = Σ r·v² − μ²·(S + 2·floor), since μ is Σ r·v over S + floor: without a vote."""
        g = self.g
        left = g.node("Gather", "left", axes, g.integers("p", *(p for p, _, _ in POSE_PRODUCTS)), axis=2)
        right = g.node("Gather", "right", weighted, g.integers("q", *(q for _, q, _ in POSE_PRODUCTS)), axis=2)
        products, kernel = g.node("Mul", "products", left, right), self.turns.squares("squares.weight")
        squares = self._convolution("squares", products, kernel, len(POSE_PRODUCTS) * self.C)
        safer = g.node("Add", "mass.safer", safe, g.number("floor", MASS_FLOOR))
        mean_mass = g.node("Mul", "mean_mass", mean, safer)
        return g.node("Sub", "spread", squares, g.node("Mul", "mean_square", mean_mass, mean))

    def spread_of_votes(self, votes: Any, r: GraphValue, mean: GraphValue) -> GraphValue:
        """Σ r·(v − μ)² [B, 3, J, n] from the votes, as `votes` has them, and r [B, I, 1, n]."""
        g = self.g
        apart = g.node("Sub", "apart", votes, g.reshape("mean.row", mean, 0, 1, 3, self.J * self.n))
        squared = g.node("Mul", "squared", apart, apart)
        return self._over_children("spread", g.node("Mul", "r_squared", squared, r))

    def _convolution(self, name: str, maps: GraphValue, kernel: GraphValue, planes: int) -> GraphValue:
        """Convolve maps [B, C, x, H·W] (C·x planes) by a kernel [3·J or 1, planes, h, w] -> [B, 3 or 1, J or 1, n]."""
        maps = self.g.reshape(f"{name}.maps", maps, 0, planes, self.height, self.width)
        out = self._products(name, maps, kernel, planes)
        return self.g.reshape(name, out, 0, *((1, 1) if planes == 1 else (3, self.J)), self.n)

    def _products(self, name: str, maps: GraphValue, kernel: GraphValue, planes: int) -> GraphValue:
        """Convolve maps [B, planes, H, W] by a kernel [parents, planes, h, w]."""
        return self.g.node("Conv", f"{name}.conv", maps, kernel, strides=[self.op.stride] * 2)

    def children(self, name: str, maps: GraphValue) -> GraphValue:
        """Maps [B, C, (x,) H, W] -> the windows' children [B, I, x, n]."""
        g, op = self.g, self.op
        rows, columns = (
            np.arange(side)[:, None] + op.stride * np.arange(out)  # [k, H']
            for side, out in zip(op.window, op.shape[1:], strict=True)
        )
        places = (rows[:, None, :, None] * self.width + columns[:, None, :]).reshape(-1, self.n)  # [k·k, n]
        flat = g.reshape(f"{name}.maps", maps, 0, self.C, -1, self.height * self.width)
        result = g.node("Gather", f"{name}.windows", flat, g.weight(f"{name}.places", places), axis=3)
        result = g.node("Transpose", f"{name}.first", result, perm=[0, 1, 3, 2, 4])  # [B, C, k·k, x, n]
        return g.reshape(name, result, 0, self.I, -1, self.n)

    def votes(self, pose: GraphValue) -> Any:
        """[B, I, 3, J·n], made in the poses' type."""
        g = self.g
        turned = g.node("MatMul", "turned", self.turns.by_child("rotation", pose.type), self.children("child", pose))
        return g.cast("votes.float", g.reshape("votes", turned, 0, self.I, 3, self.J * self.n), TensorProto.FLOAT)

    def iteration(self, old: Parents, votes: Any, active: GraphValue) -> Parents:
        """An E-step with the parents as they were, and an M-step by sums about the means that they had."""
        g, J, n = self.g, self.J, self.n
        apart = g.node("Sub", "apart", votes, g.reshape("mean.row", old.mean, 0, 1, 3, J * n))  # d = v − μ
        squared = g.node("Mul", "squared", apart, apart)
        weight = g.reshape("weight.row", self.weight(old), 0, 1, 3, J * n)
        axes = g.weight("axes", np.ones((1, 3), np.float32))
        distance = g.node("MatMul", "distance.sum", axes, g.node("Mul", "weighted", squared, weight))
        logit = g.node("Sub", "logit", self.prior(old), g.reshape("distance", distance, 0, self.I, J, n))
        # A softmax over parents, which are not innermost: by hand it is three times as fast in ONNX Runtime.
        power = g.node("Exp", "power", g.node("Sub", "below", logit, g.reduce("ReduceMax", "largest", logit, 2)))
        share = g.node("Div", "share", active, g.reduce("ReduceSum", "total", power, 2))
        r = g.reshape("r", g.node("Mul", "r.parents", power, share), 0, self.I, 1, J * n)
        return self.m_step(
            old,
            self._over_children("mass", r),
            self._over_children("first", g.node("Mul", "r_apart", apart, r)),
            self._over_children("second", g.node("Mul", "r_squared", squared, r)),
        )

    def weight(self, parents: Parents) -> GraphValue:
        """1 / 2σ², [B, 3, J, n]."""
        return self.g.node("Div", "weight", self.g.number("half", 0.5), parents.variance)

    def prior(self, parents: Parents) -> GraphValue:
        """ln a − ½ Σ ln σ², [B, 1, J, n]."""
        return self.g.node("Sub", "prior", self._log_sigmoid(parents.z), parents.log_spread)

    def m_step(self, old: Parents, mass: GraphValue, first: GraphValue, second: GraphValue) -> Parents:
        """The parents from S [B, 1, J, n] and from Σ r·d and Σ r·d² [B, 3, J, n]."""
        g = self.g
        safe = g.node("Add", "mass.safe", mass, g.number("floor", MASS_FLOOR))
        # Σ r·v = Σ r·d + μ·S; and with δ = new μ − μ, Σ r·(d − δ)² = Σ r·d² + δ·(δ·S − 2·Σ r·d).
        sums = g.node("Add", "sums", first, g.node("Mul", "old_sums", old.mean, mass))
        mean = g.node("Div", "mean", sums, safe)
        moved = g.node("Sub", "moved", mean, old.mean)
        pull = g.node("Sub", "pull", g.node("Mul", "moved_mass", moved, mass), g.node("Add", "twice", first, first))
        spread = g.node("Add", "spread", second, g.node("Mul", "correction", moved, pull))
        return self._parents(mass, safe, mean, spread)

    def _over_children(self, name: str, value: GraphValue) -> GraphValue:
        """The sum over children: [B, I, x, J·n] -> [B, x, J, n]."""
        flat = self.g.reshape(f"{name}.flat", value, 0, self.I, -1)
        ones = self.g.weight(f"{name}.ones", np.ones((1, self.I), np.float32))
        return self.g.reshape(name, self.g.node("MatMul", f"{name}.sum", ones, flat), 0, -1, self.J, self.n)

    def _parents(self, mass: GraphValue, safe: GraphValue, mean: GraphValue, spread: GraphValue) -> Parents:
        """The variance from Σ r·(v − μ)², and from it the score behind the activation."""
        g, J = self.g, self.J
        spread = g.node("Relu", "spread.positive", spread)  # rounding may leave a little less than nothing
        spread = g.node("Div", "spread.mean", spread, safe)
        variance = g.node("Add", "variance", spread, g.number("epsilon", VARIANCE_FLOOR))
        logs = g.reduce("ReduceSum", "log_variance.sum", self._log("log_variance", variance), 1)
        log_spread = g.node("Mul", "log_spread", logs, g.number("half", 0.5))  # [B, 1, J, n]
        cost = g.node("Add", "cost", log_spread, g.weight("beta_u", 3 * self.beta_u[:, None]))
        expected = g.node("Mul", "mass.expected", mass, g.number("per_expected", 2 * J / self.I))
        beta_a = g.weight("beta_a", self.beta_a[:, None])
        z = g.node("Sub", "score", beta_a, g.node("Mul", "cost.mass", cost, expected))
        if self.op.mode == "unit":
            norm = g.node("Max", "norm.safe", g.reduce("ReduceL2", "norm", z, 2), g.number("least", 1e-12))
            z = g.node("Div", "score.unit", z, norm)
        return Parents(mean, variance, log_spread, z)

    def _log(self, name: str, x: GraphValue) -> GraphValue:
        return self.g.node("Log", name, x)

    def _log_sigmoid(self, z: GraphValue) -> GraphValue:
        """min(z, 0) − ln(1 + exp(−|z|)), which no engine can make overflow."""
        g = self.g
        power = g.node("Exp", "z.power", g.node("Neg", "z.below", g.node("Abs", "z.abs", z)))
        tail = self._log("z.tail", g.node("Add", "z.one_more", power, g.number("one", 1.0)))
        return g.node("Sub", "log_active", g.node("Min", "z.negative", z, g.number("zero", 0.0)), tail)

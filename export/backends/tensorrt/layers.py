"""Unrolled routing arranged for TensorRT: the three axes of a vote as three tensors [B, I, J, n], pointwise throughout.

TensorRT fuses a region of pointwise operators and the reductions behind it into few kernels. Nothing but broadcasting
stands between the rotations and the sums here, so no vote need ever be written. TensorRT 8.6 built an engine of it in
13 seconds on an H200, and had not built one of the arrangement for ONNX Runtime in 110.
"""

import numpy as np
from onnx import TensorProto

from qcn.export.backends.onnx.build import Style
from qcn.export.backends.onnx.graph import GraphValue
from qcn.export.backends.onnx.unrolled import Parents, UnrolledLayer


class PointwiseLayer(UnrolledLayer):
    CLASS_VOTES = False  # TensorRT-RTX 1.7 builds no engine with them: "CHECK(def_tactic_desc) failed"

    def votes(self, pose: GraphValue) -> list[GraphValue]:
        """The votes by axis, each [B, I, J, n], in the poses' type."""
        g = self.g
        child = self.children("child", pose)  # [B, I, 3, n]
        components = [self._axis(f"child.{k}", child, k, 2) for k in range(3)]  # [B, I, 1, n]
        rotation = self.turns.rotations()
        votes = []
        for h in range(3):
            terms = [
                g.node(
                    "Mul", f"turned.{h}{k}", component, self._rotation(f"rotation.{h}{k}", rotation, h, k, pose.type)
                )
                for k, component in enumerate(components)
            ]
            votes.append(g.cast(f"votes.{h}.float", self._sum(f"votes.{h}", terms), TensorProto.FLOAT))
        return votes

    def iteration(self, old: Parents, votes: list[GraphValue], active: GraphValue) -> Parents:
        g, weight = self.g, self.weight(old)
        apart = [
            g.node("Sub", f"apart.{h}", vote, self._axis(f"mean.{h}", old.mean, h, 1)) for h, vote in enumerate(votes)
        ]
        squared = [g.node("Mul", f"squared.{h}", d, d) for h, d in enumerate(apart)]
        distance = [
            g.node("Mul", f"weighted.{h}", q, self._axis(f"weight.{h}", weight, h, 1)) for h, q in enumerate(squared)
        ]
        logit = g.node("Sub", "logit", self.prior(old), self._sum("distance", distance))
        r = g.node("Mul", "r", g.node("Softmax", "share", logit, axis=2), active)
        return self.m_step(
            old,
            g.reduce("ReduceSum", "mass", r, 1),
            self._over_children_by_axis("first", r, apart),
            self._over_children_by_axis("second", r, squared),
        )

    def _over_children_by_axis(self, name: str, r: GraphValue, values: list[GraphValue]) -> GraphValue:
        """Σ_i r·x for the three axes, [B, 3, J, n]."""
        g = self.g
        sums = [
            g.reduce("ReduceSum", f"{name}.{h}", g.node("Mul", f"r_{name}.{h}", r, x), 1) for h, x in enumerate(values)
        ]
        return g.node("Concat", name, *sums, axis=1)

    def _rotation(self, name: str, rotation: np.ndarray, h: int, k: int, type: int) -> GraphValue:
        return self.g.weight(name, rotation[None, :, h, :, k, None], type)  # [1, I, J, 1]

    def _axis(self, name: str, value: GraphValue, index: int, axis: int) -> GraphValue:
        """One of the three along `axis`, which stays as a side of 1."""
        return self.g.node("Gather", name, value, self.g.integers(f"{name}.index", index), axis=axis)

    def _sum(self, name: str, terms: list[GraphValue]) -> GraphValue:
        return self.g.node("Add", name, self.g.node("Add", f"{name}.two", terms[0], terms[1]), terms[2])


# TensorRT takes constants for a kernel, not what is computed from rotors.
STYLE = Style(PointwiseLayer, folded=True)

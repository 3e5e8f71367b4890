"""The unrolled form for OpenVINO, whose float32 has fewer right digits than ONNX Runtime's in two places.

Logarithms. On ARM they are those of the Arm Compute Library, which are off by up to 1e-5. Exponentials are right to the
last bits, so one step of Newton's makes a logarithm y of x as right: y + (x·exp(−y) − 1).

Long sums. The convolutions of the first M-step add up to 4,800 products one behind the other, with a rounding each.
They are made in parts of fewer channels, which are then added.
"""

from itertools import pairwise

from qcn.export.backends.onnx.build import Style
from qcn.export.backends.onnx.graph import GraphValue
from qcn.export.backends.onnx.unrolled import UnrolledLayer

PARTS = 4


class OpenVinoLayer(UnrolledLayer):
    def _log(self, name: str, x: GraphValue) -> GraphValue:
        g, rough = self.g, super()._log(f"{name}.rough", x)
        power = g.node("Exp", f"{name}.power", g.node("Neg", f"{name}.below", rough))
        step = g.node("Sub", f"{name}.step", g.node("Mul", f"{name}.ratio", x, power), g.number("one", 1.0))
        return g.node("Add", name, rough, step)

    def _products(self, name: str, maps: GraphValue, kernel: GraphValue, planes: int) -> GraphValue:
        edges, products = sorted({planes * part // PARTS for part in range(PARTS + 1)}), super()._products
        parts = [
            products(
                name,
                self._channels(f"{name}.part", maps, start, end),
                self._channels(f"{name}.weight.part", kernel, start, end),
                end - start,
            )
            for start, end in pairwise(edges)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = self.g.node("Add", f"{name}.total", total, part)
        return total

    def _channels(self, name: str, value: GraphValue, start: int, end: int) -> GraphValue:
        """Slice channels of [x, channels, …], from `start` to before `end`."""
        g = self.g
        limits = g.integers(f"{name}.start", start), g.integers(f"{name}.end", end)
        return g.node("Slice", name, value, *limits, g.integers(f"{name}.axis", 1))


STYLE = Style(OpenVinoLayer)

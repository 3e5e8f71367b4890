"""Which numbers of routing half precision can hold: the range of every intermediate, and the digits that fp16 loses.

fp16 has 11 binary digits for magnitudes from 6.1e-5 to 65504. Below, it has fewer and at last none; above, it has
infinity. Which intermediates may be fp16, and which must not, is `WHY`; the tables show that it is so for a network.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

from qcn.calibrate.observers import fastest_kernels
from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.program.program import Program, Route
from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR
from qcn.rounding import rounded
from qcn.routing import in_windows, voted
from qcn.terminal.progress import doing
from qcn.terminal.tables import table_of
from qcn.verify.words import share

IMAGES = 8  # that intermediates are taken from: a full-size QCN has 19 million votes per image
SMALLEST, LARGEST = float(np.finfo(np.float16).smallest_normal), float(np.finfo(np.float16).max)
SAMPLED = 1 << 18  # numbers of an intermediate per image that shares and errors are taken from; extremes are of all
LOST = 1e-3  # share of numbers that fp16 cannot hold with all digits: a larger one is reported
# An intermediate, whether the fp16 form of routing keeps it in fp16, and why.
WHY: dict[str, tuple[bool, str]] = {
    "vote v": (True, ""),
    "difference d = v - μ": (True, ""),
    "1/σ": (True, "at most 100, since σ² has a floor of 1e-4"),
    "whitened d/σ": (True, "d is whitened before it is squared"),
    "d²": (False, "small differences vanish when squared, so d/σ is squared instead"),
    "1/σ²": (False, "up to 10,000, and its product with d² overflows, so 1/σ is used instead"),
    "exponent ½Σ(d/σ)²": (False, "summed in float32 from fp16 d/σ"),
    "share r": (False, "a child's share among its parents can be next to nothing"),
    "r·d": (False, "summed in float32"),
    "r·d²": (False, "summed in float32"),
    "mass Σr": (False, "a sum of many small shares"),
    "variance σ²": (False, "its floor of 1e-4 is next to fp16's smallest, and its logarithm is taken"),
}


@dataclass
class Digits:
    """One intermediate of a capsule layer: magnitudes that are not 0, and what fp16 would make of them."""

    layer: str
    name: str
    smallest: float = float("inf")
    largest: float = 0.0
    numbers: int = 0
    below: int = 0  # of fp16's smallest normal number
    above: int = 0  # of its largest
    error: float = 0.0  # sum of relative errors of rounding to fp16, of those that are not above

    @property
    def in_fp16(self) -> bool:
        return WHY[self.name][0]

    @property
    def share_below(self) -> float:
        return self.below / max(self.numbers, 1)

    @property
    def share_above(self) -> float:
        return self.above / max(self.numbers, 1)

    @property
    def mean_error(self) -> float:
        return self.error / max(self.numbers - self.above, 1)

    @property
    def loses(self) -> bool:
        """Whether fp16 would lose digits of more than a few of them."""
        return self.share_below > LOST or self.above > 0

    def see(self, numbers: Tensor) -> None:
        size = numbers.abs().flatten()
        self.largest = max(self.largest, float(size.max()))
        self.smallest = min(self.smallest, float(torch.where(size > 0, size, torch.inf).min()))
        size = size[:: max(1, len(size) // SAMPLED)]
        size = size[size > 0]
        above = size > LARGEST
        self.numbers += len(size)
        self.below += int((size < SMALLEST).sum())
        self.above += int(above.sum())
        self.error += float(((rounded(size, torch.float16) - size).abs() / size)[~above].double().sum())

    def words(self) -> str:
        """Describe what is lost and what is done about it; empty if nothing is lost."""
        if not self.loses:
            return ""
        lost = [f"{share(self.share_below)} of the values are below {SMALLEST:.1e}"] if self.share_below > LOST else []
        lost += [f"{share(self.share_above)} are above {LARGEST:.0f}"] if self.above else []
        outcome = "it is fp16 all the same" if self.in_fp16 else "it stays float32"
        why = WHY[self.name][1]
        return f"{self.name} in {self.layer}: {' and '.join(lost)}; {outcome}" + (f" ({why})" if why else "")


def analyse(program: Program, images: NDArray[np.uint8], spec: Preprocessing) -> list[Digits]:
    """The intermediates of every capsule layer on images [N, C, H, W]; none for a CNN."""
    interpreter = Interpreter(program, kernels=fastest_kernels(program)).eval()
    result = {(route.name, name): Digits(route.name, name) for route in program.routes for name in WHY}
    with torch.inference_mode():
        for row, image in enumerate(images):
            doing("digits of routing", row, of=len(images))
            values = interpreter.values(preprocess(torch.from_numpy(image[None]), spec))
            for route in program.routes:
                for name, numbers in intermediates(program, route, values[route.pose], values[route.activation]):
                    result[route.name, name].see(numbers)
    return list(result.values())


def intermediates(program: Program, route: Route, pose: Tensor, activation: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Every number that routing makes of one map of capsules, by name, in float32; see `qcn.routing.em_routing`."""
    rotation, beta_u, beta_a = (torch.from_numpy(program.arrays[name]) for name in route.arrays)
    pose = pose.reshape(len(pose), -1, 3, *pose.shape[-2:])
    u, a, matrices = in_windows(pose, activation, rotation, route.window, route.stride)
    children, parents = matrices.shape[:2]
    votes = voted(matrices, u)  # [3, N, J, I]
    yield "vote v", votes
    r = (a[:, None] / parents).expand(-1, parents, -1)
    for _ in range(route.iterations):
        mass = r.sum(-1)
        mean = (r * votes).sum(-1) / (mass + MASS_FLOOR)
        d = votes - mean[..., None]
        variance = (r * d.square()).sum(-1) / (mass + MASS_FLOOR) + VARIANCE_FLOOR
        whitened = d * variance.rsqrt()[..., None]
        yield from (("share r", r), ("mass Σr", mass), ("difference d = v - μ", d), ("d²", d.square()))
        yield from (("r·d", r * d), ("r·d²", r * d.square()), ("variance σ²", variance))
        yield from (("1/σ", variance.rsqrt()), ("1/σ²", 1 / variance), ("whitened d/σ", whitened))
        exponent = 0.5 * whitened.square().sum(0)
        yield "exponent ½Σ(d/σ)²", exponent
        log_spread = 0.5 * variance.log().sum(0)
        z = beta_a - (3 * beta_u + log_spread) * mass * (2 * parents / children)
        z = F.normalize(z, dim=-1) if route.mode == "unit" else z
        r = a[:, None] * torch.softmax((F.logsigmoid(z) - log_spread)[..., None] - exponent, dim=1)


def worst(digits: list[Digits]) -> list[Digits]:
    """Each intermediate of the layer where fp16 would err most."""
    return [max((of for of in digits if of.name == name), key=lambda of: of.mean_error) for name in WHY if digits]


def table(digits: list[Digits]) -> Table:
    """One row per intermediate."""
    numbers = ("from", "to", "below 6.1e-5", "above 65504", "fp16 error")
    title, whole = "numbers of routing, and what fp16 makes of them", ("layer", *numbers, "kept in")
    result = table_of("layer", "intermediate", *numbers, "kept in", right=numbers, whole=whole, title=title)
    for entry in digits:
        shares = (f"{share(entry.share_below)}", f"{share(entry.share_above)}", f"{share(entry.mean_error)}")
        ends = (f"{entry.smallest:.2g}", f"{entry.largest:.3g}")
        result.add_row(entry.layer, entry.name, *ends, *shares, "fp16" if entry.in_fp16 else "float32")
    return result

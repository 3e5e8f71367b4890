"""Which parts voted for a class: routing weights followed upwards, from places of the image to the class.

Routing shares the activation of each part out among the parents in all windows that see it. Follow one unit of it
upwards, at each layer to a parent in proportion to the routing weights: `ending` is the chance to arrive at the class.
In the last layer it is r_ij / a_i; below, the mean of the parents' chances, weighted by r_ij. Over all classes the
chances of a part add up to 1. Evenly shared they would be 1 / K, wherever the part is, so that a place in the middle of
the image, which more windows see, has no advantage.
"""

from dataclasses import dataclass

import numpy as np

from qcn.explain.fields import over_image
from qcn.explain.routing import Inside, Routing
from qcn.export.program.program import Array

TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class Evidence:
    """How much of each child of a layer ends in the class: [C, h, w] from 0 to 1, before and after each iteration.

    In the layers above, the weights are those of `Routing.shown`.
    """

    routing: Routing
    ending: tuple[Array, ...]

    @property
    def stages(self) -> range:
        """Before routing, and after each iteration."""
        return range(len(self.ending))

    @property
    def shown(self) -> Array:
        """By the weights of `Routing.shown`."""
        return self.ending[self.routing.shown]

    def by_place(self, stage: int) -> Array:
        """[h, w]: of the activity at a place, the share that ends in the class."""
        activation = self.routing.children.activation
        return (activation * self.ending[stage]).sum(0) / np.maximum(activation.sum(0), TINY)

    def by_pixel(self, stage: int, size: tuple[int, ...]) -> Array:
        """[H, W]: the same, where in the image the places look."""
        children = self.routing.children
        given = over_image((children.activation * self.ending[stage]).sum(0), children.fields, size)
        return given / np.maximum(over_image(children.activation.sum(0), children.fields, size), TINY)

    def whole(self, stage: int) -> float:
        """The share of the layer's whole activity that ends in the class."""
        activation = self.routing.children.activation
        return float((activation * self.ending[stage]).sum() / max(activation.sum(), TINY))


@dataclass(frozen=True)
class Part:
    """A capsule of the last layer before the classes, and its vote for the class.

    `share` is how much of it ends in the class, `weight` its share of all that ends there, `vote` the pose that it
    votes for.
    """

    type: int
    row: int
    column: int
    activation: float
    share: float
    weight: float
    vote: tuple[float, float, float]


def evidence(inside: Inside, chosen: int) -> list[Evidence]:
    """For a class, of each layer's children, the last layer first."""
    parents = np.zeros_like(inside.routings[-1].parents.logit)  # the chances of the parents [J, H', W']
    parents[chosen] = 1
    result = []
    for routing in reversed(inside.routings):
        result.append(Evidence(routing, tuple(_followed(routing, weight, parents) for weight in routing.weights)))
        parents = result[-1].shown
    return result


def loudest(last: Evidence, chosen: int, count: int) -> list[Part]:
    """The parts with the largest weights for a class, from the evidence in the last layer."""
    activation, ending = last.routing.children.activation, last.shown
    weights = activation * ending
    result = []
    for flat in np.argsort(-weights, axis=None, kind="stable")[:count]:
        kind, row, column = at = tuple(int(i) for i in np.unravel_index(flat, weights.shape))
        weight = float(weights[at] / max(weights.sum(), TINY))
        x, y, z = last.routing.votes[0, 0, row, column, kind, chosen].tolist()
        result.append(Part(kind, row, column, float(activation[at]), float(ending[at]), weight, (x, y, z)))
    return result


def _followed(routing: Routing, weight: Array, parents: Array) -> Array:
    """The children's chances [C, h, w] from the parents' [J, H', W']; 0 of a child that no window sees."""
    ending = _placed(routing, np.einsum("yxpqcj,jyx->yxpqc", weight, parents, optimize=True))
    return ending / np.maximum(_placed(routing, weight.sum(-1)), TINY)


def _placed(routing: Routing, given: Array) -> Array:
    """Sum the values of children in each window [H', W', kh, kw, C] by child: [C, h, w]."""
    sums = np.zeros_like(routing.children.logit)
    rows, columns, high, wide, _ = given.shape
    step = routing.stride
    for p in range(high):
        for q in range(wide):
            sums[:, p : p + step * rows : step, q : q + step * columns : step] += given[:, :, p, q].transpose(2, 0, 1)
    return sums

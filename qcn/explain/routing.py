"""Inside a network, for one image: its capsules, their votes, and how routing shared the parts out.

The program runs in float64 by the readable reference (`qcn.routing`), which shows the parents after each iteration.
From these follow the votes and the routing weights r_ij, a part's activation shared out among its parents:

    weights[0]     before the first iteration: a_i / J
    weights[t]     after iteration t: a_i · softmax_j( ln a_j + ln N(v_ij; μ_j, σ²_j) )

Iteration t is made from weights[t - 1]. The network stops after iteration T; weights[T] is how its answer would share
the parts out.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from qcn.errors import CheckFailed
from qcn.explain.fields import Fields, fields, union
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.program.program import Array, Output, Program, Route
from qcn.routing import watched

PRIMARY = "primary capsules"


@dataclass(frozen=True)
class Capsules:
    """The capsules of a layer: logit [J, h, w], pose [J, 3, h, w], and what each place sees of the image."""

    name: str
    logit: Array
    pose: Array
    fields: Fields

    @cached_property
    def activation(self) -> Array:
        """[J, h, w], from 0 to 1."""
        return np.exp(-np.logaddexp(0, -self.logit))


@dataclass(frozen=True)
class Routing:
    """From children to parents: in each of H'×W' windows, kh×kw places of C children vote for J parents.

    votes are [H', W', kh, kw, C, J, 3], each of the weights [H', W', kh, kw, C, J].
    """

    children: Capsules
    parents: Capsules
    stride: int
    votes: Array
    weights: tuple[Array, ...]
    means: tuple[Array, ...]  # [H', W', J, 3], the parents' poses after each iteration
    logits: tuple[Array, ...]  # [H', W', J], likewise

    @property
    def iterations(self) -> int:
        return len(self.weights) - 1

    @property
    def shown(self) -> int:
        """Which of the weights to look at: those that the answer was made from.

        With a single iteration these are even and say nothing; then those that the answer gives.
        """
        return max(self.iterations - 1, 1)


@dataclass(frozen=True)
class Inside:
    """All layers, first to last. The last one's parents are the classes: logit [K], pose [K, 3]."""

    routings: tuple[Routing, ...]

    @property
    def logit(self) -> Array:
        return self.routings[-1].parents.logit[:, 0, 0]

    @property
    def pose(self) -> Array:
        return self.routings[-1].parents.pose[:, :, 0, 0]

    @property
    def votes_won(self) -> Array:
        """[K]: the share of all parts' votes that routing gave to each class."""
        last = self.routings[-1]
        won = last.weights[last.shown].sum((0, 1, 2, 3, 4))
        return won / max(float(won.sum()), 1e-300)

    @property
    def winner(self) -> int:
        return int(self.logit.argmax())


def look(program: Program, image: NDArray[np.float32]) -> Inside:
    """Run the network on an image [C, H, W], pre-processed, and record its inside."""
    first, seen = program.routes[0], fields(program)
    model = Interpreter(program, every_layer=True, kernels="reference").double().eval()
    types, *places = program.shapes[first.activation]
    shown = (("pose", first.pose, (types, 3, *places)), ("activation", first.activation, (types, *places)))
    model.outputs += tuple(Output(f"{PRIMARY}.{of}", value, shape) for of, value, shape in shown)
    steps: list[tuple[Array, ...]] = []
    with torch.inference_mode(), watched(lambda *step: steps.append(tuple(x[0].numpy() for x in step))):
        answers = model(torch.from_numpy(image[None]).double())
    result = {output.name: x[0].numpy() for output, x in zip(model.outputs, answers, strict=True)}
    if wrong := [name for name, x in result.items() if not np.isfinite(x).all()]:
        raise CheckFailed(f"the network's '{wrong[0]}' is not finite for this image: there is nothing to explain")

    sides = (union(sides) for sides in zip(seen[first.pose], seen[first.activation], strict=True))
    active = np.clip(result[f"{PRIMARY}.activation"], np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).epsneg)
    logit = np.log(active) - np.log1p(-active)
    children = Capsules(PRIMARY, logit, result[f"{PRIMARY}.pose"], (next(sides), next(sides)))
    routings: list[Routing] = []
    for route in program.routes:
        prefix = "" if route is program.routes[-1] else f"{route.name}."
        own, steps = steps[: route.iterations], steps[route.iterations :]
        *_, logit = own[-1]  # [J, n]
        pose = result[f"{prefix}pose"].reshape(route.parents, 3, *route.shape[1:])
        parents = Capsules(route.name, logit.reshape(route.shape), pose, seen[route.outputs[1].name])
        routings.append(_routing(route, program.rotation(route), children, parents, own))
        children = parents
    return Inside(tuple(routings))


def _routing(
    route: Route, rotation: Array, children: Capsules, parents: Capsules, steps: list[tuple[Array, ...]]
) -> Routing:
    window = np.lib.stride_tricks.sliding_window_view
    every = slice(None, None, route.stride)
    pose = window(children.pose, route.window, (2, 3))[:, :, every, every]  # [C, 3, H', W', kh, kw]
    child = window(children.activation, route.window, (1, 2))[:, every, every].transpose(1, 2, 3, 4, 0)[..., None]
    turned = np.broadcast_to(rotation, (*route.window, *rotation.shape[2:])).astype(np.float64)
    votes = np.einsum("pqcjhk,ckyxpq->yxpqcjh", turned, pose, optimize=True)
    weights = [np.broadcast_to(child / route.parents, votes.shape[:-1])]
    means, logits = [], []
    places = (*votes.shape[:2], 1, 1, 1, route.parents)
    for *gaussian, z in steps:  # mean and variance [J, 3, n], logit [J, n] in all n = H'·W' windows
        mean, variance = (np.moveaxis(x, 2, 0).reshape(*places, 3) for x in gaussian)
        prior = -np.logaddexp(0, -z).T.reshape(places)
        score = prior - 0.5 * (np.log(variance) + (votes - mean) ** 2 / variance).sum(-1)
        score = np.exp(score - score.max(-1, keepdims=True))
        weights.append(child * score / score.sum(-1, keepdims=True))
        means.append(mean[:, :, 0, 0, 0])
        logits.append(z.T.reshape(*votes.shape[:2], route.parents))
    return Routing(children, parents, route.stride, votes, tuple(weights), tuple(means), tuple(logits))

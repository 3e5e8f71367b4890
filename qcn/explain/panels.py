"""The contents of the page's panels; page.html.jinja lays them out."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qcn.direction import ROUND
from qcn.explain import drawing
from qcn.explain.drawing import VIRIDIS, Shape
from qcn.explain.evidence import Evidence, Part, loudest
from qcn.explain.picture import Picture
from qcn.explain.routing import Capsules, Inside, Routing
from qcn.explain.source import Source
from qcn.export.program.program import Array
from qcn.networks.confidence import is_known, order, probabilities, temperature_of
from qcn.terminal.text import probability_text, readable
from qcn.verify.report.pictures import data_uri

CLASSES = 20  # as bars and in the table of poses; of more, the most active
NAMED = 3  # classes whose name stands at their arrow
TYPES = 64  # maps of a layer
DOTS = 300  # votes in a drawing
PARTS = 8  # in the table of votes
RANGE = 0.1  # a scale of heat is not narrower: hardly any difference should look like hardly any
SMALL = 96  # pixels: images up to this are shown to the pixel
DIRECTION_AXES = ("left", "up", "front")  # of an object that faces us
POSE_AXES = ("i", "j", "k")  # of a pure quaternion
FLAT = 0.1  # a scale of logits is not narrower: hardly any difference should look like hardly any


Panel = dict[str, Any]  # what the template shows of one thing


def percent(value: float) -> str:
    """0.4 %, 47 %."""
    return f"{100 * value:.1f} %" if value < 0.0995 else f"{100 * value:.0f} %"


def answer(source: Source, inside: Inside) -> str:
    """How sure the network is: the probability of its answer, and of the class that comes next."""
    logit, temperature = inside.logit[None], temperature_of(source.confidence)
    probability = probabilities(logit, temperature)[0]
    first, *others = order(logit)[0, :2]
    said = f"Probability {probability_text(float(probability[first]))}"
    known = bool(is_known(logit, temperature, source.known)[0])
    if not known:
        said = f"It is unlike the images of training, so the answer counts as unknown. {said}"
    for second in others:
        said += f"; next is {readable(source.classes[second])} with {probability_text(float(probability[second]))}"
    if known and (direction := direction_words(source, inside.pose[first], int(first))):
        said += f". Seen from {direction}"
    return said


def direction_words(source: Source, pose: Array, label: int) -> str:
    """From where a pose [3] of this class says that the object is seen; nothing if the network has no directions."""
    if source.directions is None:
        return ""
    if source.directions.symmetry[label] == ROUND:
        return "any side: it is round"
    direction = source.directions.of(pose, label)
    return direction.angles() if direction else ""


def axes(source: Source) -> tuple[str, str, str]:
    """The names of a drawing's axes: to the right, up and towards us."""
    return DIRECTION_AXES if source.directions else POSE_AXES


def drawn(source: Source, poses: Array) -> Array:
    """Poses [..., 3] as they are drawn: an object with directions stands upright and faces us."""
    return np.roll(poses, -1, axis=-1) if source.directions else poses


def _signed(value: float) -> str:
    """Two digits, a minus sign of full width, and no minus before 0.00."""
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


def heat(picture: Picture, first: Evidence) -> tuple[str, tuple[str, str]]:
    """The evidence over the image, and the ends of its scale."""
    shares = first.by_pixel(first.routing.shown, picture.input.shape[1:])
    low, high = _wide_enough(float(shares.min()), float(shares.max()))
    return drawing.with_heat(picture.input, shares, low, high), (percent(low), percent(high))


def given(picture: Picture) -> str:
    """Small images to the pixel, photos as JPEG."""
    photo = len(picture.given) == 3 and max(picture.given.shape) > SMALL
    return drawing.jpeg_uri(picture.given) if photo else data_uri(picture.given)


def scale(found: Sequence[Evidence], classes: int) -> tuple[float, float]:
    """One scale for all layers and stages: from an even share, or less, to the largest there is."""
    shares = [one.by_place(stage) for one in found for stage in one.stages]
    return _wide_enough(min(1 / classes, *(float(x.min()) for x in shares)), max(float(x.max()) for x in shares))


def _wide_enough(low: float, high: float) -> tuple[float, float]:
    """The ends of a scale from 0 to 1, at least `RANGE` apart."""
    low = max(0.0, min(low, (low + high - RANGE) / 2, 1 - RANGE))
    return low, max(high, low + RANGE)


def rows(picture: Picture, found: Sequence[Evidence], ends: tuple[float, float]) -> list[Panel]:
    """For each layer, the last first, its children over the image at each stage, on a scale with these ends."""
    result = []
    for one in found:
        children, size = one.routing.children, picture.input.shape[1:]
        pictures = [drawing.with_heat(picture.input, one.by_pixel(stage, size), *ends) for stage in one.stages]
        types, down, across = children.activation.shape
        result.append(
            {
                "name": readable(children.name),
                "parents": readable(one.routing.parents.name),
                "places": f"{types} types at {down}×{across} places",
                "field": _field(picture, children),
                "stages": [
                    {**_stage(one.routing, stage, one.whole(stage)), "picture": pictures[stage]} for stage in one.stages
                ],
            }
        )
    return result


def _stage(routing: Routing, stage: int, share: float) -> Panel:
    """The heading of a stage, which is framed if the answer was made from it, and a share as the figure under it."""
    title = "before routing" if stage == 0 else f"after iteration {stage}"
    return {"title": title, "figure": percent(share), "framed": stage == routing.shown}


def bars(source: Source, inside: Inside, chosen: int) -> list[Panel]:
    """The most active classes, and the chosen one.

    Of each its logit as a length from 0 to 1 and in figures, those of iterations before, and its share of votes.
    """
    last, shares = inside.routings[-1], inside.votes_won
    best = order(inside.logit[None])[0, :CLASSES]
    shown = [int(k) for k in best if k != chosen][: CLASSES - 1] + [chosen]
    logits = np.stack([x[0, 0] for x in last.logits])  # after each iteration
    low, high = _ends(logits[:, shown])
    lengths = 0.02 + 0.98 * (logits - low) / (high - low)  # the lowest still shows
    return [
        {
            "name": readable(source.classes[k]),
            "length": float(lengths[-1, k]),
            "value": _signed(float(inside.logit[k])),
            "before": lengths[:-1, k].tolist(),
            "share": float(shares[k]),
            "pose": [_signed(float(x)) for x in inside.pose[k]],
            "pose_length": _signed(float(np.linalg.norm(inside.pose[k]))),
            "direction": direction_words(source, inside.pose[k], k),
            "chosen": k == chosen,
        }
        for k in sorted(shown, key=lambda k: (-inside.logit[k], k))
    ]


def poses(source: Source, inside: Inside, chosen: int) -> tuple[Shape, str]:
    """The classes' poses as arrows in one ball, and its radius."""
    shown = [int(k) for k in order(inside.logit[None])[0, CLASSES - 1 :: -1]]
    shown = [k for k in shown if k != chosen] + [chosen]  # the most active last, on top; the chosen one above all
    radius = max(float(np.linalg.norm(inside.pose[shown], axis=1).max()), 1e-12)
    active = inside.routings[-1].parents.activation[:, 0, 0]
    arrows, words = [], []
    for rank, k in enumerate(reversed(shown)):
        tip, name = drawn(source, inside.pose[k]) / radius, readable(source.classes[k])
        strength = 1.0 if k == chosen else round(0.3 + 0.7 * float(active[k]), 2)  # an inactive one is faint
        arrows.append(drawing.arrow("chosen" if k == chosen else "other", tip, name, strength))
        if rank < NAMED:
            kind = "name chosen" if k == chosen else "name"
            words.append(drawing.mark(kind, _beyond(tip), word=short(name)))
    spoken = f"Poses of {len(shown)} classes as arrows from one point"
    return drawing.globe(spoken, (), reversed(arrows), words, axes(source)), f"{radius:.2g}"


def _beyond(tip: Array) -> Array:
    """The place of a word, beyond the tip of its arrow."""
    length = max(float(np.linalg.norm(tip)), 1e-9)
    return tip * (1 + 0.1 / max(length, 0.3))


def short(name: str) -> str:
    """Shorten a name where there is little room."""
    return name if len(name) <= 16 else f"{name[:15]}…"


def votes(source: Source, inside: Inside, chosen: int) -> tuple[list[Panel], str, int]:
    """The votes for a class at each stage, the radius of the ball, and how many votes there are."""
    last = inside.routings[-1]
    points = drawn(source, last.votes[0, 0, ..., chosen, :].reshape(-1, 3))
    weights = [weight[0, 0, ..., chosen].reshape(-1) for weight in last.weights]
    shown = np.argsort(-weights[last.shown], kind="stable")[:DOTS]
    means = [drawn(source, mean[0, 0, chosen]) for mean in last.means]
    lengths = np.linalg.norm(points[shown], axis=1)
    reach = [float(np.quantile(lengths, 0.9)), float(lengths.max()) / 1.2]  # a few may lie outside the ball
    radius = max(*reach, *(float(np.linalg.norm(mean)) for mean in means), 1e-12)
    largest = max(*(float(weight[shown].max()) for weight in weights), 1e-300)
    total = max(float(last.children.activation.sum()), 1e-300)
    stages = []
    for stage, weight in enumerate(weights):
        dots = [
            drawing.mark("dot", points[i] / radius, size=round(0.8 + 4.7 * math.sqrt(weight[i] / largest), 2))
            for i in shown[::-1]
        ]
        arrows = [drawing.arrow("chosen", means[stage - 1] / radius, "where the votes agree")] if stage else []
        panel = _stage(last, stage, float(weight.sum()) / total)
        spoken = f"{len(shown)} votes {panel['title']}, each as large as its weight"
        stages.append({**panel, "globe": drawing.globe(spoken, dots, arrows, (), axes(source))})
    return stages, f"{radius:.2g}", len(points)


def parts(source: Source, last: Evidence, chosen: int) -> list[tuple[Part, str, str, str]]:
    """The parts with the largest weights, their shares, and the directions that they vote for."""
    return [
        (part, percent(part.share), percent(part.weight), direction_words(source, np.array(part.vote), chosen))
        for part in loudest(last, chosen, PARTS)
    ]


def layer(picture: Picture, capsules: Capsules) -> Panel:
    """Its maps on one scale, from its lowest logit to its highest; the mean over all types on its own."""
    logit = capsules.logit
    types, down, across = logit.shape
    mean, ends = logit.mean(0), _ends(logit)
    return {
        "name": readable(capsules.name),
        "words": f"{types} types at {down}×{across} places; each sees up to {_field(picture, capsules)}",
        "maps": [
            {"title": f"{i + 1}", "picture": _map(one, ends), "most": _signed(float(one.max()))}
            for i, one in enumerate(logit[:TYPES])
        ],
        "more": max(0, types - TYPES),
        "low": _signed(ends[0]),
        "high": _signed(ends[1]),
        "overview": _map(mean, _ends(mean)),
        "mean": " to ".join(dict.fromkeys((_signed(float(mean.min())), _signed(float(mean.max()))))),
    }


def _ends(values: Array) -> tuple[float, float]:
    """From the lowest to the highest, at least `FLAT` apart."""
    low, high = float(values.min()), float(values.max())
    return low, max(high, low + FLAT)


def _map(values: Array, ends: tuple[float, float]) -> str:
    """Values [h, w] on a scale from one end to the other."""
    return data_uri(drawing.coloured((values - ends[0]) / (ends[1] - ends[0]), VIRIDIS))


def _field(picture: Picture, capsules: Capsules) -> str:
    """The size of a place's field, as far as it is inside the image."""
    high, wide = (
        min(field.high - field.low, side) for field, side in zip(capsules.fields, picture.input.shape[1:], strict=True)
    )
    return f"{wide}×{high} pixels"

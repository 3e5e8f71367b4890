"""The toys of `viewpoints`: five categories of ten, each a union of convex solids drawn from a seed. NumPy only.

A toy looks along +x, +y is to its left and +z up. Once framed, the camera orbits the origin, the ground is the plane
z = `floor`, and the picture spans [-1, 1] in both directions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qcn.data.viewpoints.solids import Floats, Solid, box, ellipsoid, prism, rod, view_axes

CATEGORIES = ("animal", "human", "airplane", "truck", "car")
INSTANCES = 10
# The widest silhouette over all views, as a part of the picture's side. Bulky toys are kept smaller than slender ones:
# their silhouettes then cover as much of the picture, and their area does not give the category away.
EXTENTS = (0.72, 0.72, 0.72, 0.64, 0.61)
DARK = 0.13  # albedo of tyres and window panes


@dataclass(frozen=True)
class Toy:
    """One instance of a category, centred and scaled for the camera; it stands on the plane z = `floor`."""

    category: int
    instance: int
    solids: tuple[Solid, ...]
    floor: float


class Traits:
    """What makes the instances of a category differ: each trait is spread evenly over the ten of them.

    Every instance repeats the same draws, of ten values each, and takes its own.
    """

    def __init__(self, seed: int, category: int, instance: int) -> None:
        self._bits = np.random.PCG64([seed, category])
        self._instance = instance

    def between(self, low: float, high: float) -> float:
        # Raw bits, because NumPy promises to keep those the same for ever, and not what its Generator makes of them.
        strata = np.argsort(self._bits.random_raw(INSTANCES))
        within = self._bits.random_raw(INSTANCES) / 2**64
        return float(low + (high - low) * (strata + within)[self._instance] / INSTANCES)

    def chance(self, part: float) -> bool:
        return self.between(0, 1) < part

    def choice(self, count: int) -> int:
        return int(self.between(0, count))


def _raised(angle: float) -> Floats:
    """The direction [3] at this many degrees above straight ahead."""
    return np.array([np.cos(np.radians(angle)), 0, np.sin(np.radians(angle))])


def _animal(traits: Traits) -> list[Solid]:
    coat, mark = traits.between(0.35, 0.9), traits.between(0.25, 0.8)
    leg, thick = traits.between(0.38, 0.75), traits.between(0.08, 0.13)
    girth, length = traits.between(0.24, 0.38), traits.between(0.5, 0.66)
    neck, lift = traits.between(0.25, 0.62), traits.between(20, 65)
    head, muzzle = traits.between(0.17, 0.25), traits.between(0.12, 0.26)
    ear, horned, maned = traits.between(0.08, 0.2), traits.chance(0.4), traits.chance(0.35)
    tail, wag, stride = traits.between(0.3, 0.55), traits.between(-65, 55), traits.between(-0.12, 0.12)
    back = leg + 0.75 * girth  # height of the spine's middle

    solids = [
        ellipsoid((0, 0, back), (length, girth, 1.1 * girth), coat),
        ellipsoid((0.62 * length, 0, back + 0.02), (0.3, 1.05 * girth, 1.2 * girth), coat),
        ellipsoid((-0.62 * length, 0, back), (0.28, 1.05 * girth, 1.15 * girth), coat),
    ]
    for x, swing in ((0.68 * length, stride), (-0.68 * length, -stride)):
        for side in (-1, 1):
            y, foot = side * (girth - 0.5 * thick), x + side * swing
            solids.append(rod((x, y, back), (foot, y, 0.08), thick, coat))
            solids.append(rod((foot + 0.02, y, 0), (foot + 0.02, y, 0.12), 1.2 * thick, mark))
    chest = np.array([0.75 * length, 0, back + 0.3 * girth])
    nape = chest + (neck + 0.1) * _raised(lift)
    solids.append(ellipsoid((chest + nape) / 2, (0.62 * neck + 0.1, 0.17, 0.2), coat, lift))
    if maned:
        solids.append(ellipsoid(nape - 0.08 * _raised(lift), (0.13, 1.75 * head, 1.75 * head), mark, lift - 20))
    x, z = nape[0], nape[2]
    solids.append(ellipsoid((x + 0.05, 0, z), (1.25 * head, head, head), coat, -15))
    snout = (x + 0.6 * muzzle + head, 0, z - 0.4 * head)
    solids.append(ellipsoid(snout, (muzzle, 0.62 * head, 0.58 * head), mark, -20))
    for side in (-1, 1):
        solids.append(ellipsoid((x - 0.05, side * 0.85 * head, z + head), (0.05, 0.08, ear), mark))
        if horned:
            horn = (x + 0.12, side * 2.3 * head, z + 2.4 * head)
            solids.append(rod((x, side * 0.5 * head, z + 0.6 * head), horn, 0.04, 0.9))
    rump = np.array([0.08 - length, 0, back + 0.5 * girth])
    tip = rump + (tail + 0.1) * _raised(180 - wag)
    solids += [rod(rump, tip, 0.05, coat), ellipsoid(tip, (0.1, 0.08, 0.1), mark)]
    return solids


def _human(traits: Traits) -> list[Solid]:
    shirt, trousers, skin = traits.between(0.3, 0.9), traits.between(0.2, 0.75), traits.between(0.5, 0.85)
    broad, belly, arm = traits.between(0.3, 0.42), traits.between(0.22, 0.32), traits.between(0.1, 0.13)
    head, stance, stride = traits.between(0.19, 0.25), traits.between(0.16, 0.34), traits.between(-0.3, 0.3)
    raised = traits.between(15, 150), traits.between(15, 110)
    forward = traits.between(-0.3, 0.9), traits.between(-0.3, 0.9)
    hat, pack, staff, skirt = traits.choice(3), traits.chance(0.4), traits.chance(0.5), traits.chance(0.3)

    solids = [
        ellipsoid((0, 0, 1.22), (belly, broad, 0.42), shirt),
        ellipsoid((0, 0, 0.9), (0.95 * belly, 0.85 * broad, 0.22), trousers),
        rod((0, 0, 1.5), (0, 0, 1.75), 0.09, skin),
        ellipsoid((0.02, 0, 1.82), (head, 0.9 * head, 1.15 * head), skin),
        ellipsoid((0.02 + head, 0, 1.8), (0.05, 0.04, 0.05), skin),
    ]
    for side, angle, ahead in ((1, raised[0], forward[0]), (-1, raised[1], forward[1])):
        knee, foot = (0.06 + 0.6 * side * stride, side * stance, 0.48), (side * stride, side * (stance + 0.04), 0.06)
        solids += [rod((0, side * 0.17, 0.92), knee, 0.16, trousers), rod(knee, foot, 0.13, trousers)]
        solids.append(ellipsoid((foot[0] + 0.09, foot[1], 0.07), (0.24, 0.13, 0.09), DARK))
        swing = np.array([ahead, side * np.sin(np.radians(angle)), -np.cos(np.radians(angle))])
        swing /= np.linalg.norm(swing)
        shoulder = np.array([0, side * (broad - 0.02), 1.47])
        elbow = shoulder + 0.36 * swing
        bent = swing + np.array([0.5, 0, 0.25])
        hand = elbow + 0.36 * bent / np.linalg.norm(bent)
        solids += [ellipsoid(shoulder, (0.13, 0.13, 0.13), shirt), rod(shoulder, elbow, 1.1 * arm, shirt)]
        solids += [rod(elbow, hand, arm, skin), ellipsoid(hand, (0.12, 0.11, 0.12), skin)]
    if staff:  # in the right hand, the last one made
        solids.append(rod(hand + np.array([-0.05, 0, -0.5]), hand + np.array([0.05, 0, 0.5]), 0.045, 0.85))
    if hat == 0:
        solids.append(ellipsoid((-0.03, 0, 1.82 + 0.45 * head), (1.1 * head, 1.02 * head, 0.8 * head), DARK))
    else:
        brim, crown = (1.9, 1.0) if hat == 1 else (1.15, 0.7)
        solids.append(rod((0, 0, 1.82 + 0.55 * head), (0, 0, 1.87 + 0.55 * head), brim * head, trousers))
        solids.append(rod((0, 0, 1.82), (0, 0, 1.82 + (0.8 + crown) * head), 1.02 * head, trousers))
    if pack:
        solids.append(box((-belly - 0.24, -belly + 0.05), 0.24, (0.98, 1.52), 0.5))
    if skirt:
        outline = [(0.42 * np.cos(a), 0.46 * np.sin(a)) for a in np.arange(8) * np.pi / 4]
        solids.append(prism(outline, 2, 0.45, 1.05, shirt, taper=0.55))
    return solids


def _airplane(traits: Traits) -> list[Solid]:
    paint, trim = traits.between(0.4, 0.92), traits.between(0.2, 0.8)
    girth, length = traits.between(0.17, 0.26), traits.between(1.1, 1.35)
    span, chord, sweep = traits.between(1.0, 1.35), traits.between(0.42, 0.62), traits.between(-0.05, 0.6)
    tip, high = traits.between(0.35, 0.9), traits.choice(3)
    fin, tail = traits.between(0.38, 0.6), traits.between(0.4, 0.6)
    engines, biplane, canopy = traits.choice(4), traits.chance(0.3), traits.between(0.25, 0.6)
    deck = girth + 0.22  # height of the fuselage's axis

    def wing(root: float, half: float, chord: float, sweep: float, z: float) -> list[Solid]:
        """A left and a right wing whose leading edge starts at x = root."""
        edge = [(root, 0), (root - sweep, half), (root - sweep - tip * chord, half), (root - chord, 0)]
        return [
            prism([(x, side * y) for x, y in edge], 2, z - 0.035, z + 0.035, trim if chord < 0.4 else paint)
            for side in (-1, 1)
        ]

    solids = [
        ellipsoid((0.15, 0, deck), (length - 0.15, girth, girth), paint),
        ellipsoid((-0.45 * length, 0, deck + 0.03), (0.6 * length, 0.6 * girth, 0.6 * girth), paint),
        ellipsoid((canopy * length, 0, deck + 0.75 * girth), (0.26, 0.62 * girth, 0.6 * girth), DARK),
    ]
    level = deck + (high - 1) * 0.75 * girth
    root = 0.35 + 0.35 * sweep
    solids += wing(root, span, chord, sweep, level)
    rear = -length + 0.38
    solids += wing(rear, tail, 0.38, 0.3 * sweep + 0.1, deck + 0.06)
    outline = [(rear + 0.05, deck), (rear - 0.3, deck + fin), (rear - 0.5, deck + fin), (rear - 0.4, deck)]
    solids.append(prism(outline, 1, -0.035, 0.035, trim))
    if biplane:
        solids += wing(root, 0.95 * span, chord, sweep, level + 0.42)
        for side in (-1, 1):
            at = (root - 0.6 * sweep - 0.4 * chord, side * 0.6 * span)
            solids.append(rod((*at, level), (*at, level + 0.42), 0.03, trim))
    if engines == 0:  # a propeller in the nose
        for turn in (30, 120):
            y, z = 0.42 * np.cos(np.radians(turn)), 0.42 * np.sin(np.radians(turn))
            solids.append(rod((length - 0.02, -y, deck - z), (length - 0.02, y, deck + z), 0.045, 0.3))
        solids.append(ellipsoid((length, 0, deck), (0.12, 0.08, 0.08), trim))
    for y in {0: (), 1: (0.45,), 2: (0.35, 0.68), 3: (0.26,)}[engines]:
        for side in (-1, 1):  # jets: one or two under each wing, or one on either side of the tail
            x, across, z = root - sweep * y, side * y * span, level - 0.12
            if engines == 3:
                x, z = rear + 0.4, deck + 0.1
            solids.append(rod((x + 0.12, across, z), (x - 0.32, across, z), 0.105, trim))
    for x, y in ((0.6 * length, 0), (-0.05, 0.3), (-0.05, -0.3)):
        solids.append(rod((x, y, 0.1), (x, 0.6 * y, deck), 0.03, 0.5))
        solids.append(rod((x, y - 0.04, 0.1), (x, y + 0.04, 0.1), 0.1, DARK))
    return solids


def _wheels(places: Sequence[float], half: float, radius: float) -> list[Solid]:
    """Wheels with light hubs on either side at each of these x; a pair is one roller, whose middle nobody sees."""
    solids = []
    for x in places:
        for size, albedo, out in ((radius, DARK, 0.02), (0.45 * radius, 0.75, 0.05)):
            solids.append(rod((x, -half - out, radius), (x, half + out, radius), size, albedo))
    return solids


def _truck(traits: Traits) -> list[Solid]:
    paint, load = traits.between(0.35, 0.9), traits.between(0.3, 0.9)
    half, length, wheel = traits.between(0.42, 0.52), traits.between(1.25, 1.5), traits.between(0.17, 0.22)
    cab, tall, nose = traits.between(0.45, 0.6), traits.between(0.62, 0.85), traits.choice(2) * 0.35
    cargo, height, slope = traits.choice(5), traits.between(0.55, 1.0), traits.between(0.0, 0.14)
    deck, front = wheel + 0.16, length
    rear = front - nose - cab  # where the cab ends

    solids = [box((-length, length - 0.05), 0.6 * half, (wheel - 0.02, deck), 0.3)]
    outline = [(rear, deck - 0.1), (front - nose, deck - 0.1), (front - nose, deck + 0.45 * tall)]
    outline += [(front - nose - slope - 0.04, deck + tall), (rear, deck + tall)]
    solids.append(prism(outline, 1, -half, half, paint))
    glass = np.array([(front - nose + 0.012, deck + 0.47 * tall), (front - nose - slope - 0.02, deck + 0.92 * tall)])
    solids.append(prism([*glass, glass[1] - (0.1, 0), glass[0] - (0.1, 0)], 1, -0.85 * half, 0.85 * half, DARK))
    doors = [(rear + 0.12, deck + 0.5 * tall), (front - nose - 0.08, deck + 0.5 * tall)]
    doors += [(front - nose - slope - 0.1, deck + 0.88 * tall), (rear + 0.12, deck + 0.88 * tall)]
    solids.append(prism(doors, 1, -half - 0.012, half + 0.012, DARK))
    if nose:
        solids.append(box((front - nose - 0.02, front), 0.8 * half, (deck - 0.1, deck + 0.42 * tall), paint))
    solids.append(box((front - 0.04, front + 0.06), half, (wheel - 0.04, deck), 0.7))
    solids += _wheels((front - nose - 0.3, -length + 0.72, -length + 0.28), half, wheel)

    start, end = -length, rear - 0.06
    if cargo == 0:  # a closed body
        solids.append(box((start, end), 1.04 * half, (deck, deck + height + 0.15), load))
    elif cargo == 1:  # a tank
        radius = 0.9 * half
        solids.append(rod((start, 0, deck + radius), (end, 0, deck + radius), radius, load))
        solids.append(rod((start + 0.5, 0, deck + radius), (start + 0.5, 0, deck + 2 * radius + 0.1), 0.14, paint))
    elif cargo == 2:  # a tipper's bed, wider at the top
        middle = (start + end) / 2
        outline = [(start, deck + 0.05), (end, deck + 0.05), (end + 0.04, deck + 0.6), (start - 0.14, deck + 0.6)]
        solids.append(prism(outline, 1, -1.05 * half, 1.05 * half, load))
        solids.append(ellipsoid((middle, 0, deck + 0.6), (0.42 * (end - start), 0.85 * half, 0.26), 0.35))
    elif cargo == 3:  # a flat bed with logs
        solids.append(box((start, end), half, (deck, deck + 0.08), paint))
        for y, z in ((-0.27, 0.2), (0, 0.2), (0.27, 0.2), (-0.14, 0.42), (0.14, 0.42)):
            solids.append(rod((start + 0.05, y, deck + z), (end - 0.1, y, deck + z), 0.14, load))
    else:  # a fire engine: a low body and a ladder over it
        solids.append(box((start, end), half, (deck, deck + 0.5), paint))
        for y in (-0.16, 0.16):
            solids.append(rod((start + 0.1, y, deck + 0.58), (front - 0.3, y, deck + tall + 0.25), 0.05, 0.85))
        solids.append(rod((start + 0.35, 0, deck + 0.4), (start + 0.35, 0, deck + 0.68), 0.26, load))
    return solids


def _car(traits: Traits) -> list[Solid]:
    paint, roof_paint = traits.between(0.3, 0.92), traits.between(0.3, 0.92)
    half, length, wheel = traits.between(0.48, 0.58), traits.between(1.15, 1.35), traits.between(0.19, 0.24)
    belt, tall = traits.between(0.54, 0.66), traits.between(0.3, 0.42)
    bonnet, boot = traits.between(0.45, 0.75), traits.between(0.02, 0.6)
    rake, back = traits.between(0.18, 0.4), traits.between(0.05, 0.35)
    open_top, spoiler, two_tone = traits.chance(0.2), traits.chance(0.35), traits.chance(0.3)
    low, nose = 0.16, traits.between(0.02, 0.09)

    body = [(-length, low), (length - 0.04, low), (length, 0.3), (length - 0.03, belt - nose - 0.03)]
    body += [(length - bonnet, belt), (-length + 0.1, belt), (-length - 0.02, belt - 0.1)]
    solids = [prism(body, 1, -half, half, paint)]
    front, rear = length - bonnet, -length + boot + 0.04
    top = belt + tall
    if open_top:
        slant, rim = front - 0.5 * rake, belt + 0.8 * tall
        screen = [(front, belt), (slant, rim), (slant - 0.05, rim), (front - 0.07, belt)]
        solids.append(prism(screen, 1, -0.85 * half, 0.85 * half, DARK))
        solids.append(box((-0.55 * length, front - 0.1), 0.78 * half, (belt - 0.1, belt + 0.015), DARK))
        for side in (-1, 1):
            seat = (-0.2 * length, side * 0.4 * half, belt)
            solids.append(ellipsoid(seat, (0.09, 0.3 * half, 0.75 * tall), roof_paint))
    else:
        cabin = [(front, belt), (front - rake, top), (rear + back, top), (rear, belt)]
        solids.append(prism(cabin, 1, -0.88 * half, 0.88 * half, DARK))
        cover = roof_paint if two_tone else paint
        solids.append(box((rear + back - 0.02, front - rake + 0.02), 0.9 * half, (top - 0.03, top + 0.04), cover))
        for x in (front - rake - 0.42 * (front - rake - rear - back), rear + back):  # door posts
            solids.append(box((x - 0.05, x + 0.05), 0.89 * half, (belt, top), cover))
    solids += _wheels((0.62 * length, -0.62 * length), half, wheel)
    for side in (-1, 1):
        solids.append(ellipsoid((length - 0.02, side * 0.7 * half, 0.36), (0.07, 0.09, 0.08), 1.0))
    for x in (-length, length):
        solids.append(box((x - 0.06, x + 0.06), 0.96 * half, (0.14, 0.24), 0.6))
    if spoiler:
        solids.append(box((-length - 0.06, -length + 0.12), 0.9 * half, (belt + 0.09, belt + 0.14), paint))
        for y in (-0.6 * half, 0.6 * half):
            solids.append(rod((0.04 - length, y, belt - 0.02), (0.02 - length, y, belt + 0.1), 0.04, paint))
    return solids


_MAKERS: tuple[Callable[[Traits], list[Solid]], ...] = (_animal, _human, _airplane, _truck, _car)


def toy(category: int, instance: int, seed: int) -> Toy:
    """The toy of a category (an index into CATEGORIES) and instance 0..9, centred and scaled to fit the picture."""
    traits = Traits(seed, category, instance)
    extent = EXTENTS[category] * traits.between(0.92, 1)
    solids = _MAKERS[category](traits)
    hull = np.concatenate([solid.hull for solid in solids])
    low, high = hull.min(0), hull.max(0)
    shift = -(low + high) / 2
    azimuths, elevations = np.meshgrid(np.arange(0, 360, 20), (30, 50, 70))
    across = view_axes(azimuths, elevations)[..., :2, :]  # [3, 18, 2, 3] right and up
    scale = extent / float(np.abs((hull + shift) @ across.swapaxes(-1, -2)).max())
    return Toy(category, instance, tuple(solid.moved(shift, scale) for solid in solids), scale * (low[2] + shift[2]))

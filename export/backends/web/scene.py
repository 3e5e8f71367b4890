"""The toys of `viewpoints` as numbers, for toys.js to render."""

from dataclasses import asdict
from typing import Any

import numpy as np

from qcn.data.viewpoints import light
from qcn.data.viewpoints.dataset import familiar
from qcn.data.viewpoints.solids import Solid
from qcn.data.viewpoints.toys import CATEGORIES, Toy, toy

SHOWN = (0, 5)  # the instances of each category in a page
ALL_ROUND = (0, 340)  # degrees of azimuth
DIGITS = 7  # after the point: pixels are computed in float32


def scene(size: int, data: str) -> dict[str, Any]:
    """Toys, lamps and what else decides a picture of `size` pixels a side, and from where the toys of `data` are seen.

    That is from the first angle to the last, which may be by way of 0°; left out where they are seen from all around.
    """
    toys = [toy(category, instance, seed=0) for instance in SHOWN for category in range(len(CATEGORIES))]
    return {
        "size": size,
        "familiar": {axis: (at[0], at[-1]) for axis, at in familiar(data).items() if (at[0], at[-1]) != ALL_ROUND},
        "samples": light.SAMPLES,
        "stereo": light.STEREO,
        "ground": light.GROUND_ALBEDO,
        "gloss": light.GLOSS,
        "shininess": light.SHININESS,
        "lights": [asdict(lamp) for lamp in light.LIGHTS],
        "toys": [described(one) for one in toys],
    }


def described(toy: Toy) -> dict[str, Any]:
    """A toy as toys.js takes it."""
    return {
        "category": CATEGORIES[toy.category],
        "instance": toy.instance,
        "floor": toy.floor,
        "solids": [_solid(solid) for solid in toy.solids],
    }


def _solid(solid: Solid) -> dict[str, Any]:
    """Of its hull the ball around it: enough to know which pixels a solid may touch."""
    middle = (solid.hull.min(0) + solid.hull.max(0)) / 2
    return {
        "matrix": solid.matrix.round(DIGITS).tolist() if solid.matrix.any() else None,
        "centre": solid.centre.round(DIGITS).tolist(),
        "planes": solid.planes.round(DIGITS).tolist(),
        "albedo": round(solid.albedo, DIGITS),
        "middle": middle.round(DIGITS).tolist(),
        "reach": round(float(np.linalg.norm(solid.hull - middle, axis=1).max()) + 10**-DIGITS, DIGITS),
    }

"""Three pose components or four? Routing as the authors' code has it, in three precisions.

    python benchmarks/components.py

Their poses are whole quaternions whose real part is zero. A vote q u q* has a real part too, zero but for rounding, and
its variance goes through a logarithm. This routes random windows by the formula of qcn/routing.py: with the three
components that mean something, and with all four, without a floor under the variance as there is none in their code.
Votes are made by quaternion products in the precision measured. The answers are held against the same in float64.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from machine import facts
from torch import Tensor

from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR
from qcn.quaternion import conjugate, hamilton_product, rotor

RESULTS = Path(__file__).parent / "results" / "components.json"
WINDOWS, CHILDREN, PARENTS, ITERATIONS = 64, 5 * 5 * 16, 16, 2
PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}


def routed(pose: Tensor, activation: Tensor, rotors: Tensor, components: int, unit: bool) -> Tensor:
    """pose [N, I, 4], activation [N, I], rotors [I, J, 4] -> the parents' activations [N, J]."""
    votes = hamilton_product(hamilton_product(rotors, pose[:, :, None]), conjugate(rotors))[
        ..., 4 - components :
    ]  # [N, I, J, h]
    floor = VARIANCE_FLOOR if components == 3 else 0.0
    share = (activation / PARENTS)[..., None].expand(votes.shape[:3])  # [N, I, J]
    for iteration in range(ITERATIONS):
        mass = share.sum(1) + MASS_FLOOR  # [N, J]
        mean = (share[..., None] * votes).sum(1) / mass[..., None]
        square = (votes - mean[:, None]).square()
        variance = (share[..., None] * square).sum(1) / mass[..., None] + floor  # [N, J, h]
        score = -0.5 * variance.log().sum(2) * mass * 2 * PARENTS / CHILDREN
        if unit:
            score = score / score.norm(dim=1, keepdim=True)
        active = score.sigmoid()
        if iteration < ITERATIONS - 1:
            density = -0.5 * variance.log().sum(2)[:, None] - (square / (2 * variance[:, None])).sum(3)
            share = activation[..., None] * (active.log()[:, None] + density).softmax(2)
    return active


def measured(components: int, unit: bool) -> list[dict[str, Any]]:
    """By precision: the largest difference from float64, where the most active parent is the same, and NaN."""
    generator = torch.Generator().manual_seed(0)
    pose = torch.randn(WINDOWS, CHILDREN, 4, generator=generator, dtype=torch.float64)
    pose[..., 0] = 0
    activation = torch.rand(WINDOWS, CHILDREN, generator=generator, dtype=torch.float64)
    angle = (2 * torch.rand(CHILDREN, PARENTS, generator=generator, dtype=torch.float64) - 1) * torch.pi
    axis = 2 * torch.rand(CHILDREN, PARENTS, 3, generator=generator, dtype=torch.float64) - 1
    inputs = pose, activation, rotor(angle, axis)
    exact = routed(*inputs, components, unit)
    rows = []
    for name, dtype in PRECISIONS.items():
        found = routed(*(one.to(dtype) for one in inputs), components, unit).double()
        number = ~found.isnan()
        rows.append(
            {
                "components": components,
                "activation": "unit" if unit else "logistic",
                "precision": name,
                "largest": float((found - exact).abs()[number].max()) if number.any() else None,
                "spread": float(exact.std(1).mean()),
                "agree": float((found.argmax(1) == exact.argmax(1))[number.all(1)].double().mean())
                if number.any()
                else None,
                "nan": float((~number).double().mean()),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = [row for unit in (False, True) for components in (3, 4) for row in measured(components, unit)]
    sizes = {"windows": WINDOWS, "children": CHILDREN, "parents": PARENTS}
    arguments.json.write_text(json.dumps({**facts(), **sizes, "results": rows}, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()

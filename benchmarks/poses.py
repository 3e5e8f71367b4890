"""Does the pose of a class capsule turn with the object? And which rotations has a network learned?

    python benchmarks/poses.py viewpoints-azimuth-pooled --data-dir data --json benchmarks/results/poses.json

For each object, elevation and light there is one image per azimuth. The poses of the true class are unit vectors; the
plane that they vary in most is found, and the angle in it is compared with the azimuth by the circular correlation of
Fisher and Lee (1983), without its sign: 1 if the pose turns evenly with the object, either way. An object that
looks alike from the front and from behind turns its pose twice per turn, so the same is done with twice the azimuth.
"Chance" is the same for shuffled azimuths. An untrained network of the same kind is measured beside the trained one.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import facts
from numpy.typing import NDArray

from qcn import data
from qcn.data.imageset import ImageSet
from qcn.data.preprocess import preprocess
from qcn.devices import pick_device
from qcn.errors import UsageError
from qcn.files import write_text
from qcn.model import QCN
from qcn.shipped import run_of
from qcn.train.checkpoint import load_network

BATCH = 32
SHUFFLES = 20
ANGLES, LATITUDES, LONGITUDES = 18, 12, 24  # bins, of equal area on the sphere
Floats = NDArray[np.float64]


def all_images(splits: data.Splits) -> ImageSet:
    """Every image of a data set, from whatever split."""
    parts = [splits.train, splits.validation, *splits.tests.values()]
    views = [part.views for part in parts]
    if any(view is None for view in views):
        raise UsageError("the data set has no viewpoints")
    names = ("instance", "elevation", "azimuth", "lighting")
    joined = type(views[0])(*(np.concatenate([getattr(view, name) for view in views]) for name in names))
    images, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels"))
    return ImageSet(images, labels, parts[0].classes, joined)


def chosen(images: ImageSet, elevations: int) -> ImageSet:
    """The images under one light from so many elevations, in the order of object, elevation, azimuth."""
    views = images.views
    every = np.unique(views.elevation)
    kept = every[np.linspace(0, len(every) - 1, min(elevations, len(every))).astype(int)]
    wanted = np.flatnonzero(np.isin(views.elevation, kept) & (views.lighting == views.lighting.min()))
    order = np.lexsort([views.azimuth[wanted], views.elevation[wanted], views.instance[wanted], images.labels[wanted]])
    return images[wanted[order]]


def poses(network: torch.nn.Module, images: ImageSet, spec: Any, device: torch.device) -> Floats:
    """The pose of the true class, [images, 3]."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), BATCH):
            pixels = torch.from_numpy(images.images[start : start + BATCH]).to(device)
            label = torch.from_numpy(images.labels[start : start + BATCH]).to(device)
            pose = network(preprocess(pixels, spec)).pose
            found.append(pose[torch.arange(len(label), device=device), label].double().cpu().numpy())
    return np.concatenate(found)


def circular_correlation(one: Floats, two: Floats) -> float:
    """Of angles, from -1 to 1 (Fisher and Lee 1983): 1 where one goes as the other, -1 where it goes against it."""

    def resultant(angles: Floats) -> float:
        return float(abs(np.exp(1j * angles).mean()) ** 2)

    above = resultant(one - two) - resultant(one + two)
    below = np.sqrt((1 - resultant(2 * one)) * (1 - resultant(2 * two)))
    return float(above / max(below, 1e-12))


def turning(pose: Floats, azimuth: Floats) -> dict[str, float]:
    """One object, seen from all azimuths (radians): how its pose [views, 3] follows them."""
    unit = pose / np.linalg.norm(pose, axis=1, keepdims=True).clip(1e-12)
    centred = unit - unit.mean(0)
    plane = np.linalg.svd(centred, full_matrices=False)[2][:2]
    across = centred @ plane.T
    angle = np.arctan2(across[:, 1], across[:, 0])
    waves = np.stack([np.ones_like(azimuth), *(wave(k * azimuth) for k in (1, 2) for wave in (np.cos, np.sin))], 1)
    left = centred - waves @ np.linalg.lstsq(waves, centred, rcond=None)[0]
    spread = float((centred**2).sum())
    return {
        "once": abs(circular_correlation(angle, azimuth)),
        "twice": abs(circular_correlation(angle, 2 * azimuth)),
        "explained": 1 - float((left**2).sum()) / max(spread, 1e-12),
        "swing_degrees": float(np.degrees(np.arccos((unit @ unit.T).clip(-1, 1)).max())),
    }


def measured(pose: Floats, azimuths: Floats) -> dict[str, Any]:
    """Over all objects [objects, views, 3]: the mean and the middle half of each figure, and what chance gives."""
    found = [turning(one, azimuths) for one in pose]
    mixer = np.random.Generator(np.random.PCG64(0))
    shuffled = [turning(one, mixer.permutation(azimuths)) for one in pose for _ in range(SHUFFLES)]
    return {
        name: {
            "mean": float(np.mean([one[name] for one in found])),
            "quartiles": [float(q) for q in np.quantile([one[name] for one in found], (0.25, 0.75))],
            "chance": float(np.mean([one[name] for one in shuffled])),
            "each": [round(one[name], 4) for one in found],
        }
        for name in found[0]
    }


def rotors(network: torch.nn.Module) -> dict[str, Any]:
    """By capsule layer: how many rotors turn by how much, and about which axes, as counts."""
    found = {}
    for name, layer in network.named_modules():
        if not hasattr(layer, "theta"):
            continue
        theta, axis = (getattr(layer, one).detach().double().cpu().numpy() for one in ("theta", "axis"))
        axis = (axis / np.linalg.norm(axis, axis=-1, keepdims=True)).reshape(-1, 3)
        turn = np.mod(2 * theta.reshape(-1), 2 * np.pi)  # a rotor turns by 2θ about its axis
        other = turn > np.pi  # the same as the rest of the turn about the opposite axis
        turn, axis = np.where(other, 2 * np.pi - turn, turn), np.where(other[:, None], -axis, axis)
        longitude = np.arctan2(axis[:, 1], axis[:, 0])
        sphere, _, _ = np.histogram2d(
            axis[:, 2], longitude, bins=(LATITUDES, LONGITUDES), range=((-1, 1), (-np.pi, np.pi))
        )
        found[name.removesuffix(".rotors")] = {
            "rotors": len(turn),
            "mean_degrees": float(np.degrees(turn.mean())),
            "degrees": np.histogram(np.degrees(turn), bins=ANGLES, range=(0, 180))[0].tolist(),
            "axis_resultant": float(np.linalg.norm(axis.mean(0))),
            "axes": sphere.astype(int).tolist(),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--elevations", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    folder, device = run_of(arguments.model), pick_device(arguments.device)
    network, run = load_network(folder)
    if not isinstance(network, QCN):
        raise UsageError(f"{folder} is a {run.model.name}, which has no poses of three components")
    torch.manual_seed(0)
    untrained = run.model.create().eval()
    images = chosen(all_images(data.load(run.settings.dataset, arguments.data_dir)), arguments.elevations)
    azimuths = np.unique(images.views.azimuth)
    results = {}
    for name, one in (("trained", network), ("untrained", untrained)):
        found = poses(one.to(device), images, run.preprocessing, device)
        results[name] = measured(found.reshape(-1, len(azimuths), 3), np.radians(azimuths.astype(float)))
        print(
            name,
            {key: f"{value['mean']:.2f} ({value['chance']:.2f} by chance)" for key, value in results[name].items()},
        )
    record = {
        **facts(),
        "network": folder.name,
        "dataset": run.settings.dataset,
        "objects": int(len(images) / len(azimuths)),
        "views": len(azimuths),
        "turning": results,
        "rotors": {"trained": rotors(network), "untrained": rotors(untrained)},
    }
    write_text(arguments.json, json.dumps(record, indent=1) + "\n")
    print(arguments.json)


if __name__ == "__main__":
    main()

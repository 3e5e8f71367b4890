"""What a deployer asks of networks: corruptions, attacks, calibration, rejection.

    python benchmarks/robustness.py --dataset fashion-mnist --device cuda fashion-mnist RUN… BUNDLE…
    python benchmarks/robustness.py --dataset mnist --limit 500 --attacked 64 mnist      # on a CPU, in minutes

A network is a training run, a bundle, or the name of one that ships. Several runs of one model are averaged in the
table of docs/results.md. The JSON, benchmarks/results/robustness-DATASET.json if not given, is written
again after every network; one that is in it already, with the same weights and settings, is not measured again.
Attacks need gradients, which a bundle does not have.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corruptions import CORRUPTIONS, EPSILONS, STEPS, corrupted, fooled
from measurements import RESULTS, put, rows_of
from numpy.typing import NDArray

from qcn.data import registry
from qcn.data.imageset import ImageSet
from qcn.evaluate.networks import Network, open_network
from qcn.evaluate.rates import Answers
from qcn.intervals import ErrorRate
from qcn.names import MANIFEST, RUN
from qcn.networks.confidence import BINS, calibration_error
from qcn.networks.devices import pick_device
from qcn.networks.shipped import run_of
from qcn.networks.zoo import parameter_count
from qcn.train.checkpoint import load_network

COVERAGES = (1.0, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)


def rate(wrong: NDArray[np.bool_]) -> dict[str, float]:
    return vars(ErrorRate.of(int(wrong.sum()), len(wrong)))


def answers_to(network: Network, images: ImageSet) -> Answers:
    return network.answers(images, lambda done: None)


def corruptions(network: Network, images: ImageSet, device: torch.device) -> dict[str, list[dict[str, float]]]:
    """Error by kind, at each severity."""
    result = {}
    for kind in CORRUPTIONS:
        made = (replace(images, images=corrupted(images.images, kind, step, device)) for step in range(1, 6))
        result[kind] = [rate(answers_to(network, one).predicted != one.labels) for one in made]
    return result


def attacks(folder: Path, images: ImageSet, device: torch.device) -> dict[str, list[dict[str, float]]]:
    """Error by attack, at each epsilon."""
    network, run = load_network(folder)
    network.to(device)
    result: dict[str, list[dict[str, float]]] = {}
    for name, _, wrong in fooled(network, images.images, images.labels, run.preprocessing, device):
        result.setdefault(name, []).append(rate(wrong))
    return result


def calibration(answers: Answers, labels: NDArray[np.int64]) -> dict[str, Any]:
    """The expected calibration error, and for each bin of confidence: images, mean confidence, share that is right."""
    sure, right = answers.probability.max(1), answers.predicted == labels
    place_of = np.minimum((sure * BINS).astype(int), BINS - 1)
    bins = [
        {"images": int(members.sum()), "confidence": float(sure[members].mean()), "right": float(right[members].mean())}
        for one in range(BINS)
        if (members := place_of == one).any()
    ]
    return {"error": calibration_error(answers.probability, labels), "bins": bins}


def rejection(answers: Answers, labels: NDArray[np.int64]) -> dict[str, Any]:
    """The error of what is kept when the least certain are refused, and its mean over all coverages (AURC)."""
    order = np.argsort(-answers.probability.max(1), kind="stable")
    wrong = (answers.predicted != labels)[order]
    kept = [wrong[: max(1, round(coverage * len(wrong)))] for coverage in COVERAGES]
    running = np.cumsum(wrong) / np.arange(1, len(wrong) + 1)
    return {"coverage": list(COVERAGES), "error": [float(part.mean()) for part in kept], "aurc": float(running.mean())}


def identity(model: str) -> dict[str, Any]:
    """The identity of a network: its name, model, size and the sha256 of its weights."""
    folder = run_of(model)
    if not (folder / RUN).is_file():
        source = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["source"]
        return {"name": folder.name, "model": "bundle", "seed": None, "parameters": None, "sha256": source["sha256"]}
    network, run = load_network(folder)
    best = run.weights("best")
    return {
        "name": folder.name,
        "model": run.model.name,
        "seed": run.settings.seed,
        "parameters": parameter_count(network),
        "sha256": best.sha256 if best else "",
    }


def measure(model: str, arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """All measurements of one network."""
    folder = run_of(model)
    is_run = (folder / RUN).is_file()
    network = open_network(folder, device=str(device)) if is_run else open_network(folder)
    dataset = network.dataset(arguments.dataset)
    splits = registry.read(dataset, arguments.data_dir)
    images = splits.tests[arguments.split or next(iter(splits.tests))]
    if arguments.limit:
        images = images[np.linspace(0, len(images) - 1, min(arguments.limit, len(images))).astype(int)]
    few = images[np.linspace(0, len(images) - 1, min(arguments.attacked, len(images))).astype(int)]
    answers = answers_to(network, images)
    print(f"{folder.name}: error {100 * rate(answers.predicted != images.labels)['error']:.2f} %", flush=True)
    return {
        **identity(model),
        "backend": network.backend,
        "temperature": network.temperature,
        "images": len(images),
        "clean": rate(answers.predicted != images.labels),
        "calibration": calibration(answers, images.labels),
        "rejection": rejection(answers, images.labels),
        "corruptions": corruptions(network, images, device),
        "attacked_images": len(few) if is_run else 0,
        "attacks": attacks(folder, few, device) if is_run else {},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--split", help="a test split; the first of the data set if not given")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, help="images, spread over the split; all if not given")
    parser.add_argument("--attacked", type=int, default=1000, help="images to attack")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    path = arguments.json or RESULTS / f"robustness-{arguments.dataset}.json"
    torch.backends.cudnn.allow_tf32 = False
    settings = {name: getattr(arguments, name) for name in ("dataset", "split", "limit", "attacked")}
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        if {name: before[name] for name in settings} != settings:
            parser.error(f"{path} was measured with another --split, --limit or --attacked: name another --json")
    amounts = {kind: {"values": list(values), "unit": unit} for kind, (_, values, unit) in CORRUPTIONS.items()}
    about = {**settings, "amounts": amounts, "epsilons": list(EPSILONS), "pgd_steps": STEPS}
    for model in arguments.models:
        who = identity(model)
        if any(row["sha256"] == who["sha256"] and row["model"] == who["model"] for row in rows_of(path)):
            print(f"{model} is in {path} already")
            continue
        row = measure(model, arguments, pick_device(arguments.device))
        put(path, [row], "sha256", "model", **about)
        worst = {kind: f"{100 * rates[-1]['error']:.1f}" for kind, rates in row["corruptions"].items()}
        print(f"{row['name']}: at severity 5 {worst}; ECE {100 * row['calibration']['error']:.2f} %", flush=True)
    print(path)


if __name__ == "__main__":
    main()

"""What the networks that ship call known, of pictures of other things, by every score that could tell.

    python benchmarks/unknown.py --data-dir DATA              # all networks, or the names of some

The pictures: test images of other data sets, brought to the size and channels of the network; rendered toys, not those
that a score is chosen by; and noise, each pixel of any value. At most 2,000 of each (--limit), beside as many of the
network's own test images. Each network runs in torch, by its run. The JSON,
benchmarks/results/unknown.json, is written again after every network.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from measurements import RESULTS, put
from numpy.typing import NDArray

from qcn.data import registry
from qcn.data.imageset import ImageSet
from qcn.data.viewpoints.dataset import Variant, render
from qcn.errors import UsageError
from qcn.evaluate.networks import Network, open_network
from qcn.evaluate.rates import Answers
from qcn.evaluate.unknown import fitted
from qcn.intervals import ErrorRate
from qcn.networks.confidence import KEEP, SCORES, auroc, keeping
from qcn.networks.shipped import networks, run_of

FILE = "unknown.json"
REAL = ("mnist", "fashion-mnist", "cifar10")
TOYS = Variant(size=64, seed=3, elevations=(30, 45, 60), azimuths=(40, 160, 280), lightings=(0, 3), instances=(0, 4, 8))
MOST = 2000


def spread(images: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    """At most so many, evenly over all."""
    return images[np.linspace(0, len(images) - 1, min(most, len(images))).astype(int)]


def others(network: Network, data_dir: Path, most: int) -> dict[str, NDArray[np.uint8]]:
    """Pictures of other things [N, C, H, W] as the network takes them, by name."""
    own = network.own_dataset()
    result = {
        name: spread(registry.load(name, data_dir).tests["test"].images, most) for name in REAL if name != own.name
    }
    if not own.name.startswith("viewpoints"):
        result["toys"] = spread(render(TOYS)[:, :1], most)
    how = network.preprocessing.fit
    pictures = {
        name: np.stack([fitted(image.transpose(1, 2, 0), network.image, how) for image in images])
        for name, images in result.items()
    }
    return pictures | {"noise": np.random.default_rng(1).integers(0, 256, (most, *network.image), np.uint8)}


def answers_to(network: Network, images: NDArray[np.uint8]) -> Answers:
    return network.answers(ImageSet(images, np.zeros(len(images), np.int64), network.classes), lambda done: None)


def measure(name: str, data_dir: Path, device: str, most: int) -> dict[str, Any]:
    """One network: how many right answers stay known, and how often other pictures are called known."""
    network = open_network(run_of(name), device=device)
    known, temperature = network.known, network.temperature
    if known is None:
        raise UsageError(f"{name} has no threshold: python tools/ship_model.py --refit {name}")
    test = next(iter(registry.read(network.own_dataset(), data_dir).tests.values()))
    test = test[np.linspace(0, len(test) - 1, min(most, len(test))).astype(int)]
    ours = network.answers(test, lambda done: None)
    right = ours.predicted == test.labels
    assert ours.known is not None
    unknown = int((right & ~ours.known).sum())
    row: dict[str, Any] = {
        "network": name,
        "score": known.score,
        "right": int(right.sum()),
        "kept": vars(ErrorRate.of(unknown, int(right.sum())).complement),
        "chosen_by": {"auroc": known.auroc, "false_positives": known.false_positives},
        "others": {},
    }
    inside = {one: score(ours.logit, temperature) for one, score in SCORES.items()}
    for other, images in others(network, data_dir, most).items():
        theirs = answers_to(network, images)
        assert theirs.known is not None
        outside = {one: score(theirs.logit, temperature) for one, score in SCORES.items()}
        row["others"][other] = {
            "called_known": vars(ErrorRate.of(int(theirs.known.sum()), len(images))),
            "auroc": {one: auroc(inside[one], outside[one]) for one in SCORES},
            # At the threshold that keeps 95 % of the right answers on test images, so that scores can be compared.
            "false_positives": {
                one: float((outside[one] >= keeping(inside[one][right], KEEP)).mean()) for one in SCORES
            },
        }
        called, apart = row["others"][other]["called_known"]["error"], row["others"][other]["auroc"][known.score]
        print(f"{name}: {100 * called:.1f} % of {other} called known, AUROC {apart:.3f}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, default=MOST, help="pictures of a set, at most")
    arguments = parser.parse_args()
    for name in arguments.networks or networks():
        row = measure(name, arguments.data_dir, arguments.device, arguments.limit)
        put(RESULTS / FILE, [row], "network")


if __name__ == "__main__":
    main()

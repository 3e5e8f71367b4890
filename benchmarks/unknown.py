"""What the networks that ship call known, of pictures of other things, by every score that could tell.

    python benchmarks/unknown.py --data-dir DATA              # all networks, or the names of some

The pictures: test images of other data sets, brought to the size and channels of the network; rendered toys, not those
that a score is chosen by; and noise, each pixel of any value. At most 2,000 of each (--limit), beside as many of the
network's own test images. Each network runs in torch, by its run. The JSON,
benchmarks/results/unknown.json, is written again after every network.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from machine import put_results
from numpy.typing import NDArray
from pages import RESULTS, Row, read, source, table

from qcn import data
from qcn.confidence import KEEP, SCORES, auroc, keeping
from qcn.data.imageset import ImageSet
from qcn.data.viewpoints.dataset import Variant, render
from qcn.errors import UsageError
from qcn.evaluate import Answers, Network, open_network
from qcn.evaluate.unknown import fitted
from qcn.intervals import ErrorRate, wilson
from qcn.shipped import networks, run_of

FILE = "unknown.json"
REAL = ("mnist", "fashion-mnist", "cifar10")
MADE = ("toys", "noise")
TOYS = Variant(size=64, seed=3, elevations=(30, 45, 60), azimuths=(40, 160, 280), lightings=(0, 3), instances=(0, 4, 8))
MOST = 2000


def spread(images: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    """At most so many, evenly over all."""
    return images[np.linspace(0, len(images) - 1, min(most, len(images))).astype(int)]


def others(network: Network, data_dir: Path, most: int) -> dict[str, NDArray[np.uint8]]:
    """Pictures of other things [N, C, H, W] as the network takes them, by name."""
    own = network.own_dataset()
    found = {name: spread(data.load(name, data_dir).tests["test"].images, most) for name in REAL if name != own.name}
    if not own.name.startswith("viewpoints"):
        found["toys"] = spread(render(TOYS)[:, :1], most)
    how = network.preprocessing.fit
    pictures = {
        name: np.stack([fitted(image.transpose(1, 2, 0), network.image, how) for image in images])
        for name, images in found.items()
    }
    return pictures | {"noise": np.random.default_rng(1).integers(0, 256, (most, *network.image), np.uint8)}


def answers_to(network: Network, images: NDArray[np.uint8]) -> Answers:
    return network.answers(ImageSet(images, np.zeros(len(images), np.int64), network.classes), lambda done: None)


def measure(name: str, data_dir: Path, device: str, most: int) -> dict[str, Any]:
    """One network: how many right answers stay known, and what is said of each set of other pictures."""
    network = open_network(run_of(name), device=device)
    known, temperature = network.known, network.temperature
    if known is None:
        raise UsageError(f"{name} has no threshold: python benchmarks/ship_model.py --refit {name}")
    test = next(iter(data.read(network.own_dataset(), data_dir).tests.values()))
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


def _rows() -> list[Row]:
    return sorted(read(FILE)["results"], key=lambda row: str(row["network"]))


def _mean(row: Row, figure: str, score: str) -> float:
    """Over the real sets."""
    return statistics.mean(found[figure][score] for name, found in row["others"].items() if name in REAL)


def best_score(row: Row) -> str:
    """The score that would have been best on the real sets."""
    return max(SCORES, key=lambda score: _mean(row, "auroc", score))


def called_known() -> str:
    """A table: by network and set, the share that is called known, with the AUROC."""
    lines = []
    for row in _rows():
        cells = []
        for name in (*REAL, *MADE):
            found = row["others"].get(name)
            cells.append(
                f"{100 * found['called_known']['error']:.1f} ({found['auroc'][row['score']]:.3f})" if found else ""
            )
        lines.append([f"`{row['network']}`", row["score"], f"{100 * row['kept']['error']:.1f}", *cells])
    return table(["network", "score", "right answers", *REAL, *MADE], lines)


def by_score() -> str:
    """A table: by network, how well each score tells the real sets, and whether the best was chosen."""
    lines = []
    for row in _rows():
        cells = [f"{_mean(row, 'auroc', one):.3f}, {100 * _mean(row, 'false_positives', one):.1f}" for one in SCORES]
        lines.append([f"`{row['network']}`", *cells, row["score"], best_score(row)])
    return table(["network", *SCORES, "chosen", "best"], lines)


def worst(rows: list[Row]) -> str:
    """In words, the network and the real set of which it calls the largest share known."""
    pairs = [(row, name) for row in rows for name in row["others"] if name in REAL]
    row, name = max(pairs, key=lambda pair: pair[0]["others"][pair[1]]["called_known"]["error"])
    share = row["others"][name]["called_known"]["error"]
    return f"`{row['network']}` calls {100 * share:.0f} % of {name} known"


def section() -> str:
    """Of docs/results.md."""
    record, rows = read(FILE), _rows()
    alike = sum(row["score"] == best_score(row) for row in rows)
    lost = max(_mean(row, "auroc", best_score(row)) - _mean(row, "auroc", row["score"]) for row in rows)
    most = max(found["called_known"]["total"] for row in rows for found in row["others"].values())
    points = 100 * (wilson(most // 2, most)[1] - 0.5)
    return f"""## Unknown pictures

The share, in per cent, that each shipped network calls known ([training.md](training.md#unknown-pictures)): right
answers on its own test images, of which the threshold should keep 95, and pictures of other things, of which it should
keep none. In brackets the AUROC: 0.5 is chance, 1 is perfect. With {most:,} pictures of a set (fewer toys), the 95 %
interval of a share of 50 % is ±{points:.0f} points.
{source(record)}:
`python benchmarks/unknown.py`.

{called_known()}

All three scores are made of the logits, and tell no more than these do. The worst case on real pictures:
{worst(rows)}.

Each score on the real data sets alone, which were not used to choose it: the mean AUROC, and the mean share of other
pictures, in per cent, that is called known if 95 % of the right answers on test images are kept. The score that was
chosen on validation images and made-up pictures is the best one for {alike} of {len(rows)} networks. For the others its
AUROC is lower by {lost:.3f} at most.

{by_score()}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, default=MOST, help="pictures of a set, at most")
    arguments = parser.parse_args()
    for name in arguments.networks or networks():
        row = measure(name, arguments.data_dir, arguments.device, arguments.limit)
        put_results(RESULTS / FILE, [row], "network")


if __name__ == "__main__":
    main()

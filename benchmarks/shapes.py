"""Which shape should a QCN of the paper's size have? Each shape is trained on CIFAR-10 for 16 epochs.

    python benchmarks/shapes.py --data-dir data
    python benchmarks/shapes.py "3 blocks, halved twice" cnn-small --data-dir data

Shapes are judged by their error on the validation split, the mean of the last three epochs; the test split is not
looked at. Each run goes to RUNS/SHAPE, and what is finished there is not repeated. What --json has of others stays.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from machine import put_results
from pages import RESULTS

from qcn.model import QCN, CapsuleLayer, QCNConfig
from qcn.names import RUN
from qcn.train import resume, train
from qcn.train.record import load_run
from qcn.train.settings import settings_from
from qcn.zoo import MODELS, create, parameter_count

FILE = RESULTS / "shapes-h200.json"
EPOCHS = 16
TWO = (CapsuleLayer(3, 1, 16),) * 2
THREE = (CapsuleLayer(3, 1, 16),) * 3
STRIDED = (CapsuleLayer(3, 2, 16), *TWO)


def one_stack(
    widths: tuple[int, ...], strides: tuple[int, ...], layers: tuple[CapsuleLayer, ...] = TWO
) -> dict[str, Any]:
    """Of a QCN without branches: its residual blocks and capsule layers."""
    return {"branched": False, "pose_widths": widths, "pose_strides": strides, "layers": layers}


# How each differs from the paper's network. All have at most 189 thousand parameters.
SHAPES: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "wider": {"pose_widths": (44, 88), "layers": STRIDED},
    "wider, no stride in capsule layers": {"pose_widths": (44, 88), "layers": THREE},
    "3 blocks, branched": {"pose_widths": (32, 60, 60), "pose_strides": (1, 2, 1), "layers": STRIDED},
    "3 blocks": one_stack((32, 62, 62), (1, 2, 1), STRIDED),
    "3 blocks, no stride in capsule layers": one_stack((32, 62, 62), (1, 2, 1), THREE),
    "3 blocks, halved twice": one_stack((36, 64, 64), (1, 2, 2)),
    "4 blocks, as cnn-small": one_stack((32, 56, 56, 40), (1, 2, 2, 1)),
    "4 blocks, branched": {
        "pose_widths": (24, 48, 48, 48),
        "pose_strides": (1, 2, 1, 2),
        "activation_widths": (24, 32),
        "activation_strides": (2, 2),
        "layers": TWO,
    },
    "4 blocks: qcn-deep": one_stack((24, 48, 48, 64), (1, 2, 1, 2)),
    "5 blocks": one_stack((24, 40, 40, 48, 48), (1, 2, 1, 2, 1)),
}
COMPARED = (*SHAPES, "cnn-small")


def network(changed: dict[str, Any], in_channels: int, classes: int, size: int | None = None) -> QCN:
    """A shape, as `qcn.zoo` makes networks. Images of 32×32 leave it as it is."""
    return QCN(QCNConfig(in_channels, classes, **changed))


def result(shape: str, run: Path) -> dict[str, Any]:
    """A finished run, in short."""
    history = load_run(run).history
    return {
        "shape": shape,
        "parameters": parameter_count(create(shape, in_channels=3, classes=10)),
        "validation_error": statistics.mean(epoch.validation_error for epoch in history[-3:]),
        "train_error": history[-1].train_error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"{'; '.join(COMPARED)}. Default: all")
    parser.add_argument("--runs", type=Path, default=Path("runs/shapes"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, default=FILE)
    arguments = parser.parse_args()
    shapes = arguments.shapes or COMPARED
    if unknown := set(shapes) - set(COMPARED):
        parser.error(f"there is no shape {min(unknown)}: see --help")
    MODELS.update({shape: partial(network, changed) for shape, changed in SHAPES.items()})
    for shape in shapes:
        run = arguments.runs / shape
        if not (run / RUN).exists():
            train(settings_from("best", dataset="cifar10", model=shape, epochs=EPOCHS), arguments.data_dir, run)
        elif load_run(run).progress.epoch < EPOCHS:
            resume(run, arguments.data_dir)
    put_results(arguments.json, [result(shape, arguments.runs / shape) for shape in shapes], "shape", epochs=EPOCHS)


if __name__ == "__main__":
    main()

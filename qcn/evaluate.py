"""How often a network is wrong: overall, by class, and by the viewpoint it saw."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from qcn import plots
from qcn.data import AS_IT_IS, DATASETS, find, read
from qcn.data.imageset import ImageSet
from qcn.data.spec import Dataset, Stored
from qcn.devices import pick_device
from qcn.errors import UsageError, unknown_name
from qcn.files import alone_in, write_text
from qcn.intervals import ErrorRate
from qcn.model import choose_kernels
from qcn.routing import Kernels
from qcn.train import checkpoint
from qcn.train.record import Run
from qcn.train.validation import predict


@dataclass(frozen=True)
class Result:
    """What `qcn evaluate` finds on one split. `confusion[t][p]` counts images of class t predicted as class p."""

    split: str
    overall: ErrorRate
    confusion: list[list[int]]
    by_azimuth: dict[int, ErrorRate] | None
    by_elevation: dict[int, ErrorRate] | None


def evaluate(
    folder: Path,
    dataset: str | None,
    data_dir: Path,
    out: Path,
    *,
    which: str,
    split: str | None,
    device: str,
    kernels: str = "auto",
) -> list[Result]:
    """Measure a run on the test splits of a data set (its own, if none is named); write JSON and PNG to `out`."""
    if kernels not in get_args(Kernels):
        raise unknown_name("kernels", kernels, get_args(Kernels))
    network, run = checkpoint.load_network(folder, which)
    choose_kernels(network, kernels)  # type: ignore[arg-type]
    found = find(dataset or run.settings.dataset, stored_as(run, dataset))
    check_fits(found, run)
    splits, name = read(found, data_dir), found.name
    chosen = {**splits.tests, "validation": splits.validation}
    if split is not None and split not in chosen:
        raise unknown_name(f"split of '{name}'", split, chosen)
    names = [split] if split else list(splits.tests)
    target = pick_device(device)
    network.to(target)
    results = []
    console = Console(stderr=True)
    with alone_in(out), Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for part in names:
            images = chosen[part]
            task = bar.add_task(f"{part}, {len(images):,} images", total=len(images))
            predicted = predict(network, images, run.preprocessing, target, report=partial(bar.advance, task))
            results.append(measure(part, images, predicted))
        write_results(out, results, folder, name, which, run.classes)
    return results


def stored_as(run: Run, dataset: str | None = None) -> Stored:
    """How pictures are kept for the network of a run: those of its own folder, or of another one."""
    if dataset is None:
        return run.settings.stored
    if dataset in DATASETS:
        return AS_IT_IS
    channels, height, _ = run.data.image
    return replace(run.settings.stored, size=height, channels=channels)


def check_fits(dataset: Dataset, run: Run) -> None:
    """Refuse a data set that the network of a run cannot be measured on."""
    if dataset.classes != run.classes:
        theirs, ours = ", ".join(dataset.classes), ", ".join(run.classes)
        raise UsageError(f"'{dataset.name}' has the classes {theirs}; the network knows {ours}")
    if dataset.channels != run.model.in_channels:
        channels = run.model.in_channels
        raise UsageError(f"'{dataset.name}' has {dataset.channels} channels; the network takes {channels}")
    if dataset.size != (side := run.data.image[-1]):
        raise UsageError(f"'{dataset.name}' has images of {dataset.size} pixels; the network was trained on {side}")


def measure(split: str, images: ImageSet, predicted: NDArray[np.int64]) -> Result:
    """Error rates and the confusion matrix from the answers to a split's images."""
    confusion = np.zeros((len(images.classes),) * 2, dtype=np.int64)
    np.add.at(confusion, (images.labels, predicted), 1)
    wrong = predicted != images.labels

    def by(values: NDArray[np.integer]) -> dict[int, ErrorRate]:
        return {
            int(value): ErrorRate.of(int(wrong[values == value].sum()), int((values == value).sum()))
            for value in np.unique(values)
        }

    return Result(
        split,
        ErrorRate.of(int(wrong.sum()), len(wrong)),
        confusion.tolist(),
        by(images.views.azimuth) if images.views else None,
        by(images.views.elevation) if images.views else None,
    )


def write_results(
    out: Path, results: list[Result], run: Path, dataset: str, which: str, classes: Sequence[str]
) -> None:
    """evaluation.json, and a PNG each for the confusion matrices and the error by viewpoint."""
    record: dict[str, Any] = {
        "run": str(run),
        "dataset": dataset,
        "checkpoint": which,
        "classes": classes,
        "splits": [asdict(result) for result in results],
    }
    write_text(out / "evaluation.json", json.dumps(record, indent=1) + "\n")
    plots.confusion(out / "confusion.png", {r.split: r.confusion for r in results}, classes)
    for axis in ("azimuth", "elevation"):
        curves = {r.split: getattr(r, f"by_{axis}") for r in results if getattr(r, f"by_{axis}")}
        if curves:
            plots.error_by_view(out / f"error-by-{axis}.png", axis, curves)

"""How often a network is wrong: overall, by class, by the viewpoint it saw, and where it was most certain of it."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from qcn.data.imageset import ImageSet
from qcn.data.registry import dataset_name, read
from qcn.data.spec import Dataset
from qcn.errors import UsageError, unknown_name
from qcn.evaluate import mistakes
from qcn.evaluate.directions import measure_directions
from qcn.evaluate.networks import Network, open_network
from qcn.evaluate.rates import Answers, Result, measure_answers
from qcn.evaluate.request import Request
from qcn.evaluate.unknown import NO_THRESHOLD, measure_unknown
from qcn.names import RUN
from qcn.networks.shipped import place
from qcn.packages import installed
from qcn.pages import plots
from qcn.predict.draw import save
from qcn.storage.files import alone_in, write_text
from qcn.storage.measured import FILE, Measured, SplitError
from qcn.terminal.progress import doing, part, shown
from qcn.terminal.text import csv_line

Answered = dict[str, tuple[ImageSet, Answers]]  # by split
ROSE = "direction-by-azimuth.png"
PICTURES = ("confusion.png", "error-by-azimuth.png", "error-by-elevation.png", ROSE, "mistakes.png")


@dataclass(frozen=True)
class Evaluated:
    """What was measured on each split, the network's folder, and the files that were written."""

    model: Path
    results: list[Result]
    files: list[Path]

    def __str__(self) -> str:
        """The error of each split with its 95 % interval."""
        return "\n".join(
            f"{one.split}: {100 * one.overall.error:.2f} % of {one.overall.total:,} images wrong "
            f"({100 * one.overall.low:.2f} to {100 * one.overall.high:.2f} %)"
            for one in self.results
        )


def evaluate(model: str | Path, request: Request) -> Evaluated:
    """Measure a run, a bundle or a shipped network on the test splits of a data set, its own if none is named.

    Writes files to the folder `request.out`. A run that is measured on all of its own test splits keeps the result
    (`qcn.storage.measured`), for its bundles.
    """
    folder = place(str(model))
    out = request.out or Path("runs/evaluate") / _results_folder(folder, request)
    doing(f"loading {folder.name}")
    network = open_network(
        folder,
        which=request.checkpoint,
        device=request.device,
        kernels=request.kernels,
        backend=request.backend,
        public_key=request.public_key,
    )
    dataset = network.dataset(request.dataset)
    if request.unknown and network.known is None:
        raise UsageError(NO_THRESHOLD)
    with alone_in(out), shown():
        answered = answer_splits(network, dataset, request.data_dir, request.split)
        others = measure_unknown(
            network, request.unknown, request.data_dir, {name: answers for name, (_, answers) in answered.items()}
        )
        doing("writing results")
        results = [
            replace(
                measure_answers(name, images, answers, request.top),
                unknown=others[name],
                direction=measure_directions(images, answers.predicted, answers.pose, network.direction),
            )
            for name, (images, answers) in answered.items()
        ]
        facts = {
            **network.facts(),
            "dataset": dataset.name,
            "backend": network.backend,
            "temperature": network.temperature,
            "known": None if network.known is None else asdict(network.known),
            "direction": None if network.direction is None else asdict(network.direction),
        }
        write_results(out, results, facts, network.classes)
        write_predictions(out / "predictions.csv", answered)
        write_mistakes(out / "mistakes.png", answered, f"The worst mistakes of {folder.name} on {dataset.name}")
    files = sorted(path for path in out.glob("*") if path.is_file())
    if request.dataset is None and request.split is None:
        errors = [SplitError(one.split, one.overall.total, one.overall.wrong, one.calibration_error) for one in results]
        network.remember(Measured.today(dataset.name, errors))
        files += [folder / FILE] * (folder / FILE).is_file()
    return Evaluated(folder, results, files)


def _results_folder(model: Path, request: Request) -> Path:
    """One per run, checkpoint, bundle, backend and data set, and one inside it per split: none overwrites another."""
    backend = request.backend
    ran_by = "" if (model / RUN).is_file() else "bundle" if backend == "auto" else backend
    checkpoint = "" if request.checkpoint == "best" else request.checkpoint
    data = dataset_name(request.dataset) if request.dataset else ""
    names = (Path(os.path.realpath(model)).name, ran_by, checkpoint, data)
    return Path("-".join(filter(None, names)), request.split or "")


def answer_splits(network: Network, dataset: Dataset, data_dir: Path, split: str | None = None) -> Answered:
    """The network's answers to the images of every test split, or of the one that is named."""
    splits = read(dataset, data_dir)
    network.refuse_known(dataset.name, splits)
    chosen = {**splits.tests, "validation": splits.validation}
    if split is not None and split not in chosen:
        raise unknown_name(f"split of '{dataset.name}'", split, chosen)
    names = [split] if split else list(splits.tests)
    answered: Answered = {}
    with shown():
        for place, name in enumerate(names):
            images = chosen[name]
            if not len(images):
                raise UsageError(f"the split '{name}' of '{dataset.name}' has no images")
            told = partial(doing, f"{name}, {len(images):,} images, by {network.backend}", of=len(images))
            with part(place, len(names)):
                answered[name] = images, network.answers(images, told)
    return answered


def write_results(out: Path, results: list[Result], facts: dict[str, Any], classes: Sequence[str]) -> None:
    """evaluation.json, and a PNG each for the confusion matrices and the error by viewpoint.

    Pictures of an earlier evaluation in the same folder go. Without matplotlib there are no new ones.
    """
    for name in PICTURES:
        (out / name).unlink(missing_ok=True)
    record = {**facts, "classes": classes, "splits": [asdict(result) for result in results]}
    write_text(out / "evaluation.json", json.dumps(record, indent=1) + "\n")
    if not installed("matplotlib"):
        return
    plots.confusion(out / "confusion.png", {r.split: r.confusion for r in results}, classes)
    for axis in ("azimuth", "elevation"):
        curves = {r.split: getattr(r, f"by_{axis}") for r in results if getattr(r, f"by_{axis}")}
        if curves:
            plots.error_by_view(out / f"error-by-{axis}.png", axis, curves)
    directions = {r.split: r.direction.by_azimuth for r in results if r.direction}
    if directions:
        medians = {split: {at: errors.median for at, errors in by.items()} for split, by in directions.items()}
        plots.direction_by_azimuth(out / ROSE, medians)


def write_predictions(path: Path, answered: Answered) -> None:
    """One line per image: its file, or its number in the split; true and predicted class; the answer in numbers."""
    lines = [csv_line(["image", "split", "label", "predicted", "probability", "known", "label_logit"])]
    for split, (images, answers) in answered.items():
        for number, (label, guess) in enumerate(zip(images.labels, answers.predicted, strict=True)):
            probability, logit = answers.probability[number, guess], answers.logit[number, label]
            names = images.classes[label], images.classes[guess]
            known = "true" if answers.known is None or answers.known[number] else "false"
            lines.append(csv_line([images.name(number), split, *names, f"{probability:.6f}", known, f"{logit:.6g}"]))
    write_text(path, "".join(lines))


def write_mistakes(path: Path, answered: Answered, title: str) -> None:
    """A sheet of the worst mistakes; none where all answers are right."""
    if shown := mistakes.worst(answered):
        total = sum(int((answers.predicted != images.labels).sum()) for images, answers in answered.values())
        save(mistakes.sheet(shown, total, title), path)

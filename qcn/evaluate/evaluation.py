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
from qcn.direction import Directions
from qcn.errors import UsageError, unknown_name
from qcn.evaluate import mistakes
from qcn.evaluate.directions import DirectionResult, measure_directions
from qcn.evaluate.networks import Network, open_network
from qcn.evaluate.rates import Answers, Result, measure_answers
from qcn.evaluate.request import TOP, Request
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


def evaluate_model(model: str | Path, request: Request) -> Evaluated:
    """The same as `evaluate`, in one call for the shell and for Python: of a run, a bundle or a shipped network."""
    folder = place(str(model))
    out = request.out or Path("runs/evaluate") / _results_folder(folder, request)
    results = evaluate(
        folder,
        request.dataset,
        request.data_dir,
        out,
        which=request.checkpoint,
        split=request.split,
        device=request.device,
        kernels=request.kernels,
        backend=request.backend,
        public_key=request.public_key,
        top=request.top,
        unknown=request.unknown,
    )
    files = sorted(path for path in out.glob("*") if path.is_file())
    if (folder / FILE).is_file() and request.dataset is None and request.split is None:
        files.append(folder / FILE)
    return Evaluated(folder, results, files)


def _results_folder(model: Path, request: Request) -> Path:
    """One per run, checkpoint, bundle, backend and data set, and one inside it per split: none overwrites another."""
    backend = request.backend
    ran_by = "" if (model / RUN).is_file() else "bundle" if backend == "auto" else backend
    checkpoint = "" if request.checkpoint == "best" else request.checkpoint
    data = dataset_name(request.dataset) if request.dataset else ""
    names = (Path(os.path.realpath(model)).name, ran_by, checkpoint, data)
    return Path("-".join(filter(None, names)), request.split or "")


def evaluate(
    model: str | Path,
    dataset: str | None,
    data_dir: Path,
    out: Path,
    *,
    which: str = "best",
    split: str | None = None,
    device: str = "auto",
    kernels: str = "auto",
    backend: str = "auto",
    public_key: Path | None = None,
    top: int = TOP,
    unknown: Sequence[str] = (),
) -> list[Result]:
    """Measure a run or a bundle on the test splits of a data set (its own, if none is named); write files to `out`.

    A run that is measured on all of its own test splits keeps the result (`qcn.storage.measured`), for its bundles.

    `which`, `device` and `kernels` are for a run, which torch runs; `backend` and `public_key` for a bundle. `top` is
    the k of the top-k error. `unknown` names folders or data sets of other things, which the network should not know.
    """
    doing(f"loading {Path(model).name}")
    network = open_network(model, which=which, device=device, kernels=kernels, backend=backend, public_key=public_key)
    outcome = network.dataset(dataset)
    if unknown and network.known is None:
        raise UsageError(NO_THRESHOLD)
    with alone_in(out), shown():
        answered = answer_splits(network, outcome, data_dir, split)
        others = measure_unknown(network, unknown, data_dir, {name: given[1] for name, given in answered.items()})
        doing("writing results")
        results = [
            replace(
                measure_answers(name, *given, top),
                unknown=others[name],
                direction=_directions(*given, network.direction),
            )
            for name, given in answered.items()
        ]
        facts = {
            **network.facts(),
            "dataset": outcome.name,
            "backend": network.backend,
            "temperature": network.temperature,
            "known": None if network.known is None else asdict(network.known),
            "direction": None if network.direction is None else asdict(network.direction),
        }
        write_results(out, results, facts, network.classes)
        write_predictions(out / "predictions.csv", answered)
        write_mistakes(out / "mistakes.png", answered, f"The worst mistakes of {Path(model).name} on {outcome.name}")
    if dataset is None and split is None:
        network.remember(Measured.today(outcome.name, [split_error(result) for result in results]))
    return results


def _directions(images: ImageSet, answers: Answers, directions: Directions | None) -> DirectionResult | None:
    if directions is None or answers.pose is None:
        return None
    return measure_directions(images, answers.predicted, answers.pose, directions)


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


def split_error(result: Result) -> SplitError:
    """What is kept of a split in a run and its bundles."""
    if result.calibration_error is None:
        raise ValueError(f"the calibration error on {result.split} was not measured")
    return SplitError(result.split, result.overall.total, result.overall.wrong, result.calibration_error)


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
    if roses := {r.split: _medians(r.direction) for r in results if r.direction}:
        plots.direction_by_azimuth(out / ROSE, roses)


def _medians(result: DirectionResult) -> dict[int, float]:
    return {azimuth: errors.median for azimuth, errors in result.by_azimuth.items()}


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

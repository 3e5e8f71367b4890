"""Put a trained network into models/, as a bundle with its card, so that it ships with the product.

    python tools/ship_model.py RUN NAME --data-dir DATA     # NAME is DATASET-MODEL: fashion-mnist-qcn
    python tools/ship_model.py RUN NAME --calibrated BUNDLE # `qcn calibrate` made it of RUN, which is too large
    python tools/ship_model.py --bundles --data-dir DATA    # after a change to the form of bundles
    python tools/ship_model.py --bundles --keep-golden      # after a change to a run.json or to manifests, in seconds
    python tools/ship_model.py --refit --data-dir DATA      # fit and measure again, or --refit NAME …
    python tools/ship_model.py --cards                      # after a change to the form of cards, or to a preset

The run goes to models/runs/NAME, and models/NAME is the bundle of it. So that a wheel stays small, the bundle's golden
answers are to few images, and without those of inner layers. The weights are those that were chosen on the validation
split. Their temperature, the threshold of unknown pictures and the spreads of directions are fitted on that split, and
each test split is measured once, all in float32. docs/models.md is written again from all cards. The machine that
trained is read from RUN/machine.json, or from benchmarks/results/accuracy-*.json by the sha256 of the weights.

A network on a pretrained backbone ships as it was calibrated, without its run: a quarter of the bytes.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import comparison  # noqa: E402
from accuracy import settings_of_run, sweeps, trial_of  # noqa: E402
from cards import Card, CardData, Seeds, load_card, text  # noqa: E402
from measurements import stamp  # noqa: E402

from qcn.data import registry  # noqa: E402
from qcn.data.directions import true_directions  # noqa: E402
from qcn.data.imageset import ImageSet  # noqa: E402
from qcn.errors import UsageError  # noqa: E402
from qcn.evaluate.directions import measure_directions as angles_of  # noqa: E402
from qcn.evaluate.networks import open_network  # noqa: E402
from qcn.export.bundle import WEIGHTS, Bundle  # noqa: E402
from qcn.export.bundle.golden import Golden  # noqa: E402
from qcn.export.bundle.golden import read as read_golden  # noqa: E402
from qcn.export.bundle.manifest import GOLDEN, MANIFEST_SHA256, manifest_of, tools  # noqa: E402
from qcn.export.calibrated import write_plan  # noqa: E402
from qcn.export.pipeline import FROM_RUN  # noqa: E402
from qcn.export.program.lower import lower  # noqa: E402
from qcn.export.program.reference import SHIPPED_REAL, answers_alone, make_golden  # noqa: E402
from qcn.intervals import ErrorRate  # noqa: E402
from qcn.names import CARD, CARD_TEXT, MANIFEST  # noqa: E402
from qcn.networks.devices import pick_device  # noqa: E402
from qcn.networks.shipped import RUNS, SHIPPED, networks  # noqa: E402
from qcn.networks.zoo import parameter_count  # noqa: E402
from qcn.settings import settings_of  # noqa: E402
from qcn.storage.files import file_sha256, write_text  # noqa: E402
from qcn.train.checkpoint import load_network  # noqa: E402
from qcn.train.record import Run, load_run  # noqa: E402
from qcn.train.settings import RunSettings, Settings, for_images, settings_from  # noqa: E402
from qcn.train.validation import fitted_directions, measure_confidence, outputs  # noqa: E402

LARGEST = 1_000_000  # bytes of a weights' file
PACKED = 1_300_000  # bytes of a bundle in a wheel, compressed: a rotation is a matrix in it, nine numbers for four
PACKED_CALIBRATED = 5_000_000  # the same on a pretrained backbone, calibrated
KNOWS = "A picture of something else may be called known, and then gets one of these classes: see the share below."
LIMITS = {
    "mnist": ("One digit per picture, white on black and centred, as in MNIST. Invert dark digits on paper first.",),
    "fashion-mnist": (
        "One garment per picture, light on black, upright and centred, not worn by a person, as in Fashion-MNIST.",
    ),
    "cifar10": ("Pictures are reduced to 32×32 pixels: it sees no detail.",),
    "viewpoints-azimuth-pooled": (
        "Rendered toys, not photographs, in stereo pairs, which `qcn predict` cannot make from one picture.",
        "It knows the 50 toys that it was trained on. For new toys, train on `viewpoints-azimuth`.",
    ),
    "scanned-128": (
        "Renderings of 50 scanned household objects, not photographs: it knows these objects, and no others.",
        "Which side of an object is its front was judged by eye.",
    ),
    "viewpoints": (
        "Rendered toys, not photographs, in stereo pairs, which `qcn predict` cannot make from one picture.",
    ),
}


def recipe(run: Run) -> str:
    """The commands that train like this, one per line: its teachers first."""
    plan = f" --quantise {run.quantised.plan}" if run.quantised else ""
    images = run.data.train
    lines = teaching(run.settings.teachers, run.settings.dataset, images)
    return "\n".join([*lines, command(run.settings, images) + plan])


def teaching(names: tuple[str, ...], dataset: str, images: int) -> list[str]:
    """The commands that train these teachers, and theirs before them, by their trials in benchmarks/accuracy."""
    lines = list[str]()
    for name in names:
        sweep = sweeps()[dataset]
        trials = {trial.name: trial for trial in sweep.trials}
        trial = trials[trial_of(Path(name))]
        theirs = tuple(name.replace(trial.name, teacher) for teacher in trial.teachers)
        settings = settings_from("best", **sweep.settings(trial, trial.seeds[0]) | {"teachers": theirs})
        lines += [*teaching(theirs, dataset, images), f"{command(for_images(settings, images), images)} --out {name}"]
    return list(dict.fromkeys(lines))


def command(settings: RunSettings, images: int) -> str:
    """The command of one run with so many images: what differs from the preset, as options."""
    start = for_images(settings_from(settings.preset, dataset=settings.dataset, model="qcn"), images)
    known = settings_of(Settings)
    words = ["qcn train", f"--dataset {settings.dataset}"]
    words += [f"--set preset={settings.preset}"] if settings.preset != "best" else []
    for name, value in asdict(settings).items():
        if value == getattr(start, name):
            continue
        values = value if isinstance(value, tuple) else (value,)
        option = f"--set {name}=" if known[name].rare else f"{known[name].option} "
        if "/" in option:  # such as --freeze/--unfreeze
            words.append(option.split("/")[not value].strip())
            continue
        words += [option.rstrip(" =") if one is True else f"{option}{one}" for one in values]
    return " ".join(words)


def on_record(**wanted: Any) -> list[dict[str, Any]]:
    """The rows of benchmarks/results/accuracy-*.json that have these values."""
    files = sorted((ROOT / "benchmarks" / "results").glob("accuracy-*.json"))
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    rows = [{"date": record["date"], **row} for record in records for row in record["results"]]
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def seeds(run: Run) -> Seeds | None:
    """The spread over the runs on record that differ from this one in nothing but the seed."""
    ours = comparison.recipe(settings_of_run(json.loads(json.dumps(asdict(run.settings)))))
    rows = [row for row in on_record() if comparison.recipe(row) == ours]
    errors = [error / 100 for error in comparison.by_seed(rows).values()]
    if len(errors) < 2:
        return None
    split = "novel" if "novel" in rows[0]["splits"] else "test"
    (shipped,) = (row for row in rows if run.best and row["weights_sha256"] == run.best.sha256)
    better = sum(row["validation_error"] < shipped["validation_error"] for row in rows)
    return Seeds(split, len(errors), statistics.mean(errors), statistics.stdev(errors), better)


def trained(folder: Path, sha256: str) -> str:
    """When and where: from the run's folder, or from what is on record."""
    result = folder / "machine.json"
    rows = on_record(weights_sha256=sha256)
    if result.is_file():
        machine = json.loads(result.read_text(encoding="utf-8"))
    elif rows:
        machine = {"date": rows[0]["date"], **rows[0]["machine"]}
    else:
        raise UsageError(f"{folder} has no machine.json, and no accuracy-*.json has its weights: write the file first")
    gpu = (machine["gpu"] or "CPU").partition(",")[0]
    return f"{machine.get('date', 'date unknown')}, {gpu}, torch {machine['torch']}, commit {machine['commit'][:7]}"


def circumstances(precision: str = "float32") -> str:
    """When, where and by which versions errors are counted."""
    now = stamp()
    versions = ", ".join(f"{package} {version}" for package, version in now["versions"].items())
    return f"{now['date']}, {now['machine']}, {versions}, {precision}"


def fitted(network: nn.Module, run: Run, validation: ImageSet, device: torch.device) -> Run:
    """The run with what is fitted on validation images."""
    answers = outputs(network, validation, run.preprocessing, device)
    confidence, known = measure_confidence(network, answers, validation, run.preprocessing, device, run.settings.keep)
    directions = run.direction
    if directions and (truth := true_directions(validation, directions.elevation)):
        directions = fitted_directions(answers, validation, truth)
    return replace(run, confidence=confidence, known=known, direction=directions)


Answers = Callable[[ImageSet], tuple[NDArray[np.int64], NDArray[np.floating] | None]]  # predicted classes, and poses


def answers_of(network: nn.Module, run: Run, device: torch.device) -> Answers:
    """Those of the trained network."""

    def answers(images: ImageSet) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
        result = outputs(network, images, run.preprocessing, device)
        return result.logit.argmax(1), result.pose

    return answers


def answers_of_bundle(folder: Path) -> Answers:
    """Those of a calibrated bundle, by libqcn."""

    def answers(images: ImageSet) -> tuple[NDArray[np.int64], NDArray[np.floating] | None]:
        result = open_network(folder, backend="native").answers(images, lambda done: None)
        return result.predicted, result.pose

    return answers


def results_of(name: str, answers: Answers, run: Run, tests: dict[str, ImageSet]) -> dict[str, Any]:
    """The part of a card on test splits, and on values fitted on validation images."""
    errors, directions = {}, {}
    for split, images in tests.items():
        predicted, pose = answers(images)
        errors[split] = ErrorRate.of(int((predicted != images.labels).sum()), len(images))
        print(f"{name}: {split} {100 * errors[split].error:.2f} %", flush=True)
        if run.direction and pose is not None and (result := angles_of(images, predicted, pose, run.direction)):
            directions[split] = result.overall
            print(f"{name}: {split} {result.overall}", flush=True)
    assert run.confidence
    of_validation = {"temperature": run.confidence.temperature, "calibration_error": run.confidence.error}
    return {"errors": errors, "directions": directions, "known": run.known, **of_validation}


def ship(folder: Path, name: str, data_dir: Path, device: str, calibrated: Path | None) -> Card:
    """models/runs/NAME of the run in `folder`: weights and run.json; and models/NAME: bundle and card.

    Or models/NAME alone, with what the bundle `calibrated` computes.
    """
    torch.backends.cudnn.allow_tf32 = False  # so that every machine counts the same errors
    network, run = load_network(folder)
    # Where the teachers lay on the machine that trained is nobody's business; their names say which rows they are.
    teachers = tuple(Path(teacher).name for teacher in run.settings.teachers)
    run = replace(run, settings=replace(run.settings, teachers=teachers))
    best = run.best
    if best is None:
        raise UsageError(f"{folder} has no weights that were chosen on validation yet")
    if (size := (folder / best.file).stat().st_size) > LARGEST and not calibrated:
        raise UsageError(
            f"{folder / best.file} has {size:,} bytes; what ships has at most {LARGEST:,}: calibrate it, and give "
            f"the bundle by --calibrated"
        )
    dataset, chosen = registry.find(run.settings.dataset), pick_device(device)
    splits = registry.read(dataset, data_dir)
    network.to(chosen)
    run = fitted(network, run, splits.validation, chosen)
    answers, lines = answers_of(network, run, chosen), recipe(run)
    if calibrated:
        lines += "\n" + write_calibrated_bundle(SHIPPED / name, folder, network.cpu(), run, calibrated, data_dir)
        answers = answers_of_bundle(SHIPPED / name)
    epoch = next(row for row in run.history if row.epoch == best.epoch)
    card = Card(
        name=name,
        model=run.model.name,
        parameters=parameter_count(network),
        classes=run.classes,
        image=run.data.image,
        data=CardData(
            dataset.name, dataset.summary, dataset.terms, run.data.train, run.data.validation, run.data.sha256
        ),
        recipe=lines,
        seed=run.settings.seed,
        epoch=best.epoch,
        trained=trained(folder, best.sha256),
        measured=circumstances("calibrated, by libqcn") if calibrated else circumstances(),
        validation_error=epoch.validation_error,
        **results_of(name, answers, run, splits.tests),
        seeds=seeds(run),
        limits=(*LIMITS.get(dataset.name, ()), KNOWS),
        weights="" if calibrated else best.file,
        bytes=size,
        sha256=best.sha256,
    )
    if calibrated:
        write_card(SHIPPED / name, card)
        return card
    target = RUNS / name
    target.mkdir(exist_ok=True, parents=True)
    if folder.resolve() != target.resolve():
        shutil.copyfile(folder / best.file, target / best.file)
    replace(run, last=None, state=None).write(target)
    for path in target.glob("weights-*.safetensors"):
        if path.name != best.file:
            path.unlink()
    write_bundle(SHIPPED / name, data_dir)
    write_card(SHIPPED / name, card)
    return card


def write_bundle(folder: Path, data_dir: Path, keep_golden: bool = False) -> None:
    """models/NAME anew, of the run in models/runs/NAME; the card in it stays."""
    source = RUNS / folder.name
    network, run = load_network(source)
    kept = read_golden((folder / GOLDEN).read_bytes()) if keep_golden else None
    with tempfile.TemporaryDirectory(dir=SHIPPED) as aside:
        place(float_bundle(Path(aside) / folder.name, source, network, run, data_dir, kept), folder, PACKED)


def float_bundle(
    out: Path, source: Path, network: nn.Module, run: Run, data_dir: Path, kept: Golden | None = None
) -> Bundle:
    """The bundle of a run, with golden answers to few images, or those that are `kept`."""
    program = lower(network, *run.preprocessing.output_size(*run.data.image[1:]))
    made_by = tools("torch", "numpy", "safetensors")
    manifest = manifest_of(run, source, "best", program, f"{run.data.name}-{run.model.name}", made_by)
    golden = kept or answers_alone(make_golden(network, run, data_dir, count=SHIPPED_REAL))
    return Bundle.create(out, manifest, program, lambda: golden, FROM_RUN.replace("RUN", out.name))


def write_calibrated_bundle(
    folder: Path, source: Path, network: nn.Module, run: Run, calibrated: Path, data_dir: Path
) -> str:
    """models/NAME with the plan of a calibrated bundle of the run; returns the command that calibrates."""
    of = Bundle.open(calibrated)
    if of.manifest.source.sha256 != (run.best and run.best.sha256):
        raise UsageError(f"{calibrated} was not made of the best weights of {source}")
    entry = of.find(WEIGHTS)
    assert entry.rebuild
    with tempfile.TemporaryDirectory(dir=SHIPPED) as aside:
        base = float_bundle(Path(aside) / "float32", source, network, run, data_dir)
        made = write_plan(base, of.program(), Path(aside) / folder.name, entry.facts["calibration"], entry.rebuild)
        place(made, folder, PACKED_CALIBRATED)
    return entry.rebuild.replace(" --out {bundle}", "").replace(" MODEL ", " RUN ")


def place(made: Bundle, folder: Path, most: int) -> None:
    """Move the files of a bundle to models/NAME; refused if they are too large for a wheel."""
    folder.mkdir(exist_ok=True)
    for name in (MANIFEST, MANIFEST_SHA256, *(artefact.file for artefact in made.manifest.files)):
        (made.folder / name).replace(folder / name)
    packed = sum(len(zlib.compress(path.read_bytes(), 9)) for path in folder.iterdir())
    print(f"{folder.name}: {packed:,} bytes, compressed", flush=True)
    if packed > most:
        raise UsageError(f"{folder} has {packed:,} bytes, compressed; what ships has at most {most:,}")


def write_card(folder: Path, card: Card) -> None:
    write_text(folder / CARD, json.dumps(asdict(card), indent=1, ensure_ascii=False) + "\n")
    write_text(folder / CARD_TEXT, text(card))


def refit(folder: Path, data_dir: Path, device: str) -> None:
    """Fit on validation images again, and measure again, after a change to how either is done."""
    network, run = load_network(RUNS / folder.name)
    splits, chosen = registry.read(run.dataset(), data_dir), pick_device(device)
    network.to(chosen)
    run = fitted(network, run, splits.validation, chosen)
    print(f"{folder.name}: {run.confidence}, {run.known}, {run.direction}", flush=True)
    run.write(RUNS / folder.name)
    results = results_of(folder.name, answers_of(network, run, chosen), run, splits.tests)
    write_card(folder, replace(load_card(folder), **results, measured=circumstances()))


def refresh(folder: Path) -> None:
    """The card again, from what was measured before."""
    card = load_card(folder)
    if not card.weights:  # without a run there is nothing to read again
        write_card(folder, replace(card, limits=(*LIMITS.get(card.data.name, ()), KNOWS)))
        return
    run, weights = load_run(RUNS / folder.name), RUNS / folder.name / card.weights
    if file_sha256(weights) != card.sha256:
        raise UsageError(f"{weights} is not what its card describes: ship it again")
    dataset = registry.find(run.settings.dataset)
    about = replace(card.data, summary=dataset.summary, terms=dataset.terms)
    limits = (*LIMITS.get(dataset.name, ()), KNOWS)
    write_card(folder, replace(card, recipe=recipe(run), data=about, seeds=seeds(run), limits=limits))


def with_runs() -> list[str]:
    """The networks whose runs ship too."""
    return [name for name, folder in networks().items() if load_card(folder).weights]


def page() -> str:
    """docs/models.md."""
    rows, terms = [], {}
    for folder in networks().values():
        card = load_card(folder)
        error = " / ".join(
            f"{100 * rate.error:.2f} ({100 * rate.low:.2f} to {100 * rate.high:.2f})" for rate in card.errors.values()
        )
        which = " / ".join(card.errors)
        terms[card.data.name.partition("-azimuth")[0]] = card.data.terms
        size = sum(artefact.bytes for artefact in Bundle.open(folder).manifest.files)
        rows.append(
            f"| [`{card.name}`](../models/{card.name}/card.md) | {which} | {error} "
            f"| {card.parameters:,} | {size / 1e6:.2f} MB |"
        )
    table, of_data = "\n".join(rows), "\n".join(f"| `{name}` | {text} |" for name, text in terms.items())
    return f"""# Trained networks

    qcn models                                         # the networks that come with the product
    qcn models cifar10-qcn-deep                        # a card: data and terms, training, errors, limits
    qcn predict photo.png                              # by cifar10-qcn-deep, without torch
    qcn predict photo.png --model fashion-mnist        # in Python: qcn.load("fashion-mnist").predict("photo.png")

`python tools/ship_model.py` writes this page from the cards in `models/`.

| name: DATASET-MODEL | split | error, % (95 % interval) | parameters | size |
|---|---|--:|--:|--:|
{table}

| data | terms |
|---|---|
{of_data}

## Names

Every command that takes a bundle or a training run takes such a name; `-qcn` may be left out. A run or bundle in the
working folder takes precedence. `evaluate` needs the data set (`qcn datasets fetch`).

- `predict`, `evaluate`, `explain`, `verify-parity`, `benchmark` and `qcn.load` take the bundle, `models/NAME`.
- `export`, `calibrate`, `train --init`, `verify-parity --run` and `evaluate --device cuda` need torch and the training
  run, `models/runs/NAME`, which a wheel does not have. `scanned-128` ships calibrated, without its run.

The [golden answers](bundle.md#goldensafetensors) are to four images and six edge cases, without inner layers:
`verify-parity` checks every backend, but cannot say in which layer a fault is. The runs cannot be resumed.

## Adding one

    qcn train --dataset fashion-mnist --epochs 60 --out RUN
    python tools/ship_model.py RUN fashion-mnist-qcn

The script copies the weights that were chosen on the validation split (at most 1 MB) to `models/runs/`, fits
temperature and threshold on that split, measures each test split once, makes the bundle, and writes `card.json`,
`card.md` and this page. Of several runs, ship the one with the least validation error. Where the run was trained is
read from `RUN/machine.json`, or from `benchmarks/results/accuracy-*.json`. `tests/test_models.py` checks every card
against its network.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--calibrated", type=Path, metavar="BUNDLE", help="ship what this bundle of the run computes")
    parser.add_argument("--cards", action="store_true", help="write every card again from what was measured")
    parser.add_argument("--bundles", action="store_true", help="make every bundle again from its run")
    parser.add_argument("--keep-golden", action="store_true", help="with --bundles: all but their golden answers")
    parser.add_argument("--refit", nargs="*", metavar="NAME", help="fit and measure again, of these networks or of all")
    arguments = parser.parse_args()
    if arguments.refit is not None:
        torch.backends.cudnn.allow_tf32 = False
        for name in arguments.refit or with_runs():
            refit(networks()[name], arguments.data_dir, arguments.device)
            write_bundle(networks()[name], arguments.data_dir)
            refresh(networks()[name])
    elif arguments.cards or arguments.bundles:
        for folder in networks().values():
            if arguments.bundles and folder.name in with_runs():
                write_bundle(folder, arguments.data_dir, arguments.keep_golden)
            refresh(folder)
    elif arguments.run and arguments.name:
        card = ship(arguments.run, arguments.name, arguments.data_dir, arguments.device, arguments.calibrated)
        print(text(card))
    else:
        parser.error("name a run and what to call it, or give --refit, --cards or --bundles")
    write_text(ROOT / "docs" / "models.md", page())


if __name__ == "__main__":
    main()

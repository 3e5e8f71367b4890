"""The networks that ship in models/: whole, as their cards say, found by short names, and fit to be exported."""

import os
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from command import call
from numpy.typing import NDArray
from PIL import Image
from typer.main import get_command

from qcn.cli import app
from qcn.data import registry
from qcn.data.imageset import ImageSet
from qcn.errors import UsageError
from qcn.evaluate.networks import open_network
from qcn.export.bundle import GOLDEN, Bundle, golden
from qcn.export.program.lower import lower
from qcn.intervals import ErrorRate
from qcn.networks.shipped import RUNS, SHIPPED, bundle_of, networks, place, run_of
from qcn.networks.zoo import parameter_count
from qcn.train.checkpoint import load_network
from qcn.train.record import load_run
from qcn.train.settings import RunSettings, for_images, settings_from
from qcn.train.validation import measure_confidence, outputs

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

from cards import load_card, text  # noqa: E402

DATA = Path(os.environ.get("QCN_DATA", ROOT / "data"))
WITH_RUNS = [folder for folder in networks().values() if load_card(folder).weights]
CALIBRATED = [folder for folder in networks().values() if folder not in WITH_RUNS]
FILES = {"card.json", "card.md", "golden.safetensors", "manifest.json", "manifest.sha256", "weights.safetensors"}
each_network = pytest.mark.parametrize("folder", WITH_RUNS, ids=lambda folder: folder.name)
each_calibrated = pytest.mark.parametrize("folder", CALIBRATED, ids=lambda folder: folder.name)


def check_files(folder: Path, most: int) -> None:
    """Whole, small enough for a wheel, and nothing else in the folder."""
    bundle, card = Bundle.open(folder), load_card(folder)
    assert (folder / "card.md").read_text(encoding="utf-8") == text(card)
    assert [finding.state for finding in bundle.check()] == ["intact", "intact"]
    assert {path.name for path in folder.iterdir()} == FILES, "python tools/ship_model.py --bundles"
    assert sum(len(zlib.compress(path.read_bytes(), 9)) for path in folder.iterdir()) < most
    labels = bundle.golden().label
    assert (labels >= 0).sum() == 4 and len(labels) == 10
    manifest = bundle.manifest
    assert (manifest.name, manifest.classes, manifest.image) == (card.name, card.classes, card.image)
    assert (manifest.source.sha256, manifest.source.checkpoint) == (card.sha256, "best")


@each_network
def test_a_bundle_is_of_its_run_whole_and_small_and_its_card_describes_it(folder: Path) -> None:
    bundle, card = Bundle.open(folder), load_card(folder)
    network, run = load_network(RUNS / folder.name)  # which checks the hash
    assert run.best is not None and run.confidence is not None
    assert (card.name, card.model) == (folder.name, run.model.name)
    assert (card.weights, card.sha256, card.epoch) == (run.best.file, run.best.sha256, run.best.epoch)
    assert card.bytes == (RUNS / folder.name / card.weights).stat().st_size < 1_000_000
    assert card.parameters == parameter_count(network)
    assert (card.classes, card.image) == (run.classes, run.data.image)
    assert (card.data.name, card.data.sha256) == (run.data.name, run.data.sha256)
    assert (card.temperature, card.calibration_error) == (run.confidence.temperature, run.confidence.error)
    assert card.known == run.known is not None and card.limits
    check_files(folder, 1_300_000)
    manifest = bundle.manifest
    assert (manifest.confidence, manifest.known) == (run.confidence, run.known), "ship_model.py --bundles --keep-golden"
    assert manifest.preprocessing == run.preprocessing
    program, shipped = lower(network, *run.preprocessing.output_size(*run.data.image[1:])), bundle.program()
    assert shipped.operations == program.operations and shipped.arrays.keys() == program.arrays.keys()
    for name, array in program.arrays.items():
        assert np.allclose(shipped.arrays[name], array, rtol=1e-5, atol=1e-6), name


@each_calibrated
def test_a_calibrated_network_ships_without_its_run_and_says_so(folder: Path) -> None:
    check_files(folder, 5_000_000)
    assert Bundle.open(folder).program().calibrated and not (RUNS / folder.name).exists()
    card = load_card(folder)
    train, calibrate = card.recipe.splitlines()
    trained = settings_of(train, card.data.train)
    assert (trained.dataset, trained.model) == (card.data.name, card.model) and not trained.freeze
    assert calibrate.startswith("qcn calibrate RUN ")
    failed = call("export", folder.name)
    assert failed.returncode == 3 and f"too large to ship; `qcn models {folder.name}` shows" in failed.stderr


def settings_of(command: str, images: int) -> RunSettings:
    """What a `qcn train` command trains with on so many images."""
    words = shlex.split(command)
    assert words[:2] == ["qcn", "train"]
    parameters = get_command(app).commands["train"].make_context("train", words[2:]).params  # type: ignore[attr-defined]
    others = ("out", "resume", "data_dir", "device", "quantise", "tracker", "rare")
    chosen = {name: value for name, value in parameters.items() if name not in others}
    chosen |= {name: value or "true" for name, _, value in (one.partition("=") for one in parameters["rare"] or ())}
    chosen |= {"model": parameters["model"] or "qcn", "teachers": tuple(parameters["teachers"] or ())}
    return for_images(settings_from(chosen.pop("preset", "best"), **chosen), images)


@each_network
def test_the_recipe_of_a_card_is_what_trained_it(folder: Path) -> None:
    *teachers, own = load_card(folder).recipe.splitlines()
    run = load_run(RUNS / folder.name)
    trained, images = run.settings, run.data.train
    assert settings_of(own, images) == trained, "write the cards again: python tools/ship_model.py --cards"
    assert [shlex.split(teacher)[-1] for teacher in teachers] == list(trained.teachers)
    assert all(settings_of(teacher, images).dataset == trained.dataset for teacher in teachers)


def test_noise_is_unknown_and_digits_are_known() -> None:
    network, images_of_bundle = (
        open_network(RUNS / "mnist-qcn", device="cpu"),
        golden.read((SHIPPED / "mnist-qcn" / GOLDEN).read_bytes()),
    )
    digits = images_of_bundle.image[images_of_bundle.label >= 0]
    noise = np.random.default_rng(0).integers(0, 256, (32, *digits.shape[1:]), np.uint8)

    def share_known(images: NDArray[np.uint8]) -> float:
        labels = np.zeros(len(images), np.int64)
        known = network.answers(ImageSet(images, labels, network.classes), lambda done: None).known
        assert known is not None
        return float(known.mean())

    assert share_known(digits) >= 0.75 and share_known(noise) < 0.1


def test_a_network_is_exported_also_where_its_data_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QCN_DATA", raising=False)
    done = call("export", "cifar10-cnn-small", "--format", "native")
    assert done.returncode == 0, done.stderr
    assert "cifar10 is not in data: the golden images are rendered toys instead" in done.stdout + done.stderr
    answers = golden.read((tmp_path / "runs" / "export" / "cifar10-cnn-small" / GOLDEN).read_bytes())
    pictures = [image for row, image in zip(answers.rows, answers.image, strict=True) if row.startswith("toy")]
    assert len(pictures) == len({image.tobytes() for image in pictures}) == 16
    assert (answers.label == -1).all()
    shutil.copytree(RUNS / "cifar10-cnn-small", "mine")  # a run of one's own has its data somewhere
    done = call("export", "mine", "--format", "native")
    assert done.returncode == 3 and "qcn datasets fetch cifar10" in done.stderr


@pytest.mark.slow
@each_network
def test_a_network_errs_exactly_as_often_as_its_card_says(folder: Path) -> None:
    card = load_card(folder)
    dataset = registry.find(card.data.name)
    if not (DATA / dataset.folder).is_dir():
        pytest.skip(
            f"{dataset.name} is not in {DATA}: qcn datasets fetch {dataset.name}, or name its folder in QCN_DATA"
        )
    splits = registry.read(dataset, DATA)
    network, run = load_network(RUNS / folder.name)
    for split, images in splits.tests.items():
        predicted = outputs(network, images, run.preprocessing, torch.device("cpu")).logit.argmax(1)
        assert ErrorRate.of(int((predicted != images.labels).sum()), len(images)) == card.errors[split]
    of_validation = splits.validation, run.preprocessing, torch.device("cpu")
    confidence, known = measure_confidence(network, outputs(network, *of_validation), *of_validation)
    assert confidence.temperature == pytest.approx(card.temperature, rel=1e-2)
    assert known and card.known and known.score == card.known.score
    assert known.threshold == pytest.approx(card.known.threshold, rel=1e-2)


def test_the_page_of_networks_is_made_of_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import ship_model

    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8") == ship_model.page()
    sys.modules.pop("ship_model")


def test_names_may_leave_out_qcn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place("fashion-mnist") == place("fashion-mnist-qcn") == SHIPPED / "fashion-mnist-qcn"
    (tmp_path / "mnist").mkdir()  # as `qcn datasets fetch` leaves it
    assert place("mnist") == SHIPPED / "mnist-qcn"
    (tmp_path / "mnist" / "run.json").write_text("{}")
    assert place("mnist") == Path("mnist")  # a run that is there goes first
    with pytest.raises(UsageError, match="did you mean 'cifar10'"):
        place("cifar")
    with pytest.raises(UsageError, match="did you mean 'cifar10'"):
        bundle_of("cifar")


def test_a_bundle_to_run_and_a_run_to_train_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = SHIPPED / "fashion-mnist-qcn"
    assert bundle_of("fashion-mnist") == place("fashion-mnist") == bundle
    assert run_of("fashion-mnist") == run_of(str(bundle)) == RUNS / "fashion-mnist-qcn"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text("{}")
    assert run_of("mine") == place("mine") == bundle_of("mine") == Path("mine")
    monkeypatch.setattr("qcn.networks.shipped.RUNS", tmp_path / "none")  # as in a wheel
    for words in (("export", "mnist"), ("train", "--dataset", "mnist", "--init", "mnist"), ("calibrate", "mnist")):
        failed = call(*words)
        assert failed.returncode == 3 and "a clone of the repository has it, in models/runs/mnist-qcn" in failed.stderr


def test_they_answer_without_torch_and_by_default(tmp_path: Path) -> None:
    """In Python and in the shell; nothing is written beside them, as where the package is not the user's."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)).save(tmp_path / "a.png")
    before = sorted(SHIPPED.rglob("*"))
    code = """
import sys, qcn
sys.modules["torch"] = None  # as if it were not installed
answer = qcn.load("cifar10").predict("a.png")
assert answer.label in qcn.load("cifar10").classes and 0 < answer.probability <= 1
from qcn.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", "a.png"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 picture in" in done.stdout and "by cifar10-qcn-deep on " in done.stdout
    assert sorted(SHIPPED.rglob("*")) == before


@pytest.mark.slow
def test_they_are_checked_and_timed_by_name(tmp_path: Path) -> None:
    for words, said in (
        (("verify-parity", "mnist", "--backends", "native"), "native"),
        (("verify-parity", "mnist", "--run", "mnist", "--backends", "native"), "passed    run: golden.safetensors"),
        (("doctor", "mnist"), "is intact"),
        (("benchmark", "mnist", "--backends", "native", "--duration", "0.1"), "native"),
    ):
        done = call(*words)
        assert done.returncode == 0 and said in done.stdout, done.stderr
    copy = shutil.copytree(SHIPPED / "mnist-qcn", tmp_path / "mnist")
    (copy / "weights.safetensors").write_bytes(b"")
    done = call("doctor", copy)
    assert done.returncode == 1 and "qcn export mnist-qcn --format native" in done.stdout


def test_explain_takes_names(tmp_path: Path) -> None:
    assert "none.png" in call("explain", "mnist", tmp_path / "none.png", "--save", tmp_path / "p.html").stderr


def test_models_lists_all_and_prints_a_card() -> None:
    listed = call("models").stdout.splitlines()
    for folder in networks().values():
        card = load_card(folder)
        (line,) = [line for line in listed if line.split()[:1] == [card.name]]
        assert (
            " / ".join(f"{100 * rate.error:.2f} %" for rate in card.errors.values()) in line
            and f"{card.parameters:,}" in line
        )
    assert call("models", "mnist").stdout == (SHIPPED / "mnist-qcn" / "card.md").read_text(encoding="utf-8")
    assert "did you mean 'mnist'" in call("models", "minst").stderr

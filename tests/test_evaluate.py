"""Error rates, what evaluation writes, and what it refuses."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import bundle_of
from numpy.typing import NDArray
from pictures import write_pictures
from PIL import Image, ImageDraw, ImageFont
from typer.main import get_command
from typer.testing import CliRunner

from qcn.cli import app
from qcn.data.imageset import ImageSet, Views
from qcn.data.registry import find, load
from qcn.data.spec import Stored
from qcn.errors import CheckFailed, QcnError, UsageError
from qcn.evaluate import mistakes
from qcn.evaluate.evaluation import answer_splits, evaluate, write_mistakes, write_predictions, write_results
from qcn.evaluate.networks import open_network
from qcn.evaluate.rates import Answers, Result, measure_answers
from qcn.evaluate.request import Request
from qcn.export.bundle import Bundle
from qcn.export.pipeline import export, open_source
from qcn.export.program import reference
from qcn.export.request import ExportRequest
from qcn.intervals import ErrorRate, wilson
from qcn.networks.zoo import create
from qcn.train import resume, train
from qcn.train.checkpoint import load_network
from qcn.train.record import SCHEMA, Run, load_run
from qcn.train.settings import PAPER, RunSettings, Settings
from qcn.train.validation import outputs


def test_intervals_are_wilsons_and_hold_their_share() -> None:
    """Rounding must not move an end past the share, as it did at 0 of 270: an error bar would be negative."""
    rate = ErrorRate.of(10, 100)
    assert rate.error == 0.1
    assert (rate.low, rate.high) == pytest.approx((0.0552, 0.1744), abs=1e-4)  # Wilson 1927, by hand
    for total in range(1, 1500):
        for count in {0, total // 2, total}:
            low, high = wilson(count, total)
            assert 0 <= low <= count / total <= high <= 1
        assert wilson(0, total)[0] == 0 and wilson(total, total)[1] == 1


def certain(predicted: NDArray[np.int64], classes: int) -> Answers:
    """Answers that are sure of these classes."""
    return Answers(np.eye(classes, dtype=np.float32)[predicted], np.eye(classes)[predicted])


def test_counts_by_class_and_by_viewpoint() -> None:
    labels = np.array([0, 0, 1, 1, 1, 0])
    azimuth = np.array([0, 20, 0, 20, 20, 20])

    def measured(elevation: NDArray[np.int64]) -> Result:
        views = Views(labels, elevation, azimuth, labels)
        images = ImageSet(np.zeros((6, 1, 4, 4), np.uint8), labels, ("a", "b"), views)
        return measure_answers("novel", images, certain(np.array([0, 1, 1, 1, 0, 0]), 2))

    result = measured(30 + azimuth // 2)
    assert result.confusion == [[2, 1], [1, 2]] and result.overall.error == pytest.approx(1 / 3)
    assert result.by_azimuth is not None and result.by_elevation is not None
    assert {angle: (rate.wrong, rate.total) for angle, rate in result.by_azimuth.items()} == {0: (0, 2), 20: (2, 4)}
    assert {angle: (rate.wrong, rate.total) for angle, rate in result.by_elevation.items()} == {30: (0, 2), 40: (2, 4)}
    assert measured(30 + 0 * azimuth).by_elevation is None  # nothing to compare


def test_viewpoints_are_drawn(tmp_path: Path) -> None:
    labels = np.arange(40) % 5
    views = Views(labels, 30 + 5 * (np.arange(40) % 9), 20 * (np.arange(40) % 18), labels)
    images = ImageSet(np.zeros((40, 1, 4, 4), np.uint8), labels, tuple("abcde"), views)
    answers = certain((labels + (np.arange(40) % 3 == 0)) % 5, 5)
    results = [measure_answers(name, images, answers) for name in ("familiar", "novel")]
    write_results(tmp_path, results, {"dataset": "viewpoints"}, list("abcd三"))  # which the font lacks: no warning
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"evaluation.json", "confusion.png", "error-by-azimuth.png", "error-by-elevation.png"}


def test_what_does_not_fit_is_refused(run: Path, bundle: Bundle, data_dir: Path, tmp_path: Path) -> None:
    for says, model, request in (
        ("is neither a training run", tmp_path, Request()),
        ("did you mean 'validation'", run, Request(split="validatoin")),
        ("is a training run, which runs in torch: leave out --backend", run, Request(backend="native")),
        ("are for training runs", bundle.folder, Request(checkpoint="last")),
        ("are for training runs", bundle.folder, Request(device="cpu")),
        *(
            pair
            for one in (run, bundle.folder)
            for pair in (
                ("the network knows 0, 1", one, Request("viewpoints-demo")),
                ("has 3 channels; the network takes 1", one, Request("svhn")),  # digits too, but in colour
            )
        ),
    ):
        with pytest.raises(UsageError, match=says):
            evaluate(model, replace(request, data_dir=data_dir, out=tmp_path / "out"))
        assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="did you mean 'native'"):
        Request(backend="natvie")


def damaged(run: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir(parents=True)
    for path in run.glob("*.*"):
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_a_damaged_run_is_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    copy = damaged(run, tmp_path)
    record = load_run(copy)
    assert isinstance(record, Run) and record.last is not None
    weights = copy / record.last.file
    good = weights.read_bytes()

    def refused(says: str) -> None:
        with pytest.raises(UsageError, match=says) as caught:
            load_network(copy, "last")
        assert "\n" not in str(caught.value)

    weights.write_bytes(good[:-10] + b"x" * 10)
    refused("was altered")
    weights.write_bytes(good[: len(good) // 2])
    refused("was altered")
    weights.unlink()
    refused("is missing")
    weights.write_bytes(good)
    text = (copy / "run.json").read_text()
    for bad, says in (
        (text[: len(text) // 2], "run.json is not valid JSON"),
        ("[]", "run.json must be an object, not a list"),
        (text.replace(f'"schema": {SCHEMA}', '"schema": 99'), f"schema 99; this version of qcn reads {SCHEMA}"),
        (text.replace('"history"', '"histroy"'), "run.json has an unknown entry 'histroy'"),
        (json.dumps(json.loads(text) | {"history": []}), r"run.json: \d epochs are done, but the history lists 0"),
        (text.replace('"last": {', '"last": {"extra": 1,'), "run.json: last has an unknown entry 'extra'"),
        (text.replace('"last": {', '"last": {"epoch": 1,'), "the key 'epoch' appears twice"),
        (text.replace(record.last.file, f"../{record.last.file}"), "is not the name of a file in the run's folder"),
        (text.replace('"crop"', '"corp"'), "run.json: preprocessing has an unknown entry 'corp'"),
        (text.replace('"qcn-tiny"', '"em"'), "does not describe a network: 'em' cannot be made from"),
        (text.replace('"size": 28', '"size": 5'), "does not describe a network: images of 5×5 are too small"),
        (text.replace('"size": 28', '"size": 64'), "belong to another network: '"),
        (text.replace('"epoch": 1,', '"epoch": "1",', 1), r"must be an integer, not '1'"),
        (text.replace('"lr": 0.01', '"lr": 1e999'), "1e999 is too large a number"),
        (text.replace('"loss": "ce"', '"loss": "mse"'), "settings.loss must be one of 'spread', 'ce', not 'mse'"),
    ):
        (copy / "run.json").write_text(bad)
        refused(says)


def altered(record: Any, place: Any = None) -> Iterator[tuple[str, Any, bool]]:
    """Every way to take out one entry of a nested record, or to put something else in its place.

    With each: whether the change is one of kind, which must be refused.
    """
    place = record if place is None else place
    for key in list(place if isinstance(place, dict) else range(len(place))):
        kept = place[key]
        for wrong in (None, "x", -1, 2.5, [], {}, True):
            place[key] = wrong
            allowed = (type(kept), int) if type(kept) is float else (type(kept),)
            yield f"{key} = {wrong!r}", record, None not in (kept, wrong) and type(wrong) not in allowed
        place[key] = kept
        if isinstance(place, dict):
            del place[key]
            yield f"no {key}", record, True
            place[key] = kept
        if isinstance(kept, dict | list):
            yield from altered(record, kept)


def test_whatever_is_altered_in_a_record_it_is_read_or_refused(run: Path, tmp_path: Path) -> None:
    copy = damaged(run, tmp_path)
    record = json.loads((copy / "run.json").read_text())
    outcomes = {"read": 0, "refused": 0}
    for change, version, wrong_kind in altered(record):
        (copy / "run.json").write_text(json.dumps(version))
        try:
            network, _ = load_network(copy)
            assert network is not None and not wrong_kind, change
            outcomes["read"] += 1
        except UsageError as error:
            assert "\n" not in str(error), change
            outcomes["refused"] += 1
    assert outcomes["read"] > 20 and outcomes["refused"] > 300


@pytest.mark.parametrize("one_in", [24, pytest.param(1, marks=pytest.mark.slow)])
def test_no_altered_record_ends_a_command_in_a_traceback(
    data_dir: Path, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, one_in: int
) -> None:
    """Whatever is read of it, `evaluate`, `export` and `train --resume` end well, or with one line."""
    train(Settings("mnist", "qcn-tiny", epochs=1, batch_size=60), data_dir, tmp_path / "run", "cpu")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    answers = bundle.golden()
    monkeypatch.setattr(reference, "make_golden", lambda *_, **__: answers)  # the slowest part, which reads no record
    native, few = ExportRequest(("native",)), ("= None", "= 'x'", "= -1")
    tried = {"refused": 0, "read": 0}
    for change, version, _ in altered(record):
        if not change.endswith(few):
            continue
        copy = damaged(tmp_path / "run", tmp_path / str(sum(tried.values())))
        (copy / "run.json").write_text(json.dumps(version))
        try:
            load_run(copy)  # what each command begins with
        except UsageError:
            tried["refused"] += 1
            continue
        tried["read"] += 1
        if tried["read"] % one_in:
            continue
        for do in (
            lambda copy=copy: evaluate(
                copy, Request(split="validation", data_dir=data_dir, out=copy / "o", device="cpu")
            ),
            lambda copy=copy: open_source(copy, copy / "bundle", native, data_dir),
            lambda copy=copy: resume(copy, data_dir, "cpu"),
        ):
            try:
                do()
            except QcnError as error:
                assert "\n" not in str(error), change
        shutil.rmtree(copy)
    assert tried["read"] > 20 and tried["refused"] > 100


def answered(labels: np.ndarray, logit: np.ndarray, channels: int = 1) -> tuple[ImageSet, Answers]:
    """Images of shades of grey, and these answers to them; the probabilities are the logits' shares."""
    rows, classes = logit.shape
    pixels = np.zeros((rows, channels, 8, 8), np.uint8) + np.arange(rows, dtype=np.uint8)[:, None, None, None]
    images = ImageSet(pixels, labels, tuple(f"class {index}" for index in range(classes)))
    return images, Answers(logit.astype(np.float32), logit / logit.sum(1, keepdims=True))


def test_classes_and_top_k_are_counted() -> None:
    labels = np.array([0, 0, 0, 1, 1])
    logit = np.array([[0.9, 0.5, 0.1], [0.5, 0.9, 0.1], [0.1, 0.2, 0.9], [0.1, 0.9, 0.8], [0.1, 0.5, 0.6]])
    images, answers = answered(labels, logit)
    result = measure_answers("test", images, answers, 2)
    assert [(one.name, one.taken_for, one.times) for one in result.by_class] == [
        ("class 0", "class 1", 1),
        ("class 1", "class 2", 1),
        ("class 2", None, 0),
    ]
    rates = [one.rate and (one.rate.wrong, one.rate.total) for one in result.by_class]
    assert rates == [(2, 3), (1, 2), None]  # there is no image of the last class
    assert result.top is not None and (result.top.k, result.top.rate.wrong) == (2, 1)
    assert measure_answers("test", images, answers, 3).top is None  # all classes are among the first three
    with pytest.raises(CheckFailed, match="returned NaN"):
        replace(answers, logit=np.full((5, 3), np.nan, np.float32))
    one = measure_answers("test", images, answers, 1).top
    assert one is not None and one.rate == result.overall


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_worst_mistakes_come_first(tmp_path: Path, channels: int) -> None:
    labels, sure = np.zeros(40, np.int64), np.linspace(0.3, 0.9, 40)
    logit = np.stack([1 - sure, sure], axis=1)
    given = {"familiar": answered(labels, logit, channels), "novel": answered(labels, logit[::-1], channels)}
    worst = mistakes.worst(given, 5)
    assert [one.place for one in worst[:2]] == ["familiar 39", "novel 0"]
    assert [one.probability for one in worst] == sorted((one.probability for one in worst), reverse=True)
    assert {(one.label, one.predicted) for one in worst} == {("class 0", "class 1")}
    write_mistakes(tmp_path / "mistakes.png", given, "a network")
    with Image.open(tmp_path / "mistakes.png") as sheet:
        assert sheet.width > 6 * 160 and sheet.height > 4 * 160


def test_pictures_of_a_folder_are_named_by_their_files(tmp_path: Path) -> None:
    images, answers = answered(np.array([0, 1, 0]), np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]))
    named = replace(images, files=("a/1.jpg", "b/deep down in many folders/so that it is cut/2.jpg", "a/3.jpg"))
    assert named[np.array([2, 0])].files == ("a/3.jpg", "a/1.jpg")
    given = {"test": (named, answers)}
    write_predictions(tmp_path / "predictions.csv", given)
    assert [row["image"] for row in table_of(tmp_path)] == list(named.files or ())
    assert [one.place for one in mistakes.worst(given)] == [named.name(1), "a/3.jpg"]
    write_mistakes(tmp_path / "mistakes.png", given, "a network")
    draw, font = ImageDraw.Draw(Image.new("L", (1, 1))), ImageFont.load_default(12)
    assert mistakes._end_of(draw, named.name(1), font, 100).endswith("cut/2.jpg")
    with pytest.raises(UsageError, match="3 images but 1 names of files"):
        replace(images, files=("a/1.jpg",))


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong(tmp_path: Path, right: bool) -> None:
    """A result without mistakes leaves no sheet of them, not even that of an earlier evaluation."""
    labels = np.arange(6) % 3
    logit = np.where(np.arange(3) == (labels if right else (labels + 1) % 3)[:, None], 0.9, 0.1)
    images, answers = answered(labels, logit)
    result = measure_answers("test", images, answers, 2)
    assert result.overall.error == (0 if right else 1)
    (tmp_path / "mistakes.png").write_bytes(b"of an earlier evaluation")
    write_results(tmp_path, [result], {}, images.classes)
    write_mistakes(tmp_path / "mistakes.png", {"test": (images, answers)}, "a network")
    assert (tmp_path / "mistakes.png").exists() is not right
    record = json.loads((tmp_path / "evaluation.json").read_text())
    assert {one["taken_for"] is None for one in record["splits"][0]["by_class"]} == {right}


def table_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))


@pytest.mark.parametrize("backend", ["native", "onnxruntime"])
def test_a_bundle_is_as_often_wrong_as_its_run(
    run: Path, bundle: Bundle, data_dir: Path, tmp_path: Path, backend: str
) -> None:
    if backend == "onnxruntime":
        export(bundle.folder, None, ExportRequest(formats=("onnx",)), data_dir)
    evaluate(run, Request(data_dir=data_dir, out=tmp_path / "run", device="cpu"))
    evaluate(bundle.folder, Request(data_dir=data_dir, out=tmp_path / "bundle", backend=backend))
    ours, theirs = table_of(tmp_path / "run"), table_of(tmp_path / "bundle")
    columns = "image,split,label,predicted,probability,known,label_logit"
    assert len(ours) == len(theirs) == 60 and ",".join(ours[0]) == columns
    for one, other in zip(ours, theirs, strict=True):
        assert (one["image"], one["split"], one["label"]) == (other["image"], other["split"], other["label"])
        assert float(one["label_logit"]) == pytest.approx(float(other["label_logit"]), abs=1e-4)
        assert float(one["probability"]) == pytest.approx(float(other["probability"]), abs=1e-3)
    # Only a tie within rounding may be broken in another way.
    differ = sum(one["predicted"] != other["predicted"] for one, other in zip(ours, theirs, strict=True))
    records = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("run", "bundle")]
    wrong = [record["splits"][0]["overall"]["wrong"] for record in records]
    assert differ <= 2 and abs(wrong[0] - wrong[1]) <= differ
    network, record = load_network(run)
    test = load("mnist", data_dir).tests["test"]
    by_torch = outputs(network, test, record.preprocessing, torch.device("cpu")).logit.argmax(1)
    assert wrong[0] == (by_torch != test.labels).sum() == sum(row["label"] != row["predicted"] for row in ours)
    assert records[0]["splits"][0]["overall"]["total"] == np.sum(records[0]["splits"][0]["confusion"]) == 60
    assert {"confusion.png", "mistakes.png"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert not (tmp_path / "run" / "error-by-azimuth.png").exists()  # mnist has no viewpoints
    assert records[0]["run"] == str(run) and records[1]["bundle"] == str(bundle.folder)
    assert records[0]["temperature"] == records[1]["temperature"]
    off = [record["splits"][0]["calibration_error"] for record in records]
    assert off[0] == pytest.approx(off[1], abs=0.05) and 0 < off[0] < 1
    assert (tmp_path / "bundle" / "mistakes.png").read_bytes().startswith(b"\x89PNG")


def test_a_split_of_its_own_leaves_the_test_results(
    run: Path, bundle: Bundle, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    common = ("--data-dir", data_dir, "--device", "cpu")
    for arguments in (
        (run, *common),
        (run, "--split", "validation", *common),
        (run, "--set", "checkpoint=last", *common),
        (run, "--dataset", "mnist", *common),
        (bundle.folder, "--data-dir", data_dir),
        (bundle.folder, "--backend", "native", "--split", "test", "--data-dir", data_dir),
    ):
        words = ["evaluate", *map(str, arguments), "--set", "top=3"]
        done = CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": "200"})
        assert done.exit_code == 0
        for said in ("top-3 error", "calibration error", "most often taken for", "predictions.csv", "mistakes.png"):
            assert said in done.output
    whole = json.loads((tmp_path / "runs/evaluate" / run.name / "evaluation.json").read_text())
    assert [split["split"] for split in whole["splits"]] == ["test"] and whole["checkpoint"] == "best"
    folders = {str(path.parent.relative_to(tmp_path / "runs/evaluate")) for path in tmp_path.rglob("evaluation.json")}
    assert folders == {
        run.name,
        f"{run.name}/validation",
        f"{run.name}-last",
        f"{run.name}-mnist",
        f"{bundle.folder.name}-bundle",
        f"{bundle.folder.name}-native/test",
    }


def test_a_bundle_of_a_folder_needs_the_folder(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcn.evaluate.networks.DATASETS", {})
    with pytest.raises(UsageError, match=r"was trained on 'mnist', .* with --dataset"):
        open_network(bundle.folder).dataset(None)


def test_a_bundle_is_measured_without_torch(bundle: Bundle, data_dir: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'matplotlib', 'onnx'):\n"
        "    sys.modules[name] = None\n"
        f"sys.argv = ['qcn', 'evaluate', {str(bundle.folder)!r}, '--data-dir', {str(data_dir)!r}, "
        f"'--out', {str(tmp_path / 'out')!r}]\n"
        "from qcn.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "matplotlib is not installed" in ended.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"evaluation.json", "mistakes.png", "predictions.csv"}


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "export", "verify-parity", "benchmark"])
def test_help_names_the_default_of_every_option(name: str) -> None:
    command: Any = get_command(app)
    for option in command.commands[name].params:
        if option.param_type_name == "option" and option.default is None and option.name != "help":
            says = option.help
            assert option.required or "Default: " in says, option.name


def test_help_of_train_gives_the_presets_values() -> None:
    command: Any = get_command(app)
    says = {option.name: option.help for option in command.commands["train"].params}
    best = RunSettings("mnist", "qcn")
    for name in ("epochs", "batch_size", "lr"):
        assert f"Default: {getattr(best, name):g} (paper: {PAPER[name]:g})" in says[name]
    assert f"Default: {best.seed}." in says["seed"]


def test_a_stereo_bundle_is_measured_as_its_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = create("qcn-tiny", in_channels=2, classes=3, size=32).eval()
    bundle = bundle_of(tmp_path / "stereo", network, 32, 32)
    pixels = np.random.default_rng(1).integers(0, 256, (20, 2, 32, 32), np.uint8)
    images = ImageSet(pixels, np.arange(20) % 3, bundle.manifest.classes)
    counted: list[int] = []
    opened = open_network(bundle.folder, backend="native")
    answers = opened.answers(images, counted.append)
    expected = outputs(network, images, bundle.manifest.preprocessing, torch.device("cpu")).logit
    assert np.abs(answers.logit - expected).max() < 1e-4 and counted[-1] == 20
    with pytest.raises(UsageError, match=r"takes stereo pairs, but .* is a folder of single pictures"):
        opened.dataset(str(tmp_path))


def test_a_folder_that_changed_since_training_is_not_tested_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its test split was dealt out anew, and may have pictures that the network was trained on."""
    network = open_network("mnist", device="cpu")
    folder, small = tmp_path / "shapes", Stored(28, "crop", 1)
    write_pictures(folder, 12)
    monkeypatch.setattr(network, "answers", lambda images, report: Answers(*[np.full((len(images), 3), 1 / 3)] * 2))
    before = load(str(folder), tmp_path / "data", small)
    network.trained_on = "shapes", before.train.sha256
    assert "test" in answer_splits(network, find(str(folder), small), tmp_path / "data")
    write_pictures(folder / "train", 12)
    for kind in before.train.classes:
        (folder / kind).rename(folder / "train" / kind / "more")
    with pytest.raises(UsageError, match=r"the pictures of 'shapes' or their groups have changed .* with --dataset"):
        answer_splits(network, find(str(folder), small), tmp_path / "data")
    shutil.copytree(folder / "train", folder / "test")  # given, and not dealt out: whoever made it answers for it
    assert "test" in answer_splits(network, find(str(folder), small), tmp_path / "data")

"""Error rates, what evaluation writes, and what it refuses."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qcn.data import load
from qcn.data.imageset import ImageSet, Views
from qcn.errors import QcnError, UsageError
from qcn.evaluate import ErrorRate, evaluate, measure, predict, write_results
from qcn.export import reference
from qcn.export.bundle import Bundle
from qcn.export.pipeline import Request, open_source
from qcn.intervals import wilson
from qcn.train import resume, train
from qcn.train.checkpoint import load_network
from qcn.train.record import Run, load_run
from qcn.train.settings import Settings


def test_intervals_are_wilsons() -> None:
    rate = ErrorRate.of(10, 100)
    assert rate.error == 0.1
    assert (rate.low, rate.high) == pytest.approx((0.0552, 0.1744), abs=1e-4)  # Wilson 1927, by hand
    none = ErrorRate.of(0, 50)
    assert none.low == 0 and 0.05 < none.high < 0.1


def test_counts_by_class_and_by_viewpoint() -> None:
    labels = np.array([0, 0, 1, 1, 1, 0])
    azimuth = np.array([0, 20, 0, 20, 20, 20])
    views = Views(labels, 30 + 0 * azimuth, azimuth, labels)
    images = ImageSet(np.zeros((6, 1, 4, 4), np.uint8), labels, ("a", "b"), views)
    result = measure("novel", images, np.array([0, 1, 1, 1, 0, 0]))
    assert result.confusion == [[2, 1], [1, 2]]
    assert result.by_azimuth is not None and result.by_elevation is not None
    assert {angle: (rate.wrong, rate.total) for angle, rate in result.by_azimuth.items()} == {0: (0, 2), 20: (2, 4)}
    assert result.by_elevation[30].error == result.overall.error == pytest.approx(1 / 3)


def test_an_evaluation_writes_numbers_and_pictures(run: Path, data_dir: Path, tmp_path: Path) -> None:
    (result,) = evaluate(run, None, data_dir, tmp_path, which="last", split=None, device="cpu")
    record = json.loads((tmp_path / "evaluation.json").read_text())
    assert record["splits"][0]["overall"]["error"] == result.overall.error
    assert result.overall.total == 60 and np.sum(result.confusion) == 60
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "error-by-azimuth.png").exists()  # mnist has no viewpoints
    network, record = load_network(run, "last")
    test = load("mnist", data_dir).tests["test"]
    wrong = (predict(network, test, record.preprocessing, torch.device("cpu")) != test.labels).sum()
    assert result.overall.wrong == wrong


def test_viewpoints_are_drawn(tmp_path: Path) -> None:
    labels = np.arange(40) % 5
    views = Views(labels, 30 + 5 * (np.arange(40) % 9), 20 * (np.arange(40) % 18), labels)
    images = ImageSet(np.zeros((40, 1, 4, 4), np.uint8), labels, tuple("abcde"), views)
    results = [measure(name, images, (labels + (np.arange(40) % 3 == 0)) % 5) for name in ("familiar", "novel")]
    write_results(tmp_path, results, Path("run"), "viewpoints", "best", list("abcde"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"evaluation.json", "confusion.png", "error-by-azimuth.png", "error-by-elevation.png"}


def test_what_does_not_fit_is_refused(run: Path, data_dir: Path, tmp_path: Path) -> None:
    def refused(says: str, folder: Path = run, dataset: str | None = None, split: str | None = None) -> None:
        with pytest.raises(UsageError, match=says):
            evaluate(folder, dataset, data_dir, tmp_path / "out", which="best", split=split, device="cpu")
        assert not (tmp_path / "out").exists()

    refused("no run.json", folder=tmp_path)
    refused("did you mean 'validation'", split="validatoin")
    refused("the network knows 0, 1", dataset="viewpoints-demo")
    refused("has 3 channels; the network takes 1", dataset="svhn")  # digits too, but in colour


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
        (text.replace('"schema": 2', '"schema": 99'), "schema 99; this version of qcn reads 2"),
        (text.replace('"history"', '"histroy"'), "run.json has an unknown entry 'histroy'"),
        (text.replace('"last": {', '"last": {"extra": 1,'), "run.json: last has an unknown entry 'extra'"),
        (text.replace('"last": {', '"last": {"epoch": 1,'), "the key 'epoch' appears twice"),
        (text.replace(record.last.file, f"../{record.last.file}"), "is not the name of a file in the run's folder"),
        (text.replace('"crop"', '"corp"'), "run.json: preprocessing has an unknown entry 'corp'"),
        (text.replace('"qcn-tiny"', '"em"'), "does not describe a network: 'em' does not take"),
        (text.replace('"size": 28', '"size": 5'), "does not describe a network: images of 5×5 are too small"),
        (text.replace('"size": 28', '"size": 64'), "are of another network: '"),
        (text.replace('"epoch": 1,', '"epoch": "1",', 1), r"must be a whole number, not '1'"),
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


def test_no_altered_record_ends_a_command_in_a_traceback(
    data_dir: Path, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is read of it, `evaluate`, `export` and `train --resume` end well, or with one line."""
    train(Settings("mnist", "qcn-tiny", epochs=1, batch_size=60), data_dir, tmp_path / "run", "cpu")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    answers = bundle.golden()
    monkeypatch.setattr(reference, "make_golden", lambda *_: answers)  # the slowest part, which reads no record
    native, few = Request(("native",)), ("= None", "= 'x'", "= -1")
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
        for do in (
            lambda copy=copy: evaluate(
                copy, None, data_dir, copy / "o", which="best", split="validation", device="cpu"
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


def test_an_interval_holds_its_share() -> None:
    """Rounding must not move an end past the share, as it did at 0 of 270: an error bar would be negative."""
    for total in range(1, 1500):
        for count in {0, total // 2, total}:
            low, high = wilson(count, total)
            assert 0 <= low <= count / total <= high <= 1
        assert wilson(0, total)[0] == 0 and wilson(total, total)[1] == 1

"""`known`: fitted at the end of training, kept in the run, and measured by `qcn evaluate --unknown`."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command
from conftest import write_bars
from pictures import write_pictures
from torch import Tensor, nn

from qcn.data.registry import load
from qcn.errors import UsageError
from qcn.evaluate.evaluation import evaluate
from qcn.evaluate.networks import open_network
from qcn.evaluate.request import Request
from qcn.evaluate.unknown import fitted
from qcn.networks.confidence import KEEP, SCORES
from qcn.networks.model import Prediction
from qcn.networks.zoo import MODELS
from qcn.train import resume
from qcn.train.loop import Training
from qcn.train.record import load_run
from qcn.train.settings import Settings

CPU = torch.device("cpu")


class Linear(nn.Module):
    """One layer, which learns bars in a second."""

    def __init__(self, in_channels: int, classes: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.layer = nn.Linear(in_channels * 28 * 28, classes)

    def forward(self, image: Tensor) -> Prediction:
        logit = self.layer(image.flatten(1))
        return Prediction(logit.new_empty(*logit.shape, 0), logit)


@pytest.fixture(scope="module", autouse=True)
def linear() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "linear", Linear)
        yield


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a small `mnist` in it: 540 training and 60 validation images."""
    folder = tmp_path_factory.mktemp("data")
    write_bars(folder / "mnist", train=600)
    return folder


@pytest.fixture(scope="module")
def knowing(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows enough to say what it does not know."""
    out = tmp_path_factory.mktemp("runs") / "knowing"
    settings = Settings("mnist", "linear", epochs=4, batch_size=18, keep=0.9)
    Training(settings, load("mnist", bars), out, CPU).run()
    return out


def test_a_run_ends_with_a_threshold_that_keeps_right_answers(knowing: Path, bars: Path) -> None:
    run = load_run(knowing)
    assert run.known is not None and run.known.keep == 0.9 and run.known.auroc > 0.6
    network, images = open_network(knowing, device="cpu"), load("mnist", bars).validation
    answers = network.answers(images, lambda done: None)
    right = answers.predicted == images.labels
    assert right.sum() >= 20 and answers.known is not None
    kept = int(answers.known[right].sum())
    assert 0.9 * right.sum() <= kept <= 0.9 * right.sum() + 1
    score = SCORES[run.known.score](answers.logit, network.temperature)
    assert np.array_equal(answers.known, score >= run.known.threshold)


def test_a_lengthened_run_fits_it_again(bars: Path, tmp_path: Path) -> None:
    settings = Settings("mnist", "linear", epochs=2, batch_size=18)
    first = Training(settings, load("mnist", bars), tmp_path / "run", CPU).run()
    longer = resume(tmp_path / "run", bars, "cpu", epochs=4)
    assert longer.known is not None and longer.known.keep == KEEP and longer.known != first.known
    assert load_run(tmp_path / "run").known == longer.known


def test_too_few_right_answers_give_no_threshold_and_training_says_so(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    qcn, out = Command(monkeypatch, capsys), tmp_path / "run"
    train = ("train", "--dataset", "mnist", "--data-dir", data_dir, "--model", "qcn-tiny", "--batch-size", 90)
    code, said = qcn(*train, "--epochs", 1, "--out", out, "--device", "cpu")
    assert code == 0 and "the network calls every picture known" in said, said
    assert load_run(out).known is None and load_run(out).confidence is not None
    code, said = qcn("evaluate", out, "--data-dir", data_dir, "--unknown", tmp_path, "--out", tmp_path / "results")
    assert code == 2 and "calls every picture known, because no threshold was fitted" in said, said
    assert not (tmp_path / "results").exists()
    code, said = qcn(*train, "--set", "keep=1.5", "--out", tmp_path / "other")
    assert code == 2 and "keep is a share of right answers, between 0 and 1, not 1.5" in said


def test_evaluate_counts_unknown_pictures_that_are_called_known(
    knowing: Path, bars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    qcn, folder, out = Command(monkeypatch, capsys), tmp_path / "photos", tmp_path / "results"
    write_pictures(folder, 12)  # in folders by class, of which nothing is asked
    many = sum(path.is_file() for path in folder.rglob("*"))
    evaluation = ("evaluate", knowing, "--data-dir", bars, "--device", "cpu", "--out", out)
    code, said = qcn(*evaluation, "--unknown", folder, "--unknown", "mnist")
    assert code == 0, said
    for words in ("what it calls known", "right answers (should be known)", "photos (should be unknown)"):
        assert words in said, said
    record = json.loads((out / "evaluation.json").read_text())
    assert record["known"] == json.loads((knowing / "run.json").read_text())["known"]
    (split,) = record["splits"]
    photos, own = split["unknown"]
    assert (photos["name"], photos["called_known"]["total"]) == ("photos", many)
    assert (own["name"], own["auroc"]) == ("mnist", 0.5)  # against itself
    rows = list(csv.DictReader((out / "predictions.csv").read_text().splitlines()))
    assert own["called_known"]["wrong"] == sum(row["known"] == "true" for row in rows) < len(rows)
    unknown = sum(row["known"] == "false" for row in rows if row["label"] == row["predicted"])
    assert split["called_unknown"]["wrong"] == unknown


def test_what_is_neither_a_folder_nor_a_data_set_is_refused(knowing: Path, bars: Path, tmp_path: Path) -> None:
    for source, says in (("no-such", "'no-such' is neither"), (str(tmp_path), "has no pictures")):
        with pytest.raises(UsageError, match=says):
            evaluate(knowing, Request(data_dir=bars, out=tmp_path / "out", device="cpu", unknown=(source,)))


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_pictures_of_any_kind_are_brought_to_the_form_of_the_network(channels: int, wanted: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (12, 20, channels), np.uint8)
    image = fitted(picture, (wanted, 8, 8), "crop")
    assert image.shape == (wanted, 8, 8) and image.dtype == np.uint8
    if wanted == 2 != channels:
        assert np.array_equal(image[0], image[1])

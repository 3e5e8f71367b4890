"""Networks on a pretrained backbone: its features are computed once, or it is tuned more slowly than the rest."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import qcn
from qcn import api
from qcn.data.imageset import Splits
from qcn.data.registry import load
from qcn.errors import UsageError
from qcn.networks import zoo
from qcn.networks.backbone import Head, backbone_of, features_of
from qcn.networks.model import Prediction
from qcn.train import resume, train
from qcn.train.checkpoint import load_network
from qcn.train.loop import BACKBONE_SHARE, Training, parameter_groups
from qcn.train.settings import Settings

CPU = torch.device("cpu")
SHORT = Settings("mnist", "on-backbone", epochs=3, batch_size=32, augment="turned", freeze=True)


class OnBackbone(nn.Module):
    """A network on a backbone, as a user may bring one."""

    def __init__(self, in_channels: int, classes: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        generator = torch.Generator().manual_seed(0)
        self.backbone = nn.Conv2d(in_channels, 8, 7, stride=7, bias=False)
        self.backbone.weight.data = torch.randn(self.backbone.weight.shape, generator=generator) / 7
        self.classifier = nn.Linear(8 * 16, classes)

    def features(self, image: Tensor) -> Tensor:
        return self.backbone(image).relu()

    def answer(self, features: Tensor) -> Prediction:
        logit = self.classifier(features.flatten(1))
        return Prediction(logit.new_empty(*logit.shape, 0), logit)

    def forward(self, image: Tensor) -> Prediction:
        return self.answer(self.features(image))


@pytest.fixture(autouse=True)
def _on_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(zoo.MODELS, "on-backbone", OnBackbone)
    monkeypatch.setattr("qcn.train.features.PASSES", 360)  # two variations of each image


def training(splits: Splits, folder: Path, settings: Settings = SHORT) -> Training:
    return Training(settings, splits, folder, CPU, data_dir=folder)


@pytest.mark.parametrize("name", ["qcn-lite0", "cnn-lite0"])
def test_features_and_head_are_the_whole_network(name: str) -> None:
    network = zoo.create(name, in_channels=3, classes=4).eval()
    image = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        whole, parts = network(image), Head(network)(features_of(network, image))
    assert torch.equal(whole.logit, parts.logit) and torch.equal(whole.pose, parts.pose)


def test_a_frozen_backbone_keeps_its_weights_and_what_stands_on_it_learns(data_dir: Path, tmp_path: Path) -> None:
    run = train(SHORT, data_dir, tmp_path / "run")
    network, _ = load_network(tmp_path / "run")
    assert torch.equal(network.backbone.weight, OnBackbone(1, 10).backbone.weight)
    assert run.history[-1].train_loss < 0.8 * run.history[0].train_loss
    assert run.settings.freeze is True


def test_features_are_those_of_varied_images_in_half_precision(data_dir: Path, tmp_path: Path) -> None:
    splits = load("mnist", data_dir)
    one = training(splits, tmp_path)
    assert one.features is not None and one.features.copies > 1
    plan = one.plan(1)
    features, label, _, draws = one.batch(plan, slice(0, 8))
    plain = training(splits, tmp_path, replace(SHORT, freeze=False))
    image, *_ = plain.seen(torch.from_numpy(splits.train.images)[plan.order[:8]], label, torch.zeros(8, 3), draws)
    with torch.no_grad():
        assert torch.allclose(features_of(one.network, image).half().float(), features.float())
    of_next, *_ = one.batch(one.plan(2), slice(0, 180))
    assert not any(torch.equal(a, b) for a in features for b in of_next)  # another variation


def test_features_are_computed_once_for_all_seeds(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = load("mnist", data_dir)
    training(splits, tmp_path)
    (kept,) = (tmp_path / "features").iterdir()
    assert "computed the backbone's features of 180 training images" in capsys.readouterr().err
    training(splits, tmp_path, replace(SHORT, seed=1))
    assert "computed" not in capsys.readouterr().err
    training(splits, tmp_path, replace(SHORT, augment="none"))
    (other,) = (tmp_path / "features").iterdir()
    assert other != kept
    other.write_bytes(b"")
    with pytest.raises(UsageError, match="is damaged: delete it"):
        training(splits, tmp_path, replace(SHORT, augment="none"))


def test_a_frozen_run_resumes_to_the_same_weights(data_dir: Path, tmp_path: Path) -> None:
    train(SHORT, data_dir, tmp_path / "whole")
    train(replace(SHORT, epochs=2), data_dir, tmp_path / "cut")
    # As if it had been stopped: the schedule of three epochs decides the rates of the first two.
    longer = resume(tmp_path / "cut", data_dir, epochs=3)
    assert longer.settings.freeze is True and len(longer.history) == 3
    whole = training(load("mnist", data_dir), tmp_path / "a")
    again = training(load("mnist", data_dir), tmp_path / "b")
    for one, step in ((whole, 5), (again, 5)):
        one.out.mkdir(exist_ok=True)
        plan = one.plan(0)
        for batch in range(step):
            one.update(one.trained, *one.batch(plan, slice(32 * batch, 32 * batch + 32)), plan.schedule[batch])
    assert torch.equal(whole.network.classifier.weight, again.network.classifier.weight)


def test_an_unfrozen_backbone_learns_more_slowly(data_dir: Path, tmp_path: Path) -> None:
    one = training(load("mnist", data_dir), tmp_path, replace(SHORT, freeze=False))
    before = one.network.backbone.weight.clone(), one.network.classifier.weight.clone()
    plan = one.plan(0)
    one.update(one.network, *one.batch(plan, slice(0, 32)), plan.schedule[1])
    moved = [
        (now - then).abs().max()
        for now, then in zip((one.network.backbone.weight, one.network.classifier.weight), before, strict=True)
    ]
    assert 0 < moved[0] < 1.5 * BACKBONE_SHARE * moved[1]  # the first step of AdamW is as long as the rate
    assert [group["share"] for group in parameter_groups(one.network)] == [1.0, BACKBONE_SHARE]


def test_few_images_on_a_cpu_freeze_the_backbone(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = load("mnist", data_dir)
    assert training(splits, tmp_path, replace(SHORT, freeze=None)).features is not None
    monkeypatch.setattr("qcn.train.loop.FEW_IMAGES", 100)
    assert training(splits, tmp_path, replace(SHORT, freeze=None)).features is None


def test_patience_and_balance_work_on_features(data_dir: Path, tmp_path: Path) -> None:
    splits = load("mnist", data_dir)
    few_of_zero = np.flatnonzero((splits.train.labels > 0) | (np.cumsum(splits.train.labels == 0) <= 2))
    one = training(
        replace(splits, train=splits.train[few_of_zero]),
        tmp_path,
        replace(SHORT, lr=1e-9, patience=1, balance=True),
    )
    assert one.features is not None and len(one.run().history) == 2
    order = one.plan(2).order
    labels = one.batch(one.plan(2), slice(None))[1]
    assert torch.equal(labels, torch.from_numpy(one.splits.train.labels)[order]) and int((labels == 0).sum()) > 10


def test_there_must_be_a_backbone_to_freeze(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="qcn-tiny has no pretrained backbone"):
        training(load("mnist", data_dir), tmp_path, replace(SHORT, model="qcn-tiny"))
    assert backbone_of(zoo.create("qcn-tiny", in_channels=1, classes=2)) is None


def photographs(folder: Path, side: int, mode: str = "RGB") -> Path:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            pixels = generator.integers(0, 256, (side, side + 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("side", "mode", "settings", "model", "size"),
    [
        (140, "RGB", {}, "qcn-lite0", 128),
        (100, "RGB", {}, "qcn-lite0", 96),
        (100, "RGB", {"size": 160}, "qcn-lite0", 160),
        (60, "RGB", {}, "qcn", None),  # too small
        (140, "RGB", {"size": 64}, "qcn", 64),
        (140, "L", {}, "qcn", None),  # no photographs of colour
        (140, "RGB", {"model": "qcn-deep"}, "qcn-deep", None),
        (60, "RGB", {"model": "cnn-lite0"}, "cnn-lite0", 96),
    ],
)
def test_folders_of_photographs_are_learnt_on_a_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int, mode: str, settings: dict, model: str, size: int | None
) -> None:
    begun: list[Settings] = []
    monkeypatch.setattr("qcn.packages.installed", lambda module: True)
    monkeypatch.setattr("qcn.train.begin.train", lambda settings, *others: begun.append(settings))
    monkeypatch.setattr(api, "Run", lambda *arguments: None)
    qcn.train(photographs(tmp_path / "pets", side, mode), out=tmp_path / "run", **settings)
    assert (begun[0].model, begun[0].size) == (model, size)


def test_who_has_no_weights_is_told_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[Settings] = []
    monkeypatch.setattr("qcn.packages.installed", lambda module: False)
    monkeypatch.setattr("qcn.train.begin.train", lambda settings, *others: begun.append(settings))
    monkeypatch.setattr(api, "Run", lambda *arguments: None)
    qcn.train(photographs(tmp_path / "pets", 140), out=tmp_path / "run")
    assert begun[0].model == "qcn" and "pip install 'qcn-toolkit[pretrained]'" in capsys.readouterr().err

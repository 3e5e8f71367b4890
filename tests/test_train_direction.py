"""Training towards the direction of view (`qcn.direction`): its loss, its labels in mirrors, and what a run keeps."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qcn.data.augment import augmented, mirrored_view
from qcn.data.directions import has_elevations, true_directions
from qcn.data.imageset import ImageSet, Splits, Views
from qcn.data.spec import Augmentation, Preprocessing
from qcn.direction import ROUND, Directions, direction_vector
from qcn.errors import UsageError
from qcn.evaluate.directions import DirectionErrors, measure_directions
from qcn.evaluate.evaluation import evaluate
from qcn.evaluate.request import Request
from qcn.export.program.lower import lower
from qcn.export.program.reference import answers
from qcn.networks import zoo
from qcn.networks.model import Prediction
from qcn.train import resume
from qcn.train.checkpoint import load_network
from qcn.train.loop import Training
from qcn.train.losses import direction_loss
from qcn.train.record import load_run, new_run
from qcn.train.settings import RunSettings, Settings, for_images, settings_from
from qcn.train.validation import outputs

CPU = torch.device("cpu")


class Small(nn.Module):
    """A network that learns in a moment."""

    def __init__(self, in_channels: int, classes: int) -> None:
        super().__init__()
        self.in_channels, self.classes = in_channels, classes
        self.hidden, self.last = nn.Linear(in_channels * 28 * 28, 64), nn.Linear(64, 4 * classes)

    def forward(self, image: torch.Tensor) -> Prediction:
        answer = self.last(self.hidden(image.flatten(1)).relu()).view(-1, self.classes, 4)
        return Prediction(answer[..., :3], answer[..., 3])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(zoo.MODELS, "small", Small)


def spots(count: int, symmetry: tuple[int, ...] | None = None, elevation: float = 0.0, seed: int = 0) -> ImageSet:
    """Images [count, 1, 28, 28] of two classes, a bright spot or ring on a circle at the azimuth."""
    generator = np.random.default_rng(seed)
    labels, azimuth = np.arange(count) % 2, generator.integers(0, 360, count)
    y, x = np.mgrid[:28, :28] - 13.5
    turn = np.radians(azimuth)[:, None, None]
    away = np.hypot(x - 8 * np.cos(turn), y - 8 * np.sin(turn))
    pixels = np.where(labels[:, None, None] == 0, away < 3, (away > 2.5) & (away < 4.5)) * 200
    zero = np.zeros(count, np.int64)
    views = Views(zero, np.full(count, elevation), azimuth, zero)
    return ImageSet(pixels.astype(np.uint8)[:, None], labels, ("spot", "ring"), views, symmetry=symmetry)


def views_of(azimuth: float, elevation: float, symmetry: int) -> torch.Tensor:
    return torch.tensor([[math.radians(azimuth), math.radians(elevation), symmetry]])


def test_the_loss_is_that_of_the_true_class_and_of_the_nearest_equivalent() -> None:
    pose = torch.zeros(1, 2, 3)
    pose[0, 1] = 5 * torch.from_numpy(direction_vector(100, 30)).float()
    label = torch.tensor([1])

    def loss(azimuth: float, elevation: float, symmetry: int) -> float:
        return float(direction_loss(pose, label, views_of(azimuth, elevation, symmetry)))

    assert loss(100, 30, 1) == pytest.approx(0, abs=1e-6)
    assert loss(100, -10, 1) == pytest.approx(1 - math.cos(math.radians(40)), abs=1e-6)
    opposite = direction_vector(100, 30) @ direction_vector(280, 30)
    assert loss(280, 30, 1) == pytest.approx(1 - opposite, abs=1e-6)
    assert loss(280, 30, 2) == pytest.approx(0, abs=1e-6)
    nearest = max(direction_vector(100, 30) @ direction_vector(50 + turn, 0) for turn in (0, 120, 240))
    assert loss(50, 0, 3) == pytest.approx(1 - nearest, abs=1e-6)
    assert loss(50, 0, ROUND) == 0


def test_a_pose_of_length_zero_and_a_round_class_have_finite_gradients() -> None:
    pose = torch.zeros(2, 1, 3, requires_grad=True)
    view = torch.cat([views_of(10, 20, 1), views_of(0, 0, ROUND)])
    direction_loss(pose, torch.tensor([0, 0]), view).sum().backward()
    assert pose.grad is not None and pose.grad.isfinite().all() and not pose.grad[1].any()


def test_a_mirrored_picture_is_seen_from_the_other_side() -> None:
    """The picture of an object seen from its left, mirrored, is that of one seen from its right."""
    images, augmentation = spots(64), Augmentation(flip=True)
    draws = torch.rand(64, augmentation.draws, generator=torch.Generator().manual_seed(0))
    pixels = torch.from_numpy(images.images)
    plain = augmented(pixels, Preprocessing(standardise="image"), Augmentation(), draws)
    varied = augmented(pixels, Preprocessing(standardise="image"), augmentation, draws)
    mirrored = (varied != plain).flatten(1).any(1)
    assert 16 < mirrored.sum() < 48
    view = torch.rand(64, 3)
    assert torch.equal(mirrored_view(view, Augmentation(shift=2, rotation=30.0), draws), view)
    turned = mirrored_view(view, augmentation, draws)
    assert torch.equal(turned[:, 0], torch.where(mirrored, -view[:, 0], view[:, 0]))
    assert torch.equal(turned[:, 1:], view[:, 1:])


def test_the_eyes_of_a_mirrored_stereo_pair_change_places() -> None:
    pair = torch.stack([torch.arange(16.0).view(4, 4), 100 + torch.arange(16.0).view(4, 4)]).to(torch.uint8)[None]
    draws = torch.zeros(1, Augmentation().draws)
    left, right = augmented(pair, Preprocessing(standardise="image"), Augmentation(flip=True), draws)[0]
    plain = augmented(pair, Preprocessing(standardise="image"), Augmentation(), draws)[0]
    assert torch.equal(left, plain[1].flip(1)) and torch.equal(right, plain[0].flip(1))


def test_images_of_round_classes_or_unknown_views_have_no_direction() -> None:
    images = spots(4, symmetry=(ROUND, 2))
    found = true_directions(images, elevations=False)
    assert found is not None and found.symmetry.tolist() == [ROUND, 2, ROUND, 2] and not found.elevation.any()
    assert images.views is not None
    unknown = replace(images, symmetry=None, views=replace(images.views, azimuth=np.array([1.0, np.nan, 3.0, 4.0])))
    found = true_directions(unknown, elevations=False)
    assert found is not None and found.symmetry.tolist() == [1, ROUND, 1, 1]
    assert np.isnan(found.measure(np.ones((4, 3)))[1]).tolist() == [False, True, False, False]
    assert true_directions(replace(images, symmetry=(ROUND, ROUND)), elevations=False) is None
    assert true_directions(replace(images, views=None), elevations=True) is None
    with pytest.raises(UsageError, match="2 classes but 3 symmetries"):
        replace(images, symmetry=(1, 1, 1))


def test_elevations_count_only_where_images_differ_in_them() -> None:
    images = spots(4, elevation=30.0)
    assert images.views is not None and not has_elevations(images)
    tilted = replace(images, views=replace(images.views, elevation=np.array([np.nan, 0, 10, 10])))
    assert has_elevations(tilted)


@pytest.mark.parametrize("symmetry", [None, (1, 2), (1, ROUND)])
def test_poses_learn_azimuths(tmp_path: Path, symmetry: tuple[int, ...] | None) -> None:
    train, validation = spots(256, symmetry), spots(256, symmetry, seed=1)
    settings = Settings("mnist", "small", epochs=4, batch_size=32, augment="none")
    splits = Splits(train, validation, {"test": validation})
    run = Training(settings, splits, tmp_path / "run", CPU).run()
    first, last = run.history[0].direction_error, run.history[-1].direction_error
    assert first is not None and last is not None and last < first and last < 5
    found = run.direction
    assert found is not None and found.symmetry == (symmetry or (1, 1)) and not found.elevation
    assert max(found.spreads) < 40
    assert load_run(tmp_path / "run") == run
    network, _ = load_network(tmp_path / "run")
    given = outputs(network, validation, run.preprocessing, CPU)
    told = [
        found.of(pose, label) for pose, label in zip(given.pose_of(validation.labels), validation.labels, strict=True)
    ]
    assert [one is None for one in told] == [(symmetry or (1, 1))[label] == ROUND for label in validation.labels]
    with (tmp_path / "run" / "metrics.csv").open() as file:
        assert float(list(csv.DictReader(file))[-1]["direction_error"]) == last


def test_a_run_without_directions_ends_with_the_same_weights_as_one_without_views(tmp_path: Path) -> None:
    images = spots(64)
    settings = Settings("mnist", "small", epochs=1, batch_size=32)

    def weights(name: str, of: ImageSet, **changed: object) -> dict[str, torch.Tensor]:
        chosen = replace(settings, **changed)  # type: ignore[arg-type]
        run = Training(chosen, Splits(of, of, {"test": of}), tmp_path / name, CPU).run()
        assert (run.direction is None) == (name != "with")
        return load_network(tmp_path / name)[0].state_dict()

    blind, off = weights("blind", replace(images, views=None)), weights("off", images, direction=0.0)
    assert all(torch.equal(tensor, off[name]) for name, tensor in blind.items())
    there = weights("with", images)
    assert not all(torch.equal(tensor, there[name]) for name, tensor in blind.items())


def test_a_longer_run_fits_its_directions_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = spots(64)
    splits = Splits(images, images, {"test": images})
    settings = Settings("mnist", "small", epochs=1, batch_size=32)
    first = Training(settings, splits, tmp_path / "run", CPU).run()
    monkeypatch.setattr("qcn.train.begin.read", lambda *_: splits)
    longer = resume(tmp_path / "run", tmp_path, "cpu", epochs=2)
    assert first.direction is not None and longer.direction is not None and first.direction != longer.direction


def test_networks_without_poses_of_three_numbers_say_so(tmp_path: Path) -> None:
    images = spots(32)
    splits = Splits(images, images, {"test": images})
    training = Training(Settings("mnist", "em", batch_size=32), splits, tmp_path / "run", CPU)
    assert training.remarks == ("trained without directions: em has no poses of 3 numbers",)
    assert not training.views.any() and training.directions is None


@pytest.mark.parametrize(("given", "weight"), [("off", 0.0), ("0", 0.0), ("1.5", 1.5), (2, 2.0), (0.5, 0.5)])
def test_the_weight_may_be_off(given: object, weight: float) -> None:
    assert settings_from("best", dataset="mnist", direction=given).direction == weight


def test_a_wrong_weight_is_refused() -> None:
    for wrong, says in (("on", "direction must be a number or 'off', not 'on'"), (-1, "0 or more"), ("inf", "finite")):
        with pytest.raises(UsageError, match=says):
            settings_from("best", dataset="mnist", direction=wrong)


@pytest.mark.parametrize(
    ("preset", "model", "weight"), [("best", "qcn", 3.0), ("best", "qcn-lite0", 10.0), ("paper", "qcn-lite0", 0.0)]
)
def test_the_weight_is_larger_on_a_pretrained_backbone(preset: str, model: str, weight: float) -> None:
    settings = settings_from(preset, dataset="mnist", model=model)
    assert for_images(settings, 100).direction == weight
    assert for_images(replace(settings, direction=1.5), 100).direction == 1.5


@pytest.mark.parametrize("model", ["cnn", "cnn-small"])
def test_a_cnn_has_a_direction_head_only_if_it_learns_directions(tmp_path: Path, model: str) -> None:
    images, preprocessing = spots(32), Preprocessing(standardise="image")
    splits = Splits(images, images, {"test": images})
    plain = new_run(RunSettings("mnist", model, direction=0.0), "mnist", splits, preprocessing).model
    blind = replace(images, views=None)
    without = new_run(RunSettings("mnist", model), "mnist", Splits(blind, blind, {}), preprocessing).model
    assert plain == without and plain.direction is None
    torch.manual_seed(0)
    before = plain.create().state_dict()
    torch.manual_seed(0)
    network = new_run(RunSettings("mnist", model), "mnist", splits, preprocessing).model.create()
    after = network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert after.keys() - before.keys() == {"direction.weight", "direction.bias"}
    assert network(torch.rand(2, 1, 28, 28)).pose.shape == (2, 2, 3)
    program = lower(network.eval(), 28, 28)
    assert [output.name for output in program.outputs] == ["logit"]
    assert answers(network, torch.rand(2, 1, 28, 28)).answers.pose.shape == (2, 2, 0)  # golden answers have none either


def test_directions_are_measured_beside_the_class_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = spots(120, symmetry=(1, ROUND))
    splits = Splits(images, images, {"test": spots(240, symmetry=(1, ROUND), seed=2)})
    Training(Settings("mnist", "small", epochs=4, batch_size=30, augment="none"), splits, tmp_path / "run", CPU).run()
    monkeypatch.setattr("qcn.evaluate.evaluation.read", lambda *_: splits)
    monkeypatch.setattr("qcn.data.spec.Dataset.check_fits", lambda *_: None)
    (result,) = evaluate(tmp_path / "run", Request(data_dir=tmp_path, out=tmp_path / "out", device="cpu")).results
    found = result.direction
    assert found is not None and found.by_class["ring"] is None and found.by_class["spot"] == found.overall
    assert found.overall.images == 120 - round(result.by_class[0].rate.error * 120)  # type: ignore[union-attr]
    assert found.overall.median < 10 and 0.6 < found.overall.coverage <= 1
    assert sum(one.images for one in found.by_azimuth.values()) == found.overall.images
    record = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert record["splits"][0]["direction"]["overall"]["median"] == found.overall.median
    assert (tmp_path / "out" / "direction-by-azimuth.png").read_bytes().startswith(b"\x89PNG")


def test_errors_and_coverage_are_counted_by_hand() -> None:
    images = replace(spots(4), labels=np.array([0, 0, 1, 1]))
    assert images.views is not None
    images = replace(images, views=replace(images.views, azimuth=np.array([0, 90, 180, 270])))
    pose = np.zeros((4, 2, 3))
    for place, (label, azimuth, length) in enumerate([(0, 10, 1), (0, 110, 3), (1, 182, 3), (1, 90, 1)]):
        pose[place, label] = length * direction_vector(azimuth, 20)  # elevations do not count
    found = measure_directions(images, np.array([0, 0, 1, 0]), pose, Directions((1, 1), False, (2.0,), (5.0, 15.0)))
    assert found is not None
    assert found.overall == DirectionErrors(3, pytest.approx(10), pytest.approx(32 / 3), 2 / 3, 1, 1 / 3)  # type: ignore[arg-type]
    assert {at: one.images for at, one in found.by_azimuth.items()} == {0: 1, 90: 1, 180: 1}


@pytest.mark.gpu
def test_a_cuda_graph_learns_directions_as_single_launches_do(tmp_path: Path) -> None:
    """Views change from step to step, also when replayed."""
    images = spots(256)
    splits, errors = Splits(images, images, {"test": images}), []
    for as_graph in (False, True):
        settings = Settings("mnist", "small", epochs=4, batch_size=32, augment="none")
        training = Training(settings, splits, tmp_path / str(as_graph), torch.device("cuda"))
        training.as_graph = as_graph
        errors.append(training.run().history[-1].direction_error)
    plain, graph = errors
    assert plain is not None and graph is not None and max(plain, graph) < 5 and abs(plain - graph) < 1

"""Starting from trained weights, teachers, lengthening a run, stronger augmentation, smoother labels."""

import copy
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from command import Command
from torch import nn

from qcn.data.imageset import ImageSet, Splits
from qcn.data.preprocess import preprocess
from qcn.data.registry import load
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.networks.shipped import run_of
from qcn.networks.zoo import MODELS, create
from qcn.train import resume
from qcn.train.checkpoint import load_network, optimizer_tensors, restore_optimizer
from qcn.train.graph import WARM_UP
from qcn.train.loop import Training
from qcn.train.losses import distillation, loss_of, softened
from qcn.train.record import load_run
from qcn.train.settings import Settings
from qcn.train.start import channels_innermost, start_from

CPU = torch.device("cpu")


@pytest.fixture
def few(data_dir: Path) -> Splits:
    splits = load("mnist", data_dir)
    return replace(splits, train=splits.train[np.arange(32)])


def test_all_weights_of_a_network_of_the_same_shape_are_taken(run: Path) -> None:
    trained, _ = load_network(run)
    network = create("qcn-tiny", in_channels=1, classes=10)
    assert start_from(network, str(run)) == (f"starting from {run}, all of it",)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name]), name


def test_another_number_of_classes_starts_with_a_new_class_layer_and_says_so(run: Path) -> None:
    trained, _ = load_network(run)
    network = create("qcn-tiny", in_channels=1, classes=4)
    before = network.class_capsules.rotors.theta.clone()
    (said,) = start_from(network, str(run))
    assert "class_capsules.rotors" in said and "keep random weights" in said
    assert torch.equal(network.class_capsules.rotors.theta, before)
    assert torch.equal(network.layers[0].rotors.theta, trained.layers[0].rotors.theta)


@pytest.mark.parametrize(
    ("name", "size", "moved"),
    [
        ("cifar10-qcn", 64, {"activation.1": "activation.2"}),
        ("cifar10-qcn", 128, {"pose.2": "pose.3", "activation.1": "activation.3"}),
        ("cifar10-qcn-deep", 128, {"stem.1": "stem.2", "stem.3": "stem.4"}),
    ],
)
def test_a_network_for_larger_images_takes_each_block_to_its_place(name: str, size: int, moved: dict[str, str]) -> None:
    trained, run = load_network(run_of(name))
    network = create(run.model.name, in_channels=3, classes=10, size=size)
    (said,) = start_from(network, name)
    assert "keep random weights, because their shapes differ: extractor." in said
    for before, after in moved.items():
        given, taken = (
            {key: value for key, value in one.state_dict().items() if key.startswith(f"extractor.{block}.")}
            for one, block in ((trained, before), (network, after))
        )
        assert given and len(given) == len(taken)
        for (key, value), found in zip(given.items(), taken.values(), strict=True):
            assert torch.equal(value, found), key
        assert f"extractor.{after}" not in said


def test_a_network_of_another_kind_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match=r"none of the weights of .* fits this network"):
        start_from(create("cnn", in_channels=1, classes=10, size=28), str(run))
    with pytest.raises(UsageError, match="neither a training run"):
        start_from(create("qcn-tiny", in_channels=1, classes=10), str(run.parent))


def test_a_run_that_starts_from_another_begins_where_that_ended(run: Path, few: Splits, tmp_path: Path) -> None:
    settings = Settings("mnist", "qcn-tiny", epochs=1, batch_size=16, lr=1e-9, ema=None, init=str(run))
    Training(settings, few, tmp_path / "run", CPU).run()
    (given, _), (found, _) = load_network(run), load_network(tmp_path / "run")
    theta = found.layers[0].rotors.theta
    assert torch.allclose(theta, given.layers[0].rotors.theta, atol=1e-6)


def test_a_run_that_starts_from_another_has_its_network(
    few: Splits, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    qcn, first = Command(monkeypatch, capsys), tmp_path / "first"
    Training(Settings("mnist", "qcn-tiny", epochs=1, batch_size=16, mode="unit", iterations=1), few, first, CPU).run()
    start = ("train", "--dataset", "mnist", "--data-dir", data_dir, "--epochs", 1, "--batch-size", 90, "--init", first)
    code, said = qcn(*start, "--out", tmp_path / "run")
    assert code == 0 and "all of it" in said, said
    made = load_run(first).model
    assert load_run(tmp_path / "run").model == made and (made.mode, made.iterations) == ("unit", 1)
    assert qcn(*start, "--set", "iterations=3", "--out", tmp_path / "three")[0] == 0
    assert load_run(tmp_path / "three").model == replace(made, iterations=3)
    code, said = qcn(*start, "--model", "cnn-small", "--out", tmp_path / "other")
    assert code == 2 and "a qcn-tiny, fits this network" in said


def test_a_run_is_lengthened(run: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "given"
    shutil.copytree(run, given)
    settings = Settings("mnist", "qcn-tiny", epochs=1, batch_size=60, init=str(given))
    Training(settings, load("mnist", data_dir), tmp_path / "run", CPU).run()
    shutil.rmtree(given)  # which is not needed to go on
    says = f"{tmp_path / 'run'} has run all of its 1 epoch: --epochs extends it"
    resume(tmp_path / "run", data_dir, "cpu")
    assert says in capsys.readouterr().err
    longer = resume(tmp_path / "run", data_dir, "cpu", epochs=2)
    assert says not in capsys.readouterr().err
    assert [row.epoch for row in longer.history] == [1, 2] and longer.settings.epochs == 2
    assert load_run(tmp_path / "run").confidence is not None and longer.settings.init == str(given)
    with pytest.raises(UsageError, match="has already run 2 epochs: --epochs must be more, not 2"):
        resume(tmp_path / "run", data_dir, "cpu", epochs=2)


@pytest.mark.parametrize("loss", ["ce", "spread"])
def test_strong_augmentation_trains_and_repeats(few: Splits, tmp_path: Path, loss: str) -> None:
    smoothing = 0.1 if loss == "ce" else 0.0
    settings = Settings(
        "mnist", "qcn-tiny", epochs=1, batch_size=16, augment="strong", loss=loss, label_smoothing=smoothing
    )  # type: ignore[arg-type]
    one, other = (Training(settings, few, tmp_path / name, CPU).run() for name in ("a", "b"))
    assert one.history[0].train_loss == other.history[0].train_loss > 0


def test_the_loss_of_a_taught_network_is_that_of_distillation(data_dir: Path, tmp_path: Path) -> None:
    splits = load("mnist", data_dir)
    one_batch = Settings("mnist", "cnn-small", epochs=1, batch_size=len(splits.train), augment="none")
    run = tmp_path / "teacher"
    Training(replace(one_batch, model="qcn-tiny"), splits, run, CPU).run()
    taught = Training(replace(one_batch, teachers=(str(run), str(run))), splits, tmp_path / "taught", CPU)
    assert f"learning the answers of {run}, {run} too" in taught.remarks
    student = copy.deepcopy(taught.network).train()
    image = preprocess(torch.from_numpy(splits.train.images), taught.preprocessing)
    teacher, _ = load_network(run)
    with torch.no_grad():
        answers = student(image)
        by_labels = loss_of(answers, torch.from_numpy(splits.train.labels), "ce", 0.0)
        expected = distillation(by_labels, answers, softened(teacher(image)))
    found = taught.run().history[0].train_loss
    assert found == pytest.approx(float(expected), rel=1e-4) and found != pytest.approx(float(by_labels), rel=1e-2)


def test_a_teacher_that_answers_nan_is_named(few: Splits, tmp_path: Path) -> None:
    settings, run = Settings("mnist", "qcn-tiny", batch_size=16, ema=None), tmp_path / "teacher"
    teacher = Training(settings, few, run, CPU)
    torch.nn.init.constant_(next(teacher.network.parameters()), math.nan)
    teacher.save(best=True)
    training = Training(replace(settings, teachers=(str(run),)), few, tmp_path / "run", CPU)
    with pytest.raises(CheckFailed, match=rf"NaN at step 0 .*first in the answers of {run}, which it learns from"):
        training.run()


def test_a_teacher_that_is_gone_is_called_one(few: Splits, tmp_path: Path) -> None:
    settings = Settings("mnist", "qcn-tiny", batch_size=16, teachers=("gone",))
    with pytest.raises(UsageError, match="its teacher 'gone' was not found"):
        Training(settings, few, tmp_path / "run", CPU)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_cpu_teachers_answer_in_the_precision_of_the_run(
    few: Splits, tmp_path: Path, precision: Literal["fp32", "bf16"]
) -> None:
    settings, run = Settings("mnist", "cnn-small", batch_size=16, precision=precision), tmp_path / "teacher"
    Training(replace(settings, model="qcn-tiny"), few, run, CPU).save(best=True)
    training = Training(replace(settings, teachers=(str(run),)), few, tmp_path / "run", CPU)
    image = preprocess(torch.from_numpy(few.train.images), training.preprocessing)
    teacher, _ = load_network(run)
    channels_innermost(teacher)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        expected = softened(teacher.eval()(image))
    found = training.taught(image)
    assert found is not None and found.dtype == torch.float32 and torch.equal(found, expected)


@pytest.mark.parametrize("model", ["qcn-tiny", "em", "vb", "cnn", "cnn-small", "cnn-wide"])
def test_a_teacher_answers_the_same_with_its_channels_innermost(model: str) -> None:
    network, image = create(model, in_channels=1, classes=10).eval(), torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        before = network(image).logit
        channels_innermost(network)
        assert torch.allclose(network(image).logit, before, rtol=1e-4, atol=1e-4)
    weights = {name: tensor for name, tensor in network.named_parameters() if tensor.dim() == 4}
    assert any(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in weights.values())
    assert all(tensor.is_contiguous() for name, tensor in weights.items() if "rotors" in name)


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["qcn-tiny", "cnn-wide"])
def test_on_a_gpu_teachers_answer_in_bfloat16_inside_the_graph(data_dir: Path, tmp_path: Path, model: str) -> None:
    settings = Settings("mnist", model, epochs=2, batch_size=16)
    splits, teacher, gpu = load("mnist", data_dir), tmp_path / "teacher", torch.device("cuda")
    Training(settings, splits, teacher, gpu).run()
    taught = Training(replace(settings, model="cnn-small", teachers=(str(teacher),)), splits, tmp_path / "run", gpu)
    image = preprocess(torch.from_numpy(splits.train.images[:16]), taught.preprocessing)
    with torch.no_grad():
        exact = softened(load_network(teacher)[0].eval()(image))
    short = taught.taught(image.to(gpu))
    assert short is not None and short.dtype == torch.float32
    assert torch.allclose(short.cpu(), exact, atol=0.02) and not torch.equal(short.cpu(), exact)
    assert taught.steps_per_epoch > WARM_UP and taught.as_graph
    assert taught.run().history[-1].train_loss > 0


def test_a_teacher_of_other_classes_is_refused(run: Path, few: Splits, tmp_path: Path) -> None:
    other = replace(few, train=ImageSet(few.train.images, few.train.labels, tuple("abcdefghij")))
    settings = Settings("mnist", "cnn-small", batch_size=16, teachers=(str(run),))
    with pytest.raises(UsageError, match="cannot teach this network: it has other classes"):
        Training(settings, other, tmp_path / "run", CPU)


def test_the_pictures_of_a_run_are_looked_for_where_it_was_trained(run: Path) -> None:
    record = load_run(run)
    of_folder = replace(record, settings=replace(record.settings, dataset="my/pets", size=28, fit="crop", channels=1))
    with pytest.raises(MissingError, match="'my/pets', were not found: run the command in the folder"):
        of_folder.dataset()


def test_a_record_whose_images_have_other_channels_is_refused(run: Path) -> None:
    record = load_run(run)
    with pytest.raises(UsageError, match="its images have 1 channels, but the network 2147483647"):
        replace(record, model=replace(record.model, in_channels=2**31 - 1))  # gigabytes, if it were made


def test_the_iterations_of_routing_are_part_of_a_run(few: Splits, tmp_path: Path) -> None:
    Training(Settings("mnist", "qcn-tiny", epochs=1, batch_size=16, iterations=3), few, tmp_path / "run", CPU).run()
    network, run = load_network(tmp_path / "run")
    assert run.model.iterations == 3 and {layer.iterations for layer in network.layers} == {3}
    with pytest.raises(UsageError, match="cannot be made from in_channels, classes and the options"):
        Training(Settings("mnist", "cnn", batch_size=16, iterations=3), few, tmp_path / "cnn", CPU)


def test_a_network_of_ones_own_that_lacks_something_is_refused_before_it_trains(
    few: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cnn = MODELS["cnn"]

    def no_channels(in_channels: int, classes: int) -> nn.Module:
        network = cnn(in_channels, classes, size=28)
        del network.in_channels
        return network

    def one_more(in_channels: int, classes: int) -> nn.Module:
        return cnn(in_channels, classes + 1, size=28)

    def mistaken(in_channels: int, classes: int) -> nn.Module:
        raise TypeError("a mistake of the user's, which needs its traceback")

    says = {
        no_channels: (UsageError, "'mine' must have in_channels, the number 1: docs/ideas.md"),
        one_more: (UsageError, r"one logit per image and class, here \[B, 10\], not \[16, 11\]"),
        mistaken: (TypeError, "a mistake of the user's"),
    }
    for mine, (error, message) in says.items():
        monkeypatch.setitem(MODELS, "mine", mine)
        with pytest.raises(error, match=message):
            Training(Settings("mnist", "mine", epochs=1, batch_size=16), few, tmp_path / mine.__name__, CPU).run()


def test_settings_that_make_no_sense() -> None:
    for wrong in (
        {"label_smoothing": 1.0},
        {"label_smoothing": 0.1, "loss": "spread"},
        {"augment": "wild"},
        {"iterations": 0},
        {"teachers": ("mnist",), "loss": "spread"},
    ):
        with pytest.raises(UsageError):
            Settings("mnist", "qcn", **wrong)  # type: ignore[arg-type]


def test_the_confidence_of_a_run_is_that_of_its_best_weights(run: Path) -> None:
    found = load_run(run).confidence
    assert found is not None and found.temperature > 0 and 0 <= found.error <= 1


def test_a_validation_split_of_one_image_is_enough(few: Splits, tmp_path: Path) -> None:
    one = ImageSet(few.validation.images[:1], few.validation.labels[:1], few.validation.classes)
    settings = Settings("mnist", "qcn-tiny", epochs=1, batch_size=16)
    assert Training(settings, replace(few, validation=one), tmp_path / "run", CPU).run().confidence


def test_moments_are_laid_out_as_their_parameters_are_when_a_run_goes_on() -> None:
    """torch's fused optimiser refuses others, or takes a number for that of another place."""
    layer = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    optimizers = [torch.optim.AdamW(layer.parameters(), fused=True) for _ in range(2)]
    layer(torch.randn(2, 4, 6, 6)).square().sum().backward()
    optimizers[0].step()
    names = [name for name, _ in layer.named_parameters()]
    saved = {name: tensor.contiguous() for name, tensor in optimizer_tensors(optimizers[0], names).items()}
    restore_optimizer(optimizers[1], names, saved)
    for parameter in layer.parameters():
        for moment in ("exp_avg", "exp_avg_sq"):
            before, after = (optimizer.state[parameter][moment] for optimizer in optimizers)
            assert torch.equal(before, after) and after.stride() == parameter.stride()

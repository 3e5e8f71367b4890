"""The network: its size, its shapes, and that it learns the same in every precision it offers."""

import math

import pytest
import torch

import qcn
from qcn.errors import UsageError
from qcn.networks.model import QCN, BranchedExtractor, CapsuleLayer, ConvCapsules, RunningRMS, strides_for
from qcn.networks.zoo import MODELS, parameter_count


@pytest.mark.parametrize(
    ("name", "channels", "classes", "count"),
    [
        ("qcn", 1, 10, 187_448),
        ("qcn", 2, 5, 187_762),
        ("qcn", 3, 10, 188_736),
        ("qcn-unbranched", 2, 5, 298_478),
        ("em", 2, 5, 317_194),
        ("em-branched", 2, 5, 410_418),
        ("em-unbranched", 2, 5, 533_358),
        ("qcn-deep", 3, 10, 187_082),  # no larger than the paper's
        ("em", 1, 10, 318_964),
        ("em", 3, 10, 320_564),
        ("vb", 2, 5, 169_642),
        ("cnn", 2, 5, 4_253_349),
    ],
)
def test_parameter_counts_are_the_papers(name: str, channels: int, classes: int, count: int) -> None:
    assert parameter_count(qcn.create(name, in_channels=channels, classes=classes)) == count


@pytest.mark.parametrize("name", MODELS)
def test_every_model_answers_and_learns_from_one_image(name: str) -> None:
    network = qcn.create(name, in_channels=2, classes=5)
    prediction = network(torch.randn(2, 2, 32, 32))
    assert prediction.activation.shape == prediction.logit.shape == (2, 5)
    assert prediction.pose.shape[:2] == (2, 5)
    assert ((prediction.activation > 0) & (prediction.activation < 1)).all()
    prediction.logit.logsumexp(1).sum().backward()
    for parameter, tensor in network.named_parameters():
        assert tensor.grad is not None and tensor.grad.isfinite().all(), parameter
    with torch.no_grad():
        assert network.eval()(torch.randn(1, 2, 32, 32)).activation.isfinite().all()


QCNS = ["qcn", "qcn-unbranched", "qcn-deep", "qcn-tiny"]


@pytest.mark.parametrize("size", [None, 64, 96])
@pytest.mark.parametrize("name", QCNS)
def test_the_smallest_input_works_and_a_smaller_one_is_refused(name: str, size: int | None) -> None:
    network = qcn.create(name, in_channels=1, classes=3, size=size).eval()
    assert isinstance(network, QCN)
    side = network.smallest_input
    assert network(torch.randn(1, 1, side, side + 3)).pose.shape == (1, 3, 3)
    with pytest.raises(UsageError, match=f"at least {side}×{side}"):
        network(torch.randn(1, 1, side - 1, side + 3))


@pytest.mark.parametrize(
    ("size", "strides", "grid"),
    [
        (25, (2,), 13),
        (39, (2,), 20),
        (40, (3,), 14),
        (52, (3,), 18),
        (53, (2, 2), 14),
        (78, (2, 2), 20),
        (79, (3, 2), 14),
        (104, (3, 2), 18),
        (105, (2, 2, 2), 14),
        (156, (2, 2, 2), 20),
        (224, (2, 2, 2, 2), 14),
    ],
)
def test_the_size_of_images_decides_the_strides(size: int, strides: tuple[int, ...], grid: int) -> None:
    assert strides_for(size) == strides
    for name in ("qcn", "qcn-tiny"):
        network = qcn.create(name, in_channels=1, classes=2, size=size).eval()
        assert isinstance(network, QCN)
        with torch.no_grad():
            pose, activation = network.extractor(torch.rand(1, 1, size, size))
        assert pose.shape[3:] == activation.shape[2:] == (grid, grid)


def test_primary_capsules_are_neither_few_nor_many_for_any_size() -> None:
    for size in range(27, 2000):
        assert 14 <= math.ceil(size / math.prod(strides_for(size))) <= 20, size


@pytest.mark.parametrize(
    ("name", "size", "count"),
    [
        ("qcn", 48, 191_808),
        ("qcn", 128, 204_400),
        ("qcn-unbranched", 96, 302_522),
        ("qcn-deep", 128, 189_130),
        ("qcn-tiny", 96, 54_320),
    ],
)
def test_a_network_for_larger_images_has_at_most_a_tenth_more_parameters(name: str, size: int, count: int) -> None:
    assert parameter_count(qcn.create(name, in_channels=3, classes=10, size=size)) == count
    assert count <= 1.1 * parameter_count(qcn.create(name, in_channels=3, classes=10))


@pytest.mark.parametrize("name", QCNS)
def test_up_to_39_pixels_the_network_is_the_one_without_a_size(name: str) -> None:
    """So that the weights of runs that name no size fit."""
    states = []
    for size in (None, 25, 28, 32, 39):
        torch.manual_seed(0)
        states.append(qcn.create(name, in_channels=2, classes=5, size=size).state_dict())
    for state in states[1:]:
        assert list(state) == list(states[0])
        assert all(torch.equal(tensor, states[0][key]) for key, tensor in state.items())


@pytest.mark.parametrize("size", [32, 47, 48, 49, 64, 65, 94, 95, 96, 127, 128])
def test_both_branches_see_every_pixel(size: int) -> None:
    torch.manual_seed(0)
    network = qcn.create("qcn-tiny", in_channels=1, classes=2, size=size).eval()
    assert isinstance(network, QCN) and isinstance(network.extractor, BranchedExtractor)
    for branch in (network.extractor.pose, network.extractor.activation):
        image = (torch.rand(4, 1, size, size) + 0.5).requires_grad_()  # positive: a block begins with a ReLU
        maps = branch(image)
        (gradient,) = torch.autograd.grad((maps * torch.randn_like(maps)).sum(), image)
        unseen = (gradient.abs().sum(0)[0] == 0).nonzero().tolist()
        assert not unseen


@pytest.mark.parametrize(
    ("name", "smallest"), [("qcn", 25), ("qcn-unbranched", 25), ("qcn-deep", 17), ("qcn-tiny", 13)]
)
def test_a_size_that_is_too_small_is_refused(name: str, smallest: int) -> None:
    qcn.create(name, in_channels=1, classes=2, size=smallest)
    for size in (smallest - 1, 1, 0, -64):
        with pytest.raises(UsageError, match=f"of {size}×{size} are too small .*: at least {smallest}×{smallest}"):
            qcn.create(name, in_channels=1, classes=2, size=size)


def test_images_of_another_shape_are_refused() -> None:
    network = qcn.create("qcn-tiny", in_channels=2, classes=5)
    for shape in ((1, 3, 32, 32), (2, 32, 32)):
        with pytest.raises(UsageError, match=r"\[B, 2, H, W\]"):
            network(torch.randn(shape))


def test_capsules_keep_their_neighbourhood() -> None:
    """A parent sees its own window and no other."""
    layer = ConvCapsules(8, CapsuleLayer(kernel=3, stride=1, capsules=8), iterations=2, mode="logistic")
    pose, activation = torch.randn(1, 8, 3, 7, 6), torch.rand(1, 8, 7, 6)
    whole = layer(pose, activation)
    part = layer(pose[..., 2:5, 1:4], activation[..., 2:5, 1:4])
    assert whole[0].shape == (1, 8, 3, 5, 4)
    for a, b in zip(whole, part, strict=True):
        torch.testing.assert_close(a[..., 2:3, 1:2], b)


def test_float32_agrees_with_float64() -> None:
    torch.manual_seed(0)
    network = qcn.create("qcn", in_channels=2, classes=5).eval()
    image = torch.randn(2, 2, 32, 32)
    with torch.no_grad():
        single, double = network(image), network.double()(image.double())
    torch.testing.assert_close(single.logit.double(), double.logit, rtol=0, atol=4e-5)
    torch.testing.assert_close(single.pose.double(), double.pose, rtol=0, atol=1e-4)


def test_bfloat16_convolutions_leave_routing_in_float32() -> None:
    torch.manual_seed(0)
    network = qcn.create("qcn-tiny", in_channels=2, classes=5).eval()
    image = torch.randn(4, 2, 32, 32)
    with torch.no_grad():
        exact = network(image)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = network(image)
    assert rough.logit.dtype == rough.pose.dtype == torch.float32
    torch.testing.assert_close(rough.activation, exact.activation, rtol=0, atol=0.05)


def test_the_running_rms_becomes_the_constant_of_inference() -> None:
    scale = RunningRMS(momentum=0.5)
    poses = 3.0 * torch.randn(1000, 3)
    for _ in range(20):
        torch.testing.assert_close(scale(poses).square().mean(), torch.tensor(1.0))
    scale.eval()
    torch.testing.assert_close(scale(poses).square().mean(), torch.tensor(1.0), rtol=1e-4, atol=0)
    torch.testing.assert_close(scale(7 * poses), 7 * scale(poses))
    assert not list(scale.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_answers_as_the_cpu_does(name: str) -> None:
    torch.manual_seed(0)
    network = qcn.create(name, in_channels=2, classes=5).eval().double()
    image = torch.randn(3, 2, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        want, got = network(image), network.cuda()(image.cuda())
    torch.testing.assert_close(got.logit.cpu(), want.logit, rtol=0, atol=1e-9)

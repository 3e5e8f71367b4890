"""The network: its size, its shapes, and that it learns the same in every precision it offers."""

import pytest
import torch

import qcn
from qcn.errors import UsageError
from qcn.model import QCN, CapsuleLayer, ConvCapsules, QCNConfig, RunningRMS
from qcn.zoo import MODELS, parameter_count


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


@pytest.mark.parametrize("name", ["qcn", "qcn-unbranched", "qcn-tiny"])
def test_the_smallest_input_works_and_a_smaller_one_is_refused(name: str) -> None:
    network = qcn.create(name, in_channels=1, classes=3).eval()
    assert isinstance(network, QCN)
    side = network.smallest_input
    assert network(torch.randn(1, 1, side, side + 3)).pose.shape == (1, 3, 3)
    with pytest.raises(UsageError, match=f"at least {side}×{side}"):
        network(torch.randn(1, 1, side - 1, side + 3))


def test_the_paper_network_needs_25_pixels() -> None:
    assert QCN(QCNConfig(1, 10)).smallest_input == 25


def test_images_of_another_shape_are_refused() -> None:
    network = qcn.create("qcn-tiny", in_channels=2, classes=5)
    for shape in ((1, 3, 32, 32), (2, 32, 32)):
        with pytest.raises(UsageError, match=r"\[B, 2, H, W\]"):
            network(torch.randn(shape))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'qcn-tiny'"):
        qcn.create("qcn-tyni", in_channels=1, classes=2)


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
    torch.testing.assert_close(single.activation.double(), double.activation, rtol=0, atol=1e-5)
    torch.testing.assert_close(single.pose.double(), double.pose, rtol=0, atol=1e-4)


def test_bfloat16_convolutions_leave_routing_in_float32() -> None:
    torch.manual_seed(0)
    network = qcn.create("qcn-tiny", in_channels=2, classes=5).eval()
    image = torch.randn(4, 2, 32, 32)
    with torch.no_grad():
        exact = network(image)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = network(image)
    assert rough.activation.dtype == rough.pose.dtype == torch.float32
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
    torch.testing.assert_close(got.activation.cpu(), want.activation, rtol=0, atol=1e-9)

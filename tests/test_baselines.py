"""The rivals: sizes as published, votes and routing against plain loops, and that each of them trains."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn.errors import UsageError
from qcn.networks.baselines import (
    CNN,
    INVERSE_TEMPERATURE,
    VARIANCE_FLOOR,
    Votes,
    Windows,
    cnn_small,
    em,
    em_branched,
    em_routing,
    em_unbranched,
)
from qcn.networks.model import qcn
from qcn.networks.vb import VBCapsuleNetwork, vb_routing
from qcn.networks.zoo import parameter_count

Build = Callable[[int, int], nn.Module]

# Small enough for two cores; the full sizes are only counted.
SMALL: dict[str, Build] = {
    "em": lambda channels, classes: em(channels, classes, capsules=4),
    "em-branched": lambda channels, classes: em_branched(channels, classes, capsules=4),
    "em-unbranched": lambda channels, classes: em_unbranched(channels, classes, capsules=4),
    "vb": lambda channels, classes: VBCapsuleNetwork(channels, classes, stem=16, capsules=(4, 8, 8)),
    "cnn": CNN,
    "cnn-small": cnn_small,
}
CAPSULES = ["em", "em-branched", "em-unbranched", "vb"]


def em_without_bias(votes: Tensor, activation: Tensor, windows: Windows, iterations: int) -> tuple[Tensor, Tensor]:
    bias = votes.new_zeros(votes.shape[-1])
    return em_routing(votes, activation, windows, bias, bias, iterations)


ROUTINGS = [pytest.param(em_without_bias, id="em"), pytest.param(vb_routing, id="vb")]


def one_window(children: int) -> Windows:
    return Windows.over(children, 1, None, 1, torch.device("cpu"))


def class_patterns(count: int) -> tuple[Tensor, Tensor]:
    """Images 2×32×32 of five random patterns under noise, and their classes."""
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(count) % 5
    pattern = torch.randn(5, 2, 32, 32, generator=generator)
    return pattern[label] + 0.5 * torch.randn(count, 2, 32, 32, generator=generator), label


def test_sizes() -> None:
    assert parameter_count(em(3, 10, stem=256)) == 459_444  # as published; the others are in test_model.py
    for channels, classes in ((1, 10), (2, 5), (3, 10)):
        own, rival = (parameter_count(network(channels, classes)) for network in (qcn, cnn_small))
        assert 0.9 * own < rival < own


@pytest.mark.parametrize(("size", "grid"), [(28, 7), (32, 8), (64, 8), (96, 8), (128, 8)])
def test_larger_images_get_a_larger_first_stride(size: int, grid: int) -> None:
    network = cnn_small(1, 3, size).eval()
    assert network.blocks(torch.zeros(1, 1, size, size)).shape[-2:] == (grid, grid)
    assert parameter_count(network) < 1.1 * parameter_count(cnn_small(1, 3))


@pytest.mark.parametrize("name", CAPSULES)
@pytest.mark.parametrize("size", [(17, 17), (28, 28), (19, 24)])
def test_one_image_of_any_size_in_eval_mode(name: str, size: tuple[int, int]) -> None:
    model = SMALL[name](1, 10).eval()
    prediction = model(torch.randn(1, 1, *size))
    assert prediction.logit.shape == (1, 10) and prediction.logit.isfinite().all()
    assert prediction.pose.shape == (1, 10, 16)


@pytest.mark.parametrize(("name", "smallest"), [("em", 17), ("em-branched", 13), ("em-unbranched", 13), ("vb", 17)])
def test_too_small_images_are_refused_with_the_smallest_that_works(name: str, smallest: int) -> None:
    model = SMALL[name](2, 5).eval()
    assert model(torch.randn(1, 2, smallest, smallest)).logit.shape == (1, 5)
    with pytest.raises(UsageError, match=f"at least {smallest}×{smallest}"):
        model(torch.randn(1, 2, smallest - 1, smallest))


def test_cnn_takes_the_size_it_was_built_for() -> None:
    assert CNN(1, 10, size=28).eval()(torch.randn(1, 1, 28, 28)).logit.shape == (1, 10)
    with pytest.raises(UsageError, match=r"\[B, 1, 28, 28\]"):
        CNN(1, 10, size=28)(torch.randn(1, 1, 32, 32))
    with pytest.raises(UsageError, match="at least 4×4"):
        CNN(1, 10, size=3)


@pytest.mark.parametrize("build", [em, VBCapsuleNetwork])
def test_routing_without_iterations_is_refused(build: Callable[..., nn.Module]) -> None:
    with pytest.raises(UsageError, match="at least 1 iteration"):
        build(1, 10, iterations=0)


@pytest.mark.parametrize("build", [em, VBCapsuleNetwork])
def test_at_full_size_activations_are_unsaturated_at_start_and_tell_images_apart(build: Build) -> None:
    torch.manual_seed(0)
    model = build(2, 5)
    with torch.no_grad():
        activation = model(torch.randn(6, 2, 32, 32)).activation
    assert activation.min() > 0.02 and activation.max() < 0.98
    assert activation.std(dim=0).min() > 1e-3


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "em")) for name in SMALL])
def test_a_few_steps_learn_sixteen_images(name: str) -> None:
    image, label = class_patterns(16)
    steps = 30 if name == "em" else 15
    if name not in ("em", "cnn"):  # residual blocks, and a third round of routing, are slow on two cores
        image = image[..., :24, :24]
    torch.manual_seed(0)
    model = SMALL[name](2, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if name == "cnn" else 3e-3)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(image).logit, label)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert (model(image).logit.argmax(1) == label).float().mean() >= 0.75


@pytest.mark.parametrize("name", CAPSULES)
def test_float32_agrees_with_float64(name: str) -> None:
    torch.manual_seed(0)
    model = SMALL[name](2, 5)
    image = torch.randn(4, 2, 24, 24, dtype=torch.float64)
    with torch.no_grad():
        single, double = model(image.float()), model.double()(image)
    torch.testing.assert_close(single.logit.double(), double.logit, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(single.pose.double(), double.pose, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CAPSULES)
def test_routing_stays_in_float32_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        prediction = SMALL[name](2, 5)(torch.randn(2, 2, 20, 20))
    assert prediction.logit.dtype == torch.float32 and prediction.logit.isfinite().all()


@pytest.mark.parametrize(("height", "width", "kernel", "stride"), [(6, 6, 3, 2), (5, 7, 3, 1), (4, 4, 2, 2)])
def test_windows_are_those_of_a_convolution(height: int, width: int, kernel: int, stride: int) -> None:
    windows = Windows.over(height, width, kernel, stride, torch.device("cpu"))
    cells = torch.arange(height * width, dtype=torch.float32).view(1, 1, height, width)
    torch.testing.assert_close(F.unfold(cells, kernel, stride=stride)[0], windows.cell.float())
    assert windows.seen == windows.cell.unique().numel()
    assert windows.shape[0] * windows.shape[1] == windows.cell.shape[1]


def test_votes_are_matrix_products() -> None:
    torch.manual_seed(0)
    votes = Votes(child_types=2, parent_types=3, kernel=3, stride=2)
    pose, activation = torch.randn(2, 2, 16, 7, 5), torch.rand(2, 2, 7, 5)
    vote, active, _ = votes(pose, activation)  # windows 3 × 2
    image, row, column = 1, 2, 1  # window (2, 1) of image 1
    tap_row, tap_column, child, parent = 0, 2, 1, 2
    matrix = pose[image, child, :, 2 * row + tap_row, 2 * column + tap_column].view(4, 4)
    i, n = (3 * tap_row + tap_column) * 2 + child, image * 6 + row * 2 + column
    expected = matrix @ votes.weight[3 * tap_row + tap_column, child, :, :, parent]
    torch.testing.assert_close(vote[i, n, :, parent].view(4, 4), expected)
    assert active[i, n] == activation[image, child, 2 * row + tap_row, 2 * column + tap_column]


def test_class_votes_differ_between_positions_by_their_coordinates_only() -> None:
    votes = Votes(child_types=1, parent_types=2, kernel=None)
    vote, _, _ = votes(torch.ones(1, 1, 16, 2, 4), torch.ones(1, 1, 2, 4))
    offset = (vote[7, 0] - vote[0, 0]).view(4, 4, 2)  # from the first cell to the last
    expected = torch.zeros(4, 4, 2)
    expected[0, 3], expected[1, 3] = 0.5, 0.75
    torch.testing.assert_close(offset, expected)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (None, 1)])
def test_each_child_is_shared_out_once_over_all_its_parents(kernel: int | None, stride: int) -> None:
    torch.manual_seed(0)
    batch, types, parents = 2, 3, 4
    windows = Windows.over(6, 5, kernel, stride, torch.device("cpu"))
    taps, positions = windows.cell.shape
    score = 100 * torch.randn(taps * types, batch * positions, parents)  # far outside the range of exp
    share = windows.share_out(score)
    per_window = share.sum(2).view(taps, types, batch, positions)
    total = torch.zeros(windows.cells, types, batch)
    total.index_add_(0, windows.cell.flatten(), per_window.permute(0, 3, 1, 2).flatten(0, 1))
    assert (share >= 0).all()
    cells = windows.cell.unique()
    torch.testing.assert_close(total[cells], torch.ones(len(cells), types, batch), atol=1e-4, rtol=0)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_routing_does_not_know_the_order_of_children_or_parents(routing: Callable[..., tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    votes = torch.randn(12, 2, 16, 3, dtype=torch.float64)
    activation = torch.rand(12, 2, dtype=torch.float64)
    mean, z = routing(votes, activation, one_window(12), 3)
    child, parent = torch.randperm(12), torch.tensor([2, 0, 1])
    other_mean, other_z = routing(votes[child][..., parent], activation[child], one_window(12), 3)
    torch.testing.assert_close(other_mean, mean[..., parent])
    torch.testing.assert_close(other_z, z[..., parent])


@pytest.mark.parametrize("routing", ROUTINGS)
def test_an_inactive_child_has_no_say(routing: Callable[..., tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    votes, activation = torch.randn(8, 1, 16, 2), torch.rand(8, 1)
    activation[5] = 0
    changed = votes.clone()
    changed[5] = 50.0
    for one, other in zip(
        routing(votes, activation, one_window(8), 2), routing(changed, activation, one_window(8), 2), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_agreement_wins(routing: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Of 20 children 14 agree on parent 0's pose, nobody on parent 1's: parent 0 takes their pose, and is likelier."""
    torch.manual_seed(0)
    agreed = torch.randn(16)
    votes = torch.randn(20, 1, 16, 2)
    votes[:14, 0, :, 0] = agreed + 0.1 * torch.randn(14, 16)
    mean, z = routing(votes, torch.ones(20, 1), one_window(20), 3)
    if routing is em_without_bias:  # VB's score is normalised over the batch before it means anything
        assert z[0, 0] > z[0, 1]
    assert (mean[0, :, 0] - agreed).norm() < 0.25 * agreed.norm()


def test_equal_votes_have_no_spread() -> None:
    vote = torch.randn(16)
    votes = vote[None, None, :, None].expand(10, 2, 16, 4)
    mean, z = em_without_bias(votes, torch.full((10, 2), 0.5), one_window(10), 2)
    torch.testing.assert_close(mean, vote[None, :, None].expand(2, 16, 4))
    # Half-active children shared evenly: exactly the expected mass, and the least cost there is.
    log_spread = 8 * torch.tensor(VARIANCE_FLOOR).log()
    torch.testing.assert_close(z, (-INVERSE_TEMPERATURE * log_spread).expand(2, 4), rtol=1e-4, atol=0)


def test_vb_shrinks_the_mean_towards_the_prior() -> None:
    votes = torch.full((6, 1, 16, 2), 2.0)
    mean, _ = vb_routing(votes, torch.ones(6, 1), one_window(6), 1)
    torch.testing.assert_close(mean, torch.full((1, 16, 2), 2.0 * 3 / (3 + 1)))  # mass 3 each, and a prior of mass 1


@pytest.mark.parametrize("routing", ROUTINGS)
def test_gradients_of_routing_over_overlapping_windows(routing: Callable[..., tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    windows = Windows.over(3, 2, 2, 1, torch.device("cpu"))  # two windows that share a row of children
    votes = torch.randn(4, 2, 16, 2, dtype=torch.float64, requires_grad=True)
    activation = torch.rand(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, a: routing(v, a, windows, 2), (votes, activation))

"""The deployment form answers as the trained network does, and what is not such a form is refused."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from qcn import create
from qcn.errors import UsageError
from qcn.export.golden import Golden
from qcn.export.lower import Deployed, lower
from qcn.export.network import Array, Network, Structure
from qcn.export.reference import answers
from qcn.model import QCN

SIZE = (28, 26)  # not square: rows and columns must not be mixed up


def trained(name: str, mode: str, iterations: int) -> QCN:
    """A network after a few steps, so that no statistic and no bias is where it began."""
    torch.manual_seed(0)
    network = create(name, in_channels=2, classes=4, mode=mode, iterations=iterations)
    assert isinstance(network, QCN)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(3):
        prediction = network.train()(torch.randn(4, 2, *SIZE) * 1.5 + 0.5)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(prediction.logit, torch.arange(4)).backward()
        optimizer.step()
    return network.eval()


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("mode", ["logistic", "unit"])
@pytest.mark.parametrize("name", ["qcn", "qcn-tiny", "qcn-unbranched"])
def test_the_deployment_form_answers_as_the_network_does(name: str, mode: str, iterations: int) -> None:
    """Within a few times the float32 rounding of the trained network itself, every layer before the last included."""
    network = trained(name, mode, iterations)
    image = torch.randn(3, 2, *SIZE)
    exact, single = answers(network, image.double()), answers(network, image)
    deployed = Deployed(lower(network, *SIZE), every_layer=True).eval()
    with torch.inference_mode():
        found = dict(zip(deployed.facts()["outputs"], (out.numpy() for out in deployed(image)), strict=True))
    rounded_layers = {**single.layers, "": single.answers}
    for layer, truth in {**exact.layers, "": exact.answers}.items():
        for part in ("activation", "pose"):
            expected, rounded = getattr(truth, part), getattr(rounded_layers[layer], part)
            floor = max(abs(rounded - expected).max(), 1e-7)
            actual = found.pop(f"{layer}.{part}".removeprefix("."))
            assert actual.shape == expected.shape and actual.dtype == np.float32
            assert abs(actual - expected).max() < 8 * floor, f"{layer} {part}: noise floor {floor}"
    assert not found


def test_lowering_leaves_the_network_alone_and_shares_nothing_with_it() -> None:
    network = trained("qcn-tiny", "logistic", 2)
    before = copy.deepcopy(network.state_dict())
    lowered = lower(network, *SIZE)
    kept = {name: array.copy() for name, array in lowered.arrays.items()}
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    assert all(np.array_equal(lowered.arrays[name], array) for name, array in kept.items())


def test_golden_answers_fit_the_deployment_form(network: Network, bundle: Any) -> None:
    """What `qcn verify-parity` will compare: same names, same shapes, and answers within rounding."""
    golden: Golden = bundle.golden()
    deployed = Deployed(network, every_layer=True)
    with torch.inference_mode():
        activation, pose, *layers = deployed(torch.from_numpy(golden.input))
    assert abs(activation.numpy() - golden.reference.activation).max() < 1e-5
    assert abs(pose.numpy() - golden.reference.pose).max() < 1e-4
    assert [site.name for site in network.sites()] == [*golden.layers, "classes"]
    for i, answer in enumerate(golden.layers.values()):
        assert abs(layers[2 * i].numpy() - answer.pose).max() < 1e-4
        assert abs(layers[2 * i + 1].numpy() - answer.activation).max() < 1e-5


@pytest.mark.parametrize("name", ["qcn", "qcn-tiny", "qcn-unbranched"])
def test_sites_are_where_the_layers_are(name: str) -> None:
    network = create(name, in_channels=2, classes=4)
    assert isinstance(network, QCN)
    layers = answers(network.double(), torch.zeros(1, 2, *SIZE, dtype=torch.float64)).layers
    *sites, last = lower(network, *SIZE).sites()
    for site, (layer, answer) in zip(sites, layers.items(), strict=True):
        assert (site.name, (site.parents, site.rows, site.columns)) == (layer, answer.activation.shape[1:])
        assert site.window_children == site.children * site.window[0] * site.window[1]
    assert (last.parents, last.rows, last.columns) == (4, 1, 1)


def test_what_cannot_be_lowered_is_refused() -> None:
    with pytest.raises(UsageError, match="not CNN"):
        lower(create("cnn", in_channels=1, classes=4), 28, 28)
    network = create("qcn", in_channels=1, classes=4)
    assert isinstance(network, QCN)
    side = network.smallest_input
    lower(network, side, side)
    for size in ((side - 1, 40), (40, side - 1), (0, 0)):
        with pytest.raises(UsageError, match=f"too small for this network: at least {side}×{side}"):
            lower(network, *size)


def test_a_structure_survives_json(network: Network) -> None:
    record = json.loads(json.dumps(network.structure.to_json()))
    assert Structure.from_json(record) == network.structure


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("mode"),
        lambda record: record.update(mode="softmax"),
        lambda record: record.update(classes=0),
        lambda record: record.update(height="28"),
        lambda record: record.update(iterations=2.0),
        lambda record: record.update(iterations=True),
        lambda record: record.update(pose=[0, 1]),
        lambda record: record.update(pose=3),
        lambda record: record.update(variance_floor=0.0),
        lambda record: record.update(variance_floor=float("nan")),
        lambda record: record.update(capsules=[]),
        lambda record: record.update(capsules="abc"),
        lambda record: record["capsules"][0].update(kernel=None),
        lambda record: record["capsules"][0].update(stride=-1),
        lambda record: record["capsules"][0].update(colour="red"),
        lambda record: record["capsules"][-1].update(kernel=3),
    ],
)
def test_an_altered_structure_is_refused(network: Network, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads(json.dumps(network.structure.to_json()))
    change(record)
    with pytest.raises(UsageError, match="not the structure of a capsule network"):
        Structure.from_json(record)


@pytest.mark.parametrize("record", [None, [], "text", 3, {}])
def test_what_is_no_structure_is_refused(record: object) -> None:
    with pytest.raises(UsageError, match="not the structure of a capsule network"):
        Structure.from_json(record)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("pose.projection.bias", None),
        ("classes.rotation", None),
        ("pose.scale", lambda array: array[:0]),
        ("pose.0.conv1.weight", lambda array: array[:-1]),
        ("pose.1.skip.weight", lambda array: array[..., 0]),
        ("activation.projection.weight", lambda array: array[0, 0, 0, 0]),
        ("capsules1.rotation", lambda array: array[..., 0]),
        ("capsules1.rotation", lambda array: array[:2]),
        ("capsules1.rotation", lambda array: array[:, :, :, :-1]),
        ("capsules2.beta_a", lambda array: array[None]),
        ("classes.rotation", lambda array: array[:, :, :, :-1]),
        ("classes.beta_u", lambda array: array.astype(np.float64)),
        ("surplus", lambda array: np.zeros(3, np.float32)),
    ],
)
def test_altered_arrays_are_refused(network: Network, name: str, change: Callable[[Array], Array] | None) -> None:
    arrays = dict(network.arrays)
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays.get(name, np.zeros(())))
    with pytest.raises(UsageError, match=r"the weights (do not fit|are of another network)"):
        Network(network.structure, arrays)


def test_arrays_of_another_structure_are_refused(network: Network) -> None:
    for structure in (replace(network.structure, classes=9), replace(network.structure, pose=(2,))):
        with pytest.raises(UsageError, match="the weights"):
            Network(structure, network.arrays)

"""Golden answers are the trained network's own, to real images of every kind and to edge cases."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import answering
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from qcn import create
from qcn.data.imageset import ImageSet
from qcn.data.preprocess import preprocess
from qcn.data.registry import load
from qcn.data.spec import Preprocessing
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.bundle import GOLDEN, Bundle, golden
from qcn.export.bundle.golden import SINGLE, Golden
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.reference import answers, edge_images, golden_of, make_golden, real_images, with_edge_cases
from qcn.networks.model import QCN, choose_kernels
from qcn.train.checkpoint import load_network

EDGES = ["zeros", "grey", "saturated", "noise", "one bright pixel"]  # and "denormal", which is no image


@pytest.fixture
def stored(bundle: Bundle) -> Golden:
    return bundle.golden()


def test_rows_are_real_images_of_every_class_then_edge_cases(stored: Golden, data_dir: Path) -> None:
    assert list(stored.rows[16:]) == [*EDGES, "denormal"] and stored.inputs_only == ("denormal",)
    assert stored.image.shape == (22, 1, 28, 28)
    assert set(stored.label[:16]) == set(range(10)) and set(stored.label[16:]) == {-1}
    test = load("mnist", data_dir).tests["test"]
    for row, image, label in zip(stored.rows[:16], stored.image, stored.label, strict=False):
        split, index = row.split(":")[0].split()
        assert split == "test" and test.labels[int(index)] == label
        assert np.array_equal(test.images[int(index)], image)
        assert row.endswith(f": {test.classes[label]}")
    assert len(set(stored.rows)) == 22


def test_edge_cases_are_what_they_are_called() -> None:
    edges = edge_images((2, 5, 7))
    assert list(edges) == EDGES
    assert all(image.shape == (2, 5, 7) and image.dtype == np.uint8 for image in edges.values())
    assert not edges["zeros"].any() and (edges["saturated"] == 255).all() and len(np.unique(edges["grey"])) == 1
    assert len(np.unique(edges["noise"])) > 30
    assert (edges["one bright pixel"] > 0).sum() == 2  # one a channel


def test_answers_are_the_trained_networks(stored: Golden, run: Path) -> None:
    network, record = load_network(run)
    choose_kernels(network, "reference")
    inputs = preprocess(torch.from_numpy(stored.image), record.preprocessing)
    assert np.array_equal(stored.input[:-1], inputs[:-1].numpy())
    inputs = torch.from_numpy(stored.input)
    with torch.inference_mode():
        single = network(inputs)
        exact = network.double()(inputs.double())
    np.testing.assert_allclose(stored.float32.logit, single.logit, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stored.reference.logit, exact.logit, rtol=0, atol=1e-13)
    np.testing.assert_allclose(stored.reference.pose, exact.pose, rtol=0, atol=1e-13)
    assert stored.float32.pose.dtype == np.float32
    assert 0 < abs(stored.float32.pose - stored.reference.pose).max() < 1e-4  # the noise floor


def test_layers_lead_to_the_answers(stored: Golden, run: Path) -> None:
    """The stored layers are those that the rest of the network goes on from, once their poses are scaled."""
    network, _ = load_network(run)
    assert isinstance(network, QCN)
    choose_kernels(network.double(), "reference")
    assert stored.reference.layers == ["capsules1", "capsules2"]
    assert stored.reference.arrays["capsules1.pose"].shape == (22, 8, 3, 6, 6)
    pose, active = (torch.from_numpy(stored.reference.arrays[f"capsules2.{of}"]) for of in ("pose", "activation"))
    with torch.inference_mode():
        pose, logit = network.class_capsules(network.scales[-1](pose), active)
    np.testing.assert_allclose(stored.reference.pose, pose, rtol=0, atol=1e-12)
    np.testing.assert_allclose(stored.reference.logit, logit, rtol=0, atol=1e-12)


def test_denormal_inputs_are_denormal(stored: Golden) -> None:
    """Numbers that a processor may flush to zero: of both signs, none of them zero, none of them normal."""
    row = stored.input[-1]
    assert (row != 0).all() and (row < 0).any() and (row > 0).any()
    assert abs(row).max() < np.finfo(np.float32).smallest_normal


def test_steps_are_the_iterations_of_the_reference(stored: Golden, tmp_path: Path) -> None:
    """The last step of a layer is what the layer gives; those before it are other numbers; all survive the file."""
    exact, single = stored.reference.arrays, stored.float32.arrays
    assert stored.reference.steps == [
        f"{layer}/iteration{t}" for layer in ("capsules1", "capsules2", "classes") for t in (1, 2)
    ]
    for layer in stored.reference.layers:
        last, first = f"{layer}/iteration2", f"{layer}/iteration1"
        mean, logit = exact[f"{last}/mean"], exact[f"{last}/logit"]
        assert np.array_equal(mean, exact[f"{layer}.pose"][:2].reshape(mean.shape))
        activation = exact[f"{layer}.activation"][:2].reshape(logit.shape)
        np.testing.assert_allclose(1 / (1 + np.exp(-logit)), activation, rtol=1e-12)
        assert exact[f"{last}/variance"].min() > 1e-4 and abs(exact[f"{first}/mean"] - mean).max() > 1e-3
    assert np.array_equal(exact["classes/iteration2/mean"][..., 0], stored.reference.pose[:2])
    for name in (f"{step}/variance" for step in stored.float32.steps):
        assert single[name].dtype == np.float32 and 0 < abs(single[name] - exact[name]).max() < 1e-4
    golden.write(tmp_path / "again", stored)
    again = golden.read((tmp_path / "again").read_bytes())
    assert again.reference.steps == stored.reference.steps and again.reference.arrays.keys() == exact.keys()
    assert all(np.array_equal(again.reference.arrays[name], array) for name, array in exact.items())


def test_a_network_without_capsules_has_neither_poses_nor_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = create("cnn", in_channels=2, classes=3, size=12)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 2, 12, 12), np.uint8)
    inputs = with_edge_cases(["a", "b"], pixels, [0, 1], Preprocessing(standardise="image"))
    stored = golden_of(network, inputs, ("a", "b", "c"))
    golden.write(tmp_path / "cnn", stored)
    assert not [name for name in load_file(tmp_path / "cnn") if "pose" in name or "iteration" in name]
    again = golden.read((tmp_path / "cnn").read_bytes())
    assert (again.outputs, again.reference.layers, again.reference.steps) == (("logit",), [], [])
    assert again.reference.pose.shape == again.float32.pose.shape == (8, 3, 0)
    assert np.array_equal(again.reference.logit, stored.reference.logit)
    with torch.inference_mode():
        exact = network.eval().double()(torch.from_numpy(inputs.input).double())
    np.testing.assert_allclose(again.reference.logit, exact.logit, rtol=0, atol=1e-14)


def test_arrays_are_written_in_their_own_order(stored: Golden, tmp_path: Path) -> None:
    """Routing gives transposed views, and safetensors would write them as they lie in memory."""
    turned = replace(stored, input=np.asfortranarray(stored.input))
    golden.write(tmp_path / "turned", turned)
    assert np.array_equal(golden.read((tmp_path / "turned").read_bytes()).input, stored.input)


def test_making_them_leaves_the_network_as_it_was(run: Path, data_dir: Path) -> None:
    network, record = load_network(run)
    assert isinstance(network, QCN)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    first = make_golden(network, record, data_dir)
    second = make_golden(network, record, data_dir)
    assert np.array_equal(first.reference.pose, second.reference.pose) and first.rows == second.rows
    after = network.state_dict()
    assert all(
        torch.equal(after[name], tensor) and after[name].dtype == tensor.dtype for name, tensor in before.items()
    )
    assert network.layers[0].kernels == "auto" and not network.layers[0]._forward_hooks


def test_the_layers_of_a_full_size_network_are_named(run: Path) -> None:
    network = create("qcn", in_channels=1, classes=3)
    assert isinstance(network, QCN)
    evaluation = answers(network, torch.zeros(1, 1, 28, 28, dtype=torch.float64))
    assert {name: evaluation.arrays[f"{name}.activation"].shape for name in evaluation.layers} == {
        "capsules1": (1, 16, 10, 10),
        "capsules2": (1, 16, 6, 6),
        "capsules3": (1, 16, 2, 2),
    }
    assert evaluation.pose.shape == (1, 3, 3) and evaluation.pose.dtype == np.float64


def images(labels: list[int], classes: int = 5) -> ImageSet:
    pixels = np.arange(len(labels), dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)
    return ImageSet(pixels, np.array(labels), tuple("abcdefghij"[:classes]))


def test_images_are_spread_over_classes_and_splits() -> None:
    tests = {"familiar": images(list(range(5)) * 8), "novel": images(list(range(5)) * 8)}
    rows = [row for row, _, _ in real_images(tests, 16)]
    assert len(set(rows)) == len(rows) == 16
    for label in "abcde":
        splits = [row.split()[0] for row in rows if row.endswith(label)]
        assert abs(splits.count("familiar") - splits.count("novel")) <= 1 and len(splits) >= 3


def test_small_test_splits_give_what_they_have() -> None:
    rows = [row for row, _, _ in real_images({"test": images([1, 1, 3])}, 16)]
    assert sorted(rows) == ["test 0: b", "test 1: b", "test 2: d"]
    with pytest.raises(UsageError, match="no test images"):
        list(real_images({"test": images([])}, 16))


def test_what_cannot_be_answered_is_refused(run: Path, data_dir: Path, tmp_path: Path) -> None:
    network, record = load_network(run)
    assert isinstance(network, QCN)
    with pytest.raises(MissingError, match="qcn datasets fetch mnist"):
        make_golden(network, record, tmp_path)
    with pytest.raises(UsageError, match="classes"):
        make_golden(network, replace(record, classes=list("abcdefghij")), data_dir)
    with torch.no_grad():
        network.class_capsules.rotors.beta_a[3] = torch.nan
    with pytest.raises(CheckFailed, match=r"'test .*' is not finite"):
        make_golden(network, record, data_dir)


def test_a_file_that_is_no_golden_file_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    path = bundle.folder / GOLDEN
    with safe_open(path, framework="numpy") as file:
        metadata = json.loads(file.metadata()["qcn"])
    arrays = load_file(path)
    other = tmp_path / "other"

    def refused(says: str, changed: dict[str, Any], **entries: str) -> None:
        whole = {name: array for name, array in {**arrays, **changed}.items() if array is not None}
        save_file(whole, other, {"qcn": json.dumps(entries)})
        with pytest.raises(UsageError, match=f"is not a golden file: {says}"):
            golden.read(other.read_bytes())

    refused("it has schema None", {})
    refused("it has schema '1'", {}, **{**metadata, "schema": "1"})
    refused("it has no 'preprocessing'", {}, schema="3")
    refused("it has no 'rows'", {}, **{name: text for name, text in metadata.items() if name != "rows"})
    for name in ("rows", "inputs_only", "classes"):
        refused(f"it has no '{name}'", {}, **{key: text for key, text in metadata.items() if key != name})
        refused(f"'{name}' must be a list of text", {}, **{**metadata, name: json.dumps([1] * 22)})
        for odd in ('["a", NaN]', '["a"] x', "[" * 70 + "]" * 70, '["\\ud800"]', '\ufeff["a"]', '[{"a": 1, "a": 2}]'):
            refused(f"'{name}' is not", {}, **{**metadata, name: odd})
    refused("'image' must be uint8 of 4 axes and 2 rows", {}, **{**metadata, "rows": '["a", "b"]', "inputs_only": "[]"})
    for label in (10, -2):
        refused(
            f"'test .*' has the label {label}, but there are 10", {"label": arrays["label"] * 0 + label}, **metadata
        )
    refused("it has no 'label'", {"label": None}, **metadata)
    refused("it has no 'capsules1.activation'", {"capsules1.activation": None}, **metadata)
    refused("'label' must be int64", {"label": arrays["label"].astype(np.int32)}, **metadata)
    finite = "must be finite float64"
    refused(f"float64: 'pose' {finite}", {"pose": arrays["pose"].astype(np.float32)}, **metadata)
    refused(f"float64: 'pose' {finite}", {"pose": arrays["pose"][:, :-1].copy()}, **metadata)
    active = "capsules1.activation"
    refused(f"float64: '{active}' {finite}", {active: arrays[active] * np.inf}, **metadata)
    refused(f"float64: '{active}' must be of 4 axes and 22 rows", {active: arrays[active][:9].copy()}, **metadata)
    step = "capsules1.iteration1"
    refused(f"it has no '{step}.variance'", {f"{step}.variance": None}, **metadata)
    for of, change in (("mean", lambda x: x * np.nan), ("variance", lambda x: x[:1].copy())):
        refused(
            f"float64: 'capsules1/iteration1/{of}' {finite}",
            {f"{step}.{of}": change(arrays[f"{step}.{of}"])},
            **metadata,
        )
    many = {f"{step}.{of}": arrays[f"{step}.{of}"].repeat(12, 0) for of in ("mean", "variance", "logit")}
    refused("float64: 'capsules1/iteration1/logit' must be of 3 axes and 22 rows", many, **metadata)
    refused("'nowhere' is not one of its rows", {}, **{**metadata, "inputs_only": '["nowhere"]'})
    refused("the inputs must be finite", {"input": arrays["input"] * np.float32(np.nan)}, **metadata)
    single = "capsules1.pose.float32"
    refused("float32: 'capsules1.pose' must be finite", {single: arrays[single] * np.float32(np.inf)}, **metadata)
    refused("float32: 'capsules1.pose' must be finite", {single: arrays[single][:, :1].copy()}, **metadata)
    fewer = {f"logit{SINGLE}": 9, f"pose{SINGLE}": 9}
    refused("float32 has other arrays", {name: arrays[name][:, :k].copy() for name, k in fewer.items()}, **metadata)
    one = {f"trained.{of}": arrays[of] for of in ("logit",)}
    refused("trained has other arrays", one, **metadata)
    rows = json.loads(metadata["rows"])
    refused("it has no images", {}, **{**metadata, "inputs_only": metadata["rows"]})
    refused("two of its rows are named", {}, **{**metadata, "rows": json.dumps([rows[1], *rows[1:]])})
    for odd, shown in (("\x1b[2J", r"\\x1b\[2J"), ("a\nb", r"a\\nb"), ("\u202e", r"\\u202e")):
        refused(f"the row '{shown}' has control char", {}, **{**metadata, "rows": json.dumps([odd, *rows[1:]])})
    empty = {name: None for name in arrays if name.startswith(("capsules", "classes"))}
    none = {name: array[:0].copy() for name, array in arrays.items() if name not in empty}
    refused("it has no images", {**empty, **none}, **{**metadata, "rows": "[]", "inputs_only": "[]"})
    for content in (b"", b"\xff" * 64, path.read_bytes()[:-1]):
        other.write_bytes(content)
        with pytest.raises(UsageError, match="is not a golden file"):
            golden.read(other.read_bytes())


def test_golden_answers_are_of_the_bundles_network(bundle: Bundle) -> None:
    """Labels that are no classes or are another's, and shapes of another network, behind a hash that is right."""
    honest = bundle.golden()

    def refused(says: str, **changes: Any) -> None:
        with bundle.adding(GOLDEN, "golden", "fp64", FROM_RUN) as draft:
            golden.write(draft.path, replace(honest, **changes))
        with pytest.raises(UsageError, match=f"does not belong to the network that manifest.json describes: {says}"):
            bundle.golden()

    swapped = (honest.classes[1], honest.classes[0], *honest.classes[2:])
    refused(r"its classes are \['1', '0'", classes=swapped)
    refused("its classes are", classes=(*honest.classes, "another"))
    refused("'test .*' is of the class", label=np.where(honest.label >= 0, (honest.label + 1) % 10, honest.label))
    refused(r"its images are \[1, 28, 27\]", image=honest.image[..., 1:])
    refused(r"its inputs are \[1, 28, 27\]", input=honest.input[..., 1:])
    fewer = {
        name: answering(of, logit=of.logit[:, :9], pose=of.pose[:, :9])
        for name, of in (("reference", honest.reference), ("float32", honest.float32))
    }
    refused(r"its logits are \[9\], but \[10\] were expected", **fewer, label=honest.label * 0)

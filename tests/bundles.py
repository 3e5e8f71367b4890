"""A short training run, its program and a bundle of it; and bundles of any network."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qcn import create
from qcn.data.registry import load
from qcn.data.spec import Preprocessing
from qcn.direction import Directions
from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.bundle.golden import Evaluation
from qcn.export.bundle.manifest import (
    MANIFEST_SHA256,
    Batch,
    BundleSource,
    Manifest,
    manifest_of,
    manifest_sums,
    ports,
    tools,
)
from qcn.export.bundle.transaction import LOCK, locked
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.lower import lower
from qcn.export.program.program import Program
from qcn.export.program.reference import golden_of, make_golden, with_edge_cases
from qcn.train.checkpoint import load_network
from qcn.train.loop import Training
from qcn.train.record import load_run
from qcn.train.settings import Settings


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name that `make` fills, once for all processes of a test session."""
    base = factory.getbasetemp()  # that of the process, where pytest-xdist has several
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    done, lock = shared / f"{name}.done", shared / f"{name}.lock"
    lock.mkdir(parents=True, exist_ok=True)
    with locked(lock):
        if not done.exists():
            make(shared / name)
            done.touch()
    return shared / name


def trained_network(name: str, channels: int, classes: int, *sides: int, seed: int = 0, **options: Any) -> nn.Module:
    """A network after a few steps on noise, so that no statistic and no bias is where it began."""
    torch.manual_seed(seed)
    network = with_quick_norms(create(name, in_channels=channels, classes=classes, **options))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001 if name == "cnn" else 0.01)
    for _ in range(3):
        prediction = network.train()(torch.randn(4, channels, *sides) * 1.5 + 0.5)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(prediction.logit, torch.arange(4)).backward()
        optimizer.step()
    return network.eval()


def answering(evaluation: Evaluation, **arrays: Any) -> Evaluation:
    """The same with other arrays among the network's answers."""
    return Evaluation({name: array for name, array in {**evaluation.arrays, **arrays}.items() if array.size})


def with_quick_norms(network: nn.Module) -> nn.Module:
    """The same network. Where statistics of batch norms hardly move in a few steps, they are those of the last batch.

    Then numbers keep their size through all layers of Lite0, and some are cut off by ReLU6.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.momentum == 0.01:
            module.momentum = 1.0
    return network


@pytest.fixture(scope="session")
def run(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a qcn-tiny run on the small mnist: one epoch of eight steps."""

    def train(out: Path) -> None:
        splits = load("mnist", data_dir)
        few = replace(splits, train=splits.train[np.arange(64)])
        Training(Settings("mnist", "qcn-tiny", epochs=1, batch_size=8), few, out, torch.device("cpu")).run()

    return made_once(tmp_path_factory, "run", train)


@pytest.fixture(scope="session")
def program(run: Path) -> Program:
    """The best network of `run` as a program."""
    trained, record = load_network(run)
    return lower(trained, *record.preprocessing.output_size(*record.data.image[1:]))


@pytest.fixture(scope="session")
def manifest(run: Path, program: Program) -> Manifest:
    """The manifest of a bundle of `run`, of no files yet."""
    return manifest_of(load_run(run), run, "best", program, "tiny", tools("torch"))


@pytest.fixture(scope="session")
def _bundle(
    run: Path, program: Program, manifest: Manifest, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    def write(folder: Path) -> None:
        trained, record = load_network(run)
        Bundle.create(folder, manifest, program, lambda: make_golden(trained, record, data_dir), FROM_RUN)

    return made_once(tmp_path_factory, "bundle", write)


@pytest.fixture
def bundle(_bundle: Path, tmp_path: Path) -> Bundle:
    """A bundle of the test's own with weights and golden answers in it."""
    return Bundle.open(shutil.copytree(_bundle, tmp_path / "bundle"))


def bundle_of(folder: Path, network: nn.Module, *sides: int, spec: Preprocessing | None = None) -> Bundle:
    """A bundle of any network that can be exported, whose input has these sides; by default images are not resized.

    Its golden images are two of noise, and the edge cases. Its classes are class0, class1, …
    """
    program, spec = lower(network, *sides), spec or Preprocessing(standardise="image")
    image, outputs = ports(program.input.shape, program.classes, program.poses)
    times = 1 if spec.output_size(*sides) == sides else 2
    shape = (image.shape[0], times * sides[0], times * sides[1])
    manifest = Manifest(
        name=folder.name,
        classes=tuple(f"class{k}" for k in range(program.classes)),
        image=shape,
        preprocessing=spec,
        input=image,
        outputs=outputs,
        source=BundleSource("0" * 64, "some", "last", 1, "noise", "0" * 64),
        tools=tools("torch"),
    )
    pixels = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    images = with_edge_cases(("first", "second"), pixels, (0, 1), spec)
    return Bundle.create(folder, manifest, program, lambda: golden_of(network, images, manifest.classes), FROM_RUN)


def with_directions(bundle: Bundle, **changes: Any) -> Bundle:
    """The same bundle, whose manifest says that poses tell directions: of no symmetry, unless changed."""
    made_up = Directions((1,) * len(bundle.manifest.classes), True, (), (12.0,))
    changed = replace(bundle.manifest, direction=replace(made_up, **changes))
    put_manifest(bundle.folder, changed.to_json())
    return Bundle.open(bundle.folder)


def put_manifest(folder: Path, text: str) -> None:
    """Write a bundle's manifest as whoever alters one would: with its hash beside it."""
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    (folder / MANIFEST_SHA256).write_bytes(manifest_sums(text.encode()))


def add(bundle: Bundle, file: str = "model.onnx", content: bytes = b"graph") -> None:
    """A file of any bytes in a bundle, as an export would add it."""
    format: str = {".engine": "trt", ".pt2": "pt2"}.get(Path(file).suffix, "onnx")
    command = f"qcn export {{bundle}} --format {format} --precision fp32 --batch 1"
    with bundle.adding(file, format, "fp32", command, batch=Batch(1, 1, 1)) as draft:
        draft.path.write_bytes(content)
        draft.found = "fp32"
        draft.facts["opset"] = 17


def states(bundle: Bundle) -> dict[str, str]:
    return {finding.file: finding.state for finding in bundle.check()}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder but the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

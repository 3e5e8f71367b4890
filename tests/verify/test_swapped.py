"""A file, or a whole bundle, that is swapped for another between its check and its use: it is never used."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import attacks
import numpy as np
import plants
import pytest
from bundles import made_once
from command import Command

import qcn as product
from qcn.errors import MissingError, UsageError
from qcn.export.backends import LOADED
from qcn.export.backends.candidates import candidates
from qcn.export.backends.runner import Runner
from qcn.export.backends.web.runner import find_node
from qcn.export.bundle import WEIGHTS, Bundle, signing
from qcn.export.pipeline import export
from qcn.export.request import ExportRequest
from qcn.kernels import native as native_kernels
from qcn.libqcn import binding
from qcn.packages import installed
from qcn.runtime import engines

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def web() -> bool:
    try:
        return bool(find_node())
    except MissingError:
        return False


# By format that is exported, the backends that run it here.
HERE = {
    "native": ["torch", *(["native"] if native_kernels.available() else [])],
    "torchscript": ["torchscript"],
    "pt2": ["pt2"],
    "onnx": ["onnxruntime"] if installed("onnxruntime") else [],
    "openvino": ["openvino"] if installed("openvino") else [],
    "executorch": ["executorch"] if installed("executorch") else [],
    "litert": ["litert"] if installed("ai_edge_litert") else [],
    "triton": ["triton"] if installed("tritonclient") else [],
    "web": ["web"] if web() else [],
}
BACKENDS = [backend for found in HERE.values() for backend in found]
OF_LOAD = [backend for backend in BACKENDS if backend in LOADED]


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory, wasm: None) -> Path:
    """Two bundles of two networks with a file of every format: `honest`, and `other`, whose classes are in reverse."""

    def make(folder: Path) -> None:
        formats = tuple(name for name, backends in HERE.items() if backends)
        for seed, name in enumerate(("honest", "other")):
            with mock.patch.object(plants, "CLASSES", plants.CLASSES[:: -1 if seed else 1]):
                bundle = plants.honest(folder / name, seed=seed)
            export(bundle.folder, None, ExportRequest(formats=formats), Path("nowhere"))

    return made_once(tmp_path_factory, "swapped", make)


@pytest.fixture
def honest(kept: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(kept / "honest", tmp_path / "bundle"))


@pytest.fixture
def other(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept / "other", tmp_path / "other"))


@contextmanager
def swapped(bundle: Path, other: Path) -> Iterator[None]:
    """While the block runs, the other bundle lies where this one was."""
    aside = bundle.with_name("aside")
    bundle.rename(aside), other.rename(bundle)
    try:
        yield
    finally:
        bundle.rename(other), aside.rename(bundle)


def swap_during(owner: Any, name: str, bundle: Path, other: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """Have the other bundle there while this function runs, and only then; gives a list of its calls."""
    function: Callable[..., Any] = getattr(owner, name)
    calls: list[str] = []

    def during(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        with swapped(bundle, other):
            return function(*arguments, **options)

    patch.setattr(owner, name, during)
    return calls


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_runner_was_given_is_what_it_runs(honest: Bundle, other: Path, backend: str) -> None:
    """From its check on, another bundle lies there: nothing of it may be opened by name."""
    (candidate,) = candidates(honest, [backend], trust=True)
    tolerance = (candidate.artefact.tolerance or {})["logit"]
    runner, golden = candidate.runner(honest), honest.golden()
    with swapped(honest.folder, other):
        theirs = Bundle.open(honest.folder).golden()
        assert np.abs(theirs.reference.logit[:3] - golden.reference.logit[:3]).max() > 10 * tolerance
        with runner:
            found = np.concatenate([runner.infer(golden.input[[row]])["logit"] for row in range(3)])
    assert np.abs(found - golden.reference.logit[:3]).max() <= tolerance


@pytest.mark.parametrize("signed", [False, True])
def test_verify_parity_runs_what_it_checked(
    honest: Bundle, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qcn: Command, signed: bool
) -> None:
    """TorchScript that nobody signed lies in the place of the honest one while it is loaded. It must not run."""
    mark, options = tmp_path / "mark", ["--trust"]
    with mock.patch.object(plants, "CLASSES", plants.CLASSES[::-1]):
        attacks.put_torchscript(Bundle.open(other), attacks.Writes(str(mark), 4))
    if signed:
        public = signing.new_key(tmp_path / "key.pem")
        honest.sign(tmp_path / "key.pem")
        options += ["--public-key", str(public)]
    backends = ["torchscript", *(["onnxruntime"] if "onnxruntime" in BACKENDS else [])]
    calls = swap_during(Runner, "__enter__", honest.folder, other, monkeypatch)
    code, said = qcn("verify-parity", honest.folder, "--backends", ",".join(backends), *options)
    assert code == 0 and said.count("passed  ") >= len(backends) and len(calls) >= len(backends), said
    assert not mark.exists()


@pytest.mark.parametrize("backend", OF_LOAD)
def test_predict_answers_with_what_it_checked(
    honest: Bundle, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qcn: Command, backend: str
) -> None:
    """Another whole bundle lies there while the backend loads: neither its logits nor its classes may come out."""
    public = signing.new_key(tmp_path / "key.pem")
    honest.sign(tmp_path / "key.pem")
    picture = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    before, theirs = (product.load(one, backend).predict(picture) for one in (honest.folder, other))  # type: ignore[arg-type]
    assert not np.allclose(before.logit, theirs.logit, atol=1e-2)
    loads, name = (binding.NativeModel, "__init__") if backend == "native" else (engines, "create")
    calls = swap_during(loads, name, honest.folder, other, monkeypatch)
    if backend != "native":  # and when it is opened
        create = engines.create

        def with_swap(*arguments: Any, **options: Any) -> Runner:
            runner = create(*arguments, **options)
            swap_during(runner, "open", honest.folder, other, monkeypatch)
            return runner

        monkeypatch.setattr(engines, "create", with_swap)
    after = product.load(honest.folder, backend, public_key=public).predict(picture)  # type: ignore[arg-type]
    assert calls and after.classes == before.classes and after.label == before.label
    np.testing.assert_allclose(after.logit, before.logit, atol=1e-5)


@pytest.mark.parametrize("same_key", [False, True])
@pytest.mark.parametrize("backend", OF_LOAD)
def test_a_bundle_that_is_swapped_after_its_manifest_was_read_is_refused(
    honest: Bundle, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, same_key: bool
) -> None:
    """Even one that the same person signed: classes of one would go with logits of the other."""
    key = tmp_path / "key.pem"
    public = signing.new_key(key)
    honest.sign(key)
    if same_key:
        Bundle.open(other).sign(key)
    open_bundle = Bundle.open

    def opened(folder: Path, public_key: Path | None = None) -> Bundle:
        bundle = open_bundle(folder, public_key)
        honest.folder.rename(tmp_path / "aside"), other.rename(honest.folder)
        return bundle

    monkeypatch.setattr(Bundle, "open", staticmethod(opened))
    with pytest.raises(UsageError, match="replaced by another network" if same_key else "is not signed"):
        product.load(honest.folder, backend, public_key=public)  # type: ignore[arg-type]


def test_a_file_that_another_process_swaps_all_the_time(honest: Bundle, other: Path) -> None:
    """A real race: what is read is the honest file or nothing, and what runs is what was read."""
    path, theirs = honest.folder / WEIGHTS, other / WEIGHTS
    assert path.stat().st_size == theirs.stat().st_size
    code = (
        "import os, sys\nplace, *files = sys.argv[1:]\nwhile True:\n"
        "    for file in files:\n        os.link(file, place + '.new')\n        os.replace(place + '.new', place)\n"
    )
    kept = shutil.copy(path, honest.folder.with_name("kept"))
    content, artefact = path.read_bytes(), honest.find(WEIGHTS)
    image, (candidate,) = np.ones((1, 3, plants.SIZE, plants.SIZE), np.float32), candidates(honest, ["torch"])
    with candidate.runner(honest) as runner:
        expected = runner.infer(image)["logit"]
    read = refused = 0
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(kept), str(theirs)]) as attacker:
        try:
            while min(read, refused) < 20 and read + refused < 5000:
                try:
                    assert honest.read(artefact) == content
                    read += 1
                except UsageError as error:
                    assert "was altered: its sha256 is" in str(error)
                    refused += 1
                if read % 5 == 1:
                    with suppress(UsageError), candidate.runner(honest) as runner:
                        np.testing.assert_array_equal(runner.infer(image)["logit"], expected)
        finally:
            attacker.kill()
    assert read and refused

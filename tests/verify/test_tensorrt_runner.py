"""The TensorRT runner: foreign engines refused, memory given back, and on a GPU the answers of ONNX Runtime."""

import json
from pathlib import Path

import numpy as np
import pytest
from bundles import put_manifest
from fake_engine import SHAPE, FakeContext, FakeCuda, fake_runtime
from runners import create
from small_graphs import write_graph

from qcn.errors import MissingError, UsageError
from qcn.export import targets
from qcn.export.backends.candidates import candidates
from qcn.export.backends.tensorrt import runner as runner_module
from qcn.export.backends.tensorrt.build import BuildRequest, TensorRT, build, find
from qcn.export.backends.tensorrt.runner import Cuda
from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.bundle.manifest import Batch
from qcn.export.pipeline import FROM_RUN
from qcn.export.targets import Gpu

FACTS = {
    "flavour": "tensorrt",
    "version": "8.6.1",
    "gpu": "NVIDIA H200",
    "sm": 90,
    "precision": "fp16",
    "batch": [1, 4, 8],
}


def write_engine(folder: Path, **changes: object) -> Path:
    path = folder / "bundle" / "engines" / "fp16-b1-4-8-sm90-trt8.6.1.engine"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"plan")
    rebuild = "qcn export {bundle} --format trt --precision fp16 --batch 1:4:8"
    path.with_suffix(".json").write_text(json.dumps({"facts": FACTS | changes, "rebuild": rebuild}))
    return path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeCuda, FakeContext]:
    """An H200 with TensorRT 8.6.1, in main memory."""
    cuda, context = FakeCuda(), FakeContext()
    monkeypatch.setattr(targets, "this_gpu", lambda: Gpu("NVIDIA H200", 90))
    monkeypatch.setattr(runner_module, "Cuda", lambda: cuda)
    found = TensorRT("tensorrt", (8, 6, 1), fake_runtime(context))
    monkeypatch.setattr(runner_module, "find", lambda flavour=None: found)
    return cuda, context


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, *SHAPE)).astype(np.float32)


def test_any_batch_of_the_profile_runs_and_all_memory_is_given_back(
    tmp_path: Path, machine: tuple[FakeCuda, FakeContext]
) -> None:
    cuda, _ = machine
    with create("tensorrt", write_engine(tmp_path)) as runner:
        for count in (8, 1, 3):
            answer = runner.infer(images(count))["logit"]
            assert answer.dtype == np.float16
            np.testing.assert_allclose(answer[:, 0], images(count).sum((1, 2, 3)), rtol=1e-2, atol=1e-2)
        with pytest.raises(UsageError, match=r"batches of 1 to 8: qcn export .*/bundle --format trt --precision fp16"):
            runner.infer(images(9))
        with pytest.raises(UsageError, match=r"images are \[1, 2, 4, 5\]"):
            runner.infer(np.zeros((1, 2, 4, 5), np.float32))
    runner.close()
    assert cuda.live == {}
    with pytest.raises(UsageError, match="is not open"):
        runner.infer(images(1))


def test_a_cuda_graph_is_captured_once_for_each_batch(tmp_path: Path, machine: tuple[FakeCuda, FakeContext]) -> None:
    cuda, context = machine
    with create("tensorrt", write_engine(tmp_path)) as runner:
        runner.upload(images(4))
        for _ in range(3):
            runner.enqueue()
        runner.synchronize()
        assert (context.runs, cuda.calls.count("cudaGraphLaunch")) == (2, 2)  # once for itself, once captured
        runner.upload(images(4))
        runner.enqueue()
        assert cuda.calls.count("cudaStreamBeginCapture") == 1
        runner.infer(images(2))
        assert cuda.calls.count("cudaStreamBeginCapture") == 2
        launched, ran = cuda.calls.count("cudaGraphLaunch"), context.runs
        runner.graph = False  # a benchmark asks for both ways in turn
        runner.infer(images(2))
        assert (cuda.calls.count("cudaGraphLaunch"), context.runs) == (launched, ran + 1)
        runner.graph = True
        runner.infer(images(2))
        assert cuda.calls.count("cudaGraphLaunch") == launched + 1 and cuda.calls.count("cudaStreamBeginCapture") == 2
    assert cuda.live == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "10.3.0"}, r"was built with TensorRT 10\.3\.0; here is TensorRT 8\.6\.1"),
        ({"sm": 87, "gpu": "Orin"}, "was built for Orin, sm87; here is NVIDIA H200, sm90"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_an_engine_of_another_machine_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = write_engine(tmp_path, **changes)
    command = f"qcn export {tmp_path}/bundle --format trt --precision fp16 --batch 1:4:8"
    with pytest.raises(MissingError, match=message) as caught:
        create("tensorrt", path).open()
    assert command in str(caught.value)


@pytest.mark.usefixtures("machine")
def test_an_engine_without_weights_says_how_it_gets_some(tmp_path: Path) -> None:
    path = write_engine(tmp_path, stripped=True)
    with pytest.raises(
        MissingError, match=f"contains no weights; add them with: qcn export {path.parents[1]} --refit {path}"
    ):
        create("tensorrt", path).open()


def test_a_version_compatible_engine_runs_by_the_lean_runtime_of_its_version(
    tmp_path: Path, machine: tuple[FakeCuda, FakeContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(targets.LEAN_RUNTIME, "/opt/libnvinfer_lean.so.8")
    loaded, module = [], runner_module.find().module

    def load_runtime(self: object, path: str) -> object:
        loaded.append(path)
        return self

    monkeypatch.setattr(module.Runtime, "load_runtime", load_runtime, raising=False)
    with create("tensorrt", write_engine(tmp_path / "old", version="8.6.0", version_compatible=True)) as runner:
        runner.infer(images(1))
    assert loaded == ["/opt/libnvinfer_lean.so.8"]
    with create("tensorrt", write_engine(tmp_path / "same", version_compatible=True)) as runner:
        runner.infer(images(1))
    assert len(loaded) == 1


def test_a_plan_that_tensorrt_refuses(
    tmp_path: Path, machine: tuple[FakeCuda, FakeContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = TensorRT("tensorrt", (8, 6, 1), fake_runtime(machine[1], readable=False))
    monkeypatch.setattr(runner_module, "find", lambda flavour=None: found)
    with pytest.raises(MissingError, match=r"error: The engine plan file is not compatible\nbuild it here: qcn export"):
        create("tensorrt", write_engine(tmp_path)).open()


@pytest.mark.usefixtures("machine")
def test_the_facts_are_those_that_a_bundle_keeps(bundle: Bundle) -> None:
    """Not a file of this test's making: else the two could agree on what no bundle has."""
    with bundle.adding("engines/other.engine", "trt", "fp16", FROM_RUN, batch=Batch(1, 4, 8)) as draft:
        draft.path.write_bytes(b"plan")
        draft.facts = {**FACTS, "gpu": "Orin", "sm": 87}
    with pytest.raises(MissingError, match="was built for Orin, sm87; here is NVIDIA H200, sm90"):
        candidates(bundle, ["tensorrt"])[0].runner(bundle).open()


@pytest.mark.usefixtures("machine")
def test_an_engine_and_its_facts_are_those_that_were_checked(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others lie in their places when TensorRT gets to them."""
    with bundle.adding("engines/own.engine", "trt", "fp16", FROM_RUN, batch=Batch(1, 4, 8)) as draft:
        draft.path.write_bytes(b"plan")
        draft.facts = FACTS
    (candidate,) = candidates(bundle, ["tensorrt"])
    runner = candidate.runner(bundle)
    (bundle.folder / "engines" / "own.engine").write_bytes(b"nalp")
    manifest = (bundle.folder / MANIFEST).read_text(encoding="utf-8")
    put_manifest(bundle.folder, manifest.replace('"sm": 90', '"sm": 87'))
    plans, module = list[bytes](), runner_module.find().module
    read = module.Runtime.deserialize_cuda_engine
    monkeypatch.setattr(module.Runtime, "deserialize_cuda_engine", lambda *of: (plans.append(of[1]), read(*of))[1])
    with runner:
        assert plans == [b"plan"]


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX has no wheel here")
    monkeypatch.setattr(targets, "this_gpu", lambda: None)
    with pytest.raises(MissingError, match="needs an NVIDIA GPU"):
        create("tensorrt", write_engine(tmp_path, flavour="rtx")).open()


def test_a_cuda_error_carries_its_name() -> None:
    pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    from qcn.errors import QcnError

    with pytest.raises(QcnError, match=r"cudaMalloc failed: .* \(cudaError"):
        Cuda().call("cudaMalloc", 1 << 60)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_an_engine_answers_as_onnx_runtime_does(tmp_path: Path, graph: bool) -> None:
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    path = write_graph(tmp_path / "model.onnx")
    engine = build(path.read_bytes(), BuildRequest("fp32", Batch(1, 4, 8)), find("tensorrt"))
    plan = tmp_path / engine.file_name
    plan.write_bytes(engine.plan)
    plan.with_suffix(".json").write_text(json.dumps({"facts": engine.facts}))
    with create("tensorrt", plan) as runner, create("onnxruntime", path) as reference:
        runner.graph = graph
        for count in (1, 8, 3):
            batch = np.random.default_rng(count).normal(size=(count, 2, 16, 16)).astype(np.float32)
            for _ in range(2):
                np.testing.assert_allclose(
                    runner.infer(batch)["logit"], reference.infer(batch)["logit"], rtol=1e-5, atol=1e-6
                )

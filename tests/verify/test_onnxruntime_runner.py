"""The ONNX Runtime runner: right answers, and the provider that was asked for or an error."""

import sys
from pathlib import Path

import numpy as np
import pytest
from runners import create
from small_graphs import write_graph

from qcn.errors import MissingError, UsageError
from qcn.export.backends.onnx.runner import session_options
from qcn.export.backends.runner import Options

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 2, 16, 16)).astype(np.float32)


def test_any_batch_gives_each_image_its_own_answer(tmp_path: Path) -> None:
    batch = images(5)
    with create("onnxruntime", write_graph(tmp_path / "model.onnx"), threads=1) as runner:
        together = runner.infer(batch)
        alone = [runner.infer(image[None]) for image in batch]
        assert runner.name == f"onnxruntime {onnxruntime.__version__} (cpu)"
    assert together["logit"].shape == (5, 8)
    np.testing.assert_allclose(together["logit"], np.concatenate([a["logit"] for a in alone]), atol=1e-6)


@pytest.mark.parametrize("graph", [None, False])
def test_what_stays_on_a_device_is_answered_alike(tmp_path: Path, graph: bool | None) -> None:
    """The way of a GPU, on the CPU: images and answers in memory of ONNX Runtime's, one of each for a batch size."""
    path = write_graph(tmp_path / "model.onnx")
    with create("onnxruntime", path, threads=1) as plain, create("onnxruntime", path, threads=1) as runner:
        runner.transfers, runner.graph = True, graph
        for batch in (images(3), images(1), images(3) * 2):
            expected, found = plain.infer(batch), runner.infer(batch)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value)


def test_images_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with create("onnxruntime", write_graph(tmp_path / "model.onnx", batch=4)) as runner:
        with pytest.raises(UsageError, match=r"images are \[2, 2, 16, 16\], .* takes \[4, 2, 16, 16\]"):
            runner.infer(images(2))
        with pytest.raises(UsageError, match="images are"):
            runner.infer(images(4)[0])


def test_an_operator_library_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCN_ONNXRUNTIME_OPS", str(tmp_path / "none.so"))
    with pytest.raises(MissingError, match=r"none.so, which QCN_ONNXRUNTIME_OPS names, does not exist"):
        create("onnxruntime", write_graph(tmp_path / "model.onnx")).open()


def test_threads_that_wait_sleep_where_answers_are_checked_alone() -> None:
    spinning = "session.intra_op.allow_spinning"
    assert session_options(onnxruntime, Options(thrifty=True)).get_session_config_entry(spinning) == "0"
    with pytest.raises(RuntimeError, match="does not have configuration"):  # ONNX Runtime's own choice, when timed
        session_options(onnxruntime, Options()).get_session_config_entry(spinning)


def test_cuda_where_there_is_none_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said without loading torch, which takes two seconds."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    monkeypatch.setattr("qcn.export.backends.onnx.runner.installed", lambda _: True)
    monkeypatch.setitem(sys.modules, "torch", None)
    runner = create("onnxruntime-cuda", write_graph(tmp_path / "model.onnx"))
    with pytest.raises(MissingError, match=r"has no CUDAExecutionProvider, only .*: pip install onnxruntime-gpu"):
        runner.open()


def test_a_silent_fall_back_to_the_cpu_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ONNX Runtime GPU does where CUDA's libraries do not load: it goes on, on the CPU."""

    class FellBack:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", FellBack)
    runner = create("onnxruntime-cuda", write_graph(tmp_path / "model.onnx"))
    with pytest.raises(MissingError, match=r"CUDAExecutionProvider was requested, .* fell back to CPUExecution"):
        runner.open()


def test_wrong_names_and_files(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(UsageError, match="cannot load"):
        create("onnxruntime", tmp_path / "model.onnx").open()
    with pytest.raises(UsageError, match="did you mean 'onnxruntime'"):
        create("onnxruntim", tmp_path / "model.onnx")


@pytest.mark.gpu
def test_cuda_answers_as_the_cpu_does(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA")
    path = write_graph(tmp_path / "model.onnx")
    with create("onnxruntime", path) as cpu, create("onnxruntime-cuda", path) as cuda:
        for batch in (images(3), images(1), images(3) * 2):
            for cuda.graph in (True, False, True):
                found, expected = (runner.infer(batch)["logit"] for runner in (cuda, cpu))
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

"""libqcn_onnxruntime.so: ONNX Runtime takes its operator before the functions in the file, and it answers rightly."""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from runners import create

from qcn.export.backends.onnx.build import FUSED, build
from qcn.export.bundle import Bundle
from qcn.export.program.program import Program
from qcn.names import Precision
from qcn.verify.parity.compare import compare

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow  # it compiles the kernels


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with the headers in $QCN_ONNXRUNTIME_INCLUDE, or those that are kept here."""
    include = Path(os.environ.get("QCN_ONNXRUNTIME_INCLUDE", ROOT / ".gpu" / "headers" / "onnxruntime" / "include"))
    if not (include / "onnxruntime_c_api.h").is_file():
        pytest.skip("ONNX Runtime's C headers are not here: QCN_ONNXRUNTIME_INCLUDE names their folder")
    folder = tmp_path_factory.mktemp("operator")
    options = [f"-DQCN_ONNXRUNTIME_INCLUDE={include}", "-DQCN_CUDA=OFF", "-DQCN_TESTS=OFF", "-DQCN_PROGRAMS=OFF"]
    target = ["--target", "qcn_onnxruntime", "--parallel"]
    for command in (
        ["cmake", "-S", ROOT / "deploy", "-B", folder, *options],
        ["cmake", "--build", folder, *target],
    ):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return folder / "libqcn_onnxruntime.so"


def opened(model: onnx.ModelProto, library: Path | None, optimised: Path) -> onnxruntime.InferenceSession:
    """A session of it; `optimised` becomes the graph that is run."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    options.optimized_model_filepath = str(optimised)
    if library:
        options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def routing_nodes(optimised: Path) -> int:
    return sum(node.op_type == "EMRouting" for node in onnx.load(optimised).graph.node)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_operator_is_taken_and_answers_as_the_network(
    library: Path, program: Program, bundle: Bundle, tmp_path: Path, precision: Precision
) -> None:
    model = build(program.at(precision, rest=precision), style=FUSED)
    assert len(model.functions) > 1
    golden = bundle.golden()
    layers = len(program.routes)
    for operator, expected in ((None, 0), (library, layers)):
        session = opened(model, operator, tmp_path / "seen.onnx")
        assert routing_nodes(tmp_path / "seen.onnx") == expected
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, {"image": golden.input}), strict=True))
        for output, errors in compare(found, golden, precision, {}).items():
            assert errors.passed, f"{output} {errors.words()}, by {operator}"


def test_the_runner_takes_the_library_from_the_environment(
    library: Path, program: Program, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QCN_ONNXRUNTIME_OPS", str(library))
    onnx.save(build(program, style=FUSED), tmp_path / "model.fused.onnx")
    golden = bundle.golden()
    with create("onnxruntime", tmp_path / "model.fused.onnx") as runner:
        found = runner.infer(golden.input)
        assert runner.name.endswith(f"(cpu, {library})")
    assert all(errors.passed for errors in compare(found, golden, "fp32", {}).values())


def test_what_the_kernels_cannot_do_is_refused(library: Path, program: Program, tmp_path: Path) -> None:
    model = build(program, style=FUSED)
    node = next(node for node in model.graph.node if node.op_type == "EMRouting")
    attributes = {attribute.name: attribute for attribute in node.attribute}
    attributes["mode"].s = b"softest"
    with pytest.raises(Exception, match="neither 'logistic' nor 'unit'"):
        opened(model, library, tmp_path / "seen.onnx")
    attributes["mode"].s = b"logistic"
    del model.functions[:]
    attributes["window"].ints[:] = [2, 2]
    session = opened(model, library, tmp_path / "seen.onnx")
    image = np.zeros((1, *program.input.shape), np.float32)
    with pytest.raises(Exception, match="do not fit each other or the window"):
        session.run(None, {"image": image})

"""Bundles of qcn-lite0: every backend passes, in float32 and int8, and faults in its kinds of operations are found."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bundles import made_once
from command import Command
from graphs import put_graph
from plants import altered_program, array, calibrated, with_arrays

from qcn.export.backends.onnx.build import build
from qcn.export.backends.receipts import receipts
from qcn.export.bundle import Bundle
from qcn.export.program.program import Convolution, Program
from qcn.kernels import native as native_kernels
from qcn.packages import installed
from qcn.verify.parity.verify import verify

FIRST = "backbone.10.expand"  # the first operation in int8
DEPTHWISE = "backbone.10.depthwise"


@pytest.fixture(scope="session")
def _lite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float32: a bundle of qcn-lite0. int8: a calibrated one.

    The operations before `FIRST` are float32: where weights are random, one number that is rounded to the other step
    changes much of what is behind it.
    """
    return made_once(
        tmp_path_factory,
        "lite0",
        lambda out: calibrated(out, size=48, images=4, model="qcn-lite0", first=FIRST),
    )


@pytest.fixture
def lite(_lite: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(_lite / "float32", tmp_path / "lite"))


@pytest.fixture
def low(_lite: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(_lite / "int8", tmp_path / "low"))


def backends() -> list[str]:
    optional = {"openvino": "openvino", "litert": "ai_edge_litert"}
    native = ["native"] if native_kernels.available() else []
    return ["torch", "onnxruntime", *native, *(name for name, package in optional.items() if installed(package))]


@pytest.mark.parametrize("kind", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_every_backend_passes(_lite: Path, tmp_path: Path, qcn: Command, kind: str) -> None:
    folder = shutil.copytree(_lite / kind, tmp_path / kind)
    for name in {"openvino", "litert"} & {*backends()}:
        code, said = qcn("export", folder, "--format", name)
        assert code == 0, said
    code, said = qcn("verify-parity", folder, "--backends", ",".join(backends()), "--set", "bisect")
    precision = "int8" if kind == "int8" else "fp32"
    assert code == 0 and said.count(f"({precision})\n") >= len(backends()), said


def test_receipts_name_the_kernels_of_integers(low: Bundle, qcn: Command) -> None:
    for name, kernel in (("onnxruntime", "ConvInteger"), ("litert", "DEPTHWISE_CONV_2D")):
        if name in backends():
            if name == "litert":
                assert qcn("export", low.folder, "--format", name)[0] == 0
            (receipt,) = (one for one in receipts(Bundle.open(low.folder), name) if one.operation == DEPTHWISE)
            assert (receipt.asked, receipt.ran) == ("int8", "int8") and kernel in receipt.by, receipt


def relu_for_relu6(program: Program) -> Program:
    changed = [
        replace(op, ending="relu") if isinstance(op, Convolution) and op.name == DEPTHWISE else op
        for op in program.operations
    ]
    return replace(program, operations=tuple(changed))


FAULTS: dict[str, Callable[[Program], Program]] = {
    "a kernel of one channel is altered": array(f"{DEPTHWISE}.weight", lambda w: np.concatenate([1.5 * w[:1], w[1:]])),
    "two channels have each other's kernels": array(f"{DEPTHWISE}.weight", lambda w: w[[1, 0, *range(2, len(w))]]),
    "a kernel is transposed": array(f"{DEPTHWISE}.weight", lambda w: w.swapaxes(2, 3)),
    "ReLU for ReLU6": relu_for_relu6,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(lite: Bundle, fault: str) -> None:
    altered_program(FAULTS[fault])(lite)
    (verdict,) = verify(Bundle.open(lite.folder), ["onnxruntime"], {})
    assert verdict.status == "failed", verdict


def test_a_planted_fault_in_integers_is_found(low: Bundle) -> None:
    program = low.program()
    name = f"{DEPTHWISE}.weight"
    wrong = with_arrays(program, {name: program.arrays[name][::-1].copy()})
    put_graph(low, build(wrong), "int8")
    (verdict,) = verify(Bundle.open(low.folder), ["onnxruntime"], {})
    assert verdict.status == "failed", verdict

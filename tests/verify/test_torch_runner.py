"""The torch runners: precisions, and on a GPU the same answers with and without a graph, and no TF32."""

import numpy as np
import pytest
import torch
from runners import create

from qcn.export.backends.candidates import candidates
from qcn.export.backends.torch.torchscript import write_torchscript
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.pipeline import FROM_RUN
from qcn.names import AnyPrecision
from qcn.verify.parity.compare import compare


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
def test_precisions(bundle: Bundle, precision: AnyPrecision) -> None:
    """Each as exact as it should be, and no half precision that is float32."""
    golden = bundle.golden()
    with create("torch", bundle.folder / WEIGHTS, precision=precision) as runner:
        found = runner.infer(golden.input)
    assert all(errors.passed for errors in compare(found, golden, precision, {}).values())
    half = precision in ("fp16", "bf16")
    assert all(errors.passed for errors in compare(found, golden, "fp32", {}).values()) is not half


def test_a_backend_of_several_precisions_has_a_candidate_for_each(bundle: Bundle) -> None:
    found = candidates(bundle, ["torch-cuda", "torch"])
    assert [(one.backend.name, one.precision) for one in found] == [
        ("torch-cuda", "fp32"),
        ("torch-cuda", "fp16"),
        ("torch", "fp32"),
    ]
    runners = [one.runner(bundle) for one in found]
    assert [runner.options.precision for runner in runners] == ["fp32", "fp16", "fp32"]
    assert [runner.graph for runner in runners] == [True, True, None]


def test_convolutions_are_cudnns_in_float32(bundle: Bundle) -> None:
    """Leaving TF32 by `cudnn.flags` alone would switch cuDNN off as well, and be ten times slower."""
    flags: list[tuple[bool, bool]] = []

    def look(*_: object) -> None:
        flags.append((torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32))

    with create("torch", bundle.folder / WEIGHTS) as runner:
        runner._model.register_forward_pre_hook(look)  # type: ignore[attr-defined]
        runner.infer(bundle.golden().input[:1])
    assert flags == [(True, False)]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch-cuda", "torchscript-cuda"])
def test_on_a_gpu_answers_are_the_same_with_and_without_a_graph(bundle: Bundle, backend: str) -> None:
    pytest.importorskip("triton", reason="fused routing on a GPU needs triton")
    golden = bundle.golden()
    with bundle.adding("model.ts", "torchscript", "fp32", FROM_RUN) as draft:
        write_torchscript(bundle.program(), draft.path, metadata={})
    for candidate in candidates(bundle, [backend], trust=True):
        atol = 0.05 if candidate.precision == "fp16" else 1e-4
        with candidate.runner(bundle) as runner:
            for count in (1, 4, 1):
                for runner.graph in (True, False, True):
                    found = runner.infer(golden.input[:count])["logit"]
                    np.testing.assert_allclose(found, golden.reference.logit[:count], atol=atol)
                    again = runner.infer(golden.input[1 : count + 1])["logit"]
                    np.testing.assert_allclose(again, golden.reference.logit[1 : count + 1], atol=atol)

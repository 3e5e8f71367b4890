"""What torch sees of the operator, on a device that need not be there: shapes, layouts, and which kernels are asked."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from qcn import create, kernels
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.program.lower import lower
from qcn.export.program.quantise import halved
from qcn.kernels import native, operator


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_layout_of_rotations(device: str) -> None:
    with FakeTensorMode():
        rotation = kernels.rotation(torch.empty(5, 4, device=device), torch.empty(5, 4, 3, device=device))
    assert rotation.shape == (5, 4, 3, 3) and rotation.device.type == device
    parents_last = (36, 1, 12, 4)
    assert rotation.stride() == (parents_last if device == "cuda" else (36, 9, 3, 1))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_shapes_of_routing(device: str) -> None:
    with FakeTensorMode():
        shapes = ((2, 3, 3, 7, 6), (2, 3, 7, 6), (3, 2, 3, 4, 3, 3), (4,), (4,))
        inputs = [torch.empty(shape, device=device) for shape in shapes]
        pose, activation, statistics = kernels.route(*inputs, [3, 2], 2, 5, False, False, True)
        narrow = kernels.route(*inputs, [3, 2], 2, 5, False, False, False, True)
    assert pose.shape == (2, 4, 3, 3, 3) and activation.shape == (2, 4, 3, 3)
    assert statistics.shape == (5, 7, 2 * 3 * 3, 4) and statistics.device.type == device
    assert [x.shape for x in narrow] == [pose.shape, activation.shape, (0,)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("half", [False, True])
def test_only_kernels_for_cuda_are_asked_for_half_precision(
    device: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    body = SimpleNamespace(forward=lambda *_, **options: calls.append(options))
    monkeypatch.setattr(operator, "_kernels", lambda _: body)
    with FakeTensorMode():
        operator._forward(*[torch.empty(1, device=device)] * 5, [3, 3], 1, 2, False, False, False, half)
    assert calls[0].get("half", False) == (half and device == "cuda")


@pytest.mark.skipif(not native.available(), reason="libqcn is not built")
def test_fused_kernels_are_asked_for_half_precision_where_the_program_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    program = halved(lower(create("qcn-tiny", in_channels=1, classes=10), 28, 28), "capsules1")
    halves: list[bool] = []

    def recorded(*arguments: Any) -> Any:
        halves.append(arguments[11])
        return operator.route(*arguments)

    monkeypatch.setattr(kernels, "route", recorded)
    with torch.inference_mode():
        Interpreter(program, kernels="fused")(torch.randn(2, 1, 28, 28))
    assert halves == [op.name == "capsules1" for op in program.routes] and len(halves) > 1
    Interpreter(program, kernels="fused")(torch.randn(2, 1, 28, 28).requires_grad_())
    assert not any(halves[len(program.routes) :])  # the gradients are those of float32

"""The shapes and layouts of the operator that torch.compile relies on, on a device that need not be there."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from qcn import kernels


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
        pose, activation, statistics = kernels.route(*inputs, [3, 2], 2, 5, False, True)
    assert pose.shape == (2, 4, 3, 3, 3) and activation.shape == (2, 4, 3, 3)
    assert statistics.shape == (5, 7, 2 * 3 * 3, 4) and statistics.device.type == device

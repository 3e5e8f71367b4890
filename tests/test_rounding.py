"""Rounding to half precision is torch's, by whichever way is quicker."""

import numpy as np
import pytest
import torch

from qcn import rounding


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_every_number_is_rounded_as_by_torch(half: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = np.arange(0x7C00, dtype=np.int16).view(np.float16).astype(np.float32)  # all of float16 of one sign
    middle = (grid[:-1] + grid[1:]) / 2
    every = np.concatenate(
        [
            grid,
            middle,
            *(np.nextafter(middle, at) for at in np.float32([0, np.inf])),
            [65519, 65520, 7e4, 3e38, np.inf, np.nan],
        ]
    )
    x = torch.from_numpy(np.concatenate([every, -every]).astype(np.float32)).view(2, -1)
    expected = x.to(half).float()
    for slow in (False, True):
        monkeypatch.setattr(rounding, "SLOW", slow)
        assert torch.equal(rounding.rounded(x, half).nan_to_num(nan=1.5), expected.nan_to_num(nan=1.5))
        assert rounding.rounded(x.double(), half).dtype == torch.float64


def test_a_gradient_goes_through() -> None:
    x = torch.ones(3, requires_grad=True)
    rounding.rounded(x, torch.float16).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1, 1]

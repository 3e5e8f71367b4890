"""The torch runners: what torch is told while it runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qcn.export.bundle import WEIGHTS, Bundle
from qcn.verify import create
from qcn.verify.compare import FLOORS, compare


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
def test_precisions(bundle: Bundle, precision: str) -> None:
    """Each as exact as it should be, and no half precision that is float32."""
    golden = bundle.golden()
    with create("torch", bundle.path(bundle.find(WEIGHTS)), precision=precision) as runner:
        found = compare(runner.infer(golden.input), golden, precision, {})
    assert all(errors.passed for errors in found.values())
    half = precision in ("fp16", "bf16")
    assert (max(errors.noise_floor_multiple for errors in found.values()) > FLOORS["fp32"]) is half


def test_convolutions_are_cudnns_in_float32(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving TF32 by `cudnn.flags` alone would switch cuDNN off as well, and be ten times slower."""
    path: Path = bundle.path(bundle.find(WEIGHTS))
    told: list[tuple[bool, bool]] = []
    with create("torch", path) as runner:
        run = runner._run  # type: ignore[attr-defined]

        def watched(images: Any) -> Any:
            told.append((torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32))
            return run(images)

        monkeypatch.setattr(runner, "_run", watched)
        runner.infer(bundle.golden().input[:1].astype(np.float32))
    assert told == [(True, False)]

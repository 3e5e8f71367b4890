"""The Triton kernels compile for Jetson Orin and for Hopper without spilling registers, and half precision is shorter.

Needs Triton, whose wheel has the compiler and the disassembler, not a GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["87", "90"])
def test_no_kernel_spills_and_half_precision_has_fewer_instructions(architecture: str, tmp_path: Path) -> None:
    program = Path(__file__).parent / "machine_code.py"
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, program, architecture], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    kernels = json.loads(done.stdout)
    assert {name: facts["stack"] for name, facts in kernels.items() if facts["stack"]} == {}
    single = sum(kernels.pop("single")["per_child"])
    for facts in kernels.values():
        assert facts["registers"] <= 255
        assert min(facts["products_per_child"]) > 0  # tensor cores
        assert sum(facts["per_child"]) / single < 0.7

"""What the Triton kernels compute is checked without a GPU, by Triton's own interpreter, in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.slow
def test_the_triton_kernels_are_the_reference() -> None:
    here = Path(__file__).parent
    options = ["-q", "-W", "ignore", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(here / "interpreted.py")]
    done = subprocess.run(
        command, cwd=here, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]

"""The CUDA source compiles, without warnings and without spilling registers, for Jetson Orin and for Hopper.

Needs nvcc, not a GPU. deploy/tests/cuda_routing.cu tests on a GPU what the kernels compute.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "deploy" / "kernels"

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["87", "90"])
def test_it_compiles_and_no_kernel_spills(architecture: str, tmp_path: Path) -> None:
    flags = ["-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror", "-Xptxas=-v"]
    command = ["nvcc", *flags, "-Werror=all-warnings", f"-arch=sm_{architecture}", str(KERNELS / "em_routing.cu")]
    compiled = subprocess.run(
        [*command, "-o", str(tmp_path / "library.so")], capture_output=True, text=True, check=False
    )
    assert compiled.returncode == 0, compiled.stderr
    output = compiled.stdout + compiled.stderr
    entry = rf"Compiling entry function '(\w+)' for 'sm_{architecture}'"
    kernels = re.findall(rf"{entry}\n.*\n\s*(\d+) bytes stack.*?(\d+) bytes spill stores", output)
    assert len(kernels) > 1, output
    assert {name: (int(stack), int(spills)) for name, stack, spills in kernels if stack != "0" or spills != "0"} == {}


def test_header_is_c(tmp_path: Path) -> None:
    source = tmp_path / "header.c"
    source.write_text('#include "em_routing_cuda.h"\nint tiles(void) { return qcn_cuda_routing_tiles(); }\n')
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", str(KERNELS), "-c", str(source)]
    subprocess.run([*command, "-o", str(tmp_path / "header.o")], check=True)

"""The CUDA source compiles, without warnings and without spilling registers, for Jetson Orin and for Hopper.

Needs nvcc, not a GPU. benchmarks/ptxas.py compiles for all devices. deploy/tests/cuda_routing.cu tests on a GPU what
the kernels compute.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "deploy" / "kernels"
ARCHITECTURES = ["87", "90"]

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")


@pytest.fixture(scope="module")
def compiler_output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What ptxas says. Both architectures are made from one PTX: the way to it takes longest."""
    target = f"-gencode=arch=compute_{ARCHITECTURES[0]},code=[{','.join(f'sm_{a}' for a in ARCHITECTURES)}]"
    library = tmp_path_factory.mktemp("cuda") / "libem_routing.so"
    flags = ["-O3", "-std=c++17", "--threads=0", "-shared", "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror", "-Xptxas=-v"]
    command = ["nvcc", *flags, "-Werror=all-warnings", target, str(KERNELS / "em_routing.cu"), "-o", str(library)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return compiled.stdout + compiled.stderr


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_kernel_spills(architecture: str, compiler_output: str) -> None:
    entry = rf"Compiling entry function '(\w+)' for 'sm_{architecture}'"
    kernels = re.findall(rf"{entry}\n.*\n\s*(\d+) bytes stack.*?(\d+) bytes spill stores", compiler_output)
    assert len(kernels) > 1, compiler_output
    assert {name: (int(stack), int(spills)) for name, stack, spills in kernels if stack != "0" or spills != "0"} == {}


def test_header_is_c(tmp_path: Path) -> None:
    source = tmp_path / "header.c"
    source.write_text('#include "em_routing_cuda.h"\nint tiles(void) { return qcn_cuda_routing_tiles(); }\n')
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", str(KERNELS), "-c", str(source)]
    subprocess.run([*command, "-o", str(tmp_path / "header.o")], check=True)

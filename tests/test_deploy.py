"""The C++ side: built from scratch with the sanitizers, its own tests run."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


def test_cpp_tests_pass_under_the_sanitizers(tmp_path: Path) -> None:
    build = str(tmp_path / "build")
    run("cmake", "-S", str(ROOT / "deploy"), "-B", build, "-DQCN_SANITIZE=ON", "-DQCN_CUDA=OFF")
    run("cmake", "--build", build, "--parallel")
    run("ctest", "--test-dir", build, "--output-on-failure")

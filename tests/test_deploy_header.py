"""The code that users copy compiles and runs: the examples that open qcn.h and qcn.hpp, and the README's code."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import bundle_of

from qcn.data.spec import Preprocessing
from qcn.networks.model import qcn_tiny

ROOT = Path(__file__).parents[1]
INCLUDE = ROOT / "deploy" / "include"
BUILD = ROOT / "build"
STRICT = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-pedantic"]

# `example BUNDLE WIDTH HEIGHT CHANNELS < pixels` around the header's `classify`; ends with 1 if that fails.
MAIN = """
#include <stdlib.h>
int main(int argc, char** argv) {
  static unsigned char pixels[1 << 20];
  if (argc != 5 || fread(pixels, 1, sizeof pixels, stdin) < 1) return 2;
  return classify(argv[1], pixels, atoi(argv[2]), atoi(argv[3]), atoi(argv[4])) < 0;
}
"""
MAIN_CPP = """
#include <cstdio>
#include <cstdlib>
int main(int argc, char** argv) {
  static unsigned char pixels[1 << 20];
  if (argc != 5 || std::fread(pixels, 1, sizeof pixels, stdin) < 1) return 2;
  try {
    classify(argv[1], pixels, std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  } catch (const qcn::Error& error) {
    std::cerr << error.what() << "\\n";
    return 1;
  }
}
"""


def opening_example(header: Path) -> str:
    """The indented code in the comment at the top of a header."""
    comment = header.read_text(encoding="utf-8").split("\n#ifndef", 1)[0].splitlines()
    assert all(line.startswith("//") for line in comment)
    code = [line.removeprefix("//")[5:] for line in comment if line == "//" or line.startswith("//     ")]
    return "\n".join(code) + "\n"


def compile_and_link(compiler: list[str], source: Path, program: Path) -> Path:
    library = [f"-L{BUILD}", "-lqcn", f"-Wl,-rpath,{BUILD}"]
    command = [*compiler, *STRICT, f"-I{INCLUDE}", str(source), "-o", str(program), *library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module", params=["qcn.h as C", "qcn.h as C++", "qcn.hpp"])
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that a reader gets who copies the example and adds a main."""
    if not (BUILD / "libqcn.so").exists():
        pytest.skip("there is no build/libqcn.so: make build/libqcn.so")
    header, main, ending, compiler = {
        "qcn.h as C": ("qcn.h", MAIN, ".c", ["cc", "-std=c99"]),
        "qcn.h as C++": ("qcn.h", MAIN, ".cpp", ["c++", "-std=c++17"]),
        "qcn.hpp": ("qcn.hpp", MAIN_CPP, ".cpp", ["c++", "-std=c++17"]),
    }[request.param]
    folder = tmp_path_factory.mktemp("example")
    source = folder / f"example{ending}"
    source.write_text(opening_example(INCLUDE / "qcn" / header) + main, encoding="utf-8")
    return compile_and_link(compiler, source, folder / "example")


Networks = Callable[[int, int], Path]
every_network = pytest.mark.parametrize(("classes", "channels"), [(k, c) for k in (5, 10, 12) for c in (1, 3)])


@pytest.fixture(scope="module")
def bundle_for(tmp_path_factory: pytest.TempPathFactory) -> Networks:
    """The bundle of a network with this many classes and channels; each is made once."""

    @functools.cache
    def make(classes: int, channels: int) -> Path:
        torch.manual_seed(0)
        spec = Preprocessing(resize=28, standardise="image")
        folder = tmp_path_factory.mktemp("bundles") / "bundle"
        return bundle_of(folder, qcn_tiny(channels, classes).eval(), 28, 28, spec=spec).folder

    return make


def run(program: Path, bundle: Path, pixels: "np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]") -> tuple[int, str]:
    """The exit code and what was printed, on either stream, for pixels [H, W, C]."""
    height, width, channels = pixels.shape
    command = [program, bundle, str(width), str(height), str(channels)]
    done = subprocess.run(command, input=pixels.tobytes(), capture_output=True, check=False, timeout=60)
    return done.returncode, (done.stdout + done.stderr).decode()


@every_network
def test_the_example_answers_for_any_number_of_classes_and_channels(
    example: Path, bundle_for: Networks, classes: int, channels: int
) -> None:
    bundle = bundle_for(classes, channels)
    pixels = np.random.default_rng(classes).integers(0, 256, (40, 50, channels), np.uint8)
    # qcn-run has its own tests, against golden answers.
    picture = bundle.parent / f"picture{'.pgm' if channels == 1 else '.ppm'}"
    picture.write_bytes(b"P%d 50 40 255\n" % (5 if channels == 1 else 6) + pixels.tobytes())
    expected = subprocess.run([BUILD / "programs/qcn-run", bundle, picture], capture_output=True, text=True, check=True)
    code, printed = run(example, bundle, pixels)
    assert code == 0, printed
    label, probability = expected.stdout.split(": ")[1].removesuffix(" %\n").split()
    said = re.fullmatch(r"(class\d+),? (\d+(?:\.\d+)?) %\n", printed)
    assert said and said[1] == label and float(said[2]) == pytest.approx(float(probability), abs=0.051)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_example_says_what_it_expects(example: Path, bundle_for: Networks, channels: int) -> None:
    bundle = bundle_for(5, channels)
    for taken in (1, 3, 4):
        assert run(example, bundle, np.zeros((40, 50, taken), np.uint8))[0] == 0
    code, printed = run(example, bundle, np.zeros((40, 50, 2), np.uint8))  # a stereo pair
    assert code == 1
    assert f"has 2 channels, and the network takes {channels}: there is no way" in printed
    code, printed = run(example, bundle / "none", np.zeros((40, 50, 1), np.uint8))
    assert code == 1
    assert str(bundle / "none") in printed


def test_layers_and_messages_of_the_library_reach_functions_of_the_program(bundle_for: Networks) -> None:
    if not (BUILD / "examples" / "layers").exists():
        pytest.skip("there is no build/examples/layers: make build/libqcn.so")
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28, 1), np.uint8)
    code, printed = run(BUILD / "examples/layers", bundle_for(5, 1), pixels)
    assert code == 0, printed
    assert re.findall(r"^(\w+): \d+ capsules at ", printed, re.MULTILINE) == ["capsules1", "capsules2", "classes"]
    assert "classes: 5 capsules at 1×1 places" in printed
    assert "activation" in printed.splitlines()[0] and re.search(r"^classes: .*, logit -?\d", printed, re.MULTILINE)
    assert re.search(r"^class\d \d+\.\d %, pose -?\d\.\d{4}, -?\d\.\d{4}, -?\d\.\d{4}$", printed, re.MULTILINE)
    assert "self-test: " in printed  # logged


@pytest.mark.parametrize("header", ["include/qcn/qcn.h", "kernels/em_routing.h"])
@pytest.mark.parametrize(
    ("macros", "exported"),
    [
        ((), '__attribute__((visibility("default")))'),
        (("_WIN32",), "__declspec(dllimport)"),
        (("_WIN32", "QCN_BUILD"), "__declspec(dllexport)"),
        (("_WIN32", "QCN_STATIC"), ""),
        (("QCN_STATIC",), ""),
    ],
)
def test_what_is_exported_is_said_as_the_system_wants_it(header: str, macros: tuple[str, ...], exported: str) -> None:
    """Windows is not built here: its declarations are looked at."""
    command = ["cc", "-E", "-P", f"-I{INCLUDE}", *(f"-D{macro}" for macro in macros), str(ROOT / "deploy" / header)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    declared = re.findall(r"^(\S*) ?(?:const char\*|int|qcn_status|size_t|void) qcn_\w+\(", text, re.MULTILINE)
    assert len(declared) > 5 and set(declared) == {exported}


def test_code_in_the_readme_compiles(tmp_path: Path) -> None:
    blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "deploy" / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    if not (toolkit / "cuda_runtime_api.h").is_file() or shutil.which("c++") is None:
        pytest.skip("c++ or CUDA's headers are not here")
    includes = [f"-I{INCLUDE}", f"-I{ROOT / 'deploy' / 'kernels'}", "-isystem", str(toolkit)]
    for block in blocks:
        (tmp_path / "block.cpp").write_text(block, encoding="utf-8")
        command = ["c++", "-std=c++17", *STRICT, *includes, "-fsyntax-only", str(tmp_path / "block.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

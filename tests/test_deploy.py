"""The C++ side: its tests, also under the sanitizers; its fuzzers for a moment; programs that use it once installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qcn.export.bundle import golden, weights
from qcn.export.bundle.manifest import Manifest

DEPLOY = Path(__file__).parents[1] / "deploy"
BUILD = DEPLOY.parent / "build"  # by `make`, in release form
CONSUMER = DEPLOY / "tests" / "consumer"
HEADER = (DEPLOY / "include" / "qcn" / "qcn.h").read_text(encoding="utf-8")
VERSION = ".".join(re.findall(r"#define QCN_VERSION_\w+ (\d+)", HEADER))


def run(*command: object, **environment: str) -> str:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **environment}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def configure(source: Path, build: Path, *options: str) -> None:
    run("cmake", "-S", source, "-B", build, *options)


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder in which `make test` built the library and its tests."""
    if not (BUILD / "tests" / ".built").exists():
        pytest.skip("there are no C++ tests in build/tests: make build/tests/.built")
    return BUILD


@pytest.fixture(scope="module")
def tiny(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    run(built / "tests" / "make_tiny_bundle", folder)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (BUILD / "libqcn.so").exists():
        pytest.skip("there is no build/libqcn.so: make build/libqcn.so")
    prefix = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


def test_cpp_tests_pass(built: Path) -> None:
    run("ctest", "--test-dir", built, "--output-on-failure", "--parallel", "2")


@pytest.mark.slow  # it compiles everything
def test_cpp_tests_pass_under_the_sanitizers(tmp_path: Path) -> None:
    configure(DEPLOY, tmp_path, "--preset", "asan")
    run("cmake", "--build", tmp_path, "--parallel", "2")
    run("ctest", "--test-dir", tmp_path, "--output-on-failure", "--parallel", "2")


def test_the_library_exports_its_interface_and_nothing_else(installed: Path) -> None:
    library = next(installed.glob("lib*/**/libqcn.so"))
    symbols = [line.split()[-1] for line in run("nm", "--dynamic", "--defined-only", library).splitlines()]
    declared = set(re.findall(r"^QCN_API .*?(qcn_\w+)\(", HEADER, re.MULTILINE))
    assert len(declared) > 10
    assert declared | {"qcn_routing_forward"} <= set(symbols)
    assert [symbol for symbol in symbols if not symbol.startswith("qcn_")] == []
    major, minor, _ = VERSION.split(".")
    interface = f"{major}.{minor}" if major == "0" else major  # before 1.0 a minor version may change the interface
    assert f"[libqcn.so.{interface}]" in run("readelf", "--dynamic", library)
    assert library.stat().st_size < 1_400_000


def test_a_program_finds_the_installed_library_by_cmake(installed: Path, tiny: Path, tmp_path: Path) -> None:
    configure(CONSUMER, tmp_path, f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", tmp_path)
    assert run(tmp_path / "consumer_c", tiny) == run(tmp_path / "consumer_cpp", tiny) != ""


@pytest.mark.parametrize(("compiler", "source"), [("cc -std=c99", "consumer.c"), ("c++ -std=c++17", "consumer.cpp")])
def test_a_program_finds_the_installed_library_by_pkg_config(
    compiler: str, source: str, installed: Path, tiny: Path, tmp_path: Path
) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("there is no pkg-config: apt install pkg-config")
    library = next(installed.glob("lib*/**/libqcn.so")).parent
    flags = run("pkg-config", "--cflags", "--libs", "qcn", PKG_CONFIG_PATH=str(library / "pkgconfig")).split()
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    run(*compiler.split(), *strict, CONSUMER / source, *flags, "-o", tmp_path / "program")
    assert run(tmp_path / "program", tiny, LD_LIBRARY_PATH=str(library)) != ""


@pytest.mark.parametrize("example", sorted((DEPLOY.parent / "examples").glob("*.c*")), ids=lambda path: path.name)
def test_an_example_can_be_copied_into_a_program_of_ones_own(example: Path, installed: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(example, tmp_path))
    compiler = ["cc", "-std=c99"] if copy.suffix == ".c" else ["c++", "-std=c++17"]
    library = next(installed.glob("lib*/**/libqcn.so")).parent
    run(*compiler, copy, f"-I{installed / 'include'}", f"-L{library}", "-lqcn", "-o", tmp_path / "program")


def test_installed_programs_find_the_library_beside_them(installed: Path) -> None:
    for name in ("qcn-run", "qcn-bench", "qcn-camera"):
        assert run(installed / "bin" / name, "--version") == f"{VERSION}\n"
        assert str(BUILD) not in run("readelf", "--dynamic", installed / "bin" / name)


@pytest.mark.slow  # it compiles everything
def test_a_program_has_the_sources_as_a_part_of_it_and_links_statically(tiny: Path, tmp_path: Path) -> None:
    options = [f"-DQCN_SOURCE={DEPLOY}", "-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_BUILD_TYPE=Debug", "-DQCN_CUDA=OFF"]
    configure(CONSUMER, tmp_path, *options)
    run("cmake", "--build", tmp_path, "--parallel", "2")
    assert run(tmp_path / "consumer_c", tiny) == run(tmp_path / "consumer_cpp", tiny) != ""


@pytest.mark.slow  # it compiles everything
def test_a_program_in_c_alone_links_an_installed_static_library(tiny: Path, tmp_path: Path) -> None:
    options = ["-DBUILD_SHARED_LIBS=OFF", "-DQCN_CUDA=OFF", "-DQCN_TESTS=OFF", "-DQCN_PROGRAMS=OFF"]
    configure(DEPLOY, tmp_path / "library", *options)
    run("cmake", "--build", tmp_path / "library", "--parallel", "2")
    run("cmake", "--install", tmp_path / "library", "--prefix", tmp_path / "installed")
    lines = ["cmake_minimum_required(VERSION 3.25)", "project(robot LANGUAGES C)", "find_package(qcn REQUIRED)"]
    lines += [f"add_executable(robot {CONSUMER / 'consumer.c'})", "target_link_libraries(robot PRIVATE qcn::qcn)"]
    (tmp_path / "CMakeLists.txt").write_text("\n".join(lines), encoding="utf-8")
    configure(tmp_path, tmp_path / "robot", f"-DCMAKE_PREFIX_PATH={tmp_path / 'installed'}")
    run("cmake", "--build", tmp_path / "robot")
    assert run(tmp_path / "robot" / "robot", tiny) != ""


def test_fuzzers_begin_with_files_that_are_right() -> None:
    """A file that is refused at its first key leads a fuzzer nowhere."""
    for manifest in (DEPLOY / "fuzz" / "corpus" / "manifest").iterdir():
        Manifest.from_json(manifest.read_bytes())
    for arrays in (DEPLOY / "fuzz" / "corpus" / "safetensors").iterdir():
        (golden if arrays.name.startswith("golden") else weights).read(arrays.read_bytes())


@pytest.mark.slow  # it compiles everything
def test_fuzzers_find_nothing_in_a_moment(tmp_path: Path) -> None:
    source = tmp_path / "nothing.cpp"
    source.write_text('extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n')
    links = ("clang++", "-fsanitize=fuzzer,address", source, "-o", tmp_path / "nothing")
    if not shutil.which("clang++") or subprocess.run(links, capture_output=True, check=False).returncode:
        pytest.skip("libFuzzer is part of Clang, which is not here: apt install clang libclang-rt-14-dev")
    configure(DEPLOY, tmp_path, "--preset", "fuzz")
    names = ("manifest", "safetensors", "signature", "image")
    targets = {f"fuzz_{name}": name for name in names}
    run("cmake", "--build", tmp_path, "--parallel", "2", "--target", *targets)
    for target, corpus in targets.items():
        found = tmp_path / corpus
        found.mkdir()
        run(tmp_path / "fuzz" / target, "-max_total_time=5", "-timeout=10", found, DEPLOY / "fuzz" / "corpus" / corpus)

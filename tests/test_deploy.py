"""The C++ side: its tests under the sanitizers, its fuzzers for a moment, programs that use it once installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from qcn.export.bundle import Bundle
from qcn.verify.compare import compare

DEPLOY = Path(__file__).parents[1] / "deploy"
BUILD = DEPLOY.parent / "build"  # by `make`, in release form
CONSUMER = DEPLOY / "tests" / "consumer"


def run(*command: object, **environment: str) -> str:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **environment}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def configure(source: Path, build: Path, *options: str) -> None:
    run("cmake", "-S", source, "-B", build, *options)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("sanitized")
    configure(DEPLOY, build, "--preset", "asan")
    run("cmake", "--build", build, "--parallel")
    return build


@pytest.fixture(scope="module")
def tiny(sanitized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    run(sanitized / "tests" / "make_tiny_bundle", folder)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (BUILD / "libqcn.so").exists():
        pytest.skip("there is no build/libqcn.so: make build/libqcn.so")
    prefix = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


def test_cpp_tests_pass_under_the_sanitizers(sanitized: Path) -> None:
    run("ctest", "--test-dir", sanitized, "--output-on-failure", "--parallel", "2")


def test_the_self_test_allows_what_verify_parity_allows(sanitized: Path, bundle: Bundle) -> None:
    golden = bundle.golden()
    right = {"activation": golden.reference.activation, "pose": golden.reference.pose}
    told = [line.split() for line in run(sanitized / "tests" / "tolerances", bundle.folder).splitlines()]
    assert len(told) == 6
    for precision, output, tolerance in told:
        expected = compare(right, golden, precision, {})[output].tolerance
        assert float(tolerance) == pytest.approx(expected, rel=1e-9)
        assert precision != "fp16" or expected < abs(right[output]).max() / 4  # not capped, so that the rule is seen


def test_the_library_exports_its_interface_and_nothing_else(installed: Path) -> None:
    library = next(installed.glob("lib*/**/libqcn.so"))
    symbols = [line.split()[-1] for line in run("nm", "--dynamic", "--defined-only", library).splitlines()]
    assert {"qcn_model_load", "qcn_classify", "qcn_routing_forward"} <= set(symbols)
    assert [symbol for symbol in symbols if not symbol.startswith("qcn_")] == []
    assert "[libqcn.so.0]" in run("readelf", "--dynamic", library)
    assert library.stat().st_size < 1_000_000


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


def test_a_program_has_the_sources_as_a_part_of_it_and_links_statically(tiny: Path, tmp_path: Path) -> None:
    options = [f"-DQCN_SOURCE={DEPLOY}", "-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_BUILD_TYPE=Debug", "-DQCN_CUDA=OFF"]
    configure(CONSUMER, tmp_path, *options)
    run("cmake", "--build", tmp_path, "--parallel")
    assert run(tmp_path / "consumer_c", tiny) == run(tmp_path / "consumer_cpp", tiny) != ""


def test_fuzzers_find_nothing_in_a_moment(tmp_path: Path) -> None:
    if not shutil.which("clang++"):
        pytest.skip("libFuzzer is part of Clang, which is not here: apt install clang")
    configure(DEPLOY, tmp_path, "--preset", "fuzz")
    targets = {"fuzz_manifest": "manifest", "fuzz_safetensors": "safetensors", "fuzz_image": "image"}
    run("cmake", "--build", tmp_path, "--parallel", "--target", *targets)
    for target, corpus in targets.items():
        found = tmp_path / corpus
        found.mkdir()
        run(tmp_path / "fuzz" / target, "-max_total_time=5", "-timeout=10", found, DEPLOY / "fuzz" / "corpus" / corpus)

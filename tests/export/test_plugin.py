"""The TensorRT plugin: found, loaded, told to TensorRT, recorded; and its C++ against the headers of each TensorRT."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from fake_tensorrt import fake
from runners import model_at

from qcn.errors import MissingError
from qcn.export import targets
from qcn.export.backends.onnx.build import FUSED
from qcn.export.backends.onnx.build import build as build_graph
from qcn.export.backends.onnx.proto import without_functions
from qcn.export.backends.runner import Options
from qcn.export.backends.tensorrt import plugin
from qcn.export.backends.tensorrt import runner as verify_tensorrt
from qcn.export.backends.tensorrt.build import BuildRequest, TensorRT, build
from qcn.export.backends.tensorrt.runner import TensorRTRunner
from qcn.export.bundle.manifest import Batch
from qcn.export.program.program import Program
from qcn.export.targets import Gpu
from qcn.names import Precision

ROOT = Path(__file__).resolve().parents[2]


def faked(version: str, plugins: tuple[str, ...] = ("EMRouting",)) -> TensorRT:
    return TensorRT("tensorrt", tuple(map(int, version.split("."))), fake(version, plugins=plugins))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library that says it is the plugin, version 0.1.0, built for TensorRT 8.6.1; QCN_PLUGIN names it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to make a library with")
    source, path = tmp_path / "plugin.c", tmp_path / plugin.LIBRARY
    source.write_text(
        'const char* qcn_plugin_version(void) { return "0.1.0"; }\n'
        'const char* qcn_plugin_tensorrt(void) { return "8.6.1"; }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    monkeypatch.setenv("QCN_PLUGIN", str(path))
    return path


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "this_gpu", lambda: Gpu("NVIDIA H200", 90))


# Finding and loading


def test_loading_it_tells_its_version_and_hash(library: Path) -> None:
    loaded = plugin.load(faked("8.6.1"))
    assert (loaded.path, loaded.version) == (library, "0.1.0")
    assert loaded.facts() == {"name": "EMRouting", "version": "0.1.0", "sha256": loaded.sha256}
    assert len(loaded.sha256) == 64


def test_what_is_not_the_plugin_of_this_tensorrt_is_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match=r"was built for TensorRT 8\.6\.1, here is TensorRT 10\.3\.0; build it by"):
        plugin.load(faked("10.3.0"))
    with pytest.raises(MissingError, match=r"was built for TensorRT 8\.6\.1"):
        plugin.load(faked("8.6.1", plugins=()))  # it registered itself with another library
    with pytest.raises(MissingError, match="use --routing unrolled"):
        plugin.load(TensorRT("rtx", (1, 7, 1), None))
    library.with_name("broken.so").write_bytes(b"not a library")
    monkeypatch.setenv("QCN_PLUGIN", str(library.with_name("broken.so")))
    with pytest.raises(MissingError, match="cannot be loaded"):
        plugin.load(faked("8.6.1"))


# Building


@pytest.mark.parametrize("version", ["8.6.1", "10.3.0", "11.1.0"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.usefixtures("h200")
def test_an_engine_with_fused_routing(tmp_path: Path, program: Program, version: str, precision: Precision) -> None:
    graph, tensorrt = build_graph(program.at(precision, rest=precision), style=FUSED), faked(version)
    loaded = plugin.Plugin(tmp_path, "0.1.0", "0" * 64)
    engine = build(graph.SerializeToString(), BuildRequest(precision, Batch(1, 8, 64)), tensorrt, plugin=loaded)
    told = tensorrt.module.told
    assert not told["graph"].functions  # TensorRT from 10 on would take them, not the plugin
    layers = [layer for layer in told["network"].layers if layer.type.name.startswith("PLUGIN")]
    assert len(layers) == len(program.routes)
    assert not any(getattr(layer, "precision_is_set", False) for layer in layers)
    assert engine.facts["plugin"] == loaded.facts()
    assert engine.file_name == f"{precision}-fused-b1-8-64-sm90-trt{version}.engine"


def test_only_the_functions_go(program: Program) -> None:
    model = build_graph(program, style=FUSED)
    assert len(model.functions) == len(program.routes)
    bare = without_functions(model.SerializeToString())
    del model.functions[:]
    assert onnx.load_from_string(bare) == model
    assert without_functions(bare) == bare
    assert without_functions(b"not a graph") == b"not a graph"


def test_running_such_an_engine_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, h200: None) -> None:
    monkeypatch.setattr(verify_tensorrt, "find", lambda flavour: faked("8.6.1"))
    monkeypatch.setenv("QCN_PLUGIN", str(tmp_path / "nowhere.so"))
    facts = {"flavour": "tensorrt", "version": "8.6.1", "sm": 90, "plugin": {"name": "EMRouting"}}
    (tmp_path / "x.engine").touch()
    (tmp_path / "x.json").write_text(json.dumps({"facts": facts}))
    with pytest.raises(MissingError, match=r"not at .*nowhere\.so"):
        TensorRTRunner(model_at(tmp_path / "x.engine"), Options("cuda")).open()


# The library itself, with a stand-in for TensorRT made from its public headers


def headers() -> list[Path]:
    """Folders of TensorRT's headers, a version each: in $QCN_TENSORRT_HEADERS, or where they are kept here."""
    folder = Path(os.environ.get("QCN_TENSORRT_HEADERS", ROOT / ".gpu" / "headers"))
    return sorted(found.parent for found in folder.glob("*/include/NvInferRuntime.h"))


def cuda() -> Path | None:
    """The folder of the CUDA toolkit."""
    home = os.environ.get("CUDA_HOME")
    places = [Path(home)] if home else [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"))]
    return next((place for place in places if (place / "include" / "cuda_runtime_api.h").is_file()), None)


@pytest.mark.parametrize("include", headers() or [None], ids=lambda path: path.parent.name if path else "no headers")
def test_it_builds_and_answers_tensorrt(tmp_path: Path, include: Path | None) -> None:
    toolkit, deploy = cuda(), ROOT / "deploy"
    if include is None:
        pytest.skip("TensorRT's headers are not here: QCN_TENSORRT_HEADERS names a folder of VERSION/include folders")
    if toolkit is None or shutil.which("g++") is None:
        pytest.skip("g++ or CUDA's headers are not here")
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
    includes = ["-isystem", include, "-isystem", toolkit / "include", f"-I{deploy}/include", f"-I{deploy}/kernels"]
    versions = ['-DQCN_PLUGIN_VERSION="0.1.0"', '-DQCN_TENSORRT_LIBRARY_VERSION="0.1.0"']
    compiler = ["g++", "-std=c++17", "-fPIC", "-fvisibility=hidden", *warnings, *includes, f"-I{deploy}/src", *versions]
    nvinfer = ["-L", tmp_path, "-lnvinfer", f"-Wl,-rpath,{tmp_path}"]
    runtime = ["-L", toolkit / "lib64", "-lcudart_static", "-lpthread", "-ldl", "-lrt"]
    library, tests = tmp_path / plugin.LIBRARY, deploy / "plugins" / "tests"

    def run(*command: object) -> str:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*compiler, "-shared", tests / "stand_in.cpp", "-o", tmp_path / "libnvinfer.so")
    sources = [*sorted((deploy / "plugins").glob("*.cpp")), tests / "no_kernels.cpp"]
    exports = f"-Wl,--version-script={deploy}/plugins/plugin.map"
    run(*compiler, "-shared", *sources, "-o", library, exports, "-Wl,--no-undefined", *nvinfer, *runtime)
    run(*compiler, tests / "test_plugin.cpp", "-o", tmp_path / "test_plugin", *nvinfer, "-ldl")
    assert "FAIL" not in run(tmp_path / "test_plugin", library)
    # What runs engines needs a GPU: here it only has to compile.
    run(*compiler, "-fsyntax-only", *sorted((deploy / "src" / "tensorrt" / "library").glob("*.cpp")))

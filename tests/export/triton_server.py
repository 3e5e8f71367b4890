"""Triton Inference Server itself, of the wheel nvidia-pytriton, which has its Python backend only.

ONNX Runtime therefore stands in for Triton's backend of that name: a backend of Python code, which runs the same file.
The repository is served as it is.
"""

import ctypes
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

INSTALL = "pip install --no-deps nvidia-pytriton"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# By DLPack: Triton's as_numpy and Tensor know only numpy 1.
BACKEND = """
import json, sys
sys.path[:0] = {packages!r}
import numpy, onnxruntime
import triton_python_backend_utils as triton

class TritonPythonModel:
    def initialize(self, args):
        file = f"{{args['model_repository']}}/{{args['model_version']}}/model.onnx"
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.outputs = [output["name"] for output in json.loads(args["model_config"])["output"]]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        found = self.session.run(self.outputs, {{one.name(): numpy.from_dlpack(one) for one in request.inputs()}})
        return triton.InferenceResponse([triton.Tensor.from_dlpack(*one) for one in zip(self.outputs, found)])
"""


def missing() -> str:
    """What this machine lacks to run it; empty if nothing."""
    found = importlib.util.find_spec("pytriton")
    if found is None or not found.submodule_search_locations:
        return f"no Triton Inference Server here: {INSTALL}"
    try:  # which the part of the Python backend that runs Python is linked with
        ctypes.CDLL(f"libpython{PYTHON}.so.1.0")
    except OSError:
        return f"no libpython{PYTHON}.so.1.0 here, which Triton's Python backend needs"
    return ""


class Server:
    def __init__(self, process: subprocess.Popen[bytes], log: Path, http: int, grpc: int) -> None:
        self.log, self.http, self.grpc = log, f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        until = time.monotonic() + 60
        while self.ask("/v2/health/live")[0] != 200:
            assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.1)

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer of its HTTP interface; with a body, to POST."""
        request = Request(self.http + path, None if body is None else json.dumps(body).encode())
        try:
            with urlopen(request, timeout=60) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except HTTPError as error:
            return error.code, error.read().decode()
        except OSError:  # it does not listen yet
            return 0, None


@contextmanager
def serving(models: Path, folder: Path, *options: str) -> Iterator[Server]:
    """A server of this repository, which fills in nothing by itself; `folder` is for its files."""
    (package,) = importlib.util.find_spec("pytriton").submodule_search_locations  # type: ignore[union-attr]
    triton, backends = Path(package) / "tritonserver", folder / "backends"
    shutil.copytree(triton / "backends" / "python", backends / "python")
    shutil.copy(triton / "python_backend_stubs" / PYTHON / "triton_python_backend_stub", backends / "python")
    (backends / "onnxruntime").mkdir()
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (backends / "onnxruntime" / "model.py").write_text(BACKEND.format(packages=packages))
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        http, grpc = one.getsockname()[1], other.getsockname()[1]
    places = [str(Path(package).parent / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")]
    command = [str(triton / "bin" / "tritonserver"), f"--model-repository={models}", f"--backend-directory={backends}"]
    command += [f"--http-port={http}", f"--grpc-port={grpc}", "--allow-metrics=false", "--exit-timeout-secs=5"]
    command += ["--exit-on-error=false", "--disable-auto-complete-config", *options]
    # 30 s are too few for a Python that imports ONNX Runtime while other tests run.
    command += [f"--backend-config={name},stub-timeout-seconds=120" for name in ("python", "onnxruntime")]
    log = folder / "tritonserver.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env={**os.environ, "LD_LIBRARY_PATH": ":".join(places)}
        )
    try:
        yield Server(process, log, http, grpc)
    finally:
        process.terminate()
        process.wait(30)

"""A page in Node: the same libqcn in WebAssembly and the same weights as in a browser. No torch.

Node takes the page's data and runs none of its scripts; WebAssembly reaches nothing outside of its memory. Times are
those of a question and its answer through two pipes.
"""

import contextlib
import re
import shutil
import subprocess
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.export.backends.frames import Arrays, encode, receive
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.native.runner import layer_arrays
from qcn.export.backends.runner import Options, Runner
from qcn.export.backends.web import INSTALL_NODE

OLDEST = 18  # whose WebAssembly has exceptions, and which decompresses streams


def find_node() -> tuple[str, str]:
    """Node's program and its version, or what brings it."""
    program = shutil.which("node") or shutil.which("nodejs")
    if program is None:
        raise MissingError(f"running a page outside a browser needs Node, which is not installed: {INSTALL_NODE}")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    number = re.match(r"v(\d+)\.", version)
    if not number or int(number[1]) < OLDEST:
        raise MissingError(f"{program} is Node {version or 'without a version'}, but {OLDEST} or newer is needed")
    return program, version.removeprefix("v")


class WebRunner(Runner):
    """The first network of a page. `variant` (simd, plain) asks for one of its builds; None: the best here.

    Any number of threads may ask it, one after the other.
    """

    def __init__(self, model: ModelFile, options: Options, variant: str | None = None) -> None:
        super().__init__(model, options)
        self.name, self.variant = "libqcn in WebAssembly", variant
        self._node: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._one_at_a_time = threading.Lock()

    def load_backend(self) -> None:
        find_node()

    def open(self) -> None:
        program, version = find_node()
        script = Path(__file__).parent / "node.js"
        self._node = subprocess.Popen([program, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._finalizer = weakref.finalize(self, _end, self._node)  # also where nobody closes
        page = np.frombuffer(self.model.content, np.uint8)
        reply, _ = self._ask({"do": "open", "variant": self.variant}, {"page": page})
        self.name = f"libqcn in WebAssembly ({reply['backend']}) by Node {version}"

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        layers = self.options.layers
        request = {"do": "infer", "layers": bool(layers)}
        reply, outputs = self._ask(request, {"images": np.ascontiguousarray(images, np.float32)})
        answers = {name: outputs[name] for name in ("logit", "pose") if name in outputs}
        arrays: dict[str, list[NDArray[np.float32]]] = {}
        for i, layer in enumerate(reply["layers"]):
            statistics, pose, active = outputs[f"{i}.statistics"], outputs[f"{i}.pose"], outputs.get(f"{i}.activation")
            for name, numbers in layer_arrays(layer, statistics, pose, active).items():
                arrays.setdefault(name, []).append(numbers)
        return answers | {name: np.concatenate(parts) for name, parts in arrays.items()}

    def close(self) -> None:
        self._node = None
        if self._finalizer:
            self._finalizer()

    def _ask(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        with self._one_at_a_time:
            if self._node is None or self._node.stdin is None:
                raise UsageError(f"the runner of {self.path} is not open")
            try:
                with contextlib.suppress(BrokenPipeError):  # what follows says how it ended
                    for part in encode(request, arrays):
                        self._node.stdin.write(part)
                    self._node.stdin.flush()
                texts, outputs = receive(self._read)
            except KeyboardInterrupt:  # its answer would be taken for that to the next question
                self.close()
                raise
        if "error" in texts:
            raise UsageError(f"{self.path} in Node: {texts['error']}")
        return texts, outputs

    def _read(self, count: int) -> bytes:
        read = self._node.stdout.read(count) if self._node and self._node.stdout else b""
        if len(read) < count:
            self.close()
            raise UsageError(f"{self.path} in Node: it exited without an answer")
        return read


def _end(node: "subprocess.Popen[bytes]") -> None:
    node.kill()
    node.wait()
    for pipe in (node.stdin, node.stdout):
        if pipe:
            with contextlib.suppress(BrokenPipeError):  # of what it did not read
                pipe.close()

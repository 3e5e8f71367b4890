"""The process that a file runs in: it is given its bytes, gets images, and returns arrays. It gives no verdict.

`isolated` starts it, with a socket for requests and answers; standard output is nobody's. A request names what to do,
and an answer has the outputs, or the error in words. It ends when its parent does.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import threading
from pathlib import Path
from typing import Any

from qcn.errors import MissingError, QcnError
from qcn.export.backends import find
from qcn.export.backends.definition import load
from qcn.export.backends.frames import Arrays, encode, receive
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options, Runner


def serve(number: int) -> None:
    """Answer requests on the socket of this number until its other end is closed."""
    channel = socket.socket(fileno=number)
    threading.Thread(target=_end_with_parent, args=(number,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file behind
    runner: Runner | None = None
    with channel.makefile("rb") as source:
        while source.peek():
            request, arrays = receive(source.read)
            try:
                runner = runner or _runner(request, arrays)
                texts, outputs = _answer(runner, request, arrays)
                parts = encode(texts, outputs)
            except QcnError as error:
                parts = encode({"error": str(error), "missing": isinstance(error, MissingError)}, {})
            except Exception as error:  # a file that carries code can raise anything
                parts = encode({"error": f"{type(error).__name__}: {error}", "missing": False}, {})
            for part in parts:
                channel.sendall(part)


def _runner(request: dict[str, Any], arrays: Arrays) -> Runner:
    options, about = request["options"], request["model"]
    path, files = Path(about["path"]), {name: content.tobytes() for name, content in arrays.items()}
    model = ModelFile(path, files.pop(path.name), files, about["facts"], about["rebuild"])
    return load(find(request["backend"]).runner)(model, Options(**{**options, "layers": tuple(options["layers"])}))


def _answer(runner: Runner, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Answer one request with texts and arrays."""
    if "graph" in request:
        runner.graph = request["graph"]
    outputs: Arrays = {}
    match request["do"]:
        case "start":
            pass  # the runner is made
        case "load_backend":
            runner.load_backend()
        case "open":
            runner.open()
        case "infer":
            outputs = runner.infer(arrays["images"])
        case "upload":
            runner.upload(arrays["images"])
        case "enqueue":
            for _ in range(request["times"]):
                runner.enqueue()
            runner.synchronize()
    return {"name": runner.name}, outputs


def _end_with_parent(channel: int) -> None:
    """End this process, and what it started, when the other end is gone: also in the middle of a run."""
    gone = select.poll()
    gone.register(channel, 0)  # nothing but that it was hung up
    gone.poll()
    with contextlib.suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)

"""The process that a file runs in: it is given its bytes, gets images, and returns arrays. It gives no verdict.

`isolated` starts it, with a pipe to read requests from and one to write answers to; standard output is nobody's. A
request names what to do, and an answer has the outputs, or the error in words. It ends when its parent does.
"""

import contextlib
import os
import resource
import select
import signal
import threading
from pathlib import Path
from typing import Any

from qcn.errors import MissingError, QcnError
from qcn.export.backends import find
from qcn.export.backends.definition import load
from qcn.export.backends.frames import LENGTHS, Arrays, decode, encode, lengths
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options, Runner


def serve(requests: int, answers: int) -> None:
    """Answer requests from one pipe into the other until the first is closed."""
    threading.Thread(target=_end_with_parent, args=(requests,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file behind
    runner: Runner | None = None
    with os.fdopen(requests, "rb") as source, os.fdopen(answers, "wb") as out:
        while start := source.read(LENGTHS.size):
            head, body = lengths(start)
            text, images = source.read(head), bytearray(body)
            source.readinto(images)
            request, arrays = decode(text, images)
            try:
                runner = runner or _runner(request, arrays)
                texts, outputs = _answer(runner, request, arrays)
                parts = encode(texts, outputs)
            except QcnError as error:
                parts = encode({"error": str(error), "missing": isinstance(error, MissingError)}, {})
            except Exception as error:  # a file that carries code can raise anything
                parts = encode({"error": f"{type(error).__name__}: {error}", "missing": False}, {})
            for part in parts:
                out.write(part)
            out.flush()


def _runner(request: dict[str, Any], arrays: Arrays) -> Runner:
    options, about = request["options"], request["model"]
    path, files = Path(about["path"]), {name: content.tobytes() for name, content in arrays.items()}
    model = ModelFile(path, files.pop(path.name), files, about["facts"], about["rebuild"])
    return load(find(request["backend"]).runner)(model, Options(**{**options, "layers": tuple(options["layers"])}))


def _answer(runner: Runner, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """What one request gives: texts and arrays."""
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


def _end_with_parent(requests: int) -> None:
    """End this process, and what it started, when the other end of the pipe is gone: also in the middle of a run."""
    gone = select.poll()
    gone.register(requests, 0)  # nothing but that it was hung up
    gone.poll()
    with contextlib.suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)

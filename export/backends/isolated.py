"""A runner in a process of its own, for files that a stranger may have made.

A graph may compute for ever, and a file that carries code does what its author wants. So the file is loaded and run in
a child process (`worker`) that gets its bytes and images, and returns arrays (`frames`); it opens no file of a bundle.
Whether the arrays are right is decided here. The child is given no terminal, no open file, and of the environment what
its libraries need. It has a time limit; when it dies, says nothing in time or answers nonsense, that is an error in
words. It is no sandbox: code in it has the rights of the user who started it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.export.backends.frames import Arrays, NotAFrame, encode, receive
from qcn.export.backends.runner import TIME_LIMIT, Runner
from qcn.terminal.text import one_line

TO_OPEN = 5  # time limits to load the backend, and as many to load the file
CHUNK = 1 << 20
LAST_WORDS = 4096  # bytes of standard error that are kept

# `-c` and not a file, whose folder Python would import from; nor is the current folder, which may be a stranger's.
START = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from qcn.export.backends.worker import serve
serve(int(sys.argv[1]))
"""
# What Python, the backends and their libraries read. Anything else, such as a token, stays here.
NEEDED = (
    *("PATH", "HOME", "TMPDIR", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "THP_MEM_ALLOC_ENABLE"),
)
NEEDED_PREFIXES = (
    *("QCN_", "CUDA_", "NVIDIA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_"),
    *("LC_", "XDG_CACHE_"),
)
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # for large arrays: Linux clears many small ones slowly
SIGNALS = {one.value: one.name for one in signal.Signals}


class IsolatedRunner(Runner):
    """Another runner, which is not opened here but in a child process.

    `inner` says which file, backend and options; `backend` is its name in `BACKENDS`. A file that `carries_code` could
    speak for the child once it is loaded: from then on what the child says of itself is not taken over.
    """

    def __init__(self, inner: Runner, backend: str, *, carries_code: bool, time_limit: float = TIME_LIMIT) -> None:
        super().__init__(inner.model, inner.options)
        self.name, self.graph, self.transfers = inner.name, inner.graph, inner.transfers
        self.backend, self.carries_code, self.time_limit = backend, carries_code, time_limit
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._last_words = b""
        self._hearing: threading.Thread | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the outputs of its first answer, without the batch
        self._enqueued = 0

    @property
    def process(self) -> int:
        """The child's process id."""
        return self.opened(self._child).pid

    def start(self) -> None:
        """Start the child, which then has Python, numpy and this package loaded, and no backend yet."""
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=_environment(os.environ) | (LARGE_PAGES if self.options.thrifty else {}),
                cwd=os.sep,
                start_new_session=True,  # so that its process group can be ended with it
            )
        self._hearing = threading.Thread(target=self._hear, args=(self._child.stderr,), daemon=True)
        self._hearing.start()
        model = self.model
        about = {"path": str(model.path), "facts": model.facts, "rebuild": model.rebuild}
        files = {name: np.frombuffer(content, np.uint8) for name, content in model.files.items()}
        self._ask("start", files, backend=self.backend, options=asdict(self.options), model=about, limits=TO_OPEN)

    def load_backend(self) -> None:
        """Load its libraries; no file yet, so that the child can be believed."""
        if self._child is None:
            self.start()
        reply, _ = self._ask("load_backend", limits=TO_OPEN)
        self._take_name(reply)

    def open(self) -> None:
        self.load_backend()
        reply, _ = self._ask("open", limits=TO_OPEN)
        if not self.carries_code:
            self._take_name(reply)

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        _, outputs = self._ask("infer", {"images": images})
        if single := [name for name, array in outputs.items() if not array.ndim]:
            raise UsageError(f"{self.path} returns one number for '{single[0]}', not one per image")
        shapes = {name: array.shape[1:] for name, array in outputs.items()}
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            raise UsageError(f"{self.path} returns other outputs than before: {shapes}, not {self._shapes}")
        return outputs

    def upload(self, images: NDArray[np.float32]) -> None:
        self._ask("upload", {"images": images})

    def enqueue(self) -> None:
        """Counted here; the child launches them when `synchronize` asks it to, so that one message does for both."""
        self._enqueued += 1

    def synchronize(self) -> None:
        times, self._enqueued = self._enqueued, 0
        self._ask("enqueue", times=times)

    def close(self) -> None:
        if self._channel:
            self._channel.close()
        if self._child is None:
            return
        child, self._child = self._child, None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it is gone, or all that is left is a zombie
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def _take_name(self, reply: Mapping[str, Any]) -> None:
        self.name = one_line(reply["name"], 200) if isinstance(reply.get("name"), str) else self.name

    def _ask(
        self, do: str, arrays: Arrays | None = None, *, limits: int = 1, **more: Any
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send a request and return the answer to it; within so many time limits.

        A child that did not answer is of no more use: the next call says that the runner is not open.
        """
        self.opened(self._child)
        limit = limits * self.time_limit
        try:
            texts, outputs = self._exchange(encode({"do": do, "graph": self.graph, **more}, arrays or {}), limit)
        except (NotAFrame, _NoAnswer) as error:
            self.close()
            raise UsageError(f"{self.path} in a separate process: {error}") from error
        if "error" in texts:
            missing = texts.get("missing") is True and not (self.carries_code and do not in ("start", "load_backend"))
            reply = texts["error"] if isinstance(texts["error"], str) else "it failed, and did not say why"
            raise (MissingError if missing else UsageError)(one_line(reply))
        return texts, outputs

    def _exchange(self, parts: list[memoryview], limit: float) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send the parts of a request, and receive its answer, until the time is up."""
        channel, until = self._channel, time.monotonic() + limit
        assert channel is not None  # it is there as long as the child is

        def in_time() -> socket.socket:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            channel.settimeout(left)
            return channel

        def read(count: int) -> bytearray:
            received = bytearray()
            while len(received) < count:
                if not (more := in_time().recv(min(CHUNK, count - len(received)))):
                    raise ConnectionResetError
                received += more
            return received

        try:
            for part in parts:
                in_time().sendall(part)
            return receive(read)
        except TimeoutError:
            words = f"no answer within {limit:g} seconds (raise it with --set time_limit=SECONDS)"
            raise _NoAnswer(words) from None
        except ConnectionError:
            raise _NoAnswer(self._how_it_ended()) from None

    def _how_it_ended(self) -> str:
        """How the child ended, with the end of its standard error."""
        until = time.monotonic() + 1
        # Looked at and not waited for: `close` ends its group, which has its number as long as nobody waited.
        while (ended := os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            if time.monotonic() > until:
                return "it closed its channel, and gave no answer"
            time.sleep(0.01)
        if self._hearing:
            self._hearing.join(0.5)  # not for longer: what it started may go on talking
        by_itself = ended.si_code == os.CLD_EXITED
        number = ended.si_status
        how = f"it ended by itself, with {number}" if by_itself else f"it was ended by {SIGNALS.get(number, number)}"
        last = one_line(self._last_words.decode(errors="replace").strip().rpartition("\n")[2], 500)
        return f"{how}, and gave no answer" + (f"; its last words: {last}" if last else "")

    def _hear(self, errors: IO[bytes]) -> None:
        """Keep the end of its standard error, in a thread of its own."""
        with errors:
            while words := os.read(errors.fileno(), CHUNK):
                self._last_words = (self._last_words + words)[-LAST_WORDS:]


class _NoAnswer(Exception):
    """The child gave no answer; the message says why."""


def _environment(here: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that the child needs; relative folders to import from become absolute."""
    variables = {name: value for name, value in here.items() if name in NEEDED or name.startswith(NEEDED_PREFIXES)}
    if "PYTHONPATH" in variables:
        folders = filter(None, variables["PYTHONPATH"].split(os.pathsep))
        variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, folders))
    return variables

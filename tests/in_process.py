"""The runner of a stranger's file without its child process: nothing is imported and loaded a second time.

What a child would be asked and would answer goes through the same code on both sides. Tests of the isolation itself are
marked `isolated`, and start real children.
"""

import io
import os
from typing import Any

import pytest
from numpy.typing import NDArray

from qcn.errors import MissingError, QcnError
from qcn.export.backends.candidates import Candidate
from qcn.export.backends.frames import encode, receive
from qcn.export.backends.isolated import IsolatedRunner
from qcn.export.backends.runner import Runner
from qcn.export.backends.worker import _answer

Answer = tuple[dict[str, Any], dict[str, NDArray[Any]]]


class InProcessRunner(IsolatedRunner):
    """An isolated runner whose child is this process."""

    def __init__(self, inner: Runner, backend: str, **how: Any) -> None:
        super().__init__(inner, backend, **how)
        self._inner = inner

    @property
    def process(self) -> int:
        return os.getpid()

    def start(self) -> None:
        self._child: Any = self

    def _exchange(self, parts: list[memoryview], limit: float) -> Answer:
        try:
            texts, outputs = _answer(self._inner, *_frame(parts))
            return _frame(encode(texts, outputs))
        except QcnError as error:
            return {"error": str(error), "missing": isinstance(error, MissingError)}, {}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}", "missing": False}, {}

    def close(self) -> None:
        self._child = None
        self._inner.close()


def _frame(parts: list[memoryview]) -> Answer:
    return receive(io.BytesIO(b"".join(parts)).read)


def _runner(candidate: Candidate, runner: Runner, time_limit: float) -> InProcessRunner:
    carries_code = candidate.artefact.carries_code
    return InProcessRunner(runner, candidate.backend.name, carries_code=carries_code, time_limit=time_limit)


@pytest.fixture(autouse=True)
def _in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "isolated" not in request.keywords:
        monkeypatch.setattr(Candidate, "_isolated", _runner)

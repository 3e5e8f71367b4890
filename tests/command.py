"""`qcn` in this process: nothing is loaded twice, and its output can be looked at. And a process that gets a signal."""

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from qcn.cli import main


class Command:
    """`qcn`, in this process: its exit code, and what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._printed = monkeypatch, capsys
        monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it: tables would become lists

    def __call__(self, *arguments: object) -> tuple[int, str]:
        self._patch.setattr(sys, "argv", ["qcn", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self._printed.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err


@pytest.fixture
def qcn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def call(*arguments: object, columns: int = 200) -> subprocess.CompletedProcess[str]:
    """`qcn` in this process, as `subprocess.run` would tell of it."""
    words, out, err = ["qcn", *map(str, arguments)], io.StringIO(), io.StringIO()
    code: object = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        patch.setenv("COLUMNS", str(columns))
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(words, int(str(code or 0)), out.getvalue(), err.getvalue())


def ask(*arguments: object) -> tuple[int, str]:
    """The same as its exit code and all that it printed."""
    done = call(*arguments)
    return done.returncode, done.stdout + done.stderr


def signalled(
    command: Sequence[str], number: int, after: str, cwd: Path | None = None, delay_s: float = 0.0
) -> tuple[int, str]:
    """The exit code of a process that gets this signal once it has printed `after`, and what it said to stderr."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=cwd) as process:
        assert process.stdout is not None and process.stdout.readline() == f"{after}\n"
        time.sleep(delay_s)
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()  # one that did not hear it would be waited for
    return process.returncode, said

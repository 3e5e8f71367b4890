"""`qcn` in this process: nothing is loaded twice, and what it printed can be looked at."""

import sys

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

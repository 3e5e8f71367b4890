"""What commands show while they work: in a pipe, on a terminal, and while time is measured."""

import io
import itertools
import math
import subprocess
import sys
import time

import pytest
from rich.console import Console

from qcn.terminal import progress

SLOW = """
import time
from qcn.terminal.progress import doing, shown
with shown():
    doing("thinking")
    time.sleep(5)
print("done", flush=True)
"""


def test_a_pipe_is_never_silent_for_long() -> None:
    """Five seconds inside one call: a thread speaks up."""
    command = [sys.executable, "-c", SLOW]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        times, lines = zip(*((time.monotonic(), line) for line in process.stdout), strict=True)
    assert len(lines) >= 3 and all(line.endswith(" s  thinking\n") for line in lines[:-1]) and lines[-1] == "done\n"
    assert max(after - before for before, after in itertools.pairwise(times)) < 3  # 1.5 s, and a busy machine


def test_a_quick_command_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown():
        progress.doing("thinking", 1, of=2)
    assert capsys.readouterr().err == ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [0.0]
    monkeypatch.setattr("qcn.terminal.progress.time.monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_from_the_pace(clock: list[float]) -> None:
    line = progress.ProgressLine(began=0.0)
    line.move("loading", None)
    assert line.words() == "0 s  loading"
    clock[0] = 10.0
    line.move("reading", 0.0)  # what came before does not count
    clock[0] = 14.0
    line.move("reading", 0.25)
    assert line.words() == "14 s  reading  25 %, about 12 s left"
    clock[0] = 20.0  # and it runs down while nothing is heard
    assert line.words() == "20 s  reading  25 %, about 6 s left"
    line.move("another", 0.0)
    assert line.words() == "20 s  another  0 %"


def test_lines_become_rarer_in_a_run_of_hours(clock: list[float]) -> None:
    page = io.StringIO()
    shown = progress.Shown(Console(file=page))
    shown.line.began = 0.0
    for second in range(3600):
        clock[0] = float(second)
        shown.tick()
    assert 60 < len(page.getvalue().splitlines()) < 200


def test_parts_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "PACE", math.inf)
    with progress.shown():
        for place in range(2):
            with progress.part(place, 2):
                progress.doing(f"opening {place}")
                progress.doing(f"asking {place}", 16, of=32)
    said = capsys.readouterr().err
    for line in ("opening 0  0 %", "asking 0  25 %", "opening 1  50 %", "asking 1  75 %"):
        assert line in said


def test_a_terminal_has_one_live_line_which_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DRAW_S", 0.0)
    page = io.StringIO()
    shown = progress.Shown(Console(file=page, force_terminal=True, width=60, height=20, legacy_windows=False))
    shown.start()
    shown.line.move("asking native: weights.safetensors (fp32), which takes a while to answer", 0.5)
    shown.tick()
    shown.stop()
    drawn = page.getvalue()
    assert "━" * 10 in drawn and "asking native" in drawn
    assert "\n" not in drawn.rstrip("\n").split("asking native")[-1].split("…")[0]  # cut short, not wrapped
    assert drawn.endswith("\x1b[2K")  # erased


def test_nothing_is_drawn_while_time_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    with progress.shown():
        with progress.undisturbed():
            capsys.readouterr()
            time.sleep(0.5)
            assert capsys.readouterr().err == ""
        said, until = "", time.monotonic() + 60
        while "starting" not in said and time.monotonic() < until:
            time.sleep(0.05)
            said += capsys.readouterr().err
    assert "starting" in said


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5400, "90 min"), (9000, "2.5 h")]
)
def test_durations(seconds: float, words: str) -> None:
    assert progress.duration(seconds) == words

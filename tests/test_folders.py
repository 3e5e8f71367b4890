"""Folders that commands write to: one process at a time, a new one for each run, and no link that leads nowhere."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import call
from test_train import SHORT, command, environment

from qcn.cli import main
from qcn.errors import UsageError
from qcn.evaluate.evaluation import evaluate
from qcn.evaluate.request import Request
from qcn.storage.files import alone_in, new_folder, write_text
from qcn.train import resume, train
from qcn.train.record import load_run


def options(data_dir: Path, epochs: int) -> tuple[object, ...]:
    small = ("--dataset", "mnist", "--model", "cnn-small", "--batch-size", 60, "--device", "cpu")
    return ("train", *small, "--data-dir", data_dir, "--epochs", epochs)


def last_line(said: str) -> str:
    """What a command ended with; what is before it may only tell how far it was, as `3 s  loading torch`."""
    *before, last = said.splitlines()
    assert all(re.match(r"\d+ s  ", line) for line in before), said
    return last


def test_a_run_keeps_its_folder_to_itself_while_it_lives(data_dir: Path, tmp_path: Path) -> None:
    """A second one is refused and changes nothing. One that was killed hinders nobody."""
    out = tmp_path / "run"
    endless = command(*options(data_dir, 10_000), "--out", out)
    first = subprocess.Popen(endless, env=environment(), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 240
        while not (out / "run.json").exists() and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        second = call(*options(data_dir, 1), "--out", out)
        assert second.returncode == 2 and last_line(second.stderr) == (
            f"qcn: another process is writing to {out}: wait until it ends, or name another folder"
        )
        with pytest.raises(UsageError, match="another process is writing to"):
            resume(out, data_dir, "cpu")
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    with pytest.raises(UsageError, match="already holds a run"):  # the lock is free, the run is kept
        train(SHORT, data_dir, out, "cpu")
    with alone_in(out):
        assert load_run(out).settings.epochs == 10_000


def test_the_folder_of_an_evaluation_is_written_by_one_at_a_time(run: Path, data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    request = Request(split="validation", data_dir=data_dir, out=out, device="cpu")
    with alone_in(out), pytest.raises(UsageError, match=f"another process is writing to {out}"):
        evaluate(run, request)
    assert not out.exists()
    evaluate(run, request)
    assert {"evaluation.json", "confusion.png"} <= {path.name for path in out.iterdir()}


def test_a_folder_to_which_nothing_is_written_goes_again(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "b") as first, new_folder(tmp_path / "a" / "b") as second:
        assert [first, second] == [tmp_path / "a" / "b", tmp_path / "a" / "b-2"]
        (second / "file").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b-2"]
    with alone_in(tmp_path / "c" / "d"):
        assert (tmp_path / "c" / "d" / ".lock").is_file()
    assert not (tmp_path / "c").exists()


MANY = """
import sys
from pathlib import Path
from qcn.storage.files import new_folder
for _ in range(50):
    with new_folder(Path(sys.argv[1]) / "run") as folder:
        (folder / "made").touch(exist_ok=False)
"""


def test_many_processes_get_a_folder_each(tmp_path: Path) -> None:
    makers = [subprocess.Popen([sys.executable, "-c", MANY, str(tmp_path)]) for _ in range(4)]
    assert [maker.wait(60) for maker in makers] == [0] * 4
    assert len(list(tmp_path.glob("run*/made"))) == 200


def test_a_file_that_cannot_be_written_is_named_as_the_user_did(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 250}.json"
    with pytest.raises(OSError, match="too long") as error:
        write_text(path, "{}")
    assert str(error.value.filename) == str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        "doctor LOOP",
        "verify-parity LOOP",
        "benchmark LOOP",
        "export LOOP",
        "export LOOP --out elsewhere",
        "evaluate LOOP",
        "train --resume LOOP",
        "export RUN --out LOOP",
        "export BUNDLE --out LOOP",
        "evaluate RUN --out LOOP",
        "train --dataset mnist --model qcn-tiny --out LOOP",
        "train --dataset mnist --model qcn-tiny --data-dir LOOP",
        "verify-parity BUNDLE --report LOOP",
        "verify-parity BUNDLE --dataset LOOP",
        "verify-parity BUNDLE --baseline LOOP",
        "benchmark BUNDLE --baseline LOOP",
        "datasets fetch mnist --data-dir LOOP",
    ],
)
def test_a_link_to_itself_is_one_clear_line(
    run: Path,
    _bundle: Path,
    data_dir: Path,
    tmp_path: Path,
    arguments: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    names = {"LOOP": loop, "RUN": run, "BUNDLE": _bundle}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QCN_DATA", str(data_dir))
    monkeypatch.setattr(sys, "argv", ["qcn", *(str(names.get(word, word)) for word in arguments.split())])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err.strip()
    assert end.value.code in (2, 3), said
    assert last_line(said).startswith("qcn: ")
    assert str(loop) in said or "leave out --out" in said
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]

"""The manners of the command line: defaults, completion, narrow tables, right hints, a last line that leads on."""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import ask, signalled
from pictures import write_pictures
from rich.table import Table
from typer.main import get_command

from qcn.api import Run
from qcn.cli import app
from qcn.cli.say import show
from qcn.cli.train import why_best
from qcn.data.registry import DATASETS, load
from qcn.export.backends import BACKENDS
from qcn.export.bundle import Bundle
from qcn.names import BUNDLE
from qcn.networks import zoo
from qcn.storage.files import write_text
from qcn.terminal.text import command_line
from qcn.train import train
from qcn.train.record import Epoch, new_run
from qcn.train.settings import RunSettings, Settings
from qcn.verify import doctor


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def commands(command: Any = None, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the product, with its names."""
    command = command or get_command(app)
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)


def test_every_command_and_parameter_explains_itself_and_every_option_names_its_default() -> None:
    for names, command in commands():
        assert command.help, names
        for one in command.params:
            assert getattr(one, "help", None), (names, one.name)
            ending = one.name in ("help", "version", "install_completion", "show_completion")  # these do one thing
            if one.param_type_name == "option" and not ending:
                shown = isinstance(one.show_default, str) or one.default not in (None, False, [], ())
                assert one.required or shown or "Default:" in (one.help or ""), (names, one.opts)


# Completion


def completed(*names: str, option: str, incomplete: str) -> list[str]:
    (command,) = (one for path, one in commands() if path == names)
    (parameter,) = (one for one in command.params if option in one.opts or option == one.name)
    context = command.make_context(names[-1], [], resilient_parsing=True)
    return [item.value for item in parameter.shell_complete(context, incomplete)]


def test_completion_knows_the_products_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-toys").mkdir()
    assert completed("train", option="--model", incomplete="qcn") == [one for one in zoo.MODELS if one[:3] == "qcn"]
    assert completed("train", option="--dataset", incomplete="m") == ["mnist", "my-toys/"]
    assert completed("datasets", "fetch", option="name", incomplete="") == list(DATASETS)
    assert completed("export", option="--format", incomplete="onnx,tr") == ["onnx,trt", "onnx,triton"]
    assert completed("export", option="--precision", incomplete="") == ["fp32", "fp16", "bf16"]
    assert "jetson-orin-nano" in completed("export", option="--target", incomplete="jetson")
    for command in ("verify-parity", "benchmark"):
        assert completed(command, option="--backends", incomplete="") == list(BACKENDS)
        assert completed(command, option="--backends", incomplete="native,pt") == ["native,pt2"]
    assert completed("predict", option="--backend", incomplete="t") == ["tensorrt"]
    assert "mnist-qcn" in completed("evaluate", option="model", incomplete="mnist")


# Tables


def test_tables_fit_60_columns(
    bundle: Bundle, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every table that a command prints, as it is printed."""
    tables: list[Table] = []
    for module in ("datasets.show_table", "train.show", "evaluate.show", "export.show", "predict.show", "verify.show"):
        monkeypatch.setattr(f"qcn.cli.{module}", tables.append)
    picture = bundle.folder.parent / "picture.png"
    assert ask("datasets", "show", "mnist", "--data-dir", data_dir, "--out", picture)[0] == 0
    out = ("--out", bundle.folder.parent / "evaluation")
    for command in (
        ("datasets", "list"),
        ("export", bundle.folder, "--format", "onnx", "--precision", "fp16"),
        ("verify-parity", bundle.folder, "--backends", "native,onnxruntime"),
        ("benchmark", bundle.folder, "--backends", "native,onnxruntime", "--duration", 0.01, "--set", "warmup=0"),
        ("evaluate", bundle.folder, "--data-dir", data_dir, "--backend", "native", *out),
        ("predict", picture, "--model", bundle.folder),
    ):
        code, said = ask(*command)
        assert code == 0, said
    assert len(tables) == 7
    monkeypatch.setenv("COLUMNS", "60")
    for table in tables:
        show(table)
        shown = capsys.readouterr().out
        # Nothing is wider but a name that is, on a line of its own.
        assert all(len(line) <= 60 or len(line.split()) == 1 for line in shown.splitlines()), shown
        for word in (word for column in table.columns for cell in column.cells for word in str(cell).split()):
            assert word in shown, word


@pytest.mark.parametrize("columns", ["40", "0"])  # 0: of a terminal that does not know
def test_long_names_make_a_list(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = Table("backend", "file", "note", title="batch 1")
    table.add_row("native", "engines/fp32-b1-8-64-rtx1.7.1.engine", "")
    show(table)
    said = capsys.readouterr().out
    assert said.split() == ["batch", "1", "native", "file:", "engines/fp32-b1-8-64-rtx1.7.1.engine"]
    assert columns == "0" or said.endswith("native\n  file:\n    engines/fp32-b1-8-64-rtx1.7.1.engine\n")


def test_commands_can_be_copied_whatever_a_folder_is_called() -> None:
    said = command_line("qcn", "train", "--resume", Path("-my run"), "--out", Path("runs/a b"))
    assert said == "qcn train --resume './-my run' --out 'runs/a b'"


# Hints


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--format", "trt", "--target", "jetson-nano"), "its newest TensorRT is 8.2, and 8.6 or newer is needed"),
        (("--format", "coreml"), "runs --format native (libqcn) and --format onnx (ONNX Runtime)"),
        (("--format", "tensorrt"), "--format trt"),
        (("--precision", "int8"), "`qcn calibrate` makes such a bundle"),
        (("--precision", "fp61"), "did you mean 'fp16'?"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_what_there_is_not_gets_what_there_is(bundle: Bundle, options: tuple[str, ...], says: str) -> None:
    code, said = ask("export", bundle.folder, *options)
    assert code == 2 and says in said and said.count("\n") == 1, said


def test_a_backend_without_a_file_says_how_to_get_one(bundle: Bundle) -> None:
    for command in ("verify-parity", "benchmark"):
        code, said = ask(command, bundle.folder, "--backends", "tensorrt")
        assert code == 2 and f"add one, on the device: qcn export {bundle.folder} --format trt" in said


# What this machine cannot run


@pytest.fixture
def two_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that there are, for the length of a test: it takes less time."""
    monkeypatch.setattr(
        "qcn.export.backends.candidates.BACKENDS", {name: BACKENDS[name] for name in ("native", "onnxruntime")}
    )


@pytest.mark.usefixtures("two_backends")
def test_bf16_on_a_cpu_cannot_run_here_in_every_command(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("export", bundle.folder, "--precision", "bf16")[0] == 0
    monkeypatch.setattr("qcn.export.backends.onnx.format.this_gpu", lambda: None)
    (said_by_doctor,) = (row for row in doctor.diagnose(bundle.folder) if row.file == "model.bf16.onnx")
    assert said_by_doctor.state == "cannot"
    code, said = ask("verify-parity", bundle.folder)
    assert code == 0 and "failed" not in said
    assert f"cannot    onnxruntime: model.bf16.onnx (bf16)\n          {said_by_doctor.reason}" in said
    code, said = ask("benchmark", bundle.folder, "--duration", 0.01, "--set", "warmup=0")
    assert code == 0 and "fastest: " in said
    assert f"model.bf16.onnx (bf16), batch 1: cannot run here: {said_by_doctor.reason}" in said


@pytest.mark.usefixtures("two_backends")
def test_a_file_that_fails_does_not_keep_others_from_being_measured(bundle: Bundle) -> None:
    with bundle.adding("model.onnx", "onnx", "fp32", f"qcn export {BUNDLE}") as draft:
        draft.path.write_bytes(b"no graph")
    code, said = ask("benchmark", bundle.folder, "--duration", 0.01, "--set", "warmup=0")
    assert (
        code == 2 and " native " in said and "onnxruntime: model.onnx (fp32), batch 1: ONNX Runtime cannot load" in said
    )


# Nothing silent


def test_what_runs_is_said(bundle: Bundle, run: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that would be said if it took long."""
    monkeypatch.setattr("qcn.terminal.progress.QUIET_S", 0.0)
    monkeypatch.setattr("qcn.terminal.progress.PACE", math.inf)
    folder, native, out = bundle.folder, ("--backends", "native"), ("--out", bundle.folder.parent / "out")
    file = "native: weights.safetensors (fp32)"
    for command, lines in {
        ("verify-parity", folder, *native): [f"opening {file}", f"asking {file}  "],
        ("benchmark", folder, *native, "--duration", 0.1): [f"starting {file}", f"timing {file}, batch 1"],
        ("export", run, "--data-dir", data_dir, *out): ["making golden answers, in float64", "writing onnx, fp32"],
        ("evaluate", folder, "--data-dir", data_dir, *out): ["loading ", "test, 60 images, by "],
        ("doctor", folder): [f"checking {folder}"],
    }.items():
        code, said = ask(*command)
        assert code == 0 and all(line in said for line in lines), said
        shutil.rmtree(out[1], ignore_errors=True)


def lasting(said: str) -> list[str]:
    """The lines but those that are said because something takes long."""
    return [line for line in said.splitlines() if not re.match(r"[\d.]+ (s|min|h)  ", line)]


def test_a_run_says_what_it_is_and_how_long_it_takes(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qcn.train.logbook.LONG_S", 0.0)
    monkeypatch.setattr("qcn.train.logbook.SETTLED_S", 0.0)
    monkeypatch.setattr("qcn.train.loop.REPORT_AFTER_S", 0.0)
    short = Settings("mnist", "qcn-tiny", epochs=2, batch_size=30)
    train(short, data_dir, tmp_path / "run", "cpu")
    lines = lasting(capsys.readouterr().err)
    assert lines[0].startswith("qcn-tiny: ") and lines[0].endswith(" parameters, 2 epochs of 6 steps of 30 images")
    assert lines[1].startswith("device: cpu, ") and lines[2].startswith("routing: ")
    assert lines[3] == f"folder: {tmp_path / 'run'}"
    assert "the whole run takes about " in lines[4] and f"qcn train --resume {tmp_path / 'run'}" in lines[4]
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert len(epochs) == 2 and epochs[0].endswith(" left")


# The last line


BEGUN = """
import signal, sys

class Begun:
    def find_spec(self, name, path=None, target=None):
        if name == "qcn.cli":
            print("begun", flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs are started without
sys.meta_path.insert(0, Begun())
from qcn.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [0, 0.1, 0.3])
def test_a_signal_ends_a_command_that_is_still_being_imported(delay_s: float, number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGUN, "train", "--dataset", "viewpoints-demo", "--out", str(tmp_path / "run")]
    code, said = signalled(command, number, "begun", tmp_path, delay_s)
    assert (code, said.splitlines()[-1]) == (130, "qcn: stopped") and "Traceback" not in said


LOST = """
import signal, sys, time
from qcn.verify import doctor
from qcn.__main__ import main

class Dropped:
    def __del__(self):
        print("begun", flush=True)
        time.sleep(60)

def dropping(*_):
    Dropped()
    time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)
doctor.diagnose = dropping
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_where_exceptions_are_ignored_ends_a_command_too(number: int, bundle: Bundle) -> None:
    command = [sys.executable, "-c", LOST, "doctor", str(bundle.folder)]
    assert signalled(command, number, "begun") == (130, "qcn: stopped\n")


WRITING = """
import pathlib, sys, time
from qcn.verify import doctor
from qcn.cli import main
from qcn.storage.files import atomic_write

def writing(*_):
    with atomic_write(pathlib.Path("result.json")) as aside:
        aside.write_text("half of it")
        print("begun", flush=True)
        time.sleep(60)

doctor.diagnose = writing
main()
"""


def test_sigterm_leaves_nothing_half_written(bundle: Bundle, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITING, "doctor", str(bundle.folder)]
    code, said = signalled(command, signal.SIGTERM, "begun", tmp_path)
    assert (code, said.splitlines()[-1]) == (130, "qcn: stopped") and "Traceback" not in said
    assert not [one for one in tmp_path.iterdir() if "result" in one.name]


def test_closed_streams_do_not_mix_with_other_files(bundle: Bundle) -> None:
    assert ask("export", bundle.folder, "--format", "onnx")[0] == 0
    closed = ["sh", "-c", 'exec "$0" "$@" <&- >&-', sys.executable, "-m", "qcn"]  # as some services start programs
    checked = [*closed, "verify-parity", str(bundle.folder), "--backends", "onnxruntime"]
    done = subprocess.run(checked, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_before_ctrl_c_is_caught() -> None:
    code = (
        "import os.path, sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules)\n"
        "import qcn.__main__; print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(__file__).parent.parent)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "qcn qcn.__main__\n"


def test_commands_end_with_the_next_one(
    run: Path, bundle: Bundle, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QCN_DATA", raising=False)
    folder, out = bundle.folder, tmp_path / "out"
    native, data = ("--backends", "native"), ("--data-dir", data_dir)
    pictures = write_pictures(tmp_path / "my pictures", 6)
    for command, last in {
        ("export", folder): f"next: qcn verify-parity {folder}",
        ("doctor", folder): f"next: qcn verify-parity {folder}",
        ("doctor",): "next: qcn doctor BUNDLE",
        ("verify-parity", folder, *native): f"next: qcn benchmark {folder}",
        ("benchmark", folder, *native, "--duration", 0.01): f"next: qcn verify-parity {folder}",
        ("evaluate", folder, "--data-dir", data_dir, "--out", out): f"next: qcn verify-parity {folder}",
        ("datasets", "list"): "next: qcn datasets fetch NAME",
        ("datasets", "fetch", "viewpoints-demo"): "next: qcn train --dataset viewpoints-demo",
        ("datasets", "show", "mnist", *data, "--out", out / "a.png"): (
            f"next: qcn train --dataset mnist --data-dir {data_dir}"
        ),
        ("datasets", "check", pictures, "--size", 20, "--set", "channels=1", *data): (
            f"next: qcn train --dataset '{pictures}' --size 20 --set channels=1 --data-dir {data_dir}"
        ),
        ("evaluate", run, *data, "--device", "cpu", "--out", out): f"next: qcn export {run} --data-dir {data_dir}",
    }.items():
        code, said = ask(*command)
        assert code == 0 and lasting(said)[-1] == last, said
    short, new = ("--model", "qcn-tiny", "--epochs", 1, "--batch-size", 90, "--device", "cpu"), tmp_path / "new"
    said = ask("train", "--dataset", "mnist", *short, *data, "--out", new)[1]
    assert re.search("best +│ +1 │", said) and "kept" not in said
    assert f"next: qcn evaluate {new} --data-dir {data_dir}\nnext: qcn export {new} --data-dir {data_dir}\n" in said
    monkeypatch.setenv("QCN_DATA", str(data_dir))
    assert lasting(ask("evaluate", run, "--device", "cpu", "--out", out)[1])[-1] == f"next: qcn export {run}"


def test_the_best_epoch_is_explained_if_another_has_a_smaller_error() -> None:
    errors = (0.5, 0.2, 0.3, 0.25)
    rows = [Epoch(epoch, epoch, 1.0, 0.1, error, None, 0.01, None, 1.0, 1.0) for epoch, error in enumerate(errors, 1)]
    assert why_best(rows, rows[3]) == (
        "best is the last epoch whose validation error is within the 95 % interval of the least, 20.00 % at epoch 2"
    )
    assert why_best(rows, rows[1]) == ""


def test_export_is_suggested_for_networks_that_can_be_exported(data_dir: Path) -> None:
    splits, settings = load("mnist", data_dir), RunSettings("mnist", "qcn")
    preprocessing = DATASETS["mnist"].preprocessing.fitted(splits.train)
    runs = {name: new_run(replace(settings, model=name), "mnist", splits, preprocessing) for name in zoo.MODELS}
    refused = {name for name, run in runs.items() if not Run(name, run).exportable}
    assert refused == {"em", "em-branched", "em-unbranched", "vb"}


def test_export_says_nothing_of_torch_jit(bundle: Bundle) -> None:
    command = [sys.executable, "-W", "default", "-m", "qcn", "export", str(bundle.folder), "--format", "torchscript"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "torch.jit" not in done.stderr + done.stdout and "Warning" not in done.stderr


def test_what_torch_is_loaded_with_is_set_unless_the_user_says_otherwise(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait sleep, oneDNN leaves nothing in /tmp, and for verify-parity arrays lie in large pages."""
    wanted = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_THREAD_TIMEOUT": "4", "DNNL_JIT_PROFILE": "0"}
    wanted["THP_MEM_ALLOC_ENABLE"] = "1"
    for before in (None, "own"):
        for name in wanted:
            monkeypatch.setenv(name, before) if before else monkeypatch.delenv(name, raising=False)
        assert ask("verify-parity", bundle.folder, "--backends", "unheard-of")[0] == 2
        assert {name: os.environ[name] for name in wanted} == (dict.fromkeys(wanted, before) if before else wanted)


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As root, a report for /dev/null must not become a file of that name."""
    terminal, end = os.openpty()
    os.set_blocking(terminal, False)
    (tmp_path / "stdout").symlink_to(os.ttyname(end))  # as /dev/stdout is
    for path in (Path(os.ttyname(end)), tmp_path / "stdout"):
        write_text(path, "written")
        assert os.read(terminal, 99) == b"written"
    assert (tmp_path / "stdout").is_symlink()
    os.close(terminal), os.close(end)

"""The manners of the command line: defaults, completion, narrow tables, right hints, a last line that leads on."""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command, signalled
from pictures import write_pictures
from PIL import Image
from rich.table import Table
from typer.main import get_command

from qcn.api import Run
from qcn.cli import app
from qcn.cli.say import say, show
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
from qcn.verify.parity import results


@pytest.fixture
def qcn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Command(monkeypatch, capsys)


def commands(command: Any = None, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the product, with its names."""
    command = command or get_command(app)
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)


@pytest.mark.parametrize(("names", "command"), list(commands()), ids=str)
def test_every_option_names_its_default(names: tuple[str, ...], command: Any) -> None:
    for option in (one for one in command.params if one.param_type_name == "option"):
        if option.name in ("help", "version", "install_completion", "show_completion"):  # they do one thing, and end
            continue
        shown = isinstance(option.show_default, str) or option.default not in (None, False, [], ())
        assert option.required or shown or "Default:" in (option.help or ""), option.opts


def test_every_command_and_argument_explains_itself() -> None:
    for names, command in commands():
        assert command.help, names
        for one in command.params:
            assert getattr(one, "help", None), (names, one.name)


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "qcn-tniy"), "no model named 'qcn-tniy'; did you mean 'qcn-tiny'"),
        (("--epochs", "0"), "epochs must be positive, not 0"),
        (("--batch-size", "-3"), "batch_size must be positive, not -3"),
        (("--set", "loss=mse"), "no loss named 'mse'"),
        (("--dataset", "mnits"), "did you mean 'mnist'"),
        (("--dataset", "no/pictures"), "there is no folder, table of pictures or data set named 'no/pictures'"),
        (("--size", "32"), "size, fit, channels and group_by are for folders"),
        (("--init", "runs/gone"), "runs/gone is neither a training run"),
        (("--teacher", "runs/gone"), "runs/gone is neither a training run"),
    ],
)
def test_wrong_arguments_are_refused_before_torch_is_imported(arguments: tuple[str, ...], says: str) -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        f"sys.argv = {['qcn', 'train', '--dataset', 'mnist', *arguments]!r}\n"
        "from qcn.cli import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


# Tables


def fits(tables: list[Table], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for table in tables:
        cells = [str(cell) for column in table.columns for cell in column.cells]
        show(table)
        shown = capsys.readouterr().out
        # Nothing is wider but a name that is, on a line of its own.
        assert all(len(line) <= 60 or len(line.split()) == 1 for line in shown.splitlines()), shown
        for word in (word for cell in cells for word in cell.split()):
            assert word in shown, word


def test_tables_fit_60_columns(
    bundle: Bundle, qcn: Command, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every table that a command prints, as it is printed."""
    shown: list[Table] = []
    for module in ("datasets.show_table", "train.show", "evaluate.show", "export.show", "predict.show", "verify.show"):
        monkeypatch.setattr(f"qcn.cli.{module}", shown.append)
    picture = bundle.folder.parent / "picture.png"
    assert qcn("datasets", "show", "mnist", "--data-dir", data_dir, "--out", picture)[0] == 0
    out = ("--out", bundle.folder.parent / "evaluation")
    for command in (
        ("datasets", "list"),
        ("export", bundle.folder, "--format", "onnx", "--precision", "fp16"),
        ("verify-parity", bundle.folder, "--backends", "native,onnxruntime"),
        ("benchmark", bundle.folder, "--backends", "native,onnxruntime", "--duration", 0.01, "--set", "warmup=0"),
        ("evaluate", bundle.folder, "--data-dir", data_dir, "--backend", "native", *out),
        ("predict", picture, "--model", bundle.folder),
    ):
        code, said = qcn(*command)
        assert code == 0, said
    assert len(shown) == 7
    monkeypatch.setenv("COLUMNS", "60")
    fits(shown, capsys)


def test_long_names_make_a_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = Table("backend", "file", "note", title="batch 1")
    table.add_row("native", "engines/fp32-b1-8-64-rtx1.7.1.engine", "")
    show(table)
    assert capsys.readouterr().out == "batch 1\nnative\n  file:\n    engines/fp32-b1-8-64-rtx1.7.1.engine\n"


def test_a_terminal_may_say_that_it_has_no_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    table = Table("backend", "file", title="batch 1")
    table.add_row("native", "weights.safetensors")
    show(table)
    assert capsys.readouterr().out.split() == ["batch", "1", "native", "file:", "weights.safetensors"]


def test_commands_can_be_copied_whatever_a_folder_is_called() -> None:
    said = command_line("qcn", "train", "--resume", Path("-my run"), "--out", Path("runs/a b"))
    assert said == "qcn train --resume './-my run' --out 'runs/a b'"


def test_statuses_stand_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    for status in results.COLOURS:
        say("text", results.WORDS[status])
    assert {line.index("text") for line in capsys.readouterr().out.splitlines()} == {10}


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
def test_what_there_is_not_gets_what_there_is(
    bundle: Bundle, qcn: Command, options: tuple[str, ...], says: str
) -> None:
    code, said = qcn("export", bundle.folder, *options)
    assert code == 2 and says in said and said.count("\n") == 1, said


def test_a_backend_without_a_file_says_how_to_get_one(bundle: Bundle, qcn: Command) -> None:
    for command in ("verify-parity", "benchmark"):
        code, said = qcn(command, bundle.folder, "--backends", "tensorrt")
        assert code == 2 and f"add one, on the device: qcn export {bundle.folder} --format trt" in said


# What this machine cannot run


@pytest.fixture
def two_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that there are, for the length of a test: it takes less time."""
    monkeypatch.setattr(
        "qcn.export.backends.candidates.BACKENDS", {name: BACKENDS[name] for name in ("native", "onnxruntime")}
    )


@pytest.fixture
def with_bf16(bundle: Bundle, qcn: Command) -> Bundle:
    """A bundle with a file that no CPU runs."""
    assert qcn("export", bundle.folder, "--precision", "bf16")[0] == 0
    return Bundle.open(bundle.folder)


@pytest.mark.usefixtures("two_backends")
def test_bf16_on_a_cpu_cannot_run_here_in_every_command(
    with_bf16: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qcn.export.backends.onnx.format.this_gpu", lambda: None)
    (said_by_doctor,) = (row for row in doctor.diagnose(with_bf16.folder) if row.file == "model.bf16.onnx")
    assert said_by_doctor.state == "cannot"
    code, said = qcn("verify-parity", with_bf16.folder)
    assert code == 0 and "failed" not in said
    assert f"cannot    onnxruntime: model.bf16.onnx (bf16)\n          {said_by_doctor.reason}" in said
    code, said = qcn("benchmark", with_bf16.folder, "--duration", 0.01, "--set", "warmup=0")
    assert code == 0 and "fastest: " in said
    assert f"model.bf16.onnx (bf16), batch 1: cannot run here: {said_by_doctor.reason}" in said


@pytest.mark.usefixtures("two_backends")
def test_a_file_that_fails_does_not_keep_others_from_being_measured(bundle: Bundle, qcn: Command) -> None:
    with bundle.adding("model.onnx", "onnx", "fp32", f"qcn export {BUNDLE}") as draft:
        draft.path.write_bytes(b"no graph")
    code, said = qcn("benchmark", bundle.folder, "--duration", 0.01, "--set", "warmup=0")
    assert (
        code == 2 and " native " in said and "onnxruntime: model.onnx (fp32), batch 1: ONNX Runtime cannot load" in said
    )


# Nothing silent


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that would be said if it took long."""
    monkeypatch.setattr("qcn.terminal.progress.QUIET_S", 0.0)
    monkeypatch.setattr("qcn.terminal.progress.PACE", math.inf)


@pytest.mark.usefixtures("talkative")
def test_what_runs_is_said(bundle: Bundle, qcn: Command, run: Path, data_dir: Path) -> None:
    native, folder = "native: weights.safetensors (fp32)", bundle.folder
    out = ("--out", folder.parent / "out")
    for command, lines in {
        ("verify-parity", folder, "--backends", "native"): [f"opening {native}", f"asking {native}  "],
        ("benchmark", folder, "--backends", "native", "--duration", 0.1): [
            f"starting {native}",
            f"timing {native}, batch 1",
        ],
        ("export", run, "--data-dir", data_dir, *out): ["making golden answers, in float64", "writing onnx, fp32"],
        ("evaluate", folder, "--data-dir", data_dir, *out): ["loading ", "test, 60 images, by "],
        ("doctor", folder): [f"checking {folder}"],
    }.items():
        code, said = qcn(*command)
        assert code == 0, said
        for line in lines:
            assert line in said, said
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


def test_ctrl_c_ends_a_command_with_a_word(bundle: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "diagnose", interrupted)
    code, said = qcn("doctor", bundle.folder)
    assert (code, said.splitlines()[-1]) == (130, "qcn: stopped")


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
@pytest.mark.parametrize("delay_s", [0, 0.05, 0.1, 0.2, 0.3, 0.4])
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


def test_closed_streams_do_not_mix_with_other_files(bundle: Bundle, qcn: Command) -> None:
    assert qcn("export", bundle.folder, "--format", "onnx")[0] == 0
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
    run: Path, bundle: Bundle, qcn: Command, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        code, said = qcn(*command)
        assert code == 0 and lasting(said)[-1] == last, said
    short, new = ("--model", "qcn-tiny", "--epochs", 1, "--batch-size", 90, "--device", "cpu"), tmp_path / "new"
    said = qcn("train", "--dataset", "mnist", *short, *data, "--out", new)[1]
    assert re.search("best +│ +1 │", said) and "kept" not in said
    assert f"next: qcn evaluate {new} --data-dir {data_dir}\nnext: qcn export {new} --data-dir {data_dir}\n" in said
    monkeypatch.setenv("QCN_DATA", str(data_dir))
    assert lasting(qcn("evaluate", run, "--device", "cpu", "--out", out)[1])[-1] == f"next: qcn export {run}"


def test_the_best_epoch_is_explained_if_another_has_a_smaller_error() -> None:
    errors = (0.5, 0.2, 0.3, 0.25)
    rows = [Epoch(epoch, epoch, 1.0, 0.1, error, None, 0.01, None, 1.0, 1.0) for epoch, error in enumerate(errors, 1)]
    assert why_best(rows, rows[3]) == (
        "best is the last epoch whose validation error is within the 95 % interval of the least, 20.00 % at epoch 2"
    )
    assert why_best(rows, rows[1]) == ""


def test_a_check_of_pictures_of_one_size_names_it_once(qcn: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(20):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(path)
    said = qcn("datasets", "check", tmp_path / "pictures", "--data-dir", tmp_path / "data")[1]
    assert "pictures are 40 pixels wide and 30 high\nno near duplicates\n" in said


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


def test_threads_that_wait_sleep_unless_the_user_says_otherwise(qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    qcn("datasets", "list")
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    qcn("datasets", "list")
    assert os.environ["OMP_WAIT_POLICY"] == "passive" and os.environ["OPENBLAS_THREAD_TIMEOUT"] == "4"


def test_verify_parity_has_torch_use_large_pages(qcn: Command, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    for before, after in (("0", "0"), (None, "1")):
        monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
        if before:
            monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", before)
        assert qcn("verify-parity", bundle.folder, "--backends", "torch")[0] == 0
        assert os.environ["THP_MEM_ALLOC_ENABLE"] == after


def test_a_run_of_torch_leaves_nothing_in_tmp(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN, in torch for ARM, would write the names of its machine code there."""
    monkeypatch.delenv("DNNL_JIT_PROFILE", raising=False)  # which `main` sets in this process, for other tests
    Image.new("L", (28, 28)).save(tmp_path / "grey.png")
    command = [sys.executable, "-m", "qcn", "predict", str(tmp_path / "grey.png"), "--model", str(run)]
    began = time.time()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        assert process.wait() == 0
    left = Path(f"/tmp/perf-{process.pid}.map")
    assert not left.exists() or left.stat().st_mtime < began - 1  # one of an older process of that number


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

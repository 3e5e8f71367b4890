"""`qcn export` and `qcn doctor` as a user meets them: what they make, what they print, and how they end."""

import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from bundles import contents
from command import signalled

from qcn.cli import main
from qcn.data.registry import load
from qcn.errors import MissingError
from qcn.export import pipeline
from qcn.export.backends.format import Job, Made
from qcn.export.backends.tensorrt.format import EngineFile
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle
from qcn.export.bundle.manifest import Batch
from qcn.export.request import ExportRequest
from qcn.kernels import native as native_kernels
from qcn.packages import installed
from qcn.train.loop import Training
from qcn.train.settings import Settings

Result = subprocess.CompletedProcess[str]
Command = Callable[..., Result]
# A page is made where libqcn was built as WebAssembly.
PAGE = ["page.html"] if (Path(__file__).parents[2] / "build" / "web" / "qcn-simd.wasm").exists() else []
# OpenVINO's two files where it is installed.
PTE = ["model.pte"] if installed("executorch") else []
TFLITE = ["model.tflite"] if installed("ai_edge_litert") else []
IR = ["model.bin", "model.xml"] if installed("openvino") else []
TENSORRT = ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")
# Packages that are as if not installed, from the start of the process on.
WITHOUT = """
import sys
for name in {names!r}:
    sys.modules[name] = None
sys.argv = {arguments!r}
from qcn.cli import main
main()
"""


@pytest.fixture
def qcn(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, in a terminal of 80 columns; in a process of its own where it is to be without some packages."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments: object, without: tuple[str, ...] = (), columns: int = 80) -> Result:
        words = ["qcn", *map(str, arguments)]
        monkeypatch.setenv("COLUMNS", str(columns))
        if without:
            command = [sys.executable, "-c", WITHOUT.format(names=without, arguments=words)]
            return subprocess.run(command, capture_output=True, text=True, check=False)
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return Result(words, int(end.value.code or 0), *capsys.readouterr())

    return call


def ended(result: Result, code: int, says: str = "") -> bool:
    """Whether the command ended so, with one line for what went wrong."""
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    if code:
        last = [line for line in result.stderr.splitlines() if not re.match(r"\d+ s  ", line)]  # but for progress
        assert last[0].startswith("qcn: ") and says in result.stderr, result.stderr
    return True


def formats(bundle: Path) -> dict[str, str]:
    return {artefact.file: artefact.format for artefact in Bundle.open(bundle).manifest.files}


@pytest.fixture
def rtx() -> None:
    pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX has no wheel here")
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("another TensorRT is here, and preferred")


# What is made


def test_a_run_becomes_a_bundle_that_doctor_finds_whole(
    qcn: Command, run: Path, data_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    result = qcn("export", run, "--data-dir", data_dir, "--out", out)
    assert ended(result, 0)
    assert formats(out) == {GOLDEN: "golden", WEIGHTS: "native", "model.onnx": "onnx"}
    assert result.stdout.startswith(str(out))
    for file in formats(out):
        assert file in result.stdout

    manifest = Bundle.open(out).manifest
    graph = manifest.files[-1]
    assert (manifest.name, graph.precision, graph.found, graph.batch) == (
        "mnist-qcn-tiny",
        "fp32",
        "fp32",
        Batch(1, 8, 64),
    )
    assert graph.facts["opset"] == 17 and graph.facts["outputs"] == ["logit", "pose"]

    golden = Bundle.open(out).golden()
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    logit, pose = session.run(None, {"image": golden.input})
    assert graph.tolerance is not None and abs(logit - golden.reference.logit).max() <= graph.tolerance["logit"]
    assert abs(pose - golden.reference.pose).max() < 1e-4

    result = qcn("doctor", out)
    assert ended(result, 0)
    assert [line.split()[:2] for line in result.stdout.splitlines() if not line.startswith(" ")] == [
        ["intact", f"{GOLDEN}:"],
        ["runs" if native_kernels.available() else "cannot", f"{WEIGHTS}:"],
        ["runs", "model.onnx:"],
        [str(out), "is"],  # whole
        ["next:", "qcn"],
    ]


@pytest.mark.slow  # test_rebuild.py makes all formats by their writers
def test_everything(qcn: Command, run: Path, data_dir: Path, tmp_path: Path) -> None:
    """All formats there are, both ways of writing routing; and a word about what cannot be made here."""
    out = tmp_path / "bundle"
    result = qcn("export", run, "--format", "all", "--data-dir", data_dir, "--out", out, without=TENSORRT)
    assert ended(result, 0)
    running = ["model.fused.onnx", "model.ts", "model.pt2", "model.onnx", *PAGE, *IR[1:], *PTE, *TFLITE]
    assert sorted(formats(out)) == sorted([GOLDEN, WEIGHTS, *running, *IR[:1]])
    for made, words in (
        (IR, "openvino was not made: OpenVINO is not installed: pip install openvino"),
        (PTE, "executorch was not made: ExecuTorch is not installed: pip install executorch"),
        (TFLITE, "litert was not made: LiteRT is not installed: pip install ai-edge-litert"),
        (PAGE, "web was not made: a page needs libqcn as WebAssembly"),
        ([], "trt was not made: TensorRT is not installed; install it with `pip install tensorrt`"),
    ):
        assert made or words in result.stdout
    assert all(finding.state == "intact" for finding in Bundle.open(out).check())
    result = qcn("doctor", out)
    assert ended(result, 0)
    said = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("runs")]
    assert [file for file in said if file != f"{WEIGHTS}:"] == [f"{file}:" for file in running]


def test_several_formats_in_one_go_and_more_later(qcn: Command, bundle: Bundle, run: Path, data_dir: Path) -> None:
    before = contents(bundle.folder)
    assert ended(qcn("export", bundle.folder, "--format", "torchscript,native"), 0)
    assert ended(qcn("export", bundle.folder, "--precision", "fp16", "--batch", 4, "--set", "every_layer"), 0)
    assert ended(qcn("export", bundle.folder, "--precision", "bf16", "--routing", "fused", "--set", "opset=24"), 0)
    again = Bundle.open(bundle.folder)
    facts = {artefact.file: artefact for artefact in again.manifest.files}
    assert list(facts) == [GOLDEN, WEIGHTS, "model.ts", "model.fp16.onnx", "model.fused.bf16.onnx"]
    assert facts["model.fp16.onnx"].batch == Batch(4, 4, 4)
    assert len(facts["model.fp16.onnx"].facts["outputs"]) == 6
    assert facts["model.fused.bf16.onnx"].facts["opset"] == 24
    assert all(finding.state == "intact" for finding in again.check())
    for file in (WEIGHTS, GOLDEN):
        assert contents(bundle.folder)[file] == before[file]


def test_the_same_run_again_replaces_what_is_asked_for(qcn: Command, run: Path, data_dir: Path, tmp_path: Path) -> None:
    arguments = ("export", run, "--data-dir", data_dir, "--out", tmp_path / "bundle")
    assert ended(qcn(*arguments), 0)
    before = contents(tmp_path / "bundle")
    assert ended(qcn(*arguments, "--set", "opset=18"), 0)
    after = contents(tmp_path / "bundle")
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {
        "manifest.json",
        "manifest.sha256",
        "model.onnx",
    }
    assert onnx.load(tmp_path / "bundle" / "model.onnx").opset_import[0].version == 18


def test_a_device_needs_no_torch(qcn: Command, bundle: Bundle) -> None:
    """ONNX from a bundle; what needs torch, or is not installed, is said to be so."""
    bare = ("torch", *TENSORRT)
    assert ended(qcn("export", bundle.folder, "--routing", "fused", without=bare), 0)
    assert "model.fused.onnx" in formats(bundle.folder)
    for name in ("torchscript", "pt2"):
        assert ended(
            qcn("export", bundle.folder, "--format", name, without=bare), 3, "pip install 'qcn-toolkit[train]'"
        )
    assert ended(qcn("export", bundle.folder, without=("onnx",)), 3, "pip install onnx")
    result = qcn("export", bundle.folder, "--format", "all", without=bare)
    assert ended(result, 0)
    assert result.stdout.count("was not made") == 4 + (not PAGE) + (not IR)
    assert "model.onnx" in formats(bundle.folder)


# TensorRT


@pytest.mark.usefixtures("rtx")
def test_engines_are_built_from_a_bundle_where_there_is_no_torch(qcn: Command, bundle: Bundle) -> None:
    for precision in ("fp32", "fp16"):
        result = qcn("export", bundle.folder, "--format", "trt", "--precision", precision, without=("torch",))
        assert ended(result, 0)
        (engine,) = (file for file, kind in formats(bundle.folder).items() if kind == "trt" and precision in file)
        assert f"{engine}: {precision} met, by the builder log: " in result.stdout
        assert {"fp32": "float32", "fp16": "float16"}[precision] in result.stdout
        beside = json.loads((bundle.folder / engine).with_suffix(".json").read_text())
        assert (beside["precision"], beside["found"], beside["facts"]["receipt"]["met"]) == (precision, precision, True)
        assert (
            beside["facts"]["onnx_sha256"]
            == Bundle.open(bundle.folder)
            .find("model.tensorrt.onnx" if precision == "fp32" else "model.tensorrt.fp16.onnx")
            .sha256
        )
    result = qcn("doctor", bundle.folder)
    assert ended(result, 0)
    assert result.stdout.count("there is no NVIDIA GPU here") == 2


@pytest.mark.usefixtures("rtx")
def test_an_engine_is_of_the_graph_that_was_asked_for(qcn: Command, bundle: Bundle) -> None:
    """The bundle's own where it will do; else a new one."""
    orin = ("--target", "jetson-orin")  # only its graph is made here
    assert ended(qcn("export", bundle.folder, "--format", "trt", "--batch", 2, *orin), 0)
    fixed = Bundle.open(bundle.folder).find("model.tensorrt.onnx")
    assert ended(qcn("export", bundle.folder, "--format", "trt", "--batch", 2, "--set", "optimization=0"), 0)
    assert Bundle.open(bundle.folder).find("model.tensorrt.onnx") == fixed
    rare = ("--set", "every_layer", "--set", "opset=18", "--set", "workspace=64")
    options = ("--batch", "1:2:4", "--target", "sm89", *rare)
    result = qcn("export", bundle.folder, "--format", "trt", "--set", "optimization=0", *options)
    assert ended(result, 0)
    graph = Bundle.open(bundle.folder).find("model.tensorrt.onnx")
    assert (graph.batch, graph.facts["opset"]) == (Batch(1, 2, 4), 18)
    (engine,) = (one for one in Bundle.open(bundle.folder).manifest.files if "sm89" in one.file)
    assert [output["name"] for output in engine.facts["outputs"]] == graph.facts["outputs"]
    assert engine.facts["workspace_mib"] == 64
    lines = [line for line in result.stdout.splitlines() if str(bundle.folder) not in line]
    assert all("…" not in line and len(line) <= max(80, len(engine.file) + 60) for line in lines)


def test_without_tensorrt_the_command_to_get_it_is_said(qcn: Command, bundle: Bundle) -> None:
    before = contents(bundle.folder)
    result = qcn("export", bundle.folder, "--format", "trt", without=TENSORRT)
    assert ended(result, 3, "TensorRT is not installed; install it with `pip install tensorrt`")
    result = qcn("export", bundle.folder, "--format", "trt", "--set", "tensorrt=rtx", without=TENSORRT)
    assert ended(result, 3, "`pip install --no-deps tensorrt_rtx_cu13_libs tensorrt_rtx_cu13_bindings`")
    assert ended(qcn("export", bundle.folder, "--format", "trt", "--routing", "fused"), 3, "--routing unrolled")
    assert contents(bundle.folder) == before


@pytest.mark.parametrize("without", [(), TENSORRT], ids=["with TensorRT", "without TensorRT"])
def test_an_engine_for_another_machine_is_left_to_it(qcn: Command, bundle: Bundle, without: tuple[str, ...]) -> None:
    options = ("--format", "trt", "--precision", "fp16", "--batch", "1:2:4", "--set", "tf32", "--target", "jetson-orin")
    result = qcn("export", bundle.folder, *options, without=without, columns=40)
    assert ended(result, 0)
    assert result.stdout.splitlines()[-2:] == [
        f"  scp -r {bundle.folder} device:",
        "  ssh device qcn export bundle --format trt --precision fp16 --batch 1:2:4 --set tf32",
    ]
    assert "trt was not made: " in result.stdout
    assert (
        formats(bundle.folder)["model.tensorrt.fp16.onnx"] == "onnx-tensorrt"
        and "trt" not in formats(bundle.folder).values()
    )


# What goes wrong


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--format", "onxn"], "no format named 'onxn'; did you mean 'onnx'?"),
        (["--precision", "fp61"], "no precision named 'fp61'; did you mean 'fp16'?"),
        (["--precision", "fp64"], "no precision named 'fp64'"),
        (["--routing", "fuse"], "no routing named 'fuse'; did you mean 'fused'?"),
        (["--set", "opset=16"], "opset 16 is too old: 17"),
        (["--set", "opset=9999"], "opset 9999 is too new for onnx"),
        (["--set", "opset=new"], "opset"),
        (["--precision", "bf16", "--set", "opset=17"], "bf16 needs opset 22 or newer, not 17"),
        (["--batch", "64:8:1"], "a batch range must rise"),
        (["--batch", "0"], "a batch range must rise"),
        (["--batch", "1:8"], "--batch takes a number of images, or min:opt:max such as 1:8:64, not '1:8'"),
        (["--target", "jetson-orinn"], "did you mean 'jetson-orin'?"),
        (["--set", "tensorrt=rtxx"], "did you mean 'rtx'?"),
        (["--set", "optimization=6"], "optimisation level 6 is not one of 0 to 5"),
        (["--set", "workspace=0"], "a workspace of 0 MiB is too small"),
        (["--set", "checkpoint=lats"], "did you mean 'last'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_before_anything_is_made(
    qcn: Command, run: Path, data_dir: Path, tmp_path: Path, options: list[str], says: str
) -> None:
    result = qcn("export", run, "--data-dir", data_dir, "--out", tmp_path / "bundle", *options)
    assert result.returncode == 2 and says in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "bundle").exists()


def test_what_is_neither_run_nor_bundle(qcn: Command, tmp_path: Path) -> None:
    assert ended(qcn("export", tmp_path), 2, "neither a training run (no run.json) nor a bundle (no manifest.json)")
    assert ended(qcn("export", tmp_path / "nowhere"), 2, "neither a training run")
    assert ended(qcn("doctor", tmp_path), 2, "is not a bundle: it has no manifest.json")
    (tmp_path / "run.json").write_text("{}")
    assert ended(qcn("export", tmp_path), 2)
    (tmp_path / "manifest.json").write_text("{}")
    assert ended(qcn("export", tmp_path), 2, "manifest.json cannot be read")
    assert ended(qcn("doctor", tmp_path), 2, "manifest.json cannot be read")
    assert ended(qcn("export", tmp_path, "--set", "checkpoint=last"), 2, "is a bundle, which holds one checkp")


def test_folders_that_cannot_be_written_to(qcn: Command, bundle: Bundle, run: Path, data_dir: Path) -> None:
    """That two runs do not share a bundle is in test_bundle_writing.py."""
    before = contents(bundle.folder)
    assert ended(qcn("export", bundle.folder, "--out", data_dir / "elsewhere"), 2, "leave out --out")
    assert ended(qcn("export", run, "--data-dir", data_dir, "--out", data_dir), 2, "neither a bundle nor empty")
    assert contents(bundle.folder) == before


def test_a_run_without_its_data_set(qcn: Command, run: Path, tmp_path: Path) -> None:
    result = qcn("export", run, "--data-dir", tmp_path / "empty", "--out", tmp_path / "bundle")
    assert ended(result, 3, "qcn datasets fetch mnist")
    assert not contents(tmp_path / "bundle")


def test_a_cnn_becomes_a_bundle(qcn: Command, data_dir: Path, tmp_path: Path) -> None:
    """The rival goes every way that a QCN goes."""
    splits, out = load("mnist", data_dir), tmp_path / "bundle"
    few = replace(splits, train=splits.train[np.arange(16)])
    Training(Settings("mnist", "cnn", epochs=1, batch_size=8), few, tmp_path / "cnn", torch.device("cpu")).run()
    result = qcn("export", tmp_path / "cnn", "--data-dir", data_dir, "--format", "onnx,torchscript", "--out", out)
    assert ended(result, 0)
    bundle = Bundle.open(out)
    assert [port.name for port in bundle.manifest.outputs] == ["logit"]
    golden = bundle.golden()
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    (logit,) = session.run(None, {"image": golden.input})
    allowed = bundle.find("model.onnx").tolerance
    assert allowed is not None and abs(logit - golden.reference.logit).max() <= allowed["logit"]
    result = qcn("doctor", out)
    assert ended(result, 0)
    assert "model.ts" in result.stdout


def test_the_command_that_rebuilds_a_file_rebuilds_it(qcn: Command, bundle: Bundle) -> None:
    """As the manifest has it, options and all."""
    rare = ("--set", "opset=18", "--set", "every_layer")
    options = ("--precision", "fp16", "--batch", "1:2:4", "--routing", "fused", *rare)
    assert ended(qcn("export", bundle.folder, *options), 0)
    before = contents(bundle.folder)
    path = bundle.folder / "model.fused.fp16.onnx"
    command = Bundle.open(bundle.folder).find(path.name).rebuild_command(bundle.folder)
    path.write_bytes(b"altered")
    assert command in qcn("doctor", bundle.folder).stdout
    assert ended(qcn(*shlex.split(command)[1:]), 0)
    assert contents(bundle.folder) == before


def test_an_altered_bundle(qcn: Command, bundle: Bundle, run: Path, data_dir: Path) -> None:
    weights = bundle.folder / WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert ended(qcn("export", bundle.folder), 2, f"{weights} was altered: its sha256 is ")
    result = qcn("doctor", bundle.folder)
    assert ended(result, 1, f"{bundle.folder} is not as it was written: ") and WEIGHTS in result.stderr
    assert f"altered   {WEIGHTS}: was altered: its sha256 is" in result.stdout
    assert f"→ qcn export RUN --format native --out {bundle.folder}\n" in result.stdout
    assert ended(qcn("export", run, "--data-dir", data_dir, "--format", "native", "--out", bundle.folder), 0)
    assert ended(qcn("doctor", bundle.folder), 0)


def test_a_full_disk_ends_with_three(bundle: Bundle) -> None:
    """RLIMIT_FSIZE stands in for the full disk: a write past it fails in the middle of a file, too."""
    before = contents(bundle.folder)
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"sys.argv = ['qcn', 'export', {str(bundle.folder)!r}]\n"
        "from qcn.cli import main\nmain()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended(result, 3, "no room left on the disk")
    assert contents(bundle.folder) == before


INTERRUPTED = """
import signal, sys
from qcn.export.backends.tensorrt import progress

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs are started without

progress.doing = lambda what, fraction: print("building", flush=True)
sys.argv = ["qcn", "export", sys.argv[1], "--format", "trt", "--precision", "fp16"]
from qcn.cli import main
main()
"""


@pytest.mark.usefixtures("rtx")
def test_ctrl_c_ends_a_build_with_130_and_leaves_nothing_half_built(qcn: Command, bundle: Bundle) -> None:
    graph = ("--format", "trt", "--precision", "fp16", "--target", "jetson-orin")  # an engine for it is built there
    assert ended(qcn("export", bundle.folder, *graph), 0)
    before = contents(bundle.folder)
    command = [sys.executable, "-c", INTERRUPTED, str(bundle.folder)]
    code, said = signalled(command, signal.SIGINT, "building")
    assert code == 130 and "Traceback" not in said
    assert contents(bundle.folder) == before
    assert ended(qcn("doctor", bundle.folder), 0)


def test_only_all_goes_on_without_what_is_missing(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: EngineFile, job: Job) -> Made:
        raise MissingError("no such thing here")

    monkeypatch.setattr(EngineFile, "make", missing)
    monkeypatch.setattr(pipeline, "EXPORTED", ("native", "onnx", "trt"))
    nowhere = Path("nowhere")
    with pytest.raises(MissingError):
        pipeline.export(bundle.folder, None, ExportRequest(formats=("native", "trt")), nowhere)
    _, results = pipeline.export(bundle.folder, None, ExportRequest(formats=("all",)), nowhere)
    assert [(one.format, one.artefact is None) for one in results] == [
        ("onnx", False),
        ("native", False),
        ("onnx", False),
        ("trt", True),
    ]

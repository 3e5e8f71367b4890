"""Bundles, files and names that someone made to mislead: refused in one line, never believed, never a traceback."""

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from bundles import answering, put_manifest
from command import Command
from graphs import behind, graph
from onnx import helper
from PIL import Image

from qcn import create
from qcn.errors import CheckFailed, UsageError
from qcn.export.backends.torch.torchscript import METADATA
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle, golden, weights
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.lower import lower
from qcn.kernels import native as native_kernels
from qcn.names import MANIFEST
from qcn.verify.parity import verify as parity
from qcn.verify.parity.check import tolerances

KEY = "onnxruntime: model.onnx (fp32)"
SHORT = ("--duration", "0", "--set", "warmup=0", "--set", "runs=2")


@pytest.fixture
def bundle(small: Bundle) -> Bundle:
    return small


def edit(bundle: Bundle, **changes: Any) -> None:
    record = json.loads((bundle.folder / MANIFEST).read_text(encoding="utf-8"))
    put_manifest(bundle.folder, json.dumps({**record, **changes}))


@pytest.mark.parametrize("command", ["verify-parity", "benchmark"])
def test_a_bundle_of_nothing_that_runs_has_not_passed(bundle: Bundle, qcn: Command, command: str) -> None:
    record = json.loads((bundle.folder / MANIFEST).read_text(encoding="utf-8"))
    edit(bundle, files=[one for one in record["files"] if one["format"] == "golden"])
    code, said = qcn(command, bundle.folder)
    assert code == 2 and "has no file that a backend can run" in said


def test_a_graph_that_fails_when_it_runs(bundle: Bundle, qcn: Command) -> None:
    one = np.int64([1, 4, 3])
    behind("pose", helper.make_node("Reshape", ["right", "one"], ["pose"]), one=one)(bundle)
    code, said = qcn("verify-parity", bundle.folder, "--backends", "onnxruntime")
    assert code == 1 and "it does not run: ONNX Runtime cannot run" in said


def test_a_torchscript_file_that_fails_when_it_runs(bundle: Bundle) -> None:
    class Raises(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image.reshape(7)

    with bundle.adding("model.ts", "torchscript", "fp32", FROM_RUN) as draft, pytest.warns(DeprecationWarning):
        facts = {METADATA: json.dumps({"outputs": {"logit": [], "pose": []}})}
        torch.jit.save(torch.jit.script(Raises()), str(draft.path), _extra_files=facts)
    (verdict,) = parity.verify(bundle, ["torchscript"], {}, trust=True)
    assert verdict.status == "failed" and verdict.reasons[0].startswith("it does not run: torch cannot run")


@pytest.mark.parametrize("bisect", [False, True])
def test_weights_beside_a_graph_are_not_read(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, bisect: bool) -> None:
    """Of a file that the graph names and the manifest does not, no hash was checked."""
    aside = bundle.folder / "aside.onnx"
    onnx.save(graph(bundle), str(aside), save_as_external_data=True, location="weights.bin", size_threshold=64)
    with bundle.adding("model.onnx", "onnx", "fp32", FROM_RUN) as draft:
        aside.rename(draft.path)
    monkeypatch.chdir(bundle.folder)  # where ONNX Runtime would look, too
    (verdict,) = parity.verify(bundle, ["onnxruntime"], {}, bisect)
    assert verdict.status == "failed" and "ONNX Runtime cannot load" in verdict.reasons[0]


def test_a_noisy_reference_is_no_judge(bundle: Bundle) -> None:
    """Golden float32 answers that were moved would widen every tolerance."""
    answers = bundle.golden()
    moved = answers.float32.pose.copy()
    moved[0, 0, 0] += 1e-3 * np.abs(answers.reference.pose).max()
    with bundle.adding(GOLDEN, "golden", "fp64", FROM_RUN) as draft:
        golden.write(draft.path, replace(answers, float32=answering(answers.float32, pose=moved)))
    with pytest.raises(CheckFailed, match="too noisy: its own pose in float32 is off by"):
        parity.verify(bundle, ["onnxruntime"], {})
    (verdict,) = parity.verify(bundle, ["onnxruntime"], tolerances(["pose:1e-5"], [], ["logit", "pose"]))
    assert verdict.status == "passed" and verdict.outputs["pose"].tolerance == 1e-5


def test_weights_of_another_network_than_the_manifests(bundle: Bundle) -> None:
    other = lower(create("qcn-tiny", in_channels=3, classes=5).eval(), 24, 24)
    with bundle.adding(WEIGHTS, "native", "fp32", FROM_RUN) as draft:
        weights.write(draft.path, other)
    backends = ["torch", *(["native"] if native_kernels.available() else [])]
    for verdict in parity.verify(Bundle.open(bundle.folder), backends, {}):
        assert verdict.status == "failed" and "it does not run" in verdict.reasons[0], verdict


def test_a_report_is_not_its_own_baseline(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    """The new report takes the place of the earlier one; it must be compared all the same."""
    ask = ("verify-parity", bundle.folder, "--backends", "onnxruntime", "--report", tmp_path / "report")
    assert qcn(*ask)[0] == 0
    path = tmp_path / "report" / "report.json"
    assert qcn(*ask, "--baseline", path)[0] == 0
    better = json.loads(path.read_text(encoding="utf-8"))
    better["backends"]["gone: file (fp32)"] = better["backends"][KEY] | {"backend": "gone", "file": "file"}
    path.write_text(json.dumps(better), encoding="utf-8")
    code, said = qcn("verify-parity", bundle.folder, "--report", tmp_path / "report", "--baseline", path)
    assert code == 1 and "gone: file (fp32) passed, and is not there any more" in said


def test_a_benchmark_is_not_its_own_baseline(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    path = tmp_path / "speeds.json"
    ask = ("benchmark", bundle.folder, "--backends", "onnxruntime", *SHORT)
    assert qcn(*ask, "--json", path)[0] == 0
    record = json.loads(path.read_text(encoding="utf-8"))
    faster = record["results"][f"{KEY}, batch 1"]["latency_ms"]
    record["results"][f"{KEY}, batch 1"]["latency_ms"] = {name: value / 1e3 for name, value in faster.items()}
    path.write_text(json.dumps(record), encoding="utf-8")
    code, said = qcn(*ask, "--json", path, "--baseline", path)
    assert code == 1 and "slower than in" in said
    code, said = qcn(*ask, "--baseline", path, "--max-regression", "nan")
    assert code == 2 and "--max-regression must be 0 or more" in said


def test_places_that_cannot_be_written_are_refused_at_once(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    (tmp_path / "file").write_text("")
    code, said = qcn("verify-parity", bundle.folder, "--report", tmp_path / "file")
    assert code == 2 and "is a file; --report names a folder" in said and "passed" not in said
    code, said = qcn("benchmark", bundle.folder, "--json", tmp_path)
    assert code == 2 and "is a folder; --json names a file" in said and "batch" not in said


@pytest.mark.parametrize("name", ["m[/red].onnx", "m[bold].onnx", "m:bug:.onnx", "model.fp16.onnx", "../model.onnx"])
def test_files_have_the_names_of_their_formats(bundle: Bundle, name: str) -> None:
    """What a terminal or Rich would take for more than a name, too."""
    with (
        pytest.raises(UsageError, match="is not where a bundle keeps onnx in fp32"),
        bundle.adding(name, "onnx", "fp32", FROM_RUN),
    ):
        pass


def picture(path: str | Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def test_pictures_of_odd_names(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    """Markup, a line break, bytes that are no UTF-8: in the folder's name and in theirs, through to the report."""
    folder = tmp_path / "[" / "red] \udcff"
    folder.mkdir(parents=True)
    for name in ("two\nlines", "\udcfe", ":bug:", "3\u202fPM"):
        picture(f"{folder}/{name}.png")
    code, said = qcn(
        "verify-parity",
        bundle.folder,
        "--backends",
        "onnxruntime",
        "--dataset",
        folder,
        "--report",
        tmp_path / "report",
    )
    assert code == 0, said
    record = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert record["images"]["name"].endswith(r"/[/red] \udcff") and record["images"]["count"] == 4 + 6


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("huge.png", chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)) + chunk(b"IDAT", b"")),
        ("text.png", chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 24, 8, 2, 0, 0, 0)) + chunk(b"zTXt", b"a\0\0x")),
        ("maximum.pgm", b"P5 24 24 70000\n" + bytes(600)),
        ("words.pgm", b"P5 24 xx 255\n"),
        ("header.bmp", b"BM" + b"\xff" * 60),
    ],
)
def test_broken_pictures(bundle: Bundle, tmp_path: Path, qcn: Command, name: str, content: bytes) -> None:
    (tmp_path / "pictures").mkdir()
    signature = b"\x89PNG\r\n\x1a\n" if name.endswith("png") else b""
    (tmp_path / "pictures" / name).write_bytes(signature + content)
    code, said = qcn("verify-parity", bundle.folder, "--dataset", tmp_path / "pictures")
    reasons = ("cannot be read as a picture", "is not a picture", "has more than 178,956,970 pixels")
    assert code == 2 and any(f"{name} {reason}" in said for reason in reasons)

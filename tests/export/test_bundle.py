"""A bundle is what it was written as, or it is refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import add, put_manifest, states
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save_file

from qcn import create
from qcn.errors import UsageError
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle, findings, weights
from qcn.export.bundle.manifest import MANIFEST_SHA256, Artefact, Batch, Manifest, manifest_sums
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.lower import lower
from qcn.export.program.program import Program
from qcn.export.request import ExportRequest
from qcn.names import MANIFEST

HASH = "0" * 64


def test_what_was_written_is_read_back(bundle: Bundle, program: Program, manifest: Manifest) -> None:
    assert replace(bundle.manifest, files=()) == manifest
    read = bundle.program()
    assert read.to_json() == program.to_json()
    assert read.arrays.keys() == program.arrays.keys()
    assert all(np.array_equal(read.arrays[name], array) for name, array in program.arrays.items())
    assert len(bundle.golden().rows) == 22
    assert states(bundle) == {GOLDEN: "intact", WEIGHTS: "intact"}
    assert Manifest.from_json(bundle.manifest.to_json()) == bundle.manifest


def test_an_altered_byte_is_found(bundle: Bundle) -> None:
    add(bundle)
    add(bundle, "engines/fp32.engine", b"a plan of some bytes")
    for file in (WEIGHTS, GOLDEN, "model.onnx", "engines/fp32.engine"):
        whole = (bundle.folder / file).read_bytes()
        for where in (0, 9, -1):  # in the header of arrays, and in its length
            content = bytearray(whole)
            content[where % len(content)] ^= 1
            (bundle.folder / file).write_bytes(content)
            says = r"was altered: its sha256 is \w{12}…, manifest.json says .* with: qcn export"
            with pytest.raises(UsageError, match=says):
                bundle.read(bundle.find(file))
            assert {name: state for name, state in states(bundle).items() if state != "intact"} == {file: "altered"}
        (bundle.folder / file).write_bytes(whole)


def test_of_what_is_too_large_only_the_size_is_looked_at(bundle: Bundle) -> None:
    """A stranger's file may be of terabytes that take no room on a disk."""
    os.truncate(bundle.folder / WEIGHTS, 1 << 40)
    with pytest.raises(UsageError, match=r"was altered: it has 1,099,511,627,776 bytes, manifest.json says"):
        bundle.read(bundle.find(WEIGHTS))
    said = replace(bundle.find(WEIGHTS), bytes=1 << 40)  # by its manifest too
    finding, content = findings.look(bundle.folder, said)
    assert content is None and "has 1,099,511,627,776 bytes, but at most 1,073,741,824 are allowed" in finding.reason
    for file in (MANIFEST, MANIFEST_SHA256):  # the last is read first
        os.truncate(bundle.folder / file, (1 << 20) + 1)
        with pytest.raises(UsageError, match=f"{file} has 1048577 bytes, but at most 1048576 are allowed"):
            Bundle.open(bundle.folder)


def test_what_is_missing_cut_or_unknown_is_listed(bundle: Bundle) -> None:
    add(bundle)
    add(bundle, "engines/fp32.engine")
    (bundle.folder / "model.onnx").unlink()
    (bundle.folder / "engines/fp32.json").write_text("{}")
    (bundle.folder / "notes.txt").write_text("mine")
    os.truncate(bundle.folder / WEIGHTS, 100)
    assert states(bundle) == {
        WEIGHTS: "altered",
        GOLDEN: "intact",
        "model.onnx": "missing",
        "engines/fp32.engine": "intact",  # what lies beside it is a copy, for people
        "notes.txt": "unknown",
    }
    with pytest.raises(UsageError, match="was altered: it has 100 bytes, manifest"):
        bundle.program()
    command = rf"qcn export {bundle.folder} --format onnx --precision fp32 --batch 1$"
    with pytest.raises(UsageError, match=rf"is missing.*; rebuild it with: {command}"):
        bundle.read(bundle.find("model.onnx"))
    with pytest.raises(UsageError, match="did you mean 'model"):
        bundle.find("model.onx")


def test_what_is_no_bundle_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a bundle: it has no manifest.json \(`qcn export RUN"):
        Bundle.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"fashion-mnist is not a bundle: .* \(`qcn export fashion-mnist` makes one\)"):
        Bundle.open(Path("fashion-mnist"))
    (tmp_path / "run.json").touch()
    with pytest.raises(UsageError, match=rf"\(`qcn export {tmp_path}` makes one\)"):
        Bundle.open(tmp_path)
    text = (bundle.folder / MANIFEST).read_text()
    for broken in ("", text[: len(text) // 2], "[]", "null", "[" * 100_000, text.replace("17", "NaN"), "\udc80"):
        content = broken.encode(errors="surrogateescape")
        (bundle.folder / MANIFEST).write_bytes(content)
        (bundle.folder / MANIFEST_SHA256).write_bytes(manifest_sums(content))
        if broken != text:
            with pytest.raises(UsageError, match=r"manifest.json cannot be read: .* qcn export RUN --out"):
                Bundle.open(bundle.folder)


HOSTILE = (
    *("x.engine", "/engines/x.engine", "engines/../../x.engine", "engines/a/x.engine", "engines/.x.engine"),
    *("engines/.engine", "engines//x.engine", "engines/x", "engines/x.engine\n", "engines/x\0.engine"),
    *("engines\\x.engine", "engines/é.engine", "manifest.json", ".lock"),
)


def test_an_engine_in_a_strange_place_is_refused(bundle: Bundle) -> None:
    """What else a manifest may say is in tests/manifests."""
    record = json.loads((bundle.folder / MANIFEST).read_text())
    for file in HOSTILE:
        files = [*record["files"], {**record["files"][1], "format": "trt", "file": file}]
        put_manifest(bundle.folder, json.dumps({**record, "files": files}))
        with pytest.raises(UsageError, match="is not where a bundle keeps trt"):
            Bundle.open(bundle.folder)


def test_the_same_weights_make_the_same_bytes(tmp_path: Path, program: Program) -> None:
    files = [tmp_path / str(i) for i in range(8)]
    for file in files:
        weights.write(file, program)
    assert len({file.read_bytes() for file in files}) == 1


def test_weights_that_make_no_program_are_refused(tmp_path: Path, program: Program) -> None:
    path, text = tmp_path / "weights", program.to_json()
    halves = {name: array.astype(np.float16) for name, array in program.arrays.items()}
    for says, arrays, metadata in (
        ("schema None", program.arrays, None),
        ("object of texts", program.arrays, {"schema": 3}),
        ("schema '1'", program.arrays, {"schema": "1", "program": text}),
        ("must be an object, not null", program.arrays, {"schema": "3"}),
        ("not valid JSON", program.arrays, {"schema": "3", "program": "{"}),
        ("which is not there", {}, {"schema": "3", "program": text}),
        ("must be float32", halves, {"schema": "3", "program": text}),
    ):
        save_file(arrays, path, {"qcn": json.dumps(metadata)} if metadata else None)
        with pytest.raises(UsageError, match=f"does not hold a program: .*{says}"):
            weights.read(path.read_bytes())
    schema = {"qcn": json.dumps({"schema": "3", "program": text})}
    torch_save_file({"x": torch.ones(2, dtype=torch.bfloat16)}, path, schema)
    for content in (path.read_bytes(), b"", b"{}", b"\xff" * 100, (10**9).to_bytes(8, "little") + b"{}"):
        with pytest.raises(UsageError, match="does not hold a program"):
            weights.read(content)


def test_the_weights_are_of_the_network_that_the_manifest_describes(bundle: Bundle) -> None:
    other = lower(create("qcn-tiny", in_channels=1, classes=9), 28, 28)
    with bundle.adding(WEIGHTS, "native", "fp32", FROM_RUN) as draft:
        weights.write(draft.path, other)
    with pytest.raises(UsageError, match=r"not the network that manifest\.json describes"):
        bundle.program()


def test_batches_are_read_as_the_command_line_gives_them() -> None:
    assert Batch.parse("64") == Batch(64, 64, 64)
    assert Batch.parse("1:8:64") == Batch(1, 8, 64)
    assert [str(Batch.parse(text)) for text in ("64", "1:8:64")] == ["64", "1:8:64"]
    for wrong in ("", "0", "8:1:64", "1:64", "1:2:3:4", "-1", "a", "1:8:", "²", "65537"):
        with pytest.raises(UsageError, match=r"batch"):
            Batch.parse(wrong)


def test_the_command_that_rebuilds_is_exact(tmp_path: Path) -> None:
    """As the request had it, and for the bundle where it lies now, whatever its folder is called."""
    engine = ExportRequest(("trt",), "fp16", Batch(1, 8, 64), routing="fused", tf32=True, workspace=64)
    command = (
        "qcn export {bundle} --format trt --precision fp16 --batch 1:8:64 --routing fused --set workspace=64 --set tf32"
    )
    assert engine.command("trt") == command
    allowed = {"logit": 1.0, "pose": 1.0}
    artefact = Artefact("engines/x.engine", "trt", HASH, 1, "fp16", "fp16", Batch(1, 8, 64), command, True, allowed)
    assert artefact.rebuild_command(Path("b")) == command.replace("{bundle}", "b")
    assert artefact.rebuild_command(Path("my bundle")).startswith("qcn export 'my bundle' --format trt ")
    graph = ExportRequest(("onnx",), batch=Batch(4, 4, 4), opset=18, every_layer=True)
    assert graph.command("onnx") == (
        "qcn export {bundle} --format onnx --precision fp32 --batch 4 --set every_layer --set opset=18"
    )
    assert ExportRequest(("pt2",), "bf16").command("pt2") == "qcn export {bundle} --format pt2 --precision bf16"
    assert FROM_RUN == "qcn export RUN --format native --out {bundle}"


def test_tolerances_that_the_golden_answers_do_not_give_are_refused(bundle: Bundle) -> None:
    record = json.loads((bundle.folder / MANIFEST).read_text())
    record["files"][1]["tolerance"]["logit"] = 0.1
    put_manifest(bundle.folder, json.dumps(record))
    with pytest.raises(UsageError, match=r"has other tolerances in manifest\.json than these answers imply"):
        Bundle.open(bundle.folder).golden()

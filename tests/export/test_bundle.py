"""A bundle is what it was written as, or it is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save_file

from qcn.errors import UsageError
from qcn.export import native
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle
from qcn.export.manifest import MANIFEST, Artefact, Batch, Manifest
from qcn.export.network import Network
from qcn.kernels import native as native_kernels

HASH = "0" * 64


def add(bundle: Bundle, file: str = "model.onnx", content: bytes = b"graph") -> None:
    with bundle.adding(file, "trt" if file.endswith(".engine") else "onnx", "fp32", Batch(1, 1, 1)) as draft:
        draft.path.write_bytes(content)
        draft.found = "fp32"
        draft.facts["opset"] = 17


def edit(bundle: Bundle, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads((bundle.folder / MANIFEST).read_text())
    change(record)
    (bundle.folder / MANIFEST).write_text(json.dumps(record))


def states(bundle: Bundle) -> dict[str, str]:
    return {finding.file: finding.state for finding in bundle.check()}


def test_what_was_written_is_read_back(bundle: Bundle, network: Network, manifest: Manifest) -> None:
    assert replace(bundle.manifest, files=()) == manifest
    read = bundle.network()
    assert read.structure == network.structure
    assert all(np.array_equal(read.arrays[name], array) for name, array in network.arrays.items())
    assert len(bundle.golden().rows) == 22
    assert states(bundle) == {WEIGHTS: "whole", GOLDEN: "whole"}
    assert Manifest.from_json(bundle.manifest.to_json()) == bundle.manifest


@pytest.mark.parametrize("where", [0, 9, -1], ids=["first byte", "header", "last byte"])
@pytest.mark.parametrize("file", [WEIGHTS, GOLDEN, "model.onnx", "engines/fp32.engine"])
def test_an_altered_byte_is_found(bundle: Bundle, file: str, where: int) -> None:
    add(bundle)
    add(bundle, "engines/fp32.engine", b"a plan of some bytes")
    path = bundle.folder / file
    content = bytearray(path.read_bytes())
    content[where % len(content)] ^= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"was altered: its sha256 is \w{12}…, manifest.json says .* with: qcn export"):
        bundle.path(bundle.find(file))
    found = states(bundle)
    assert found.pop(file) == "altered"
    assert set(found.values()) == {"whole"}


def test_what_is_missing_cut_or_unknown_is_listed(bundle: Bundle) -> None:
    add(bundle)
    add(bundle, "engines/fp32.engine")
    (bundle.folder / "model.onnx").unlink()
    (bundle.folder / "engines/fp32.json").write_text("{}")
    (bundle.folder / "notes.txt").write_text("mine")
    os.truncate(bundle.folder / WEIGHTS, 100)
    assert states(bundle) == {
        WEIGHTS: "altered",
        GOLDEN: "whole",
        "model.onnx": "missing",
        "engines/fp32.engine": "altered",
        "notes.txt": "unknown",
    }
    with pytest.raises(UsageError, match="was altered: it has 100 bytes, manifest"):
        bundle.network()
    with pytest.raises(UsageError, match=r"is missing.*qcn export RUN --format onnx --precision fp32 --batch 1 --out"):
        bundle.path(bundle.find("model.onnx"))
    with pytest.raises(UsageError, match="did you mean 'model"):
        bundle.find("model.onx")


def test_what_is_no_bundle_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a bundle: it has no manifest.json \(`qcn export RUN"):
        Bundle.open(tmp_path / "nowhere")
    text = (bundle.folder / MANIFEST).read_text()
    for broken in ("", text[: len(text) // 2], "[]", "null", "[" * 100_000, text.replace("17", "NaN"), "\udc80"):
        (bundle.folder / MANIFEST).write_bytes(broken.encode(errors="surrogateescape"))
        if broken != text:
            with pytest.raises(UsageError, match=r"manifest.json cannot be read: .* qcn export RUN --out"):
                Bundle.open(bundle.folder)


def hostile(file: object) -> Callable[[dict[str, Any]], object]:
    return lambda record: record["files"][0].update(file=file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda record: record.update(schema=2), "schema 2; this version of qcn reads 1"),
        (lambda record: record.pop("schema"), "schema None"),
        (lambda record: record.update(extra=1), "unknown entry 'extra'"),
        (lambda record: record.pop("classes"), "has no 'classes'"),
        (lambda record: record.update(classes="0123456789"), "'classes' must be a list"),
        (lambda record: record["classes"].pop(), "9 classes are named, but the network has 10"),
        (lambda record: record.update(image=[3, 28, 28]), r"images become \[3, 28, 28\]"),
        (lambda record: record.update(image=[1, 28.0, 28]), "image must be"),
        (lambda record: record.update(name="\x1b[2J"), "printable"),
        (lambda record: record["preprocessing"].update(mean=[], std=[]), "0 means for 1 channels"),
        (lambda record: record["preprocessing"].update(crop=-1), "crop must be a number of pixels"),
        (lambda record: record["input"].update(name="x"), "not those of the network's structure"),
        (lambda record: record["structure"].update(iterations=0), "not the structure"),
        (lambda record: record["source"].update(epoch="1"), "'source'"),
        (lambda record: record.update(files={}), "'files' must be a list"),
        (lambda record: record["files"].append(record["files"][0]), "named twice"),
        (lambda record: record["files"][0].update(sha256="abc"), "not a sha256"),
        (lambda record: record["files"][0].update(bytes=-1), "size in bytes"),
        (lambda record: record["files"][0].update(format="pickle"), "format must be one of"),
        (lambda record: record["files"][0].update(batch={"min": 8, "opt": 1, "max": 8}), "8:1:8"),
        (lambda record: record["files"][0].update(batch={"min": 1, "opt": 1, "max": 10**9}), "65536 or less"),
        (
            lambda record: record["files"][0].update(precision="int8", found=None),
            "native is weights.safetensors in fp32, not .* in int8",
        ),
        (lambda record: record["files"][0].update(file="other.safetensors"), "native is weights.safetensors"),
        (lambda record: record["files"][1].update(file="other.safetensors"), "golden is golden.safetensors"),
        (lambda record: record["files"][0].update(found="bf16"), "asked for in fp32, and found to compute in bf16"),
        (lambda record: record["classes"].__setitem__(1, record["classes"][0]), "each its own"),
        (lambda record: record["classes"].__setitem__(1, ""), "must have names"),
        (lambda record: record["files"][0].update(facts={"flavour": []}), "the fact 'flavour' must be a str"),
        (lambda record: record["files"][0].update(facts={"sm": "87"}), "the fact 'sm' must be a int"),
        (lambda record: record["files"][0].update(facts={"batch": [1, 8]}), "missing 1 required positional argument"),
        (lambda record: record["files"][0].update(facts={"batch": [8, 1, 8]}), "8:1:8"),
        *((hostile(file), "not a place for a file") for file in ("../w", "/etc/passwd", "a/../../w", "", ".", 7, None)),
        *((hostile(file), "not a place for a file") for file in ("a\\b", "a\0b", ".lock", "manifest.json", "a//b")),
    ],
)
def test_an_altered_manifest_is_refused(bundle: Bundle, change: Callable[[dict[str, Any]], object], says: str) -> None:
    edit(bundle, change)
    with pytest.raises(UsageError, match=says):
        Bundle.open(bundle.folder)


def test_links_out_of_the_bundle_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (bundle.folder / WEIGHTS).rename(outside)
    (bundle.folder / WEIGHTS).symlink_to(outside)  # the same bytes, but not in the bundle
    with pytest.raises(UsageError, match="leads out of the bundle"):
        bundle.network()
    assert states(bundle)[WEIGHTS] == "altered"

    (tmp_path / "elsewhere").mkdir()
    (bundle.folder / "engines").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="leads out of the bundle"):
        add(bundle, "engines/fp32.engine")
    assert not list((tmp_path / "elsewhere").iterdir())

    (bundle.folder / MANIFEST).rename(tmp_path / MANIFEST)
    (bundle.folder / MANIFEST).symlink_to(tmp_path / MANIFEST)
    with pytest.raises(UsageError, match="symbolic link"):
        Bundle.open(bundle.folder)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, (10**9).to_bytes(8, "little") + b"{}"])
def test_a_broken_weights_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "weights").write_bytes(content)
    with pytest.raises(UsageError, match="is not a network in deployment form"):
        native.read(tmp_path / "weights")


def test_the_same_weights_make_the_same_bytes(tmp_path: Path, network: Network) -> None:
    files = [tmp_path / str(i) for i in range(8)]
    for file in files:
        native.write(file, network)
    assert len({file.read_bytes() for file in files}) == 1


def test_weights_that_make_no_network_are_refused(tmp_path: Path, network: Network) -> None:
    path = tmp_path / "weights"
    structure = json.dumps(network.structure.to_json())

    def refused(says: str, arrays: dict[str, Any], metadata: dict[str, str] | None) -> None:
        save_file(arrays, path, {"qcn": json.dumps(metadata)} if metadata else None)
        with pytest.raises(UsageError, match=says):
            native.read(path)

    refused("schema None", network.arrays, None)
    refused("object of texts", network.arrays, {"schema": 1})  # type: ignore[dict-item]
    refused("schema '2'", network.arrays, {"schema": "2", "structure": structure})
    refused("not the structure", network.arrays, {"schema": "1"})
    refused("deployment form", network.arrays, {"schema": "1", "structure": "{"})
    refused("another network", {}, {"schema": "1", "structure": structure})
    halves = {name: array.astype(np.float16) for name, array in network.arrays.items()}
    refused("must be float32", halves, {"schema": "1", "structure": structure})
    torch_save_file(
        {"x": torch.ones(2, dtype=torch.bfloat16)}, path, {"qcn": json.dumps({"schema": "1", "structure": structure})}
    )
    with pytest.raises(UsageError, match="is not a network in deployment form"):
        native.read(path)


def test_batches_are_read_as_the_command_line_gives_them() -> None:
    assert Batch.parse("64") == Batch(64, 64, 64)
    assert Batch.parse("1:8:64") == Batch(1, 8, 64)
    assert [str(Batch.parse(text)) for text in ("64", "1:8:64")] == ["64", "1:8:64"]
    for wrong in ("", "0", "8:1:64", "1:64", "1:2:3:4", "-1", "a", "1:8:", "²", "65537"):
        with pytest.raises(UsageError, match=r"batch"):
            Batch.parse(wrong)


def test_the_command_that_mends_is_exact() -> None:
    engine = Artefact("engines/x.engine", "trt", HASH, 1, "fp16", "fp16", Batch(1, 8, 64))
    assert engine.command(Path("b")) == "qcn export b --format trt --precision fp16 --batch 1:8:64"
    fused = Artefact("model.fused.onnx", "onnx-fused", HASH, 1, "fp32")
    assert fused.command(Path("b")) == "qcn export RUN --format onnx --routing fused --precision fp32 --out b"
    weights = Artefact(WEIGHTS, "native", HASH, 1, "fp32")
    assert weights.command(Path("b")) == "qcn export RUN --format native --out b"


BARE = """
import sys
for name in ("torch", "onnx", "onnxruntime", "tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "cuda", "scipy"):
    sys.modules[name] = None  # what importing takes for a package that is not there
from pathlib import Path
import qcn.doctor
from qcn.export import bundle, golden, manifest, native, network
opened = bundle.Bundle.open(Path(sys.argv[1]))
print(len(opened.network().arrays), len(opened.golden().rows))
print(*(row.state for row in qcn.doctor.diagnose(opened.folder)))
"""


def test_a_bundle_is_read_and_diagnosed_without_torch(bundle: Bundle, network: Network) -> None:
    add(bundle)
    command = [sys.executable, "-W", "error", "-c", BARE, str(bundle.folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    native_state = "runs" if native_kernels.available() else "cannot"
    assert result.stdout.split() == [str(len(network.arrays)), "22", native_state, "whole", "cannot"]

"""`qcn doctor BUNDLE`: the right word for every file on every kind of machine, and the command that helps."""

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from bundles import put_manifest
from fake_tensorrt import fake

from qcn.errors import UsageError
from qcn.export.backends import FOLDERS
from qcn.export.backends.tensorrt import plugin
from qcn.export.backends.tensorrt.find import TensorRT
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle
from qcn.export.bundle.manifest import Artefact, Batch
from qcn.export.targets import Gpu
from qcn.kernels import native
from qcn.names import MANIFEST, AnyPrecision
from qcn.verify import doctor

ORIN = Gpu("Orin", 87)


def add(bundle: Bundle, file: str, format: str, precision: AnyPrecision = "fp16", **facts: Any) -> Artefact:
    plugin, kind = bool(facts.get("plugin")), "onnx" if format.startswith("onnx") else format
    command = f"qcn export {{bundle}} --format {kind} --precision {precision} --batch 1:8:64"
    with bundle.adding(file, format, precision, command, batch=Batch(1, 8, 64), plugin=plugin) as draft:
        draft.path.write_bytes(b"content")
        draft.found, draft.facts = precision, facts
    return bundle.find(file)


def row(bundle: Bundle, file: str) -> doctor.DoctorRow:
    return next(row for row in doctor.diagnose(bundle.folder) if row.file == file)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine to be equipped by the test: versions of packages by module, and its GPU."""
    has: dict[str, Any] = {"packages": {}, "gpu": None}
    for name in ("format", *(f"{folder}.format" for folder in FOLDERS)):
        module = importlib.import_module(f"qcn.export.backends.{name}")
        monkeypatch.setattr(module, "installed", lambda name: name in has["packages"], raising=False)
        monkeypatch.setattr(module, "version", lambda name: has["packages"][name], raising=False)
        monkeypatch.setattr(module, "distribution", lambda name: name + ("-gpu" if has["gpu"] else ""), raising=False)
        monkeypatch.setattr(module, "this_gpu", lambda: has["gpu"], raising=False)
    monkeypatch.setattr("qcn.export.targets.this_gpu", lambda: has["gpu"])
    return has


def test_this_machine(bundle: Bundle) -> None:
    add(bundle, "model.ts", "torchscript", "fp32")
    rows = {row.file: row for row in doctor.diagnose(bundle.folder)}
    assert list(rows) == [GOLDEN, WEIGHTS, "model.ts"]
    assert rows["model.ts"].state == "runs" and "by torch 2." in rows["model.ts"].reason
    assert rows["model.ts"].reason.endswith("can carry code: runs only with --trust")
    assert not any("carry code" in rows[file].reason for file in (GOLDEN, WEIGHTS))
    assert rows[GOLDEN].state == "intact" and "22 images" in rows[GOLDEN].reason
    assert not any(row.faulty for row in rows.values())


@pytest.mark.parametrize(
    ("file", "format", "precision", "gpu", "state", "reason", "without"),
    [
        ("model.ts", "torchscript", "fp32", None, "", "", "pip install 'qcn-toolkit[train]'"),
        ("model.pt2", "pt2", "fp32", None, "", "", "pip install 'qcn-toolkit[train]'"),
        ("model.onnx", "onnx", "fp32", None, "runs", "by ONNX Runtime 1.31.1", "pip install onnxruntime"),
        ("model.bf16.onnx", "onnx", "bf16", None, "cannot", "has no bf16", "pip install onnxruntime"),
        ("model.bf16.onnx", "onnx", "bf16", ORIN, "runs", "by ONNX Runtime 1.31.1", "pip install onnxruntime"),
        ("model.fused.onnx", "onnx-fused", "fp32", None, "runs", ", as the unrolled graph", "pip install onnxruntime"),
    ],
)
def test_packages_that_run_a_file(
    bundle: Bundle,
    machine: dict[str, Any],
    file: str,
    format: str,
    precision: Any,
    gpu: Gpu | None,
    state: str,
    reason: str,
    without: str,
) -> None:
    add(bundle, file, format, precision)
    diagnosis = row(bundle, file)
    assert (diagnosis.state, diagnosis.fix) == ("cannot", without) and "is not installed" in diagnosis.reason
    assert ("can carry code" in diagnosis.reason) == (format in ("torchscript", "pt2"))
    machine.update(packages={"onnxruntime": "1.31.1"}, gpu=gpu)
    if state:
        assert row(bundle, file).state == state and reason in row(bundle, file).reason


@pytest.mark.parametrize(
    ("packages", "gpu", "state", "says"),
    [
        ({}, ORIN, "cannot", "TensorRT is not installed"),
        ({"tensorrt_rtx": "1.7.1.116"}, ORIN, "cannot", "TensorRT is not installed"),
        ({"tensorrt": "10.3.0.26"}, ORIN, "cannot", "built with TensorRT 8.6.2; here is TensorRT 10.3.0.26"),
        ({"tensorrt": "8.6.1"}, ORIN, "cannot", "built with TensorRT 8.6.2; here is"),
        ({"tensorrt": "8.6.2.3"}, None, "cannot", "no NVIDIA GPU"),
        ({"tensorrt": "8.6.2.3"}, Gpu("H200", 90), "cannot", "built for sm87; here is H200, sm90"),
        ({"tensorrt": "8.6.2.3"}, ORIN, "runs", "by TensorRT 8.6.2.3 on Orin"),
        ({"tensorrt": ""}, ORIN, "runs", "of unknown version"),
    ],
)
def test_an_engine_is_bound_to_its_machine(
    bundle: Bundle, machine: dict[str, Any], packages: dict[str, str], gpu: Gpu | None, state: str, says: str
) -> None:
    unknown = add(bundle, "engines/x.engine", "trt", flavour="other")
    assert "name no TensorRT" in row(bundle, unknown.file).reason and row(bundle, unknown.file).state == "cannot"
    engine = add(bundle, "engines/fp16.engine", "trt", flavour="tensorrt", version="8.6.2", sm=87)
    machine.update(packages=packages, gpu=gpu)
    diagnosis = row(bundle, engine.file)
    assert diagnosis.state == state and says in diagnosis.reason
    if "built" in says:
        assert diagnosis.fix == f"qcn export {bundle.folder} --format trt --precision fp16 --batch 1:8:64"
    if "not installed" in says:
        assert "install" in diagnosis.fix


@pytest.mark.parametrize(
    ("sm", "gpu", "state"),
    [
        (None, Gpu("RTX 4090", 89), "runs"),
        (89, Gpu("RTX 4090", 89), "runs"),
        (None, Gpu("RTX 2080", 75), "cannot"),  # without a named SM, a plan is for 8.0 on
        (75, Gpu("RTX 2080", 75), "runs"),
        (89, Gpu("RTX 5090", 120), "cannot"),
        (None, Gpu("H200", 90), "cannot"),
    ],
)
def test_tensorrt_rtx(bundle: Bundle, machine: dict[str, Any], sm: int | None, gpu: Gpu, state: str) -> None:
    machine.update(packages={"tensorrt_rtx_bindings": "1.7.1.116"}, gpu=gpu)
    engine = add(bundle, "engines/rtx.engine", "trt", flavour="rtx", version="1.7.1", sm=sm)
    assert row(bundle, engine.file).state == state


def test_fused_routing_needs_its_plugin(
    bundle: Bundle, machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.update(packages={"tensorrt": "8.6.2"}, gpu=ORIN)
    tensorrt = TensorRT("tensorrt", (8, 6, 2), fake("8.6.2"))
    monkeypatch.setattr("qcn.export.backends.tensorrt.format.find", lambda flavour: tensorrt)
    monkeypatch.setenv("QCN_PLUGIN", str(tmp_path / plugin.LIBRARY))
    facts = {"flavour": "tensorrt", "version": "8.6.2", "sm": 87}
    add(bundle, "engines/plain.engine", "trt", **facts)
    add(bundle, "engines/fused.engine", "trt", **facts, plugin={"name": "EMRouting"})
    assert row(bundle, "engines/plain.engine").state == "runs"
    diagnosis = row(bundle, "engines/fused.engine")
    assert (diagnosis.state, diagnosis.fix) == ("cannot", plugin.BUILD) and f"not at {tmp_path}" in diagnosis.reason
    (tmp_path / plugin.LIBRARY).write_bytes(b"no library")
    diagnosis = row(bundle, "engines/fused.engine")
    assert (diagnosis.state, diagnosis.fix) == ("cannot", plugin.BUILD) and "cannot be loaded" in diagnosis.reason
    loaded = plugin.Plugin(tmp_path / plugin.LIBRARY, "0.1.0", "")
    monkeypatch.setattr(plugin, "load", lambda found: loaded if found is tensorrt else None)
    diagnosis = row(bundle, "engines/fused.engine")
    assert diagnosis.state == "runs" and diagnosis.reason.endswith(f"on Orin, its routing by {loaded.path}")


def test_weights_say_what_libqcn_can_do_with_them(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if native.available():
        monkeypatch.delenv("QCN_LIBRARY", raising=False)
        assert row(bundle, WEIGHTS).state == "runs"
    monkeypatch.setenv("QCN_LIBRARY", str(tmp_path / "nowhere.so"))
    diagnosis = row(bundle, WEIGHTS)
    assert diagnosis.state == "cannot" and "nowhere.so" in diagnosis.reason and diagnosis.fix == "make build/libqcn.so"
    (tmp_path / "nowhere.so").write_bytes(b"not a library")
    assert "cannot be used" in row(bundle, WEIGHTS).reason


def test_faults_of_the_bundle(bundle: Bundle, tmp_path: Path) -> None:
    add(bundle, "model.onnx", "onnx", "fp32")
    add(bundle, "model.ts", "torchscript", "fp32")
    (bundle.folder / "model.onnx").write_bytes(b"CONTENT")
    (bundle.folder / "model.ts").unlink()
    (bundle.folder / "extra").touch()
    rows = {row.file: row for row in doctor.diagnose(bundle.folder)}
    assert rows["model.onnx"].state == "altered" and "sha256" in rows["model.onnx"].reason
    assert rows["model.ts"].state == "missing" and rows["model.ts"].fix.startswith(
        f"qcn export {bundle.folder} --format torchscript "
    )
    assert rows["extra"].state == "unknown" and not rows["extra"].faulty
    assert [file for file, row in rows.items() if row.faulty] == ["model.onnx", "model.ts"]
    with pytest.raises(UsageError, match="is not a bundle"):
        doctor.diagnose(tmp_path / "nowhere")


def test_other_files_are_not_called_altered_where_the_weights_are(bundle: Bundle) -> None:
    add(bundle, "model.onnx", "onnx", "fp32")
    (bundle.folder / WEIGHTS).write_bytes(b"CONTENT")
    assert [row.file for row in doctor.diagnose(bundle.folder) if row.faulty] == [WEIGHTS]


def test_a_file_of_the_right_hash_and_the_wrong_kind(bundle: Bundle) -> None:
    """Whoever can write the manifest can make any hash right: the contents are looked at all the same."""
    record = json.loads((bundle.folder / MANIFEST).read_text(encoding="utf-8"))
    for one in record["files"]:
        (bundle.folder / one["file"]).write_bytes(b"content")
        one.update(bytes=7, sha256=hashlib.sha256(b"content").hexdigest())
    put_manifest(bundle.folder, json.dumps(record))
    assert {row.file: row.state for row in doctor.diagnose(bundle.folder)} == {GOLDEN: "altered", WEIGHTS: "altered"}


def test_golden_answers_that_are_not_the_networks(bundle: Bundle) -> None:
    """Classes in another order: the engine answers as it did, and every answer has another's name."""
    path = bundle.folder / MANIFEST
    record = json.loads(path.read_text(encoding="utf-8"))
    record["classes"][:2] = record["classes"][1::-1]
    put_manifest(bundle.folder, json.dumps(record))
    found = row(bundle, GOLDEN)
    assert found.state == "altered" and "its classes are ['0', '1', '2'" in found.reason


def test_engines_for_a_fleet(bundle: Bundle, machine: dict[str, Any]) -> None:
    facts = {"flavour": "tensorrt", "version": "8.6.1", "gpu": "NVIDIA A100", "sm": 80}
    add(bundle, "engines/many.engine", "trt", **facts, hardware_compatible=True, refittable=True)
    add(bundle, "engines/newer.engine", "trt", **facts | {"sm": 90}, version_compatible=True)
    add(bundle, "engines/bare.engine", "trt", **facts, hardware_compatible=True, stripped=True)
    machine["packages"], machine["gpu"] = {"tensorrt": "8.6.1"}, Gpu("NVIDIA H200", 90)
    many, newer, bare = (row(bundle, f"engines/{name}.engine") for name in ("many", "newer", "bare"))
    assert (many.state, many.reason) == (
        "runs",
        "by TensorRT 8.6.1 on NVIDIA H200; every GPU from sm80 on; `qcn export --refit` gives it other weights",
    )
    assert newer.reason.endswith("; newer versions too, by the lean runtime of 8.6.1")
    assert (bare.state, bare.reason) == ("cannot", "it has no weights in it")
    assert bare.fix == f"qcn export {bundle.folder} --refit {bundle.folder}/engines/bare.engine"
    machine["packages"]["tensorrt"] = "10.3.0"
    assert "which runs it by the lean runtime of 8.6.1" in row(bundle, "engines/newer.engine").reason
    machine["gpu"] = Gpu("T4", 75)
    machine["packages"]["tensorrt"] = "8.6.1"
    assert row(bundle, "engines/many.engine").reason == "it was built for GPUs from sm80 on; here is T4, sm75"

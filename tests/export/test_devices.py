"""`qcn export --target FILE`: a bundle for each device of a list, what to type for each, and lists that are wrong."""

from pathlib import Path

import pytest
from command import Command

from qcn.errors import MissingError, UsageError
from qcn.export import fleet
from qcn.export.bundle import Bundle
from qcn.storage import toml

LIST = """
[orin]
target = "jetson-orin"
tensorrt = "10.3"
formats = ["native", "trt"]
precision = "fp16"
batch = "1:4:16"

[gate]
cpu = "Cortex-A72"
"""


def test_a_bundle_for_each_device(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    listed = tmp_path / "devices.toml"
    listed.write_text(LIST)
    code, said = qcn("export", bundle.folder, "--target", listed, "--out", tmp_path / "fleet")
    assert code == 0 and "trt was not made:" in said and "gate: cpu, Cortex-A72" in said
    for line in (
        f"  scp -r {tmp_path}/fleet/orin orin:",
        "  ssh orin qcn export orin --format trt --precision fp16 --batch 1:4:16",
        "  ssh gate 'qcn benchmark gate --json gate.json; "
        "qcn verify-parity gate --report reports/gate --benchmark gate.json'",
        "  mkdir -p reports && scp -r gate:reports/gate reports/",
        "next: qcn report merge reports/orin reports/gate --out fleet.html",
    ):
        assert line in said.splitlines(), line
    files = {name: Bundle.open(tmp_path / "fleet" / name).manifest.files for name in ("orin", "gate")}
    assert [one.file for one in files["orin"]][2:] == ["model.tensorrt.fp16.onnx"]
    assert [one.file for one in files["gate"]][2:] == ["model.onnx"]
    assert {one.sha256 for one in files["gate"]} & {one.sha256 for one in files["orin"]}, "the same golden answers"
    code, said = qcn("doctor", tmp_path / "fleet" / "gate")
    assert code == 0
    code, said = qcn("export", bundle.folder, "--target", listed, "--format", "onnx")
    assert code == 2 and "gives the formats, precision and batch of each device" in " ".join(said.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no devices: a device is a table, [NAME]"),
        ("[orin", "is not a list of devices"),
        ("orin = 3", "'orin' is not a device"),
        ("[orin]\nsm = 87", "[orin] has an unknown entry 'sm'; known: target, tensorrt, formats"),
        ('[orin]\nname = "gate"', "[orin] has an unknown entry 'name'"),
        ('[orin]\ntarget = "jetson-orion"', "jetson-orin"),
        ('[orin]\ntarget = "sm87"\ntensorrt = "ten"', 'tensorrt must be a version such as "10.3"'),
        ('[orin]\nformats = ["trt"]', "an engine needs a GPU: name its target"),
        ('[orin]\nformats = "onnx"', "formats must be a list"),
        ('[orin]\nprecision = "fp8"', "precision must be one of 'fp32', 'fp16', 'bf16'"),
        ('[orin]\nbatch = "many"', "--batch takes a number of images"),
        ('["or/in"]', "'or/in' is not a device name"),
        ("[Orin]\n[orin]", "Orin and orin would be the same folder on some disks"),
    ],
)
def test_what_is_wrong_in_a_list_is_said(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "devices.toml").write_text(text)
    with pytest.raises(UsageError) as refused:
        fleet.read_devices(tmp_path / "devices.toml")
    assert words in str(refused.value)


def test_a_list_that_is_not_there_and_a_python_without_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"is not a list of devices: .*No such file"):
        fleet.read_devices(tmp_path / "devices.toml")
    monkeypatch.setattr(toml, "installed", lambda module: False)
    with pytest.raises(MissingError, match="pip install tomli"):
        fleet.read_devices(tmp_path / "devices.toml")

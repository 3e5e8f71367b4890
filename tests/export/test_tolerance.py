"""What the manifest allows: a number of noise floors by precision, never nothing, never most of the answer."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.bundle import golden
from qcn.export.bundle.arrays import write_arrays
from qcn.export.bundle.bundle import _check_golden
from qcn.export.bundle.manifest import Artefact, BundleSource, Manifest, file_of, ports

CASES = json.loads((Path(__file__).parent.parent / "tolerances.json").read_text(encoding="utf-8"))["cases"]
CLASSES, SPEC = ("cat", "dog"), Preprocessing(fit="crop", standardise="dataset", mean=(0.5,), std=(0.25,))


def check(case: dict, path: Path) -> None:
    """Write the golden file of a shared case, and compare the manifest's tolerance with what it implies."""
    rows = len(case["logit"]) // 2
    arrays = {"image": np.zeros((rows, 1, 1, 1), np.uint8), "label": np.full(rows, -1)}
    arrays |= {"input": np.full((rows, 1, 1, 1), -2, np.float32)}
    for name, shape in (("logit", (rows, 2)), ("pose", (rows, 2, 3))):
        if name in case:
            arrays[name] = np.array(case[name]).reshape(shape)
            arrays[f"{name}.float32"] = np.array(case[f"{name}.float32"], np.float32).reshape(shape)
            arrays |= {f"trained.{name}": arrays[name]} if case["plan"] else {}
    texts = {"rows": [f"row {row}" for row in range(rows)], "inputs_only": [], "classes": CLASSES}
    written = {name: json.dumps(text) for name, text in {**texts, "preprocessing": asdict(SPEC)}.items()}
    write_arrays(path, arrays, golden.SCHEMA, **written, **({"floors": case["floors"]} if case["floors"] else {}))
    name = file_of("onnx", case["precision"])
    file = Artefact(
        name, "onnx", "0" * 64, 1, case["precision"], None, None, "qcn export RUN", False, case["tolerance"]
    )
    image, outputs = ports((1, 1, 1), 2, "pose" in case)
    source = BundleSource("", "qcn", "best", 1, "", "")
    _check_golden(
        golden.read(path.read_bytes()),
        Manifest("case", CLASSES, (1, 1, 1), SPEC, image, outputs, source, {}, files=(file,)),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_shared_cases(case: dict, tmp_path: Path) -> None:
    """libqcn is tested on the same ones (deploy/tests/test_tolerances.cpp)."""
    if case["taken"]:
        check(case, tmp_path / "golden.safetensors")
        return
    with pytest.raises(UsageError):
        check(case, tmp_path / "golden.safetensors")

"""ExecuTorch: the road of a .pte file, a planted fault, and files and requests that are refused."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import bundle_of
from command import Command
from runners import create

import qcn as product
from qcn.errors import CheckFailed, UsageError
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import Batch
from qcn.export.program.program import Product
from qcn.names import BUNDLE
from qcn.packages import installed
from qcn.verify.parity.verify import verify

needed = pytest.mark.skipif(not installed("executorch"), reason="ExecuTorch is not installed: pip install executorch")


@pytest.fixture
def cnn(tmp_path: Path) -> Bundle:
    """A bundle of a small CNN, which is lowered in seconds."""
    torch.manual_seed(0)
    return bundle_of(tmp_path / "cnn", product.create("cnn-small", in_channels=1, classes=3).eval(), 16, 16)


def test_what_is_missing_is_named(cnn: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "executorch", None)
    code, said = qcn("export", cnn.folder, "--format", "executorch")
    assert code == 3 and "ExecuTorch is not installed: pip install executorch" in " ".join(said.split())


@needed
@pytest.mark.slow
def test_the_road_of_a_pte(small: Bundle, qcn: Command) -> None:
    code, said = qcn("export", small.folder, "--format", "executorch", "--set", "every_layer")
    said = " ".join(said.split())
    assert code == 0 and "model.pte, for batches of 1: XNNPACK runs" in said and "unfold_copy" in said, said
    code, said = qcn("verify-parity", small.folder, "--backends", "executorch", "--set", "bisect")
    assert code == 0 and "passed    executorch: model.pte (fp32)" in said, said
    facts = Bundle.open(small.folder).find("model.pte").facts
    assert facts["xnnpack"]["convolution"] > len(small.program().routes) and "convolution" not in facts["portable"]
    assert "capsules1.pose" in facts["outputs"]


@needed
@pytest.mark.slow
def test_answers_faults_and_damage(cnn: Bundle, qcn: Command) -> None:
    from qcn.export.backends.executorch.writer import write_executorch

    code, said = qcn("export", cnn.folder, "--format", "executorch", "--batch", "2:4:8")
    assert code == 0 and "for batches of 2" in said, said
    bundle = Bundle.open(cnn.folder)
    (verdict,) = verify(bundle, ["executorch"], {})
    assert verdict.status == "passed", verdict.reasons
    code, said = qcn("benchmark", cnn.folder, "--backends", "executorch", "--batch", "2", "--duration", "0.01")
    assert code == 0 and "model.pte" in said, said
    code, said = qcn("doctor", cnn.folder)
    assert code == 0 and "by ExecuTorch" in said, said
    path, images = cnn.folder / "model.pte", bundle.golden().input
    load = "import sys, pathlib; from qcn.export.backends.executorch.runner import *; "
    load += "path = pathlib.Path(sys.argv[1]); ExecuTorchRunner(ModelFile(path, path.read_bytes()), Options()).open()"
    ended = subprocess.run([sys.executable, "-c", load, path], capture_output=True, text=True, check=True)
    assert not ended.stdout and not ended.stderr  # of torchao, or of ARM's cores
    with create("executorch", path, threads=1) as runner:
        assert runner.name.startswith("executorch ") and runner.infer(images[:2])["logit"].shape == (2, 3)
        with pytest.raises(UsageError, match=r"images are \[1, 1, 16, 16\], .* takes \[2, 1, 16, 16\]"):
            runner.infer(images[:1])
    for options, says in (
        (("--precision", "fp16"), "only made in fp32, not in fp16"),
        (("--batch", "0"), "a batch range must rise"),
    ):
        code, said = qcn("export", cnn.folder, "--format", "executorch", *options)
        assert code == 2 and says in " ".join(said.split()), said

    program = bundle.program()
    name = next(op.factors[0] for op in program.operations if isinstance(op, Product))
    wrong = replace(program, arrays={**program.arrays, name: program.arrays[name] * np.float32(1.01)})
    rebuild = f"qcn export {BUNDLE} --format executorch"
    with bundle.adding("model.pte", "executorch", "fp32", rebuild, batch=Batch(1, 1, 1)) as draft:
        write_executorch(wrong, draft.path, batch=1, metadata={})
    (verdict,) = verify(bundle, ["executorch"], {})
    assert verdict.status == "failed" and "logit is off by" in verdict.reasons[0], verdict.reasons
    with pytest.raises(CheckFailed, match="answers the golden images wrongly"):
        product.load(bundle.folder, "executorch")

    whole = path.read_bytes()
    for content in (b"", b"not a program" * 9, whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"cannot load .*model\.pte: .* from another version: rebuild it with"):
            create("executorch", path).open()

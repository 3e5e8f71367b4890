"""Quantisation-aware training: the layers of a network round to the integers that its calibrated program has."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import Command

from qcn.errors import UsageError
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle import Bundle
from qcn.export.program.lower import layer_scales
from qcn.export.program.program import Array, Product, Program
from qcn.export.program.quantise import quantised
from qcn.train.checkpoint import load_network, load_tensors
from qcn.train.quantise import apply, by_channel, rounded
from qcn.train.record import Quantised, load_run


def in_int8(program: Program) -> Program:
    for op in program.operations:
        if isinstance(op, Product):
            program = quantised(program, op.name, [0.05] * len(op.factors))
    return program


def test_a_layer_rounds_as_in_the_calibrated_program(run: Path, program: Program) -> None:
    """With its batch norm behind it, which the program has folded into the weight: the same integers."""
    network, _ = load_network(run)
    plan = in_int8(program)
    scales = layer_scales(network, plan)
    assert len(scales) == sum(len(op.factors) for op in plan.operations if isinstance(op, Product))
    op = next(op for op in plan.operations if op.name == "pose.1.conv1")
    assert isinstance(op, Product)
    block = network.get_submodule("extractor.pose.1")
    x = torch.randn(2, *plan.shapes[op.reads[0]], generator=torch.Generator().manual_seed(0)).relu()
    with torch.inference_mode():
        (expected,) = Interpreter(plan).operation(op, [x])
        before = block.norm2(block.conv1(x)).relu()  # type: ignore[operator, union-attr]
        apply(network, scales)
        found = block.norm2(block.conv1(x)).relu()  # type: ignore[operator, union-attr]
    step = op.input_scales[0] * float(program_scale(plan, op).max())
    assert (found - expected).abs().max() < 0.51 * step + 1e-5  # a bias is rounded to steps, which training leaves out
    assert (before - expected).abs().max() > 5 * (found - expected).abs().max()


def program_scale(program: Program, op: Product) -> Array:
    return program.arrays[op.weight_scales[0]]


def test_gradients_go_through_rounding_and_not_beyond_the_range() -> None:
    x = torch.tensor([0.3, 5.0, 200.0], requires_grad=True)
    y = rounded(x, 1.0)
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert y.tolist() == [0.0, 5.0, 127.0] and x.grad is not None and x.grad.tolist() == [1.0, 1.0, 0.0]
    weight = torch.tensor([[0.0, 0.0], [1.27, 0.004]])
    assert torch.allclose(by_channel(weight), torch.tensor([[0.0, 0.0], [1.27, 0.0]]))


def test_fine_tuning_with_a_plan(
    run: Path,
    program: Program,
    bundle: Bundle,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    qcn = Command(monkeypatch, capsys)
    plan = tmp_path / "plan"
    empty, golden = replace(bundle.manifest, files=()), bundle.golden()
    answers = replace(
        golden, plan=True, trained=golden.reference.answers
    )  # which they are not: nobody asks for them here
    Bundle.create(plan, empty, in_int8(program), lambda: answers, "qcn calibrate RUN --out {bundle}")
    start = ("train", "--dataset", "mnist", "--model", "qcn-tiny", "--data-dir", data_dir, "--epochs", "1")
    code, said = qcn(*start, "--quantise", plan, "--out", tmp_path / "none")
    assert code == 2 and "name it with --init" in said, said
    code, said = qcn(*start, "--init", run, "--quantise", bundle.folder, "--out", tmp_path / "none")
    assert code == 2 and "has no int8 layers" in said, said
    code, said = qcn(*start, "--init", run, "--quantise", plan, "--lr", "1e-4", "--out", tmp_path / "tuned")
    assert code == 0 and f"layers that round to int8, as in {plan}:" in said, said
    record = load_run(tmp_path / "tuned")
    assert record.quantised == Quantised(str(plan), layer_scales(load_network(run)[0], in_int8(program)))
    given = load_tensors(run, load_run(run).weights("best"))
    made = load_tensors(tmp_path / "tuned", load_run(tmp_path / "tuned").weights("last"))
    assert made.keys() == given.keys()  # as any network is saved
    replace(record, quantised=Quantised(str(plan), {"nothing": 1.0})).write(tmp_path / "tuned")
    code, said = qcn("train", "--resume", tmp_path / "tuned", "--data-dir", data_dir, "--epochs", "2")
    assert code == 2 and "no convolution or linear layer 'nothing'" in said, said
    with pytest.raises(UsageError, match="must be a positive number, not -1"):
        Quantised(str(plan), {"nothing": -1.0})

"""What int8 convolutions and half-precision routing bring on this CPU: libqcn at batch 1, beside float32.

    qcn export cifar10-qcn --format native --out runs/export/cifar10-qcn --data-dir DATA
    python benchmarks/low_precision.py runs/export/cifar10-qcn --json benchmarks/results/low-precision-cpu.json

The same network four times: float32, capsule layers in fp16, convolutions in int8, both. Each by the kernels of this
CPU and by those of lesser ones (QCN_INSTRUCTION_SET), in many short turns: other work on the machine slows all, and the
least time is what the machine can do. Beside each time: the largest distance of an answer from the trained network's
in float64, on the golden images. Scales are those of the largest values there: `qcn calibrate` chooses better ones.
"""

import argparse
import json
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import facts

from qcn.binding import Model, Session
from qcn.export.bundle import Bundle
from qcn.export.program import Product, Program
from qcn.export.quantise import halved, quantised
from qcn.export.torch.interpreter import Interpreter

BENCH = Path(__file__).parent.parent / "build" / "programs" / "qcn-bench"
ORDER = ("sse2", "avx2", "avx512", "avx512fp16", "neon", "neonfp16")  # of QCN_INSTRUCTION_SET
REBUILD = "qcn calibrate RUN --out {bundle}"
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sets", nargs="+", choices=ORDER, default=["avx2", "avx512", "avx512fp16"])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each turn")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    base = Bundle.open(arguments.bundle)
    record: Row = {**facts(), "model": base.manifest.name, "turns": arguments.turns, "errors": {}, "results": []}
    with tempfile.TemporaryDirectory() as folder:
        variants = {"fp32": arguments.bundle} | calibrated(base, Path(folder))
        record["errors"] = {name: errors(variant, base) for name, variant in variants.items()}
        for threads in arguments.threads:
            for limit in arguments.sets:
                found = least(variants, limit, threads, arguments.turns, arguments.seconds)
                for name, times in found.items():
                    row = {"threads": threads, "limit": limit, "precision": name, **times}
                    row["times_as_fast"] = found["fp32"]["least_ms"] / times["least_ms"]
                    print(row, flush=True)
                    record["results"].append(row)
    arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def calibrated(base: Bundle, folder: Path) -> dict[str, Path]:
    """Bundles of the network with capsule layers in fp16, with convolutions in int8, and with both."""
    whole = base.program()
    half, integer = with_half(whole), with_integers(whole, base.golden().input)
    programs = {"fp16 routing": half, "int8 convolutions": integer, "both": with_half(integer)}
    # The golden answers stay the trained network's: nothing here is judged by them but `errors`.
    golden = replace(base.golden(), plan=True, trained=base.golden().reference)
    for name, program in programs.items():
        Bundle.create(folder / name, replace(base.manifest, files=()), program, lambda: golden, REBUILD)
    return {name: folder / name for name in programs}


def with_half(program: Program) -> Program:
    for route in program.routes:
        program = halved(program, route.name)
    return program


def with_integers(program: Program, images: Any) -> Program:
    interpreter, values = Interpreter(program, kernels="reference"), {program.input.name: torch.from_numpy(images)}
    for op in program.operations:
        with torch.no_grad():
            made = interpreter.operation(op, [values[name] for name in op.reads])
        values |= {value.name: tensor for value, tensor in zip(op.outputs, made, strict=True)}
    for op in program.operations:
        if isinstance(op, Product):
            program = quantised(program, op.name, [float(values[name].abs().max()) / 127 for name in op.reads])
    return program


def errors(bundle: Path, base: Bundle) -> Row:
    """The largest distances from the trained network's answers, and the share of images of the same class."""
    golden = base.golden()
    activation, pose = Session(Model(bundle, backend="native", self_test=0)).infer(golden.input)
    exact = golden.reference
    return {
        "activation": float(np.abs(activation - exact.activation).max()),
        "pose": None if pose is None else float(np.abs(pose - exact.pose).max()),
        "same_class": float((activation.argmax(1) == exact.activation.argmax(1)).mean()),
    }


def least(variants: dict[str, Path], limit: str, threads: int, turns: int, seconds: float) -> dict[str, Row]:
    """The least time of each, in milliseconds, and which kernels ran."""
    rows: dict[str, Row] = {name: {"least_ms": float("inf")} for name in variants}
    for _ in range(turns):
        for name, bundle in variants.items():
            options = {"batch": 1, "backend": "native", "threads": threads, "duration": seconds}
            command = [str(BENCH), str(bundle), "--json", "--infer", "--no-self-test"]
            command += [f"--{key}={value}" for key, value in options.items()]
            environment = {**os.environ, "QCN_INSTRUCTION_SET": limit}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            found = json.loads(done.stdout)
            kernels = {f"{one['op']} {one['ran']} by {one['kernel']}" for one in found["operations"]}
            rows[name]["least_ms"] = min(rows[name]["least_ms"], found["latency_ms"]["min"])
            rows[name]["kernels"] = sorted(kernels)
    return rows


if __name__ == "__main__":
    main()

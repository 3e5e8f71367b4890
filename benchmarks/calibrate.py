"""What calibration costs and saves, on the networks that ship: errors on their test splits, sizes, times.

    python benchmarks/calibrate.py --data-dir data --json benchmarks/results/calibrate-x86_64.json [MODEL …]
    python benchmarks/calibrate.py --time --data-dir data --json benchmarks/results/calibrate-x86_64.json [MODEL …]
    python benchmarks/calibrate.py --page docs/calibrate.md --json benchmarks/results/calibrate-x86_64.json \\
        --json benchmarks/results/calibrate-aarch64.json

Every network is calibrated as `qcn calibrate MODEL --max-drop 0.2` does it, on its validation split. Then the test
splits are answered once by each of: float32, the chosen int8 operations alone, the chosen fp16 capsule layers alone,
and both, which is the calibrated bundle. Of a split of more than 10,000 images, 10,000 are taken, evenly spread. What
the file has already of other networks stays. With --time, what was chosen is timed again and nothing else: do so when
the machine has nothing else to do.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import facts
from numpy.typing import NDArray
from pages import columns, hundredths, source, table

from qcn.calibrate import pipeline
from qcn.calibrate.assignments import apply, array_bytes, in_words, lowest
from qcn.calibrate.bodies import find_body
from qcn.calibrate.images import OBSERVED, spread
from qcn.calibrate.observers import batches
from qcn.calibrate.record import Key, calibrate
from qcn.calibrate.request import METHODS, Method, Request
from qcn.calibrate.simulation import Outputs, answers
from qcn.data import load
from qcn.data.imageset import ImageSet
from qcn.data.spec import Preprocessing
from qcn.export.backends.format import Job
from qcn.export.backends.onnx.format import UNROLLED_GRAPH
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.lower import lower
from qcn.export.program import Convolution, Program
from qcn.export.quantise import find, quantised
from qcn.export.request import Request as ExportRequest
from qcn.intervals import ErrorRate, lost_and_won, paired_drop
from qcn.names import OperationPrecision
from qcn.progress import shown
from qcn.shipped import run_of
from qcn.train.checkpoint import load_network

MODELS = (
    "mnist",
    "fashion-mnist",
    "fashion-mnist-qcn-deep",
    "cifar10",
    "viewpoints-azimuth-pooled",
    "cifar10-cnn-small",
    "viewpoints-azimuth-pooled-cnn-small",
)
COMPARED = 512  # images of `methods`
MOST = 10_000  # of a test split
MARK = "<!-- What follows is written by benchmarks/calibrate.py. -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, action="append", required=True, help="given several times: with --page")
    parser.add_argument("--time", action="store_true", help="time what was chosen, and measure nothing else")
    parser.add_argument("--page", type=Path, help="measure nothing: write the figures of --json into this page")
    arguments = parser.parse_args()
    if arguments.page:
        arguments.page.write_text(page(arguments.page.read_text(encoding="utf-8"), arguments.json), encoding="utf-8")
        return
    if len(arguments.json) > 1:
        parser.error("--json is given several times with --page only")
    path = arguments.json[0]
    if arguments.time:
        record = json.loads(path.read_text(encoding="utf-8"))
        for model in arguments.models or list(record["models"]):
            record["models"][model] |= timed(model, arguments.data_dir, record["models"][model]["assignment"])
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return
    for model in arguments.models or MODELS:
        with tempfile.TemporaryDirectory() as folder, shown():
            found = measured(model, arguments.data_dir, Path(folder))
        there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        now = facts()
        there |= now | {"models": there.get("models", {}) | {model: found | {"commit": now["commit"]}}}
        there.setdefault("methods", methods("cifar10", arguments.data_dir))
        path.write_text(json.dumps(there, indent=1) + "\n", encoding="utf-8")
        for row in found["rows"]:
            drop = "" if row["drop"] is None else f"  {row['drop']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"
            print(
                f"{model:26} {row['split']:9} {row['what']:18} {100 * row['error']['error']:6.2f} %{drop}", flush=True
            )


def measured(model: str, data_dir: Path, folder: Path) -> dict[str, Any]:
    """Everything of one network."""
    request = Request(data_dir=data_dir, command=f"qcn calibrate {model}")
    found = pipeline.calibrate(run_of(model), folder / "report", request, lambda audit, digits: None)
    chosen = found.search.chosen
    assert chosen is not None
    out, _ = pipeline.write(found, folder / "calibrated", request)
    UNROLLED_GRAPH.add(Job(found.base, ExportRequest()))
    programs = {
        "float32": found.program,
        **{
            f"{precision} alone": apply(
                found.program, {k: v for k, v in chosen.assignment.items() if v == precision}, found.calibration
            )
            for precision in dict.fromkeys(chosen.assignment.values())
        },
        "calibrated": out.program(),
    }
    body = find_body(found.base, request.target, programs["calibrated"])
    rows = []
    for split, whole in load(found.calibration.data, data_dir).tests.items():
        images = spread(whole, MOST)
        before = None
        for what, program in programs.items():
            right = body.predicted(program, images.images, f"{model}, {split}: {what}") == images.labels
            before = right if before is None else before
            lost, won = lost_and_won(before, right)
            low, high = paired_drop(lost, won, len(right))
            points = [100 * x for x in ((lost - won) / len(right), low, high)] if what != "float32" else [None] * 3
            rows.append(
                {
                    "split": split,
                    "what": what,
                    "error": asdict(ErrorRate.of(int(np.sum(~right)), len(right))),
                    "lost": lost,
                    "won": won,
                    **dict(zip(("drop", "low", "high"), points, strict=True)),
                }
            )
    return {
        "validation_images": found.audit.images,
        "body": found.search.body,
        "assignment": chosen.assignment,
        "words": in_words(found.program, chosen.assignment),
        "validation": {"drop": chosen.drop, "bound": chosen.bound},
        "timed": {
            in_words(found.program, one.assignment): asdict(one.timed) for one in found.search.trials if one.timed
        },
        "weights": {what: array_bytes(program) for what, program in programs.items()},
        "bundle": {
            name: {artefact.file: artefact.bytes for artefact in one.manifest.files}
            for name, one in (("float32", found.base), ("calibrated", out))
        },
        "refused": found.search.refused,
        "rows": rows,
        "digits": [asdict(one) | {"kept_in_fp16": one.in_fp16} for one in found.digits],
        "sensitivities": [asdict(one) for one in found.sensitivities],
    }


def timed(model: str, data_dir: Path, assignment: dict[str, OperationPrecision]) -> dict[str, Any]:
    """The times of what was chosen, and of its parts, on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        request = Request(data_dir=data_dir)
        base = pipeline.open_base(run_of(model), Path(folder) / "report", request)
        program, spec = base.program(), base.manifest.preprocessing
        images = spread(load(base.manifest.source.data, data_dir).validation, OBSERVED)
        path = Path(folder) / "ranges.json"
        ranges = calibrate(path, program, spec, images, "", request.method, Key("", "", ""), "")
        body = find_body(base, request.target, apply(program, assignment, ranges))
        parts = [{k: v for k, v in assignment.items() if v == p} for p in dict.fromkeys(assignment.values())]
        found = {in_words(program, one): body.timed(program, one, ranges) for one in (*parts, assignment)}
    for what, one in found.items():
        print(f"{model:26} {what}: {one.words()}", flush=True)
    return {"body": body.name, "timed": {what: asdict(one) for what, one in found.items()}}


def active(outputs: Outputs) -> NDArray[np.float64]:
    """The activations [N, classes] of a capsule network."""
    return 1 / (1 + np.exp(-outputs.logit.astype(np.float64)))


def methods(model: str, data_dir: Path) -> dict[str, float]:
    """The mean change of an activation with all convolutions in int8, by what could be done to them."""
    network, run = load_network(run_of(model))
    program = lower(network, *run.preprocessing.output_size(*run.data.image[1:]))
    images = spread(load(run.data.name, data_dir).validation, COMPARED)
    exact = active(answers(program, images.images, run.preprocessing))
    names = [name for name, precision in lowest(program).items() if precision == "int8"]

    def change(given: Program, method: Method, correct: bool = True) -> float:
        """Of a program that computes the same as `program`."""
        with tempfile.TemporaryDirectory() as folder:
            ranges = calibrate(
                Path(folder) / "ranges.json", given, run.preprocessing, images, "", method, Key("", "", ""), ""
            )
        if correct:
            lowered = apply(given, dict.fromkeys(names, "int8"), ranges)
        else:
            lowered = given
            for name in names:
                lowered = quantised(lowered, name, [ranges.scales[value] for value in find(given, name).reads])
        return float(np.abs(active(answers(lowered, images.images, run.preprocessing)) - exact).mean())

    return {
        **{method: change(program, method) for method in METHODS},
        "mse, biases not corrected": change(program, "mse", correct=False),
        "mse, channels equalised": change(equalised(program, images, run.preprocessing), "mse"),
        "images": COMPARED,
    }


def equalised(program: Program, images: ImageSet, spec: Preprocessing) -> Program:
    """The same network with channels of maps scaled, and weights that read them scaled back (Nagel et al. 2019).

    So that a channel's range is to that of the weights that read it as for all others.
    """
    peaks: dict[str, Any] = {}
    interpreter = Interpreter(program, kernels="fused")
    with torch.inference_mode():
        for _, batch in batches(images.images, spec):
            for name, numbers in interpreter.values(batch).items():
                peaks[name] = np.maximum(peaks.get(name, 0), numbers.abs().transpose(0, 1).flatten(1).amax(1).numpy())
    arrays = dict(program.arrays)
    for made in program.operations:
        readers = [one for one in program.operations if made.name in one.reads]
        if not isinstance(made, Convolution) or not all(isinstance(one, Convolution) for one in readers):
            continue
        read = [
            weight
            for one in readers
            if isinstance(one, Convolution)
            for weight, value in zip(one.weights, one.inputs, strict=True)
            if value == made.name
        ]
        largest = np.max([np.abs(arrays[weight]).max((0, 2, 3)) for weight in read], axis=0)
        scale = np.sqrt(np.maximum(peaks[made.name], 1e-6) / np.maximum(largest, 1e-6)).astype(np.float32)
        for weight in made.weights:
            arrays[weight] = arrays[weight] / scale[:, None, None, None]
        arrays[made.bias] = arrays[made.bias] / scale
        for weight in read:
            arrays[weight] = arrays[weight] * scale[None, :, None, None]
    return replace(program, arrays=arrays)


def page(text: str, results: Sequence[Path]) -> str:
    """docs/calibrate.md with the figures of these files."""
    before, mark, _ = text.partition(MARK)
    return f"{before}{mark}\n\n{figures([json.loads(path.read_text(encoding='utf-8')) for path in results])}"


def figures(records: Sequence[dict[str, Any]]) -> str:
    """The tables of docs/calibrate.md. What does not depend on the machine is told of the first."""
    commits = [", ".join(sorted({model["commit"] for model in record["models"].values()})) for record in records]
    machines = {record["machine"].partition(",")[0]: record["models"] for record in records}
    names = dict.fromkeys(model for models in machines.values() for model in models)
    found = [
        {"network": model, "machine": machine, **models[model]}
        for model in names
        for machine, models in machines.items()
        if model in models
    ]
    cells: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for one in found:
        for row in one["rows"]:
            there = cells.setdefault((one["network"], row["split"], row["what"]), {})
            there[one["machine"]] = [hundredths(row["error"]), _drop(row)]
    errors = [
        [f"`{model}`", split, what, *(cell for machine in machines for cell in there.get(machine, ["", ""]))]
        for (model, split, what), there in cells.items()
    ]
    sizes = {
        "network": "`{network}`",
        "machine": "{machine}",
        "chosen": "{words}",
        "points lost": "{validation[drop]:+.2f}, at most {validation[bound]:+.2f}",
        "weights": lambda one: f"{100 * one['weights']['calibrated'] / one['weights']['float32']:.0f} %",
        "bundle": lambda one: f"{100 * _total(one, 'calibrated') / _total(one, 'float32'):.0f} %",
    }
    every = [{**one, "what": what, **time} for one in found for what, time in one["timed"].items()]
    times = {
        "network": "`{network}`",
        "machine": "{machine}",
        "precisions": "{what}",
        "time": lambda one: f"{one['milliseconds']:.2f} ms" if one["milliseconds"] else "",
        "float32": lambda one: f"{one['float32']:.2f} ms" if one["float32"] else "",
        "times as fast": lambda one: f"{1 / one['share']:.2f}",
    }
    all_digits = [one for network in found for one in network["digits"]]
    worst = [
        max((one for one in all_digits if one["name"] == name), key=_below)
        for name in dict.fromkeys(one["name"] for one in all_digits)
    ]
    lost = {
        "number": "{name}",
        "smallest": "{smallest:.1e}",
        "largest": "{largest:.3g}",
        "below 6.1e-5": lambda one: f"{100 * _below(one):.2g} %",
        "kept in": lambda one: "fp16" if one["kept_in_fp16"] else "float32",
    }
    methods_found = records[0]["methods"]
    compared = [[name, f"{value:.4f}"] for name, value in methods_found.items() if name != "images"]
    parts = (
        "## Measured",
        "Networks that ship, calibrated on their validation splits with `--max-drop 0.2`:",
        "\n".join(f"- {source(record | {'commit': of})}" for record, of in zip(records, commits, strict=True)),
        "Error on test splits, in %, with its 95 % interval, and the accuracy lost, in percentage points, with its "
        "90 % interval:",
        table(
            ["network", "split", "precisions", *(f"{what}, {one}" for one in machines for what in ("error", "lost"))],
            errors,
        ),
        "The chosen precisions, the percentage points of accuracy lost on the validation split (at most: with 95 % "
        "confidence), and the size of weights and bundle as a share of float32. A bundle has weights, ONNX graph and "
        "golden answers:",
        columns(found, sizes),
        f"Time per image ({found[0]['body']}):",
        columns([one for one in every if one["what"] != "all fp32"], times),
        "The largest share of numbers below fp16's smallest normal number, over all capsule layers of these networks:",
        columns(worst, lost),
        "The mean change of an activation of `cifar10` with all convolutions in int8, on "
        f"{methods_found['images']} validation images; biases are corrected unless stated otherwise:",
        table(["ranges", "change"], compared),
    )
    return "\n\n".join(parts) + "\n"


def _drop(row: dict[str, Any]) -> str:
    return "" if row["drop"] is None else f"{row['drop']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"


def _total(found: dict[str, Any], bundle: str) -> int:
    return sum(found["bundle"][bundle].values())


def _below(one: dict[str, Any]) -> float:
    return float(one["below"] / max(one["numbers"], 1))


if __name__ == "__main__":
    main()

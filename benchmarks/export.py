"""How fast and how exact the ONNX graphs of `qcn export` are, beside a naive one.

    python benchmarks/export.py make RUN FOLDER            with torch: a bundle and the naive graph in FOLDER
    python benchmarks/export.py run FOLDER --backend onnxruntime-cpu|onnxruntime-cuda|tensorrt --json FILE

"naive" is the operator as its formula stands, by torch's own exporter: windows outermost, every vote [windows, I, J, 3]
in memory. "unrolled" is model.onnx, "tensorrt" model.tensorrt.onnx. `run` needs no torch, and adds rows to FILE. Times
are medians; errors are the largest against the golden float64 answers.
"""

import argparse
import json
import statistics
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from machine import facts

from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Golden
from qcn.verify.speed.cold import first_images

BUDGET_S = 1.0  # spent on each figure, after warming up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("run", type=Path)
    making.add_argument("folder", type=Path)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--backend", choices=["onnxruntime-cpu", "onnxruntime-cuda", "tensorrt"], required=True)
    running.add_argument("--json", type=Path, required=True)
    running.add_argument("--graphs", nargs="+", help="only these, such as naive or 'tensorrt, fp16'")
    running.add_argument("--batches", nargs="+", type=int, default=[1])
    running.add_argument("--level", type=int, help="TensorRT's optimisation level")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.run, arguments.folder)
    else:
        run(arguments)


def make(run_folder: Path, folder: Path) -> None:
    """The bundle's graphs and the naive one."""
    from qcn.export.backends.format import Job
    from qcn.export.backends.onnx.format import UNROLLED_GRAPH
    from qcn.export.backends.tensorrt.format import GRAPH
    from qcn.export.pipeline import open_source
    from qcn.export.request import Request

    for precision in ("fp32", "fp16"):
        request = Request(precision=precision)
        bundle = open_source(run_folder, folder / "bundle", request, Path("data"))
        for graph in (UNROLLED_GRAPH, GRAPH):
            graph.add(Job(bundle, request))
    write_naive(bundle, folder / "naive.onnx")


def write_naive(bundle: Bundle, path: Path) -> None:
    import torch

    from qcn.export.backends.torch.interpreter import Interpreter

    module = Interpreter(bundle.program(), kernels="reference").eval()
    image = torch.zeros(2, *bundle.manifest.input.shape)
    names = ["logit", "pose"]
    with mock.patch("qcn.routing.route", naive_route), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (image,),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=names,
            dynamic_axes={name: {0: "batch"} for name in ("image", *names)},
        )


def naive_route(pose: Any, activation: Any, rotation: Any, beta_u: Any, beta_a: Any, **options: Any) -> Any:
    """`qcn.routing.route`, logistic mode, written down as the formula stands."""
    import torch
    import torch.nn.functional as F

    from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR

    (kh, kw), stride, iterations = options["window"], options["stride"], options["iterations"]
    rows, columns = (pose.shape[3] - kh) // stride + 1, (pose.shape[4] - kw) // stride + 1
    children, parents = pose.shape[1] * kh * kw, rotation.shape[3]

    def windows(maps: Any) -> Any:
        found = F.unfold(maps, (kh, kw), stride=stride)  # [B, planes·k·k, n]
        return found.transpose(1, 2).reshape(-1, maps.shape[1], kh * kw)

    u = windows(pose.flatten(1, 2)).unflatten(1, (-1, 3)).permute(0, 1, 3, 2).reshape(-1, children, 1, 3, 1)
    a = windows(activation).reshape(-1, children, 1)
    turn = rotation.expand(kh, kw, -1, -1, -1, -1).permute(2, 0, 1, 3, 4, 5).reshape(children, parents, 3, 3)
    votes = (turn @ u)[..., 0]  # [N, I, J, 3]; `squeeze` would become an If, which TensorRT refuses
    r = a.expand(-1, -1, parents) / parents
    for t in range(iterations):
        mass = r.sum(1)
        weighted = r[..., None]
        mean = (weighted * votes).sum(1) / (mass + MASS_FLOOR)[..., None]
        apart = votes - mean[:, None]
        variance = (weighted * apart**2).sum(1) / (mass + MASS_FLOOR)[..., None] + VARIANCE_FLOOR
        log_spread = 0.5 * variance.log().sum(-1)
        z = beta_a - (3 * beta_u + log_spread) * mass * (2 * parents / children)
        if t < iterations - 1:
            distance = (apart**2 / (2 * variance[:, None])).sum(-1)
            r = a * torch.softmax((F.logsigmoid(z) - log_spread)[:, None] - distance, dim=2)
    out = mean.reshape(-1, rows, columns, parents, 3).permute(0, 3, 4, 1, 2)
    z = z.reshape(-1, rows, columns, parents).permute(0, 3, 1, 2)
    return out, z if options["logit"] else torch.sigmoid(z)


def run(arguments: argparse.Namespace) -> None:
    """Time the graphs of a folder in one backend, and add the rows to the JSON file."""
    bundle = Bundle.open(arguments.folder / "bundle")
    golden = bundle.golden()
    paths = {"naive": arguments.folder / "naive.onnx"}
    names = {"onnx": "unrolled", "onnx-tensorrt": "tensorrt"}
    graphs = [artefact for artefact in bundle.manifest.files if artefact.format in names]
    paths |= {f"{names[graph.format]}, {graph.precision}": bundle.folder / graph.file for graph in graphs}
    record = facts()
    if arguments.json.exists():
        record = json.loads(arguments.json.read_text())
    record["graphs"] = {name: graph_facts(path) for name, path in paths.items()}
    record["noise_floor"] = errors(golden, {"logit": golden.float32.logit, "pose": golden.float32.pose})
    kept = record.get("results", [])
    rows: list[dict[str, Any]] = []
    for batch in arguments.batches:
        for name, path in paths.items():
            if name not in (arguments.graphs or paths):
                continue
            measure = tensorrt if arguments.backend == "tensorrt" else onnxruntime
            for row in measure(name, path, batch, golden, arguments):
                rows.append({"backend": arguments.backend, "graph": name, "batch": batch, **row})
                print(rows[-1], flush=True)
                arguments.json.write_text(json.dumps({**record, "results": kept + rows}, indent=1) + "\n")


def graph_facts(path: Path) -> dict[str, Any]:
    """Size, number of nodes, and how many of each operator."""
    import onnx

    nodes = onnx.load(path).graph.node
    operators = dict(Counter(node.op_type for node in nodes).most_common())
    return {"bytes": path.stat().st_size, "nodes": len(nodes), "operators": operators}


def errors(golden: Golden, outputs: dict[str, Any]) -> dict[str, float]:
    reference = {"logit": golden.reference.logit, "pose": golden.reference.pose}
    rows = min(len(golden.rows), len(outputs["logit"]))
    return {name: float(np.abs(outputs[name][:rows] - exact[:rows]).max()) for name, exact in reference.items()}


def milliseconds(once: Any, finish: Any = lambda: None) -> float:
    """The median time of one call, `finish` waiting for what it started."""
    for _ in range(3):
        once()
    finish()
    readings: list[float] = []
    began = time.perf_counter()
    while len(readings) < 5 or time.perf_counter() - began < BUDGET_S:
        start = time.perf_counter()
        for _ in range(5):
            once()
        finish()
        readings.append((time.perf_counter() - start) / 5)
    return 1e3 * statistics.median(readings)


def onnxruntime(name: str, path: Path, batch: int, golden: Golden, arguments: argparse.Namespace) -> Any:
    from qcn.export.backends.model_file import ModelFile
    from qcn.export.backends.onnx.runner import OnnxRuntimeRunner
    from qcn.export.backends.runner import Options

    device = arguments.backend.split("-")[1]
    if name.endswith("fp16") and device == "cpu":
        return  # half precision is for GPUs
    given = first_images(golden, batch)
    opened = OnnxRuntimeRunner(ModelFile.at(path), Options(device))
    opened.graph = None  # as it is timed in docs/results.md
    with opened as runner:
        worst = errors(
            golden,
            {
                k: np.concatenate([runner.infer(golden.input[i : i + 1])[k] for i in range(len(golden.rows))])
                for k in ("logit", "pose")
            },
        )
        yield {"variant": runner.name, "ms": milliseconds(lambda: runner.infer(given)), "errors": worst}


def tensorrt(name: str, path: Path, batch: int, golden: Golden, arguments: argparse.Namespace) -> Any:
    from qcn.export.backends.model_file import ModelFile
    from qcn.export.backends.runner import Options
    from qcn.export.backends.tensorrt.build import BuildRequest, build, find
    from qcn.export.backends.tensorrt.runner import TensorRTRunner
    from qcn.export.bundle.manifest import Batch

    precision = "fp16" if name.endswith("fp16") else "fp32"
    cache = arguments.folder / "timings.cache"
    request = BuildRequest(precision, Batch(batch, batch, batch), optimization=arguments.level, timing_cache=cache)
    engine = build(path.read_bytes(), request, find())
    plan = arguments.folder / f"{name.replace(', ', '-')}-{engine.file_name}"
    plan.write_bytes(engine.plan)
    plan.with_suffix(".json").write_text(json.dumps({"facts": engine.facts}))
    about = {"build_seconds": engine.facts["build_seconds"], "level": engine.facts["optimization"]}
    about |= {"plan_bytes": len(engine.plan), "receipt": engine.receipt.as_json()}
    given = first_images(golden, batch)
    for graph in (False, True):
        with TensorRTRunner(ModelFile.at(plan), Options("cuda")) as runner:
            runner.graph = graph
            worst = errors(golden, runner.infer(given))
            runner.upload(given)
            ms = milliseconds(runner.enqueue, runner.synchronize)
            yield {"variant": runner.name + (", CUDA graph" if graph else ""), "ms": ms, "errors": worst, **about}


if __name__ == "__main__":
    main()

"""Speed, memory and error of routing: the reference, torch.compile and the fused operator, on the same weights.

    python benchmarks/routing.py --device cuda --json FILE
    python benchmarks/routing.py --device cpu --json FILE

The full-size QCN on images of 2×32×32, float32. Times are medians of repeated runs, each variant in a process of its
own; one that crashes it has `failed` in its row. `--run FOLDER` takes the trained weights of a run of the full-size
network for the table of errors, beside random ones.
"""

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from measurements import write
from torch import Tensor

from qcn.names import Kernels
from qcn.networks.model import QCN, choose_kernels, qcn
from qcn.routing import route
from qcn.train import checkpoint

# Arithmetic instructions per vote, beside the exponential: 9 to rotate, 3 squares, 6 for Σrd and Σrd²; the second sweep
# also has 3 for the distance, 1 for r and 1 for its sum.
PER_VOTE = (9 + 3 + 6) + (9 + 3 + 6 + 3 + 1 + 1)
Row = dict[str, Any]
KERNELS: tuple[Kernels, ...] = ("reference", "fused")
BUDGET_S = 0.5  # spent on each figure, after warming up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--run", type=Path, help="a run of the full-size QCN, for errors on trained weights")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--only", metavar="TABLE", help="one of inference, training, layers and errors")
    arguments = parser.parse_args()
    record: dict[str, Any] = {"device": arguments.device}
    if arguments.run:
        _, run = checkpoint.load_network(arguments.run)
        record["trained"] = {"dataset": run.settings.dataset, "epochs": (run.best or run.last).epoch}
    for name, about, measure, *given in variants(arguments):
        if arguments.only not in (None, name):
            continue
        try:
            rows = apart(measure, arguments.device, *given)
        except Died as error:
            rows = [{**about, "failed": str(error)}]
        for row in rows:
            print(row, flush=True)
        record.setdefault(name, []).extend(rows)
        write(arguments.json, **record)


def variants(arguments: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Table, what a row says of itself, function and its arguments: for each of what runs in a process of its own."""
    on_gpu = arguments.device == "cuda"
    compiling = (False,) if arguments.no_compile else (False, True)
    for batch in (1, 64, 256) if on_gpu else (1, 16):
        for compiled, kernels in itertools.product(compiling if batch > 1 else (False,), KERNELS):
            about = {"batch": batch, "variant": variant_name(kernels, compiled)}
            yield "inference", about, inference, batch, kernels, compiled
    for kernels, compiled in itertools.product(KERNELS, compiling):
        batch = 64 if on_gpu else 8
        about = {"batch": batch, "variant": variant_name(kernels, compiled)}
        yield "training", about, training, batch, kernels, compiled
    yield "layers", {"layer": "all"}, layers
    yield "errors", {"weights": "random", "layer": "all"}, errors, None
    if arguments.run:
        yield "errors", {"weights": "trained", "layer": "all"}, errors, arguments.run


def variant_name(kernels: Kernels, compiled: bool) -> str:
    return f"{kernels}, torch.compile" if compiled else kernels


def seeded(device: str, kernels: Kernels = "auto") -> QCN:
    """The full-size network with the same weights in every process."""
    torch.manual_seed(0)
    network = qcn(2, 5).to(device)
    choose_kernels(network, kernels)
    return network


def milliseconds(run: Callable[[], Any], device: torch.device) -> float:
    """The median time of one run."""
    for _ in range(3):
        run()
    once = _seconds(run, 1, device)
    each = max(1, int(0.02 / once))  # runs in one reading of the clock
    readings = [_seconds(run, each, device) for _ in range(max(5, int(BUDGET_S / (once * each))))]
    return 1e3 * statistics.median(readings)


def _seconds(run: Callable[[], Any], times: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(times):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / times


def graph_of(run: Callable[[], Any]) -> Callable[[], None]:
    """The same work as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _peak(device: torch.device, run: Callable[[], Any]) -> float | None:
    """GiB that torch held at most during a run, beyond what it held before."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


@torch.inference_mode()
def inference(device_name: str, batch: int, kernels: Kernels, compiled: bool) -> list[Row]:
    """One image batch to class capsules; on a GPU also as a CUDA graph."""
    device, network = torch.device(device_name), seeded(device_name, kernels).eval()
    module: Any = torch.compile(network, fullgraph=True, dynamic=False) if compiled else network
    image = torch.randn(batch, 2, 32, 32, device=device)

    def run() -> Any:
        return module(image)

    run()
    name = variant_name(kernels, compiled)
    runs: dict[str, Callable[[], Any]] = {name: run}
    if device.type == "cuda":
        runs[f"{name}, CUDA graph"] = graph_of(run)
    return [
        {"batch": batch, "variant": name, "ms": milliseconds(run, device), "peak_gib": _peak(device, run)}
        for name, run in runs.items()
    ]


def training(device_name: str, batch: int, kernels: Kernels, compiled: bool) -> list[Row]:
    """A whole step: forward, cross-entropy, backward, AdamW."""
    device, network = torch.device(device_name), seeded(device_name, kernels).train()
    image, label = torch.randn(batch, 2, 32, 32, device=device), torch.randint(5, (batch,), device=device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    # As `qcn train --compile` does: on a GPU the step's launches become CUDA graphs.
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    module: Any = torch.compile(network, fullgraph=True, mode=mode) if compiled else network

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(image).logit, label).backward()
        optimizer.step()

    step()
    peak = _peak(device, step)  # now: a graph that is replayed allocates nothing
    name = variant_name(kernels, compiled)
    return [{"batch": batch, "variant": name, "ms": milliseconds(step, device), "peak_gib": peak}]


@torch.no_grad()
def problems(network: QCN, image: Tensor) -> list[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """The input of each capsule layer: name, arrays, options."""
    given: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: given.update({name: inputs}))
        for name, layer in capsule_layers(network)
    ]
    network(image)
    for hook in hooks:
        hook.remove()
    result = []
    for name, layer in capsule_layers(network):
        rotation, window, stride = layer.rotors("reference"), given[name][0].shape[-2:], 1
        if layer is network.class_capsules:
            rotation = rotation[None, None]
        else:
            window, stride = (layer.kernel, layer.kernel), layer.stride
        tensors = (*given[name], rotation, layer.rotors.beta_u, layer.rotors.beta_a)
        inputs = tuple(x.detach().clone() for x in tensors)
        result.append((name, inputs, {"window": tuple(window), "stride": stride}))
    return result


def capsule_layers(network: QCN) -> list[tuple[str, Any]]:
    return [*((f"layer {i + 1}", layer) for i, layer in enumerate(network.layers)), ("classes", network.class_capsules)]


@torch.no_grad()
def layers(device_name: str) -> list[Row]:
    """Where the time of the fused operator goes, and how near it comes to what a matrix product reaches here."""
    device, network = torch.device(device_name), seeded(device_name).eval()
    size = 4096 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device)
    torch.backends.cuda.matmul.allow_tf32 = False
    ceiling = size**3 / milliseconds(lambda: a @ a, device) / 1e6
    rows: list[Row] = [{"layer": "float32 matrix product", "gfma_per_s": ceiling}]
    for batch in (1, 64, 256) if device.type == "cuda" else (1, 16):
        for name, inputs, options in problems(network, torch.randn(batch, 2, 32, 32, device=device)):

            def run(inputs: Any = inputs, options: Any = options) -> Any:
                return route(*inputs, **options, kernels="fused")

            out = run()[1]
            children = inputs[0].shape[1] * options["window"][0] * options["window"][1]
            votes = out.numel() * children
            ms = milliseconds(graph_of(run) if device.type == "cuda" else run, device)
            rate = votes * PER_VOTE / ms / 1e6
            rows.append(
                {
                    "layer": name,
                    "batch": batch,
                    "votes": votes,
                    "ms": ms,
                    "gfma_per_s": rate,
                    "of_matrix_product": rate / ceiling,
                }
            )
    return rows


def errors(device_name: str, trained: Path | None) -> list[Row]:
    """Largest error against the float64 reference, forward and gradients, beside the float32 reference's own."""
    device = torch.device(device_name)
    network = checkpoint.load_network(trained)[0].to(device) if trained else seeded(device_name).eval()
    assert isinstance(network, QCN)
    rows = []
    for name, inputs, options in problems(network, torch.randn(2, network.in_channels, 32, 32, device=device)):
        wide = [x.double().requires_grad_() for x in inputs]
        exact = route(*wide, **options, kernels="reference")
        ask = [torch.randn_like(x) for x in exact]
        exact_gradients = torch.autograd.grad(exact, wide, ask)
        for kernels in KERNELS:
            narrow = [x.clone().requires_grad_() for x in inputs]
            out = route(*narrow, **options, kernels=kernels)
            gradients = torch.autograd.grad(out, narrow, [x.float() for x in ask])
            named = ("pose", "activation", "d pose", "d activation", "d rotation", "d beta_u", "d beta_a")
            pairs = zip(named, (*out, *gradients), (*exact, *exact_gradients), strict=True)
            worst = {of: float((x.double() - y).detach().abs().max()) for of, x, y in pairs}
            rows.append({"weights": "trained" if trained else "random", "layer": name, "kernels": kernels, **worst})
    return rows


class Died(Exception):
    """The process ended without an answer; says how."""


def apart(measure: Callable[..., list[Row]], *arguments: Any) -> list[Row]:
    """Call `measure` in a new process: torch's Inductor, for one, can crash the one it runs in. Raises Died."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(there, measure, arguments))
    child.start()
    there.close()
    try:
        rows, failure = here.recv()
    except EOFError:
        rows, failure = None, None
    child.join()
    if rows is None:
        raise Died(failure or f"ended with {child.exitcode}")
    return list(rows)


def _answer(there: Connection, measure: Callable[..., list[Row]], arguments: tuple[Any, ...]) -> None:
    try:
        there.send((measure(*arguments), None))
    except Exception as error:  # of any kind: the other variants go on
        there.send((None, f"{type(error).__name__}: {error}".splitlines()[0]))


if __name__ == "__main__":
    main()

"""What larger images cost, and that networks for them learn: the figures of "Larger images" in docs/results.md.

    python benchmarks/larger_images.py cost --json benchmarks/results/larger-images-cost.json
    python benchmarks/larger_images.py learning --json benchmarks/results/larger-images-learning.json

`cost` compares the network that is chosen for a size with the one for 32×32 on the same images. Times are CPU time of
one thread, the least of many. `learning` trains qcn-tiny on the toys of viewpoints-demo rendered in one, two and three
times the resolution: the same objects, views and split, cropped at random as there.
"""

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from machine import facts

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from bundles import bundle_of  # noqa: E402
from routing import PER_VOTE  # noqa: E402

from qcn import data  # noqa: E402
from qcn.data.splits import by_viewpoint  # noqa: E402
from qcn.data.viewpoints.dataset import DEMO, load_viewpoints  # noqa: E402
from qcn.evaluate import measure  # noqa: E402
from qcn.export.backends.candidates import create as create_runner  # noqa: E402
from qcn.export.bundle import WEIGHTS  # noqa: E402
from qcn.export.bundle.golden import Answers, Golden  # noqa: E402
from qcn.export.program import Affine, Convolution, Program, Route  # noqa: E402
from qcn.export.reference import Evaluation, Inputs, assembled  # noqa: E402
from qcn.model import QCN  # noqa: E402
from qcn.train.loop import Training  # noqa: E402
from qcn.train.settings import settings_from  # noqa: E402
from qcn.train.validation import predict  # noqa: E402
from qcn.zoo import create, parameter_count  # noqa: E402

SIZES = (32, 64, 96)
BACKENDS = ("torch-fused", "native")
DEMO_SETTINGS = {"model": "qcn-tiny", "loss": "spread", "lr": 0.02, "batch_size": 27}  # those of `make demo`
TURNS = 60
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    costing = commands.add_parser("cost")
    learning = commands.add_parser("learning")
    learning.add_argument("--epochs", type=int, default=18)
    learning.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    learning.add_argument("--data-dir", type=Path, default=Path("data"))
    for command in (costing, learning):
        command.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    record: dict[str, Any] = {**facts(), "results": []}
    if arguments.command == "learning":
        record |= {"epochs": arguments.epochs, "settings": DEMO_SETTINGS}
        rows = learned(arguments.epochs, arguments.seeds, arguments.data_dir)
    else:
        rows = costs()
    for row in rows:
        print(row, flush=True)
        record["results"].append(row)
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


# ---- cost ------------------------------------------------------------------------------------------------------------


def costs() -> Iterator[Row]:
    """Networks for colour images of ten classes: parameters, multiply-adds and CPU time per image."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    runs: list[dict[str, Callable[[], object]]] = []
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        for name, size in itertools.product(("qcn", "qcn-tiny"), SIZES):
            for made_for in dict.fromkeys((32, size)):
                torch.manual_seed(0)
                network = create(name, in_channels=3, classes=10, size=made_for).eval()
                assert isinstance(network, QCN)
                with mock.patch("bundles.golden_of", fused_answers):
                    bundle = bundle_of(folder / f"{name}-{size}-{made_for}", network, size, size)
                program, weights, image = bundle.program(), bundle.folder / WEIGHTS, bundle.golden().input[:1]
                rows.append(
                    {
                        "model": name,
                        "size": size,
                        "made_for": made_for,
                        "parameters": parameter_count(network),
                        "grid": program.shapes["pose.projection"][-1],
                        **multiply_adds(program),
                    }
                )
                runners = {
                    backend: opened.enter_context(create_runner(backend, weights, threads=1)) for backend in BACKENDS
                }
                runs.append({backend: partial(runner.infer, image) for backend, runner in runners.items()})
        for row, times in zip(rows, cpu_milliseconds(runs), strict=True):
            yield {**row, "cpu_ms": times}


def cpu_milliseconds(runs: list[dict[str, Callable[[], object]]]) -> list[dict[str, float]]:
    """The least CPU time of each run, all taking turns: other work on the machine can only add to it."""
    least = [dict.fromkeys(of, math.inf) for of in runs]
    for _ in range(TURNS):
        for times, of in zip(least, runs, strict=True):
            for backend, run in of.items():
                run()  # the caches are another network's
                started = time.process_time()
                run()
                times[backend] = min(times[backend], 1e3 * (time.process_time() - started))
    return least


@torch.inference_mode()
def fused_answers(network: QCN, given: Inputs, classes: tuple[str, ...]) -> Golden:
    """In place of golden answers, which nothing reads here: in float64, at 96×96, they would take minutes."""
    pose, logit = network(torch.from_numpy(given.input).float())
    single = Answers(logit.numpy(), pose.numpy())
    exact = Answers(logit.double().numpy(), pose.double().numpy())
    return assembled(given, classes, Evaluation(exact, {}, {}), Evaluation(single, {}, {}), {})


def multiply_adds(program: Program) -> dict[str, int]:
    """Of the extractor, and of routing: its votes, and the arithmetic that each takes."""
    extractor = votes = 0
    for operation in program.operations:
        if isinstance(operation, Route):
            children = program.shapes[operation.activation][0] * math.prod(operation.window)
            votes += children * math.prod(operation.shape)
        elif isinstance(operation, Convolution):
            each = sum(math.prod(program.arrays[weight].shape[1:]) for weight in operation.weights)
            extractor += each * math.prod(operation.shape)
        elif isinstance(operation, Affine):
            extractor += math.prod(operation.shape)
    return {"extractor": extractor, "votes": votes, "routing": votes * PER_VOTE}


# ---- learning --------------------------------------------------------------------------------------------------------


def learned(epochs: int, seeds: list[int], data_dir: Path) -> Iterator[Row]:
    """qcn-tiny on viewpoints-demo at one, two and three times its resolution."""
    for seed, times in itertools.product(seeds, (1, 2, 3)):
        name = enlarged_demo(times)
        splits = data.load(name, data_dir)
        with tempfile.TemporaryDirectory() as folder:
            settings = settings_from("best", dataset=name, epochs=epochs, seed=seed, **DEMO_SETTINGS)
            training = Training(settings, splits, Path(folder), torch.device("cpu"))
            run = training.run()
        tests = {
            split: measure(split, images, predict(training.average, images, run.preprocessing, training.device))
            for split, images in splits.tests.items()
        }
        yield {
            "size": run.model.size,
            "seed": seed,
            "parameters": parameter_count(training.network),
            "seconds": sum(row.seconds for row in run.history),
            "validation_error": run.history[-1].validation_error,
            "validation_errors": [row.validation_error for row in run.history],
            **{split: vars(result.overall) for split, result in tests.items()},
        }


def enlarged_demo(times: int) -> str:
    """Adds viewpoints-demo in `times` its resolution to the data sets; returns its name."""
    demo = data.find("viewpoints-demo")
    variant = replace(DEMO, size=times * DEMO.size)
    size = times * (demo.preprocessing.crop or DEMO.size)
    name = f"viewpoints-demo-{size}"
    data.DATASETS[name] = replace(
        demo,
        name=name,
        size=variant.size,
        load=lambda folder: by_viewpoint(load_viewpoints(folder, variant), demo.name, "azimuth", pooled=True),
        preprocessing=replace(demo.preprocessing, crop=size),
    )
    return name


if __name__ == "__main__":
    main()

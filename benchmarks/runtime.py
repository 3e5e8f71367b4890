"""What Python adds to libqcn: `qcn.load(BUNDLE).predict(array)` beside the C++ program qcn-bench, picture by picture.

    qcn export cifar10 --format native --out runs/export/cifar10-qcn --data-dir DATA
    python benchmarks/runtime.py runs/export/cifar10-qcn --json benchmarks/results/runtime-cpu.json

Both go from pixels to an answer by the native backend, with the same threads and pictures of the same size, in many
short turns: other work on the machine slows both, and the least time of all turns is what the machine can do. qcn-tiny,
which is measured too, has random weights: they do not change its time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import facts

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from bundles import bundle_of  # noqa: E402

import qcn  # noqa: E402
from qcn.data.spec import Preprocessing  # noqa: E402
from qcn.export.bundle import Bundle  # noqa: E402
from qcn.model import qcn_tiny  # noqa: E402
from qcn.runtime import Model  # noqa: E402

BENCH = ROOT / "build" / "programs" / "qcn-bench"
WARM_UP_S = 0.2  # as qcn-bench
SIZES = ((32, 32), (640, 480))
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each turn")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    record: Row = {**facts(), "threads": arguments.threads, "turns": arguments.turns, "results": []}
    with tempfile.TemporaryDirectory() as folder:
        for bundle in (*arguments.bundles, tiny(Path(folder) / "qcn-tiny")):
            for size in SIZES:
                row = compared(bundle, size, arguments.threads, arguments.turns, arguments.seconds)
                print(row, flush=True)
                record["results"].append(row)
    arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def tiny(folder: Path) -> Path:
    """A bundle of qcn-tiny for colour pictures of 32×32 and ten classes."""
    torch.manual_seed(0)
    return bundle_of(folder, qcn_tiny(3, 10).eval(), 32, 32, spec=Preprocessing(standardise="image", fit="crop")).folder


def compared(bundle: Path, size: tuple[int, int], threads: int, turns: int, seconds: float) -> Row:
    """Milliseconds of both, the least and the median, and what Python has over the program, as a share of its time."""
    name, model = Bundle.open(bundle).manifest.name, qcn.load(bundle, "native", threads=threads)
    programs, pythons = [], []
    for _ in range(turns):
        programs.append(by_program(bundle, size, threads, seconds))
        pythons.append(by_python(model, size, seconds))
    program = {"least_ms": min(low for low, _ in programs), "median_ms": statistics.median(mid for _, mid in programs)}
    python = {"least_ms": min(low for low, _ in pythons), "median_ms": statistics.median(mid for _, mid in pythons)}
    over = {of: python[of] / program[of] - 1 for of in program}
    return {
        "model": name,
        "size": list(size),
        "program": program,
        "python": python,
        "over": {"least": over["least_ms"], "median": over["median_ms"]},
    }


def by_program(bundle: Path, size: tuple[int, int], threads: int, seconds: float) -> tuple[float, float]:
    """The least and the median time of qcn-bench, in milliseconds."""
    options = {"batch": 1, "backend": "native", "threads": threads, "duration": seconds, "size": f"{size[0]}x{size[1]}"}
    command = [str(BENCH), str(bundle), "--json", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    latency = json.loads(done.stdout)["latency_ms"]
    return latency["min"], latency["p50"]


def by_python(model: Model, size: tuple[int, int], seconds: float) -> tuple[float, float]:
    """The same of `predict`."""
    picture = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    warm, times = time.perf_counter() + WARM_UP_S, []
    while time.perf_counter() < warm:
        model.predict(picture)
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        model.predict(picture)
        times.append(1e3 * (time.perf_counter() - start))
    return min(times), statistics.median(times)


if __name__ == "__main__":
    main()

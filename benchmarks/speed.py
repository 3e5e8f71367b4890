"""How long one answer takes, by every backend that runs here: the tables of docs/speed.md and of the README.

    qcn export cifar10 --format onnx,torchscript --out A && qcn calibrate A --out B
    python benchmarks/speed.py A B --backends native,onnxruntime,torchscript
    python benchmarks/speed.py A B --sets --backends native          # as on CPUs with fewer instructions
    python benchmarks/speed.py --gather OUT/*/benchmark-b*.json         # measured elsewhere by `qcn benchmark --json`
    python benchmarks/speed.py A B --history                         # before a release: rows of benchmarks/history.csv

Times are those of `qcn benchmark`, in turns over all bundles, so that other work on the machine slows all of them. A
row has the median over the turns of each turn's median, and the least time of all: compare medians with medians, and
only on a quiet machine. Rows go to benchmarks/results/speed.csv.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measurements import RESULTS, ROOT, Row, grouped, put

import qcn

FILE, HISTORY = RESULTS / "speed.csv", ROOT / "benchmarks" / "history.csv"
KEY = ("machine", "network", "backend", "file", "precision", "batch", "variant", "instruction_set")
# In the order of deploy/kernels/for_this_cpu.h, and what /proc/cpuinfo calls them. Every CPU has those without a flag.
SETS = {
    "aarch64": {"neon": "", "neondot": "asimddp", "neonfp16": "asimdhp"},
    "x86_64": {
        "sse2": "",
        "avx2": "avx2",
        "avxvnni": "avx_vnni",
        "avx512": "avx512f",
        "avx512vnni": "avx512_vnni",
        "avx512fp16": "avx512_fp16",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="*", metavar="BUNDLE")
    parser.add_argument("--backends", default="native")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each backend in a turn")
    parser.add_argument("--sets", action="store_true", help="with each instruction set of this CPU (native only)")
    parser.add_argument("--gather", type=Path, nargs="+", metavar="RESULT", default=[])
    parser.add_argument("--history", action="store_true", help=f"write to {HISTORY.name}, as of this release")
    parser.add_argument("--csv", type=Path, default=FILE)
    arguments = parser.parse_args()
    sets = instruction_sets() if arguments.sets else [""]
    turns = [times(path, "") for path in arguments.gather]
    for _ in range(arguments.turns):
        for bundle in arguments.bundles:
            turns += [measure(bundle, one, arguments) for one in sets]
    rows = merge([row for turn in turns for row in turn])
    for row in rows:
        print(row)
    if arguments.history:
        put(HISTORY, [{"release": qcn.__version__, **row} for row in rows], "release", "commit", *KEY)
    else:
        put(arguments.csv, rows, *KEY)


def instruction_sets() -> list[str]:
    """The instruction sets that this CPU has."""
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii").split()
    return [name for name, flag in SETS[platform.machine()].items() if not flag or flag in flags]


def measure(bundle: Path, instruction_set: str, arguments: argparse.Namespace) -> list[Row]:
    """One turn: the rows of `qcn benchmark`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "benchmark.json"
        options = ("--backends", arguments.backends, "--batch", arguments.batch, "--duration", arguments.seconds)
        command = [sys.executable, "-m", "qcn", "benchmark", bundle, *options, "--trust", "--json", file]
        environment = {**os.environ, **({"QCN_INSTRUCTION_SET": instruction_set} if instruction_set else {})}
        subprocess.run([*map(str, command)], env=environment, check=True, stdout=subprocess.DEVNULL)
        return times(file, instruction_set)


def times(file: Path, instruction_set: str) -> list[Row]:
    """The rows of one result of `qcn benchmark`."""
    record = json.loads(file.read_text(encoding="utf-8"))
    machine = record["machine"]
    where = [machine["system"].split()[-1], f"{machine['cores']} cores", (machine["gpu"] or {}).get("name")]
    return [
        {
            "machine": ", ".join(filter(None, (*where, machine["processor"]))),
            "network": record["bundle"],
            **{name: one[name] for name in ("backend", "file", "precision", "batch", "variant")},
            "instruction_set": instruction_set,
            "median_ms": one["latency_ms"]["p50"],
            "least_ms": one["latency_ms"]["min"],
            "p99_ms": one["latency_ms"]["p99"],
            "compute_ms": one["compute_ms"]["p50"] if one["compute_ms"] else "",
            "images_per_second": one["images_per_second"],
            "energy_mj": one["energy_mj"] or "",
        }
        for one in record["results"].values()
        if one["latency_ms"]
    ]


def merge(rows: Sequence[Row]) -> list[Row]:
    """Several turns of one thing as one row: the median of their figures, and the least time of all."""
    merged = []
    for turns in grouped(rows, lambda row: tuple(str(row[name]) for name in KEY)).values():
        figures = [name for name, value in turns[0].items() if isinstance(value, float)]
        middle = {name: float(f"{statistics.median(turn[name] for turn in turns):.4g}") for name in figures}
        least = float(f"{min(turn['least_ms'] for turn in turns):.4g}")
        merged.append({**turns[0], **middle, "least_ms": least})
    return merged


if __name__ == "__main__":
    main()

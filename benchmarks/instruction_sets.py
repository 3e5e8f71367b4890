"""What calibrated networks take with each instruction set of this CPU, beside the networks that they were made from.

    qcn export cifar10 --format native --out BUNDLE && qcn calibrate BUNDLE --out CALIBRATED
    python benchmarks/instruction_sets.py BUNDLE CALIBRATED --json benchmarks/results/instruction-sets-x86_64.json

`QCN_INSTRUCTION_SET` keeps libqcn from using later sets than the one that it names: so one machine shows what CPUs
without them would take. Each is timed by qcn-bench in many short turns, one after the other, on two threads; the least
time of all turns counts. Loading runs the golden images, so a set that answers wrongly has no time. Needs no torch.
"""

import argparse
import json
import os
import platform
import subprocess
from pathlib import Path

from machine import facts

from qcn.verify.machine import processor

ROOT = Path(__file__).parent.parent
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
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--bench", type=Path, default=ROOT / "build" / "programs" / "qcn-bench")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each turn")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii").split()
    sets = [name for name, flag in SETS[platform.machine()].items() if not flag or flag in flags]
    runs = [(bundle, name) for bundle in arguments.bundles for name in sets]
    turns = [[milliseconds(arguments.bench, *run, arguments.seconds) for run in runs] for _ in range(arguments.turns)]
    results = [
        {"model": name_of(bundle), "calibrated": calibrated(bundle), "set": name, "least_ms": min(times)}
        for (bundle, name), times in zip(runs, zip(*turns, strict=True), strict=True)
    ]
    for row in results:
        print(row)
    record = {**facts(), "processor": processor(), "threads": 2, "turns": arguments.turns, "results": results}
    arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def milliseconds(bench: Path, bundle: Path, instruction_set: str, seconds: float) -> float:
    """The least time of an image, without pre-processing, in one turn."""
    options = ["--backend=native", "--threads=2", "--infer", f"--duration={seconds}", "--json"]
    environment = os.environ | {"QCN_INSTRUCTION_SET": instruction_set}
    done = subprocess.run([bench, bundle, *options], env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["latency_ms"]["min"])


def name_of(bundle: Path) -> str:
    return str(json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["name"])


def calibrated(bundle: Path) -> bool:
    return (bundle / "calibration.json").exists()


if __name__ == "__main__":
    main()

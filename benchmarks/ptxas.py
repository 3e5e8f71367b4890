"""Registers, spills and shared memory of the CUDA routing kernels, by kernel and architecture.

    python benchmarks/ptxas.py --json FILE [--architectures 87 90]

Needs nvcc, not a GPU; a minute of one core per architecture. Compiles for all that deploy/CMakeLists.txt compiles for,
unless told otherwise.
"""

import argparse
import ctypes
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from machine import facts

SOURCE = Path(__file__).parents[1] / "deploy" / "kernels" / "em_routing.cu"
REPORT = re.compile(
    r"Compiling entry function '\w*\d(route|route_half)INS\w*TileI([\w]+?)EEEv\w*' for 'sm_(\d+)'\n.*\n"
    r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n.*Used (\d+) registers"
)

# Xavier, Turing, A100, RTX 30, Orin, RTX 40, Hopper, Blackwell, Thor, RTX 50.
ARCHITECTURES = ["72", "75", "80", "86", "87", "89", "90", "100", "110", "120"]

ARITHMETIC = ("single", "half")  # qcn_cuda_arithmetic
TILE = ("arithmetic", "parent_lanes", "windows", "splits", "stages", "cluster")


class Tile(ctypes.Structure):
    """qcn_cuda_routing_tile of em_routing_cuda.h."""

    _fields_ = [(name, ctypes.c_int) for name in ("windows", "splits", "threads", "stages", "shared_bytes", "cluster")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", nargs="+", help="default: all that this nvcc knows")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libem_routing.so"
        rows = registers(arguments.architectures or offered(), library)
        shared = shared_bytes(library)
    for row in rows:
        row["shared_bytes"] = shared[tuple(row[name] for name in TILE)]
        print(row)
    record = facts()
    record["versions"]["nvcc"] = version()
    record["results"] = rows
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")


def offered() -> list[str]:
    listing = subprocess.run(["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    return [a for a in ARCHITECTURES if f"sm_{a}" in listing]


def registers(architectures: list[str], library: Path) -> list[dict[str, Any]]:
    """Compile, and read what ptxas says."""
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    flags = ["-O3", "-std=c++17", "--threads=0", "-shared", "-Xcompiler=-fPIC", "-Xptxas=-v"]
    command = ["nvcc", *flags, *targets, str(SOURCE), "-o", str(library)]
    output = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = []
    for kernel, tile, architecture, stack, stores, loads, used in REPORT.findall(output.stdout + output.stderr):
        numbers = [int(n) for n in re.findall(r"Li(\d+)E", tile + "E")]
        if kernel == "route_half":  # HalfTile of em_routing_half.cuh: a warp has 16 windows and 16 parents
            (window_warps, child_warps, cluster, *_), stages = numbers, 2
            parent_lanes, window_lanes, per_thread = 4, 8, 2
        else:
            parent_lanes, window_lanes, per_thread, window_warps, child_warps, stages, cluster = numbers
        if int(architecture) < (90 if cluster > 1 else 80 if kernel == "route_half" else 0):
            continue  # an empty kernel: never called there
        rows.append(
            {
                "architecture": int(architecture),
                "arithmetic": "half" if kernel == "route_half" else "single",
                "parent_lanes": parent_lanes,
                "windows": window_lanes * per_thread * window_warps,
                "splits": 32 // (parent_lanes * window_lanes) * child_warps,
                "threads": 32 * window_warps * child_warps,
                "stages": stages,
                "cluster": cluster,
                "registers": int(used),
                "spilled_bytes": int(stack) + int(stores) + int(loads),
            }
        )
    return sorted(rows, key=lambda row: list(row.values()))


def shared_bytes(library: Path) -> dict[tuple[Any, ...], int]:
    """By what TILE names, from the library: the kernels' shared memory is dynamic."""
    routing = ctypes.CDLL(str(library))
    routing.qcn_cuda_routing_describe.restype = Tile
    found = {}
    for arithmetic, name in enumerate(ARITHMETIC):
        for parents in (8, 16, 32, 64) if name == "single" else (16,):
            # qcn_routing_shape: ones but for parents
            shape = (ctypes.c_int * 11)(1, 1, 1, 1, 1, 1, 1, parents, 1, 0, 0)
            for tile in range(routing.qcn_cuda_routing_tiles()):
                t = routing.qcn_cuda_routing_describe(ctypes.byref(shape), arithmetic, tile)
                found[name, parents // 4, t.windows, t.splits, t.stages, t.cluster] = t.shared_bytes
    return found


def version() -> str:
    answer = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"V([\d.]+)", answer)[0]


if __name__ == "__main__":
    main()

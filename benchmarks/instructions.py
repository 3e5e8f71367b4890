"""The instructions in the loops of the CUDA routing kernels, by kernel: what a sweep over the children takes.

    python benchmarks/instructions.py [--architecture 90] [--cubin FILE]

Needs nvcc and nvdisasm (Triton brings one), not a GPU; two minutes of one core. For each innermost loop that
multiplies it prints the lengths of all paths through it, shortest first, and the opcodes of the shortest. A turn of the
loops has two children. In half precision the shortest path of a later sweep is the usual one, the second that of a
child far from all parents, and the third goes on in float32. docs/kernels.md quotes HalfTile<1, 4, 1, 2> and
Tile<8, 4, 2, 1, 4, 2, 1>.
"""

import argparse
import collections
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "deploy" / "kernels" / "em_routing.cu"
SHOWN = ("HMMA", "FFMA", "FADD", "FMUL", "HMUL2", "HFMA2", "MUFU", "F2FP", "SHFL", "LDS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="90")
    parser.add_argument("--cubin", type=Path, help="an em_routing.cu that was compiled before")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cubin = arguments.cubin or Path(folder) / "em_routing.cubin"
        if not arguments.cubin:
            flags = ["-std=c++17", "-O3", f"-arch=sm_{arguments.architecture}", "-cubin"]
            subprocess.run(["nvcc", *flags, str(SOURCE), "-o", str(cubin)], check=True)
        listing = subprocess.run([disassembler(), "-c", cubin], capture_output=True, text=True, check=True).stdout
    sections = re.split(r"\n\.text\.\w*?\d(route|route_half)INS_\d+(\w+?)I((?:Li\d+E)+)E\w*:\n", listing)
    for kernel, tile, numbers, body in zip(sections[1::4], sections[2::4], sections[3::4], sections[4::4], strict=True):
        name = f"{kernel}<{tile}<{', '.join(re.findall('[0-9]+', numbers))}>>"
        for lengths, shortest in loops(body.partition("\t.section")[0]):
            counts = collections.Counter(re.split(r"[. ]", one)[0] for one in shortest)
            opcodes = ", ".join(f"{counts[opcode]} {opcode}" for opcode in SHOWN if counts[opcode])
            paths = " or ".join(map(str, lengths)) if len(lengths) < 5 else f"{lengths[0]} to {lengths[-1]}"
            print(f"{name}: {paths} instructions; {opcodes}")


def disassembler() -> str:
    if found := shutil.which("nvdisasm"):
        return found
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm")


def loops(body: str) -> Iterator[tuple[list[int], list[str]]]:
    """For each innermost loop of a kernel that multiplies: the lengths of its paths, and the shortest path."""
    labels: dict[str, int] = {}
    code: list[str] = []
    for line in body.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            code.append(instruction[1].strip())
    jumps = {at: labels[to[1]] for at, one in enumerate(code) if (to := re.search(r"BRA.*(\.L_x_\d+)", one))}
    back = {at: to for at, to in jumps.items() if to < at}
    for end, start in back.items():
        inner = not any(start <= to and at < end for at, to in back.items())
        if inner and sum("HMMA" in one or "FFMA" in one for one in code[start:end]) > 12:
            yield paths(code, jumps, start, end)


def paths(code: list[str], jumps: dict[int, int], start: int, end: int) -> tuple[list[int], list[str]]:
    """The lengths of all paths through a loop, and the instructions of the shortest. Only its last jump goes back."""
    before: dict[int, dict[int, int]] = {start: {1: start}}  # by instruction and length up to it: the one before
    for at in range(start, end):
        to = jumps.get(at)
        following = {at + 1} if to is None or code[at].startswith("@") else set()
        if to is not None and at < to <= end:  # else it leaves the loop
            following.add(to)
        for there in following:
            for length in before.get(at, {}):
                before.setdefault(there, {}).setdefault(length + 1, at)
    lengths = sorted(before[end])
    shortest, at = [], end
    for length in range(lengths[0], 0, -1):
        shortest.append(re.sub(r"^@!?U?P\w+\s+", "", code[at]))
        at = before[at][length]
    return lengths, shortest


if __name__ == "__main__":
    main()

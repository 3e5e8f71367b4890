"""Compiles the Triton kernels for a GPU that need not be there, and counts the instructions of their sweeps.

    python tests/kernels/machine_code.py 90

prints, as JSON, for each kernel its registers, bytes of stack, and the instructions per child of the first and of a
later sweep. A process of its own, since tests set TRITON_INTERPRET, under which nothing is compiled.
"""

import collections
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from qcn.kernels.triton_half import half_kernel
from qcn.kernels.triton_routing import WARPS, Geometry, forward_kernel

# The first capsule layer of the full-size QCN.
LAYER = Geometry(32, 16, 16, 5, 5, 1, 12, 12, 800, 16, 16, 2, False, False, False)
TYPES = {"windows": "i32", "cancelled": "*i32"}
# By name: the kernel, what it is compiled for, the type of its rotations, and the children of a turn of its loops.
KERNELS: dict[str, tuple[Any, dict[str, Any], str, int]] = {
    "single": (forward_kernel, {"G": LAYER, "SAVE": False, "K": 1, "WINDOWS_PER_THREAD": 2}, "*fp32", 2),
    **{f"half, split {k}": (half_kernel, {"G": LAYER, "K": k}, "*fp16", 4) for k in (1, 2, 4)},
}


def compiled(kernel: Any, constants: dict[str, Any], rotations: str, architecture: int) -> bytes:
    names = kernel.arg_names
    given = {name: TYPES.get(name, "*fp32") for name in names} | {"rotation": rotations}
    signature = {name: "constexpr" if name in constants else given[name] for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = GluonASTSource(kernel, signature, {(names.index(name),): x for name, x in constants.items()}, aligned)
    options = {"num_warps": WARPS, "enable_fp_fusion": True}
    code: bytes = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options).asm["cubin"]
    return code


def facts(code: bytes, children: int) -> dict[str, Any]:
    """What Triton's own cuobjdump and nvdisasm say of it."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        usage, listing = (
            subprocess.run([tools / tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for tool, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    first, later = loops(listing)
    return {
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "stack": sum(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", usage))),
        "per_child": [sum(loop.values()) / children for loop in (first, later)],
        "products_per_child": [loop["HMMA"] / children for loop in (first, later)],
    }


def loops(listing: str) -> list[collections.Counter[str]]:
    """The instructions of each loop: from a label to the branch back to it."""
    labels: dict[str, int] = {}
    code: list[str] = []
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            code.append(re.sub(r"^@!?U?P\w+\s+", "", instruction[1]))
    found = []
    for at, instruction in enumerate(code):
        target = re.search(r"BRA.*(\.L_x_\d+)", instruction)
        if target and labels[target[1]] < at:  # and not the end of the program, which branches to itself
            found.append(collections.Counter(re.split(r"[. ]", one)[0] for one in code[labels[target[1]] : at + 1]))
    return found


if __name__ == "__main__":
    made = {
        name: facts(compiled(kernel, constants, rotations, int(sys.argv[1])), children)
        for name, (kernel, constants, rotations, children) in KERNELS.items()
    }
    print(json.dumps(made, indent=1))

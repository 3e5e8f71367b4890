"""ExecuTorch: the program as a .pte file for phones and small devices, its operators by XNNPACK wherever that has them.

What XNNPACK does not take runs by ExecuTorch's portable kernels, one at a time and by one thread; the facts count both.
Memory is planned ahead for the batch, so the batch is fixed. The file says in a method of its own, `metadata`, what its
outputs are called.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from qcn.export.backends.executorch.runner import quiet
from qcn.export.backends.torch.interpreter import Interpreter, facts_of
from qcn.export.program.program import Program


def write_executorch(
    program: Program, path: Path, *, batch: int, every_layer: bool = False, metadata: dict[str, str]
) -> dict[str, Any]:
    """Write the program for batches of `batch` images to `path`; returns its facts, which are in the file beside
    `metadata`."""
    interpreter = Interpreter(program.at("fp32"), every_layer)
    facts = facts_of(interpreter, "fp32")
    images = interpreter.example()[:1].expand(batch, -1, -1, -1).contiguous()
    with quiet(), torch.no_grad():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        edge = to_edge_transform_and_lower(
            torch.export.export(interpreter, (images,)),
            partitioner=[XnnpackPartitioner()],
            constant_methods={"metadata": json.dumps(metadata | facts)},
        )
        graph = edge.exported_program().graph_module
        parts = [part.original_module.graph_module for _, part in graph.named_children()]
        delegated, left = _operators(parts), _operators([graph])
        path.write_bytes(edge.to_executorch().buffer)
    from executorch.version import __version__

    return {**facts, "executorch": __version__, "parts": len(parts), "xnnpack": delegated, "portable": left}


def _operators(graphs: Iterable[Any]) -> dict[str, int]:
    """How often each operator of torch is called: {"convolution": 8, …}, the most frequent first."""
    called = (node.target for graph in graphs for node in graph.graph.nodes if node.op == "call_function")
    names = (target.name().partition("::")[2].partition(".")[0] for target in called if hasattr(target, "namespace"))
    return dict(Counter(filter(None, names)).most_common())

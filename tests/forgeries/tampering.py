"""What a forger with write access does to a bundle: replace a file, and write the hashes that fit.

Nothing here is seen by a hash, and no signature is there: only what is computed again can tell.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from qcn.export.backends.triton.repository import write_files
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle, golden, weights
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.manifest import MANIFEST_SHA256, Manifest, manifest_sums
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.program import Program
from qcn.export.program.reference import evaluated, half_floors
from qcn.names import MANIFEST

DATA = re.compile(r'(?<=<script type="application/json" id="data">).*?(?=</script>)', re.DOTALL)


def manifest(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return record


def seal(folder: Path, **changes: Any) -> None:
    """Write the manifest with these changes, and with hashes that fit all files."""
    record = manifest(folder) | changes
    for entry in record["files"]:
        content = (folder / entry["file"]).read_bytes()
        entry |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    text = json.dumps(record, indent=1, ensure_ascii=False).encode()
    (folder / MANIFEST).write_bytes(text)
    (folder / MANIFEST_SHA256).write_bytes(manifest_sums(text))


def only(folder: Path, *files: str) -> Path:
    """A bundle with its weights, its golden answers and these files alone."""
    kept, entries = {WEIGHTS, GOLDEN, *files}, manifest(folder)["files"]
    for entry in entries:
        if entry["file"] not in kept:
            (folder / entry["file"]).unlink()
    seal(folder, files=[entry for entry in entries if entry["file"] in kept])
    return folder


def put(folder: Path, file: str, content: bytes) -> None:
    """Another file in place of one of the bundle's."""
    (folder / file).write_bytes(content)
    seal(folder)


def put_program(folder: Path, program: Program) -> None:
    """Another program; what the manifest says of the weights stays."""
    weights.write(folder / WEIGHTS, program)
    seal(folder)


def put_golden(folder: Path, answers: Golden) -> None:
    """Other golden answers, with the tolerances that follow from them."""
    with Bundle.open(folder).adding(GOLDEN, "golden", "fp64", FROM_RUN) as draft:
        golden.write(draft.path, answers)


def put_network(folder: Path, program: Program) -> None:
    """Another program, and golden answers that it gives."""
    kept = Bundle.open(folder).golden()
    put_program(folder, program)
    put_golden(folder, answered_by(program, kept))


def answered_by(program: Program, kept: Golden) -> Golden:
    """The golden images with the answers of a program in float32."""
    exact, single = evaluated(program, kept.input)
    return replace(kept, reference=exact, float32=single, floors=half_floors(program, kept.input))


def edit_graph(folder: Path, file: str, change: Callable[[onnx.ModelProto], None]) -> None:
    """An ONNX graph, altered."""
    model = onnx.load_from_string((folder / file).read_bytes())
    change(model)
    onnx.checker.check_model(model)
    put(folder, file, model.SerializeToString())


def edit_page(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The data of a page, altered."""
    text = (folder / "page.html").read_text(encoding="utf-8")
    data = json.loads(DATA.findall(text)[0])
    change(data)
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    put(folder, "page.html", DATA.sub(lambda _: written, text).encode())


def edit_page_manifest(folder: Path, **changes: Any) -> None:
    """The manifest within a page, with its hash."""

    def change(data: dict[str, Any]) -> None:
        network = data["networks"][0]
        changed = json.dumps(json.loads(network["manifest"]) | changes)
        network["manifest"] = Manifest.from_json(changed).to_json()
        network["sums"] = manifest_sums(network["manifest"].encode()).decode()

    edit_page(folder, change)


def edit_repository(folder: Path, ending: str, change: Callable[[bytes], bytes]) -> None:
    """The one file of Triton's model repository whose path ends so, altered."""
    files = repository(folder / "triton.tar")
    (name,) = (name for name in files if name.endswith(ending))
    write_files(folder / "triton.tar", {**files, name: change(files[name])})
    seal(folder)


def repository(path: Path) -> dict[str, bytes]:
    """The files of a model repository; folders end with a slash."""
    import tarfile

    with tarfile.open(path) as archive:
        members = archive.getmembers()
        read = {one.name: archive.extractfile(one) for one in members}
        return {f"{name}/" if file is None else name: file.read() if file else b"" for name, file in read.items()}

"""A model repository as a tar file: written for a bundle, and read again. Needs onnx to write, nothing to read."""

import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from qcn.errors import UsageError
from qcn.export.backends.onnx.precision import read
from qcn.export.backends.precision import Products
from qcn.export.backends.triton import config
from qcn.export.backends.triton.networks import ServedFile
from qcn.export.bundle import Artefact, Bundle
from qcn.export.bundle.manifest import Port, file_of
from qcn.names import BUNDLE, AnyPrecision
from qcn.terminal.text import readable

CONFIG, VERSION = "config.pbtxt", "1"
NETWORK = "-network"
MOST_BYTES = 1 << 31  # of all files of a repository that is read
MOST_DELAY = 1_000_000  # microseconds that a request may wait for others


def model_name(name: str, precision: AnyPrecision) -> str:
    """A bundle's name as that of a folder; with its precision, so that several can stand in one repository."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", name).strip(".-") or "qcn"
    return plain if precision == "fp32" else f"{plain}-{precision}"


def write_repository(
    path: Path, name: str, bundle: Bundle, networks: Mapping[str, ServedFile], command: str
) -> dict[str, Any]:
    """Write the repository of these networks, by Triton's backend, named so; returns facts for the manifest."""
    from qcn.export.backends.triton.preprocess import PIXELS, preprocess_graph

    manifest = bundle.manifest
    pixels = Port(PIXELS, manifest.image, "NCHW")
    most = max(network.most for network in networks.values())
    before = config.model(
        f"{name}-preprocess", "onnxruntime", most, [config.tensor(pixels, config.BYTE)], [config.tensor(manifest.input)]
    )
    graph = preprocess_graph(manifest.image, manifest.preprocessing, manifest.input.name)
    lines = [f"by `{command.replace(BUNDLE, 'BUNDLE')}`"]
    files = _model(before, graph.SerializeToString(deterministic=True), lines)
    facts: dict[str, Any] = {"models": {}}
    for backend, of in networks.items():
        whole = name if backend == "onnxruntime" else f"{name}-trt"
        outputs = [config.tensor(port) for port in manifest.outputs]
        network = config.batched(
            config.model(f"{whole}{NETWORK}", backend, of.most, [config.tensor(manifest.input)], outputs), of.batching
        )
        why = [*lines, f"{of.artefact.file}, sha256 {of.artefact.sha256}", *of.batching.words]
        files |= _model(network, bundle.read(of.artefact), why)
        steps = [before, network]
        served = config.ensemble(whole, of.most, pixels, manifest.outputs, steps, manifest.preprocessing.fit)
        files |= {f"{whole}/{CONFIG}": config.text(served, lines).encode(), f"{whole}/{VERSION}/": b""}
        files[f"{whole}/{config.LABELS}"] = "".join(f"{label}\n" for label in manifest.classes).encode()
        facts["models"][whole] = of.artefact.file
    write_files(path, files)
    return facts


def read_repository(content: bytes, path: object = "the repository") -> dict[str, bytes]:
    """The files of a repository by their paths; folders end with a slash. Nothing is unpacked to the disk.

    `path` is where it was read, for messages.
    """
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                name = member.name + "/" if member.isdir() else member.name
                if not (member.isreg() or member.isdir()) or ".." in PurePosixPath(name).parts or name.startswith("/"):
                    raise UsageError(f"{path}: '{member.name}' is not a plain file or folder below the repository")
                if name in files or sum(map(len, files.values())) + member.size > MOST_BYTES:
                    raise UsageError(f"{path}: '{member.name}' appears twice, or is too large")
                opened = archive.extractfile(member)
                files[name] = opened.read() if opened else b""
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise UsageError(f"{path} is not a repository that `qcn export --format triton` wrote: {error}") from error
    return files


def read_products(content: bytes) -> Products:
    """The products of the network's ONNX graph, as Triton would run it."""
    ending = f"{NETWORK}/{VERSION}/{config.FILES['onnxruntime']}"
    result = [content for name, content in read_repository(content).items() if name.endswith(ending)]
    if len(result) != 1:
        raise UsageError(f"it has {len(result)} files …{ending}, but one is expected")
    return read(result[0])


def _model(fields: Mapping[str, Any], content: bytes, comments: list[str]) -> dict[str, bytes]:
    folder = fields["name"]
    return {
        f"{folder}/{CONFIG}": config.text(fields, comments).encode(),
        f"{folder}/{VERSION}/{config.FILES[fields['backend']]}": content,
    }


def write_files(path: Path, files: Mapping[str, bytes]) -> None:
    """Write reproducibly: the same bytes for the same files."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            member.size, member.mode = len(content), 0o644
            if name.endswith("/"):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member, io.BytesIO(content))


def repository_difference(bundle: Bundle, artefact: Artefact, content: bytes, built: bytes) -> str:
    """File by file. How a server puts requests into batches changes no answer, and may have been measured."""
    from qcn.export.backends.onnx.difference import graph_difference
    from qcn.export.rebuild import difference

    if content == built:
        return ""
    files, ours = (read_repository(one, artefact.file) for one in (content, built))
    for name in dict.fromkeys((*ours, *files)):
        a, b = files.get(name), ours.get(name)
        if a is None or b is None:
            return f"{readable(name)} is {'missing' if a is None else 'not of its program'}"
        if name.endswith(CONFIG):
            a, b = (_without_batching(one) for one in (a, b))
        if a != b and (why := graph_difference(a, b) if name.endswith(".onnx") else "it has other contents"):
            return f"{readable(name)}: {why}"
    served = bundle.find(file_of("onnx", artefact.precision))
    why = difference(bundle, served)
    return f"{served.file}, which it serves: {why}" if why else ""


def _without_batching(config: bytes) -> bytes:
    """A configuration without comments, and without what only says how requests are put into batches.

    Requests may wait for others for as long as a benchmark makes it worth, which is never above MOST_DELAY.
    """
    text = re.sub(rb"(?m)^#.*\n", b"", config)
    for wait in re.findall(rb"max_queue_delay_microseconds: (\d+)", text):
        if int(wait) > MOST_DELAY:
            return text
    for block in (b"instance_group", b"dynamic_batching", b"model_warmup"):
        text = re.sub(rb"(?m)^" + block + rb" \{\n(?:  .*\n)*\}\n", b"", text)
    return text

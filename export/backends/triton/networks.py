"""Which files of a bundle a server runs, in which batches, and how."""

from dataclasses import dataclass
from typing import Literal

from qcn.errors import UsageError
from qcn.export.backends.triton.batching import MEASURE, Batching, Latencies, choose_batching, plain
from qcn.export.bundle import Artefact, Batch, Bundle


@dataclass(frozen=True)
class ServedFile:
    """A file of the bundle that is served, in batches of up to `most` images."""

    artefact: Artefact
    most: int
    batching: Batching


def networks(
    bundle: Bundle, graph: Artefact, batch: Batch, latencies: Latencies | None
) -> tuple[dict[str, ServedFile], list[str]]:
    """The served files by Triton's backend: the graph, and the newest engine in its precision; and notes on them."""
    network, most, kind, notes = bundle.manifest.network_sha256, batch.max, graph.precision, []
    device: Literal["cpu", "cuda"] = "cuda" if kind == "bf16" else "cpu"  # which has no bf16 convolutions
    result = {"onnxruntime": ServedFile(graph, most, _batching(network, graph, most, device, latencies))}
    for engine in (one for one in bundle.manifest.files if (one.format, one.precision) == ("trt", kind)):
        if why := obstacle(engine):
            notes.append(f"{engine.file} is left out: {why}")
        elif engine.batch:
            most = engine.batch.max
            result["tensorrt"] = ServedFile(engine, most, _batching(network, engine, most, "cuda", latencies))
    if latencies and not any(one.batching.measured for one in result.values()):
        files = " or ".join(one.artefact.file for one in result.values())
        raise UsageError(f"{latencies.file} has no latency for {_why_not(network, files, latencies)}: {MEASURE}")
    notes += [f"{one.artefact.file}: {line}" for one in result.values() for line in one.batching.words]
    return result, notes


def obstacle(engine: Artefact) -> str:
    """Why Triton cannot run an engine; empty if it can."""
    if engine.facts.get("flavour") == "rtx":
        return "Triton does not run plans of TensorRT-RTX"
    if engine.plugin:
        return "it needs a plugin, which Triton would have to be given"
    if engine.facts.get("stripped"):
        return "it has no weights, until `qcn export --refit` gives it some"
    if engine.facts.get("version_compatible"):
        return "it is version-compatible, and Triton runs such plans only where it is told to trust them"
    return unbatched(engine.batch) if engine.batch else "it does not say which batches it takes"


def unbatched(batch: Batch) -> str:
    """Why requests cannot be put into such batches; empty if they can."""
    if batch.min > 1 or batch.max == 1:
        return f"it takes batches of {batch}, and a server's go from 1 image up: --batch 1:8:64"
    return ""


def _why_not(network: str, files: str, latencies: Latencies) -> str:
    """Which latencies are missing, and what was measured instead."""
    if any(one.network != network for one in latencies.measured):
        return f"{files} of this network, only for another network"
    there = ", ".join(sorted({one.file for one in latencies.measured})) or "nothing"
    return f"this {files}, only for {there} that the bundle had before" if latencies.measured else files


def _batching(
    network: str, artefact: Artefact, most: int, device: Literal["cpu", "cuda"], latencies: Latencies | None
) -> Batching:
    """The batching of a file, by its latencies on the faster device; plain without any."""
    of, measured = (network, artefact.sha256), latencies.measured if latencies else ()
    fitting = [one for one in measured if (one.network, one.sha256) == of and one.smallest <= most]
    return choose_batching(min(fitting, key=lambda one: one.best), most) if fitting else plain(device)

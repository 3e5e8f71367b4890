"""Runners of files that a test has made, in a bundle or not. No hash is checked."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from qcn.export.backends import find
from qcn.export.backends.definition import load
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options, Runner
from qcn.export.bundle import MANIFEST, folder_of
from qcn.export.bundle.manifest import MANIFEST_SHA256
from qcn.names import BUNDLE, AnyPrecision


def model_at(path: Path) -> ModelFile:
    """A file with what it may need of what lies beside it."""
    names = (MANIFEST, MANIFEST_SHA256, path.with_suffix(".bin").name)
    beside = {name: (path.parent / name).read_bytes() for name in names if (path.parent / name).is_file()}
    engine = path.with_suffix(".json") if path.suffix == ".engine" else None
    record = json.loads(engine.read_text()) if engine and engine.is_file() else {}
    rebuild = str(record.get("rebuild", "")).replace(BUNDLE, shlex.quote(str(folder_of(path))))
    return ModelFile(path, path.read_bytes(), beside, record.get("facts", {}), rebuild)


def create(
    name: str,
    path: Path,
    *,
    precision: AnyPrecision = "fp32",
    layers: Sequence[str] = (),
    threads: int | None = None,
) -> Runner:
    """The runner of a backend for this file, not yet open."""
    backend = find(name)
    options = Options(backend.device, precision, backend.kernels, tuple(layers), threads=threads)
    runner: Runner = load(backend.runner)(model_at(path), options)
    return runner

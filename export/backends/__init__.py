"""Every format of a bundle, and every runtime that runs one: the registry.

A new backend is one folder here and its name in `FOLDERS`. The folder holds all of it: the names of its files, what
writes them from the program, its runner, how the precision is read from a file, what to install and what `qcn doctor`
says. What is here for all of them: `definition` (what a backend says of itself), `format` (what is done with a file),
`runner` and `candidates` (files in backends), `isolated` (a runner in a process of its own), `precision`, `receipts`.
"""

from importlib import import_module

from qcn.errors import unknown_name
from qcn.export.backends.definition import Backend, FileFormat, Registration
from qcn.names import AnyPrecision

FOLDERS = ("native", "torch", "onnx", "tensorrt", "web", "triton", "openvino", "executorch", "litert")
REGISTRATIONS: tuple[Registration, ...] = tuple(import_module(f"{__name__}.{name}").REGISTRATION for name in FOLDERS)

FORMATS: dict[str, FileFormat] = {one.name: one for of in REGISTRATIONS for one in of.formats}
BACKENDS: dict[str, Backend] = {one.name: one for of in REGISTRATIONS for one in of.backends}
EXPORTED = tuple(name for name, one in FORMATS.items() if not one.made_by)  # what `qcn export --format` takes
LOADED = tuple(name for name, one in BACKENDS.items() if one.loads)  # what `qcn.load` takes
CALIBRATED = tuple(name for name, one in BACKENDS.items() if one.lowers)  # what `qcn calibrate` chooses for


def find(name: str) -> Backend:
    """A backend by name."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    return BACKENDS[name]


def parts_of(format: str, precision: AnyPrecision) -> tuple[str, ...]:
    """Files of a bundle that are parts of this format's file."""
    return tuple(one.file_in(precision) for one in FORMATS.values() if one.part_of == format)


def distributions() -> tuple[str, ...]:
    """The packages whose versions figures depend on."""
    return tuple(name for of in REGISTRATIONS for piece in of.pieces for name in piece.distributions)

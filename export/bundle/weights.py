"""weights.safetensors: the program on disk, for libqcn and for making ONNX where there is no torch.

The arrays under their names, and with them (`qcn.export.bundle.arrays`) a text `program`: how they make a network.
"""

from pathlib import Path

from qcn.errors import UsageError
from qcn.export.bundle.arrays import read_arrays, write_arrays
from qcn.export.program.program import Program

SCHEMA = "3"


def write(path: Path, program: Program) -> None:
    """Write the program to `path`."""
    write_arrays(path, program.arrays, SCHEMA, program=program.to_json())


def read(content: bytes, path: object = "the file") -> Program:
    """The program in the bytes of the file `path`; anything else is refused."""
    try:
        arrays, texts = read_arrays(content, SCHEMA)
        return Program.from_json(texts.get("program", "null"), arrays)
    except UsageError as error:
        raise UsageError(f"{path} does not hold a program: {error}") from error

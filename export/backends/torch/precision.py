"""The types of TorchScript and pt2 files, from the zip that each is. Nothing is unpickled: a pickle can carry code.

TorchScript has its program as text and its weights in constants.pkl, whose opcodes are walked here, without doing what
they ask for. A pt2 file has both as JSON.
"""

import io
import json
import lzma
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from qcn.errors import UsageError
from qcn.export.backends.precision import MOST_BYTES, Products

STORAGES = {"HalfStorage": "float16", "BFloat16Storage": "bfloat16", "FloatStorage": "float32"}
STORAGES |= {"DoubleStorage": "float64", "QInt8Storage": "int8", "QUInt8Storage": "uint8"}
# Numbers of types: torch's own in TorchScript's text, those of torch.export's schema in pt2.
SCALARS = {"5": "float16", "6": "float32", "7": "float64", "12": "int8", "13": "uint8", "15": "bfloat16"}
SCHEMA = {6: "float16", 7: "float32", 8: "float64", 13: "bfloat16"}
_PRODUCT = re.compile(r"torch\.(?:_convolution|conv2d|linear)\(")
_CONSTANT = re.compile(r"\s*CONSTANTS\.c(\d{1,9})\b")
_CAST = re.compile(r"torch\.to\(.*?, (\d+)[,)]")
_PRODUCTS = ("aten.conv2d.", "aten.convolution.", "aten.linear.")
# What zipfile raises for an archive that is damaged, encrypted or packed in a way that it does not know.
_BAD_ARCHIVE = (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError)


class _Tensor(NamedTuple):
    """The type, "" if it is no floating-point or quantised one, and the shape of a constant."""

    type: str
    shape: tuple[int, ...]


def read_torchscript(content: bytes) -> Products:
    """The products of a TorchScript file; UsageError says why they cannot be read."""
    with _opened(content) as archive:
        constants = _constants(_content(archive, "constants.pkl"))
        code = [_content(archive, name).decode("utf-8", "replace") for name in _named(archive, "/code/", ".py")]
        others = _storages(_content(archive, "data.pkl"))
    types = {one.type for one in constants if one.shape} | others  # a single number takes the others' type
    weights = []
    for text in code:
        types |= {SCALARS[number] for number in _CAST.findall(text) if number in SCALARS}
        for product in _PRODUCT.finditer(text):
            number = _CONSTANT.match(text, _second_argument(text, product.end()))
            in_range = number is not None and int(number[1]) < len(constants)
            weights.append(constants[int(number[1])] if number and in_range else ("unknown", ()))
    return Products(tuple(weights), frozenset(types - {""}))


def _second_argument(text: str, place: int) -> int:
    """The place of the second argument of a call whose first one begins at `place`."""
    depth = 0
    for here in range(place, len(text)):
        depth += (text[here] in "([") - (text[here] in ")]")
        if depth == 0 and text[here] == ",":
            return here + 1
    return len(text)


def read_pt2(content: bytes) -> Products:
    """The products of a pt2 file; UsageError says why they cannot be read."""
    with _opened(content) as archive:
        models = _named(archive, "/models/", ".json")
        if len(models) != 1:
            raise UsageError(f"it has {len(models)} models, where one is expected")
        record = _json(archive, models[0])
        stored = _json(archive, "data/weights/model_weights_config.json")
        constants = _json(archive, "data/constants/model_constants_config.json")
    try:
        tensors = {name: _meta(one) for name, one in {**stored["config"], **constants["config"]}.items()}
        module = record["graph_module"]
        specs = [one for spec in module["signature"]["input_specs"] for one in spec.values()]
        kept_as = {one["arg"]["name"]: _kept_name(one) for one in specs if "name" in one["arg"]}
        weights, types = [], {type_ for type_, _ in tensors.values()}
        for node in module["graph"]["nodes"]:
            arguments = {one["name"]: one["arg"] for one in node["inputs"]}
            if "_assert" not in node["target"]:
                numbers = (one.get("as_scalar_type") for one in arguments.values() if isinstance(one, dict))
                types |= {SCHEMA.get(number, "") for number in numbers if number is not None}
            if any(part in node["target"] for part in _PRODUCTS):
                named = kept_as.get(arguments["weight"]["as_tensor"]["name"], "")
                weights.append(tensors.get(named, ("unknown", ())))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"its description is not torch.export's: {error!r}") from None
    return Products(tuple(weights), frozenset(types - {""}))


def _kept_name(spec: dict[str, Any]) -> str:
    """The name under which the file keeps a weight: its specification has one such entry."""
    return next((spec[key] for key in ("buffer_name", "parameter_name", "tensor_constant_name") if key in spec), "")


def _meta(entry: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    if entry["use_pickle"]:
        raise UsageError("it has weights that are pickled")
    meta = entry["tensor_meta"]
    return SCHEMA.get(meta["dtype"], ""), tuple(side.get("as_int", 0) for side in meta["sizes"])


def _opened(content: bytes) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(content))
    except _BAD_ARCHIVE as error:
        raise UsageError(f"it is not a zip file as torch writes them: {error}") from None


def _named(archive: zipfile.ZipFile, part: str, ending: str) -> list[str]:
    return [name for name in archive.namelist() if part in name and name.endswith(ending)]


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    """A file of the archive, by its whole name or by what follows the archive's own."""
    try:
        info = next(one for one in archive.infolist() if name in (one.filename, one.filename.partition("/")[2]))
        if info.file_size > MOST_BYTES:
            raise UsageError(f"its {name} has more than {MOST_BYTES:,} bytes")
        return archive.read(info)
    except StopIteration:
        raise UsageError(f"it has no {name}") from None
    except _BAD_ARCHIVE as error:
        raise UsageError(f"its {name} cannot be read: {error}") from None


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return json.loads(_content(archive, name))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"its {name} is not JSON: {error}") from None


def _opcodes(content: bytes) -> Iterator[tuple[str, Any]]:
    try:
        yield from ((code.name, argument) for code, argument, _ in pickletools.genops(io.BytesIO(content)))
    except (ValueError, IndexError, UnicodeError) as error:
        raise UsageError(f"its pickle cannot be read: {error}") from None


def _storages(content: bytes) -> set[str]:
    """The types of all tensors that a pickle names; weights that are not constants are there."""
    named = (str(argument).rpartition(" ")[2] for name, argument in _opcodes(content) if name == "GLOBAL")
    return {STORAGES[name] for name in named if name in STORAGES}


class _Mark:
    """The start of a tuple on the stack."""


def _constants(content: bytes) -> list[_Tensor]:
    """Type and shape of each constant, in their order: constants.pkl is one tuple of tensors, and nothing else.

    A tensor is the call of a function with (storage, offset, shape, …), and a storage ("storage", its type, …).
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for name, argument in _opcodes(content):
        try:
            if name == "GLOBAL":
                stack.append(str(argument))
            elif name in ("MARK", "EMPTY_TUPLE"):
                stack.append(_Mark() if name == "MARK" else ())
            elif name == "TUPLE":
                start = max(place for place, one in enumerate(stack) if isinstance(one, _Mark))
                stack[start:] = [tuple(stack[start + 1 :])]
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name == "BINPERSID":
                stack.append(stack.pop()[1])
            elif name == "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_rebuilt(function, arguments))
            elif name in ("NEWTRUE", "NEWFALSE") or name.startswith(("BININT", "BINUNICODE", "LONG")):
                stack.append(argument)
            elif name not in ("PROTO", "STOP"):
                raise UsageError(f"its constants.pkl is not TorchScript's: it has {name}")
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"its constants.pkl is not TorchScript's: {error!r}") from None
    constants = stack[0] if stack else ()
    if len(stack) > 1 or not isinstance(constants, tuple):
        raise UsageError("its constants.pkl is not TorchScript's: it is not one tuple")
    return [one if isinstance(one, _Tensor) else _Tensor("", ()) for one in constants]


def _rebuilt(function: str, arguments: Any) -> _Tensor:
    if function != "torch._utils _rebuild_tensor_v2":
        return _Tensor("", ())  # such as the empty dictionary that comes with each tensor
    return _Tensor(STORAGES.get(str(arguments[0]).rpartition(" ")[2], ""), tuple(arguments[2]))

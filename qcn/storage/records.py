"""Records, which are frozen dataclasses, as JSON: written, and read back. Every refusal names the place.

    records.write(path, settings)
    settings = records.load(Settings, path)
    UsageError: run.json: history[3].epoch must be an integer, not '4'

A dataclass is its own schema: every field must be there, and no other entry. Fields may be str, int, float, bool, None,
Literal, X | None, list[X], tuple[X, ...], tuple[X, Y], dict[str, X], Any, or dataclasses of these. What a dataclass
refuses in `__post_init__` (by UsageError, ValueError or TypeError) is reported at its place too. No torch here.
"""

import dataclasses
import functools
import json
import math
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from qcn.errors import UsageError
from qcn.storage.files import write_text

T = TypeVar("T")

# As libqcn's reader (deploy/src/json.cpp) has them: what one refuses, so does the other.
LARGEST = 1 << 20  # bytes
DEEPEST = 64  # levels below the outermost

_NAMES = {str: "text", int: "an integer", float: "a finite number", bool: "true or false", type(None): "null"}


class _Refused(Exception):
    """A problem and its place; each caller puts its own part before the place: `epoch`, `[3].epoch`, …"""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem)
        self.problem, self.place = problem, place

    def inside(self, place: str) -> "_Refused":
        dot = "." if self.place and not self.place.startswith("[") else ""
        return _Refused(self.problem, f"{place}{dot}{self.place}")


def text(record: Any) -> str:
    """A dataclass, or a dict with some in it, as strict JSON: all numbers are finite, and what is not known is null."""
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False, default=dataclasses.asdict) + "\n"


def write(path: Path, record: Any) -> None:
    """Write a dataclass, or a dict with some in it, to a file."""
    write_text(path, text(record))


def load(cls: type[T], path: Path, command: str = "") -> T:
    """The record in a file; anything else is refused, as not what `command` writes if that is given."""
    try:
        return read(cls, parse(path.read_bytes(), str(path)), str(path))
    except (OSError, UsageError) as error:
        if not command:
            raise
        raise UsageError(f"this is not what `{command}` writes: {error}") from error


def parse(text: str | bytes, what: str = "the text") -> Any:
    """The values of a strict JSON text. `what` names it.

    UTF-8 without a mark before it, every key of an object once, finite numbers only, at most 64 levels. A whole number
    beyond 64 bits is read as a float.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        parsed = json.loads(
            decoded, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number, parse_int=_whole
        )
        if "\\u" in decoded:  # half of a surrogate pair, which no file and no terminal takes
            json.dumps(parsed, ensure_ascii=False).encode("utf-8")
        _check_depth(parsed)
        return parsed
    except UnicodeError as error:
        raise UsageError(f"{what} is not UTF-8 text: {error}") from None
    except ValueError as error:
        raise UsageError(f"{what} is not valid JSON: {error}") from None
    except RecursionError:
        raise UsageError(f"{what} is not valid JSON here: it is nested too deeply") from None


def read(cls: type[T], value: object, what: str) -> T:
    """The dataclass `cls` from a parsed JSON object; UsageError says what does not fit, and where in `what`."""
    try:
        return cast(T, _read(cls, value))
    except _Refused as refused:
        place = f"{what}: {refused.place}" if refused.place else what
        raise UsageError(f"{place}{refused.problem}") from None


def check(record: Any) -> None:
    """Refuse, as `load` would, a dataclass whose fields are not what it says they are."""
    cls: Any = type(record)
    for name, kind in _kinds(cls).items():
        value = getattr(record, name)
        try:
            _at(name, kind, list(value) if isinstance(value, tuple) else value)
        except _Refused as refused:
            raise UsageError(f"{refused.place}{refused.problem}") from None


def _read(kind: Any, value: object) -> Any:
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value)
    if origin := get_origin(kind):
        return _GENERIC[origin](kind, value)
    return _float(value) if kind is float else _exactly(kind, value)


def _at(place: str, kind: Any, value: object) -> Any:
    try:
        return _read(kind, value)
    except _Refused as refused:
        raise refused.inside(place) from None


def _dataclass(cls: Any, value: object) -> Any:
    entries, kinds = _entries(value), _kinds(cls)
    for name in entries:
        if name not in kinds:
            raise _Refused(f" has an unknown entry {name!r}; known: {', '.join(kinds)}")
    for name in kinds:
        if name not in entries:
            raise _Refused(" is missing", name)
    read_entries = {name: _at(name, kind, entries[name]) for name, kind in kinds.items()}
    try:
        return cls(**read_entries)
    except (UsageError, ValueError, TypeError) as error:
        raise _Refused(f": {error}") from None


@functools.cache
def _kinds(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {entry.name: hints[entry.name] for entry in dataclasses.fields(cls) if entry.init}


def _literal(kind: Any, value: object) -> Any:
    choices = get_args(kind)
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise _Refused(f" must be one of {', '.join(map(repr, choices))}, not {_repr(value)}")
    return value


def _union(kind: Any, value: object) -> Any:
    """The one kind of several that fits. Beside None there is usually one, whose own refusal says most."""
    kinds = get_args(kind)
    if value is None and type(None) in kinds:
        return None
    refusals = []
    for one in kinds:
        if one is type(None):
            continue
        try:
            return _read(one, value)
        except _Refused as refused:
            refusals.append(refused)
    if len(refusals) == 1:
        raise refusals[0]
    raise _Refused(f" must be {' or '.join(_NAMES.get(one, str(one)) for one in kinds)}, not {_repr(value)}")


def _sequence(kind: Any, value: object) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if not isinstance(value, list):
        raise _Refused(f" must be a list, not {_repr(value)}")
    fixed = origin is tuple and inner[-1] is not ...
    if fixed and len(value) != len(inner):
        raise _Refused(f" must have {len(inner)} entries, not {len(value)}")
    kinds = inner if fixed else (inner[0],) * len(value)
    read_entries = [_at(f"[{i}]", kinds[i], entry) for i, entry in enumerate(value)]
    return read_entries if origin is list else tuple(read_entries)


def _mapping(kind: Any, value: object) -> dict[str, Any]:
    return {key: _at(f"[{key!r}]", get_args(kind)[1], entry) for key, entry in _entries(value).items()}


_GENERIC: dict[Any, Callable[[Any, object], Any]] = {
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
}


def _entries(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Refused(f" must be an object, not {_repr(value)}")
    return value


def _exactly(kind: Any, value: object) -> Any:
    if type(value) is not kind:
        raise _Refused(f" must be {_NAMES[kind]}, not {_repr(value)}")
    return value


def _float(value: object) -> float:
    if type(value) in (int, float):
        try:
            number = float(cast(float, value))
        except OverflowError:  # a whole number too large for any float
            number = math.inf
        if math.isfinite(number):
            return number
    raise _Refused(f" must be a finite number, not {_repr(value)}")


def _repr(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = {None: "null", True: "true", False: "false"}[value] if value is None or type(value) is bool else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} appears twice")
    return entries


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    if number == 0 and re.search("[1-9]", text.lower().partition("e")[0]):
        raise ValueError(f"{text} is too small a number: it would be read as 0")
    return number


def _whole(text: str) -> int | float:
    # No number of 64 bits has more than 19 digits; Python refuses to read those of thousands.
    number = int(text) if len(text) <= 20 else 1 << 64
    return number if -(1 << 63) <= number < 1 << 63 else _number(text)


def _check_depth(parsed: Any) -> None:
    level = [parsed]
    for _ in range(DEEPEST + 1):
        entries = [
            value.values() if isinstance(value, dict) else value for value in level if type(value) in (dict, list)
        ]
        level = [value for inner in entries for value in inner]
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")

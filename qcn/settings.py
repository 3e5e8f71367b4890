"""Settings of a command, defined once: a frozen dataclass whose fields the shell's options and Python's keywords are.

@dataclass(frozen=True)
class Request:
    batch: int = setting(1, "Images at once.")

make(Request, batch="8")        # what Python or the shell was given, as a Request
"""

import collections.abc
import os
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from qcn.errors import UsageError, unknown_name

Made = TypeVar("Made")
SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def setting(default: Any, help: str, *, parse: Callable[[str], Any] | None = None) -> Any:
    """A field with what a user reads of it. `parse` makes a value of text, where the type alone does not say how."""
    metadata = {"help": help, "parse": parse}
    return field(default=default, metadata=metadata)


def make(cls: type[Made], **given: object) -> Made:
    """The settings, of what was given for some of them: see `values`."""
    return cls(**values(cls, **given))


def values(cls: type, **given: object) -> dict[str, Any]:
    """What was given for some settings, as they hold it. None stands for the default; unknown names are refused."""
    known: dict[str, Field[Any]] = {one.name: one for one in fields(cls)}
    if unknown := given.keys() - known.keys():
        raise unknown_name("setting", min(unknown), known)
    hints = hints_of(cls)
    return {
        name: value_of(name, value, hints[name], known[name].metadata)
        for name, value in given.items()
        if value is not None
    }


@lru_cache
def hints_of(cls: type) -> Mapping[str, Any]:
    """The type of each field."""
    return get_type_hints(cls)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that a value may have, without None."""
    union = get_origin(hint) in (Union, types.UnionType)
    return tuple(one for one in (get_args(hint) if union else (hint,)) if one is not types.NoneType)


def item_of(hint: Any) -> Any:
    """The type of each item, where a value is several; None where it is one."""
    several = [one for one in kinds_of(hint) if get_origin(one) in (tuple, list, collections.abc.Sequence)]
    return get_args(several[0])[0] if several else None


def choices_of(hint: Any) -> tuple[str, ...]:
    """The values that a setting may have, where they are a few names."""
    return tuple(name for one in kinds_of(hint) if get_origin(one) is Literal for name in get_args(one))


def value_of(name: str, value: object, hint: Any, metadata: Mapping[str, Any] = types.MappingProxyType({})) -> Any:
    """What a setting holds: text as what its type says, NumPy's numbers and paths as Python's, one thing as a list."""
    if isinstance(value, np.generic):
        value = value.item()
    if (parse := metadata.get("parse")) and isinstance(value, str | int):
        return parse(str(value))
    kinds = kinds_of(hint)
    if (item := item_of(hint)) is not None:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, Iterable) or isinstance(items, os.PathLike):
            items = (items,)
        return tuple(value_of(name, one, item) for one in items)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if Path in kinds and isinstance(value, str):
        return Path(value)
    if str in kinds and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value}"
    return _of_text(name, value, kinds) if isinstance(value, str) else value


def _of_text(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    for kind, words in KINDS.items():
        if kind not in kinds:
            continue
        try:
            return SWITCHES[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise UsageError(f"{name} must be {words}, not '{text}'") from None
    return text

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
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from qcn.errors import UsageError, unknown_name

Made = TypeVar("Made")
PUBLIC_KEY = "Refuse a bundle that was not signed (`qcn sign`) with the key of this public key, a PEM file."
SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def setting(
    default: Any,
    help: str,
    *,
    unset: str = "",
    rare: bool = False,
    option: str = "",
    complete: str = "",
    choices: tuple[str, ...] = (),
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """A field with what the shell and the documentation say of it.

    help      one or two sentences; {choices} stands for the values that it may have
    unset     what a default of None or () means, in words
    rare      the shell takes it by `--set NAME=VALUE`
    option    the shell's name for it, where that is another: of several things, the name of one
    complete  what a shell completes: a name in `qcn.cli.complete`
    choices   the values that it may have, where its type does not say so
    parse     makes a value of text, where the type alone does not say how
    """
    facts = {"help": help, "unset": unset, "rare": rare, "option": option, "complete": complete}
    return field(default=default, metadata=facts | {"choices": choices, "parse": parse})


@dataclass(frozen=True)
class Setting:
    """A field of a dataclass of settings, or of one that is a part of it: `group` is then the name of that part."""

    name: str
    hint: Any
    default: Any
    facts: Mapping[str, Any]
    group: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have, where they are a few names."""
        hint = self.hint if self.item is None else self.item
        literal = (name for one in kinds_of(hint) if get_origin(one) is Literal for name in get_args(one))
        return self.facts.get("choices") or tuple(literal)

    @property
    def item(self) -> Any:
        """The type of each item, where its value is several things; None where it is one."""
        several = [one for one in kinds_of(self.hint) if get_origin(one) in (tuple, list, collections.abc.Sequence)]
        return get_args(several[0])[0] if several else None

    @property
    def help(self) -> str:
        """The help text; empty for a setting that users do not see."""
        names = self.choices
        choices = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)
        return str(self.facts.get("help", "")).replace("{choices}", choices)

    @property
    def rare(self) -> bool:
        return bool(self.facts.get("rare"))

    @property
    def option(self) -> str:
        """Its name in the shell."""
        return str(self.facts.get("option") or f"--{self.name.replace('_', '-')}")

    def value(self, value: object) -> Any:
        """Convert a value to its type: text is parsed, NumPy's numbers and paths become Python's, one item a list."""
        if (parse := self.facts.get("parse")) and isinstance(value, str | int):
            return parse(str(value))
        if self.item is None:
            return _value(self.name, value, kinds_of(self.hint))
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, Iterable) or isinstance(items, os.PathLike):
            items = (items,)
        return tuple(_value(self.name, one, kinds_of(self.item)) for one in items)


@cache
def settings_of(cls: type) -> Mapping[str, Setting]:
    """The settings by name, those of parts that are dataclasses of settings too."""
    result: dict[str, Setting] = {}
    hints = get_type_hints(cls)
    for one in fields(cls):
        hint = hints[one.name]
        if isinstance(hint, type) and is_dataclass(hint) and any(part.metadata for part in fields(hint)):
            result |= {name: replace(part, group=one.name) for name, part in settings_of(hint).items()}
        else:
            result[one.name] = Setting(one.name, hint, one.default, one.metadata)
    return result


def check_choices(settings: object, except_for: tuple[str, ...] = ()) -> None:
    """Refuse a value that is not one of its setting's choices."""
    cls: Any = type(settings)
    for one in settings_of(cls).values():
        value = None if one.group or one.name in except_for else getattr(settings, one.name)
        items = value if one.item is not None and value is not None else (value,)
        if one.choices and (wrong := [name for name in items if name is not None and name not in one.choices]):
            raise unknown_name(one.name, str(wrong[0]), one.choices)


def make(cls: type[Made], **options: object) -> Made:
    """The settings, of what was given for some of them: see `values`."""
    return cls(**values(cls, **options))


def values(cls: type, **options: object) -> dict[str, Any]:
    """Convert options to the values of the fields. None stands for the default; unknown names are refused.

    Settings of a part stand beside all others."""
    settings = settings_of(cls)
    if unknown := options.keys() - settings.keys():
        raise unknown_name("setting", min(unknown), settings)
    result: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        if value is not None:
            place = groups.setdefault(settings[name].group, {}) if settings[name].group else result
            place[name] = settings[name].value(value)
    hints = get_type_hints(cls)
    return result | {group: hints[group](**parts) for group, parts in groups.items()}


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that a value may have, without None."""
    union = get_origin(hint) in (Union, types.UnionType)
    return tuple(one for one in (get_args(hint) if union else (hint,)) if one is not types.NoneType)


def _value(name: str, value: object, kinds: tuple[Any, ...]) -> Any:
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()  # type: ignore[attr-defined]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if str in kinds and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value}"
    if not isinstance(value, str):
        return value
    if Path in kinds:
        return Path(value)
    for kind, words in KINDS.items():
        if kind in kinds:
            try:
                return SWITCHES[value.lower()] if kind is bool else kind(value)
            except (ValueError, KeyError):
                raise UsageError(f"{name} must be {words}, not '{value}'") from None
    return value

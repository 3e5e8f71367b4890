"""Options that several commands take."""

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from qcn.cli import complete
from qcn.errors import UsageError, unknown_name
from qcn.export.backends import LOADED
from qcn.settings import PUBLIC_KEY, Setting, kinds_of, settings_of


def by_commas(texts: list[str] | None) -> list[str]:
    return [name for names in texts or () for name in names.split(",")]


def _max_regression(share: float) -> float:
    if not 0 <= share < math.inf:
        raise UsageError(f"--max-regression must be 0 or more, not {share}")
    return share


def _bundle(folder: Path | None) -> Path | None:
    from qcn.networks.shipped import bundle_of

    return bundle_of(str(folder)) if folder else None


# Of an argument or option that names a model.
MODEL: dict[str, Any] = {
    "autocompletion": complete.or_folder(complete.shipped),
    "help": "A bundle, a training run, or the name of a shipped network.",
}
BUNDLE: dict[str, Any] = {"autocompletion": complete.or_folder(complete.shipped), "callback": _bundle}
BundleFolder = Annotated[
    Path, typer.Argument(**BUNDLE, help="A bundle made by `qcn export`, or the name of a shipped network.")
]
DataDir = Annotated[Path, typer.Option(envvar="QCN_DATA", help="Folder that holds the data sets.")]
PublicKey = Annotated[Path | None, typer.Option(help=f"{PUBLIC_KEY} Default: no check.")]
Backend = Annotated[
    str,
    typer.Option(
        autocompletion=complete.one_of(complete.runtimes),
        help=f"For a bundle: auto (the fastest that runs here), {', '.join(LOADED[:-1])} or {LOADED[-1]}.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        show_default="off",
        help="Also run files that can carry code (TorchScript, pt2). Use it only if you trust their author.",
    ),
]
Run = Annotated[
    str | None,
    typer.Option(help="Require that the bundle is built from this training run's network; needs torch. Default: none."),
]
MaxRegression = Annotated[
    float, typer.Option(callback=_max_regression, help="How much worse than the baseline it may get; 0.1 is 10 %.")
]
OtherNetwork = Annotated[
    bool,
    typer.Option(
        "--other-network",
        show_default="off",
        help="Accept a --baseline of another network, such as an earlier training.",
    ),
]
DATA = Path("data")


def data_dir_option(data_dir: Path) -> tuple[object, ...]:
    """The option that a suggested command needs for this folder; none if it is the default or in QCN_DATA."""
    return () if str(data_dir) == os.environ.get("QCN_DATA", str(DATA)) else ("--data-dir", data_dir)


def check_file(option: str, path: Path | None) -> None:
    """Refuse a folder where an option names a file to write."""
    if path and path.is_dir():
        raise UsageError(f"{path} is a folder; {option} names a file")


def check_folder(option: str, path: Path | None) -> None:
    """Refuse a file where an option names a folder to write."""
    if path and path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; {option} names a folder")


def takes(
    cls: type, by_preset: bool = False, only: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose options are the settings of `cls`, beside its own arguments.

    The command gets what was typed as `settings`, by name: what was left out is not in it. With `by_preset` a preset
    decides the defaults. `only` names some of the settings.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = {name: one for name, one in inspect.signature(command).parameters.items() if name != "settings"}
        offered = {name: one for name, one in settings_of(cls).items() if one.help and (not only or name in only)}
        common = {name: one for name, one in offered.items() if not one.rare}
        rare = {name: one for name, one in offered.items() if name not in common}

        @functools.wraps(command)
        def run(**typed: Any) -> None:
            settings = {name: typed.pop(name) for name in common if name in typed}
            settings |= _set(typed.pop("rare", None) or [], rare)
            command(**typed, settings={name: value for name, value in settings.items() if value not in (None, [])})

        parameters = [*(_parameter(one, by_preset) for one in common.values()), *own.values()]
        parameters += [_rare_parameter(cls, rare)] if rare else []
        order = {"data_dir": 1, "out": 2, "public_key": 3}  # arguments first, and the same options last
        parameters.sort(key=lambda one: -1 if one.name in own and one.default is one.empty else order.get(one.name, 0))
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
        del run.__wrapped__  # its signature is another
        return run

    return decorate


def _parameter(setting: Setting, by_preset: bool) -> inspect.Parameter:
    """The option of a setting."""
    kinds = kinds_of(setting.hint if setting.item is None else setting.item)
    kind = next((plain for plain in (bool, int, float, Path) if plain in kinds), str)
    switch = kind is bool
    unset = setting.facts.get("unset") or (_default(setting) if by_preset else "")
    facts: dict[str, Any] = {"help": f"{setting.help}{f' Default: {unset}.' if unset else ''}"}
    if setting.item is not None and kind is str:
        facts["callback"] = by_commas
    if setting.facts.get("complete"):
        facts["autocompletion"] = getattr(complete, setting.facts["complete"])
    elif setting.choices:
        names = setting.choices
        facts["autocompletion"] = (
            complete.several(lambda: names) if setting.item is not None else complete.one_of(lambda: names)
        )
    if setting.name == "data_dir":
        facts["envvar"] = "QCN_DATA"
    default = None if by_preset or setting.item is not None else setting.default
    if switch and setting.default is not None:
        default, facts["show_default"] = False, "off"
    elif setting.facts.get("parse"):
        default, kind = None if default is None else str(default), str
    plain: Any = list[kind] if setting.item is not None else kind  # type: ignore[valid-type]
    annotation = plain if default is not None else plain | None
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, typer.Option(setting.option, **facts)],
    )


def _default(setting: Setting) -> str:
    """The default of a setting of training, and that of the paper's preset where it is another."""
    from qcn.train.settings import PAPER

    def words(value: object) -> str:
        return f"{value:g}" if isinstance(value, float) else "none" if value in (None, ()) else str(value)

    paper = f" (paper: {words(PAPER[setting.name])})" if setting.name in PAPER else ""
    return f"{words(setting.default)}{paper}"


def _rare_parameter(cls: type, rare: Mapping[str, Setting]) -> inspect.Parameter:
    names = ", ".join(rare)
    text = f"A rare setting, NAME=VALUE; may be repeated: {names}. What they mean: docs/settings.md. Default: none."
    option = typer.Option(
        "--set", metavar="NAME=VALUE", autocompletion=complete.one_of(lambda: [f"{name}=" for name in rare]), help=text
    )
    return inspect.Parameter(
        "rare", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[list[str] | None, option]
    )


def _set(typed: Iterable[str], rare: Mapping[str, Setting]) -> dict[str, str]:
    """Parse the values of `--set`; a name alone is a switch, turned on."""
    settings = {}
    for text in typed:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in rare:
            raise unknown_name("setting (--set)", name, rare)
        settings[name] = value if equals else "true"
    return settings

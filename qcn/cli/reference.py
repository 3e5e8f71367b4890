"""docs/settings.md: every setting of every command, from its definition. `python -m qcn.cli.reference` prints it."""

import importlib
from collections.abc import Iterator

from qcn.settings import Setting, settings_of

REQUESTS = {
    "qcn train": "qcn.train.settings.Settings",
    "qcn evaluate": "qcn.evaluate.request.Request",
    "qcn export": "qcn.export.request.ExportRequest",
    "qcn calibrate": "qcn.calibrate.request.CalibrationRequest",
    "qcn verify-parity": "qcn.verify.parity.request.ParityRequest",
    "qcn benchmark": "qcn.verify.speed.request.BenchmarkRequest",
    "qcn ship-check": "qcn.verify.ship.request.ShipRequest",
}
INTRODUCTION = """# Settings

Shell and Python take the same settings: `qcn calibrate MODEL --max-drop 1` is `bundle.calibrate(max_drop=1)`
([python.md](python.md)). The shell takes rare ones by `--set`, which may be repeated: `--set weight_decay=0.01 --set
compile`. Settings of several commands are [at the end](#several-commands). `python -m qcn.cli.reference`
makes this page.
"""
SHARED = "Several commands"


def page() -> str:
    """The page: first what each command has alone, then what several have."""
    commands: dict[str, list[str]] = {}  # by row
    for command, place in REQUESTS.items():
        module, _, name = place.rpartition(".")
        for one in settings_of(getattr(importlib.import_module(module), name)).values():
            if one.help:
                commands.setdefault(_row(one), []).append(command)
    sections: dict[str, list[str]] = {name: [] for name in [*REQUESTS, SHARED]}
    for row, names in commands.items():
        if len(names) == 1:
            sections[names[0]].append(row)
        else:
            sections[SHARED].append(f"{row} {', '.join(name.removeprefix('qcn ') for name in names)} |")
    return "\n".join([INTRODUCTION, *(line for name, rows in sections.items() for line in _table(name, rows))])


def _table(name: str, rows: list[str]) -> Iterator[str]:
    more = name == SHARED
    yield f"## {name}\n"
    yield "| setting | default | what it is |" + " commands |" * more
    yield "|---|---|---|" + "---|" * more
    yield from rows
    yield ""


def _row(setting: Setting) -> str:
    shell = f"--set {setting.name}" if setting.rare else setting.option
    same = setting.rare or setting.option.partition("/")[0] == "--" + setting.name.replace("_", "-")
    return f"| `{shell}`{'' if same else f' (Python: `{setting.name}`)'} | {_default(setting)} | {setting.help} |"


def _default(setting: Setting) -> str:
    if unset := setting.facts.get("unset"):
        return str(unset)
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return f"`{setting.default:g}`" if isinstance(setting.default, float) else f"`{setting.default}`"


if __name__ == "__main__":
    print(page(), end="")

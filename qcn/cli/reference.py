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

Shell and Python take the same settings by the same names: `qcn calibrate MODEL --max-drop 1` is
`bundle.calibrate(max_drop=1)` ([python.md](python.md)). The shell takes rare ones by `--set`, which may be repeated:
`--set weight_decay=0.01 --set compile`. This page is made from the code by `python -m qcn.cli.reference`.
"""


def page() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, *(line for name, place in REQUESTS.items() for line in _table(name, place))])


def _table(command: str, place: str) -> Iterator[str]:
    module, _, name = place.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    yield f"## {command}\n"
    yield "| in the shell | in Python | default | what it is |"
    yield "|---|---|---|---|"
    for one in settings_of(cls).values():
        if one.help:
            shell = f"--set {one.name}=…" if one.rare else one.option
            yield f"| `{shell}` | `{one.name}` | {_default(one)} | {one.help} |"
    yield ""


def _default(setting: Setting) -> str:
    if unset := setting.facts.get("unset"):
        return str(unset)
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return f"`{setting.default:g}`" if isinstance(setting.default, float) else f"`{setting.default}`"


if __name__ == "__main__":
    print(page(), end="")

"""`qcn install`."""

from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.options import PublicKey
from qcn.cli.say import say, say_next
from qcn.errors import UsageError


def install(
    bundle: Annotated[Path | None, typer.Argument(help="A bundle that `qcn export` wrote.")] = None,
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="The place that programs read it from.")] = None,
    rollback: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Put the bundle that DIR had before back in its place; nothing if not given."),
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Put a bundle in its place on a device: checked, copied beside, then swapped in one step."""
    from qcn.export.bundle import install as installing

    if rollback and (bundle or folder):
        raise UsageError("--rollback stands alone: qcn install --rollback DIR")
    if rollback:
        place, version = rollback, installing.rollback(rollback, public_key)
    elif bundle and folder:
        installed = installing.install(bundle, folder, public_key)
        if installed is None:
            say(f"{folder} has this bundle already, and it is whole: nothing to do")
            return
        place, version = folder, installed
    else:
        raise UsageError("qcn install BUNDLE DIR, or qcn install --rollback DIR")
    number, _, sha256 = version.name.partition("-")
    say(f"{place} is now version {number}, manifest {sha256[:12]}…; programs use it once they load it again")
    say_next("qcn", "verify-parity", place)

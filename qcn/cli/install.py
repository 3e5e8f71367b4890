"""`qcn install`."""

from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.options import PublicKey
from qcn.cli.say import say, say_next
from qcn.errors import UsageError


def install(
    bundle: Annotated[Path | None, typer.Argument(help="A bundle made by `qcn export`.")] = None,
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Folder that programs read the bundle from.")
    ] = None,
    rollback: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go back to the previous bundle in DIR. Default: no rollback."),
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Install a bundle on a device: check it, copy it, and swap it in with one atomic rename."""
    from qcn.export.bundle import install as installing

    if rollback and (bundle or folder):
        raise UsageError("--rollback takes only a folder: qcn install --rollback DIR")
    if rollback:
        place, version = rollback, installing.rollback(rollback, public_key)
    elif bundle and folder:
        installed = installing.install(bundle, folder, public_key)
        if installed is None:
            say(f"{folder} already has this bundle, and it is intact: nothing to do")
            return
        place, version = folder, installed
    else:
        raise UsageError("give a bundle and a folder: qcn install BUNDLE DIR, or qcn install --rollback DIR")
    number, _, sha256 = version.name.partition("-")
    say(f"{place} is now version {number}, manifest {sha256[:12]}…; programs use it after they restart")
    say_next("qcn", "verify-parity", place)

"""`qcn doctor`, `qcn sign` and `qcn install`: a bundle on its way to a device."""

from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.options import BUNDLE, PublicKey
from qcn.cli.say import say, say_next
from qcn.errors import CheckFailed, UsageError
from qcn.terminal.progress import doing, shown


def doctor(
    bundle: Annotated[
        Path | None,
        typer.Argument(
            **BUNDLE,
            help="A bundle made by `qcn export`, or the name of a shipped network. Default: check this machine.",
        ),
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Show what this machine has and lacks; for a bundle, which files are intact and which can run here."""
    from qcn.verify.doctor import diagnose
    from qcn.verify.machine import survey

    if bundle is None:
        for piece in survey():
            if piece.found:
                say(f"{piece.name:14} {piece.found}")
            else:
                typer.echo(f"{piece.name:14} {typer.style('missing', fg='yellow')}")
                say(f"{'':14} for {piece.enables} → {piece.get}")
        say_next("qcn", "doctor", "BUNDLE")
        return
    with shown():
        doing(f"checking {bundle}")
        rows = diagnose(bundle, public_key)
    for row in rows:  # lines and not a table, so that commands can be copied from a narrow terminal
        colour = {"runs": "green", "intact": "green", "cannot": "yellow"}.get(row.state, "red")
        say(f"{row.file}: {row.reason}", row.state, colour)
        if row.fix:
            say(f"→ {row.fix}", "")
    if faulty := [row for row in rows if row.faulty]:
        what = "may not be read" if all(row.state == "denied" for row in faulty) else "is not as it was written"
        raise CheckFailed(f"{bundle} {what}: {', '.join(row.file for row in faulty)}")
    able, unable = (sum(row.state == state for row in rows) for state in ("runs", "cannot"))
    say(f"{bundle} is intact: {able} of its files run here" + (f", {unable} cannot run here" if unable else ""))
    say_next("qcn", "verify-parity", bundle)


def sign(
    bundle: Annotated[Path | None, typer.Argument(help="A bundle made by `qcn export`.")] = None,
    key: Annotated[
        Path | None, typer.Option(help="Sign the bundle with this private key, a PEM file. Default: none.")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(help="Make a key pair: the private key in this file, the public key beside it. Default: none."),
    ] = None,
) -> None:
    """Sign a bundle, so that others can check that it is yours (with `--public-key`)."""
    from qcn.export.bundle import Bundle, signing

    if new_key:
        if bundle or key:
            raise UsageError("--new-key only makes keys; to sign: qcn sign BUNDLE --key KEY.pem")
        public = signing.new_key(new_key)
        say(f"{new_key}  private: keep it secret, and off the devices")
        say(f"{public}  public: for --public-key, and for libqcn on the devices")
        say_next("qcn", "sign", "BUNDLE", "--key", new_key)
        return
    if bundle is None or key is None:
        raise UsageError(
            "give a bundle and a key: qcn sign BUNDLE --key KEY.pem, or make a key: qcn sign --new-key KEY.pem"
        )
    signing.private_key(key)  # first: a wrong key is the quicker thing to say
    say(Bundle.open(bundle).sign(key))
    public = signing.public_path(key)  # a key of openssl's has none beside it
    say_next("qcn", "doctor", bundle, "--public-key", public if public.is_file() else "PUBLIC.pem")


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

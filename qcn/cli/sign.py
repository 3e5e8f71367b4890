"""`qcn sign`."""

from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.say import say, say_next
from qcn.errors import UsageError


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

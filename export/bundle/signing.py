"""Signatures of bundles: manifest.sig is an Ed25519 signature (RFC 8032) of the bytes of manifest.json.

The manifest has the hash of every other file, so who signs it signs the whole bundle. Keys are PEM files, as openssl
writes them too, and `openssl pkeyutl -verify -rawin` takes the signature. libqcn verifies by itself
(deploy/src/ed25519.cpp); here `cryptography` does, which is loaded when it is needed and comes with
`qcn-toolkit[sign]`.
"""

import os
import re
import shlex
import uuid
from base64 import b64decode, b64encode
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from qcn.errors import UsageError
from qcn.export.bundle.manifest import SIGNATURE
from qcn.names import MANIFEST
from qcn.storage.files import atomic_write

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

LARGEST_KEY = 4096  # bytes of a key's file, and of a signature's
# One block and nothing else, as deploy/src/public_key.cpp reads it; both are tested on tests/keys.json. `cryptography`
# would also read headers and text around it.
PUBLIC = rb"[ \t\r\n]*-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/= \t\r\n]*)-----END PUBLIC KEY-----[ \t\r\n]*"
DER = bytes.fromhex("302a300506032b6570032100")  # what comes before the 32 bytes of a key (RFC 8410)


def public_path(path: Path) -> Path:
    """The path of the public key that `new_key` writes beside the private key in `path`."""
    return path.with_suffix(".pub.pem") if path.suffix == ".pem" else path.with_name(f"{path.name}.pub.pem")


def new_key(path: Path) -> Path:
    """Write a new private key to `path`, readable by its owner alone, and the public key beside it; gives its path."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = public_path(path)
    if existing := [str(file) for file in (path, public) if os.path.lexists(file)]:
        raise UsageError(f"{existing[0]} already exists, and keys are never overwritten: choose another --new-key")
    key = Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public_text = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:  # both files, whole, or neither
        for file, text, mode in ((path, secret, 0o600), (public, public_text, 0o644)):
            _write_new(file, text, mode)
            undo.callback(file.unlink)
        undo.pop_all()
    return public


def _write_new(path: Path, text: bytes, mode: int) -> None:
    """Write a new file, which has this mode from the start and appears whole or not at all."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            path.hardlink_to(aside)  # as rename, but it replaces nothing
        except PermissionError:  # a disk without hard links
            aside.rename(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def sign(folder: Path, manifest: bytes, key: Path) -> None:
    """Sign the manifest, which reads so. To be called under the bundle's lock, once its files were checked."""
    signature = private_key(key).sign(manifest)
    with atomic_write(folder / SIGNATURE) as aside:
        aside.write_bytes(signature)


def check_signature(folder: Path, manifest: bytes, key: Path) -> None:
    """Refuse a bundle whose manifest, which reads so, was not signed by the owner of this public key."""
    from cryptography.exceptions import InvalidSignature

    path, public = folder / SIGNATURE, public_key(key)
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link to {path.readlink()}: a bundle must contain its own {SIGNATURE}")
    if not path.is_file():
        command = f"qcn sign {shlex.quote(str(folder))} --key KEY.pem"
        raise UsageError(f"{folder} is not signed: it has no {SIGNATURE}; sign it with the private key: {command}")
    try:
        public.verify(_read(path), manifest)
    except InvalidSignature:
        raise UsageError(
            f"{path} does not match {MANIFEST} and {key}: the bundle was altered, or somebody else signed it"
        ) from None


def private_key(path: Path) -> "Ed25519PrivateKey":
    """The key in this file; anything else is refused."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = _read(path)
    if b"PUBLIC KEY-----" in text:
        raise UsageError(f"{path} is a public key: to sign, --key needs the private one")
    try:
        key = load_pem_private_key(text, None)
    except TypeError:
        raise UsageError(
            f"{path} is encrypted: decrypt it for --key with `openssl pkey -in {shlex.quote(str(path))} -out PLAIN.pem`"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"{path} is not a private key in PEM form: `qcn sign --new-key KEY.pem` makes one") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} is not an Ed25519 key: `qcn sign --new-key KEY.pem` makes one")
    return key


def public_key(path: Path) -> "Ed25519PublicKey":
    """The key in this file; anything else is refused."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    text = _read(path)
    if b"PRIVATE KEY-----" in text:
        raise UsageError(
            f"{path} is a private key, which must not be on a device: `openssl pkey -in "
            f"{shlex.quote(str(path))} -pubout` "
            "prints its public key"
        )
    block = re.fullmatch(PUBLIC, text)
    letters = re.sub(rb"[ \t\r\n]", b"", block[1]) if block else b""
    with suppress(ValueError):
        encoded = b64decode(letters, validate=True)
        if b64encode(encoded) == letters and encoded.startswith(DER) and len(encoded) == len(DER) + 32:
            return Ed25519PublicKey.from_public_bytes(encoded[len(DER) :])
    raise UsageError(
        f"{path} is not an Ed25519 public key in PEM form, with nothing before or after it: "
        "`qcn sign --new-key KEY.pem` makes a key pair"
    )


def _read(path: Path) -> bytes:
    """A small file: more than any key or signature has is not read."""
    with path.open("rb") as file:
        return file.read(LARGEST_KEY)

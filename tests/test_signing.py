"""Signed bundles: `qcn sign`, and what Python and libqcn refuse when they are given the public key."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import bundle_of, put_manifest
from command import call
from libqcn_load import BAD_ARGUMENT, BAD_SIGNATURE, OK, ROOT, load

from qcn.errors import UsageError
from qcn.export.bundle import MANIFEST, WEIGHTS, Bundle, signing
from qcn.export.bundle.manifest import SIGNATURE
from qcn.networks.model import qcn_tiny

pytest.importorskip("cryptography")
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519

CASES = json.loads((Path(__file__).parent / "keys.json").read_text(encoding="utf-8"))["cases"]
ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.fixture(scope="module")
def _bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return bundle_of(tmp_path_factory.mktemp("signed") / "bundle", qcn_tiny(1, 3).eval(), 16, 16).folder


@pytest.fixture
def bundle(_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_bundle, tmp_path / "bundle"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private key and its public key."""
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    return path, signing.new_key(path)


def qcn(*arguments: object, without: str = "") -> subprocess.CompletedProcess[str]:
    if not without:
        return call(*arguments)
    code = f"import sys; sys.modules.update(dict.fromkeys({without.split()!r})); from qcn.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})


def refused(folder: Path, public: Path) -> bool:
    """By Python and libqcn alike, from the folder and from memory."""
    status, said = load(folder, public_key=public.read_text())
    assert load(folder, public_key=public.read_text(), memory=True)[0] == status
    try:
        Bundle.open(folder, public)
    except UsageError:
        assert status == BAD_SIGNATURE, said
        return True
    assert status == OK, said
    return False


def test_a_bundle_is_signed_and_verified_by_commands(bundle: Path, tmp_path: Path) -> None:
    key, public = tmp_path / "my key.pem", tmp_path / "my key.pub.pem"
    done = qcn("sign", "--new-key", key)
    assert done.returncode == 0 and str(public) in done.stdout, done.stderr
    assert key.stat().st_mode & 0o777 == 0o600
    unsigned = qcn("doctor", bundle, "--public-key", public)
    assert unsigned.returncode == 2 and f"{bundle} is not signed" in unsigned.stderr and "qcn sign" in unsigned.stderr
    signed = qcn("sign", bundle, "--key", key)
    assert (signed.returncode, signed.stdout.splitlines()[0]) == (0, str(bundle / SIGNATURE)), signed.stderr
    assert (bundle / SIGNATURE).stat().st_size == 64
    for command in (["doctor", bundle], ["verify-parity", bundle, "--backends", "native"]):
        done = qcn(*command, "--public-key", public)
        assert done.returncode == 0, done.stdout + done.stderr
    again = qcn("sign", "--new-key", key)
    assert again.returncode == 2 and "never overwritten" in again.stderr
    added = qcn("export", bundle, "--format", "onnx")
    says = f"{bundle} changed, so its signature was removed: sign it again with `qcn sign`"
    assert added.returncode == 0 and added.stderr.splitlines().count(says) == 1
    again = qcn("export", bundle, "--format", "onnx", "--batch", "1")
    assert again.returncode == 0 and says not in again.stderr


def test_every_command_on_a_bundle_takes_a_public_key(bundle: Path, keys: tuple[Path, Path]) -> None:
    for command in ("doctor", "verify-parity", "benchmark", "export"):
        done = qcn(command, bundle, "--public-key", keys[1])
        assert done.returncode == 2 and "is not signed" in done.stderr, done.stderr


def test_a_signature_is_of_one_manifest_by_one_key(bundle: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    key, public = keys
    assert refused(bundle, public)
    Bundle.open(bundle).sign(key)
    assert not refused(bundle, public)
    assert {finding.state for finding in Bundle.open(bundle).check()} == {"intact"} and load(bundle)[0] == OK
    assert refused(bundle, signing.new_key(tmp_path / "other.pem"))
    honest = (bundle / MANIFEST).read_text()
    for text in (json.dumps({**json.loads(honest), "name": "another"}), f"{honest}\n", honest):
        put_manifest(bundle, text)
        assert refused(bundle, public) == (text != honest)
    signature = (bundle / SIGNATURE).read_bytes()
    flipped = ((int.from_bytes(signature, "big") ^ 1 << bit).to_bytes(64, "big") for bit in range(0, 512, 5))
    for wrong in (*flipped, b"", signature[:-1], signature + b"\n", signature * 2):
        (bundle / SIGNATURE).write_bytes(wrong)
        assert refused(bundle, public), wrong.hex()
    (bundle / SIGNATURE).write_bytes(signature)
    assert not refused(bundle, public)


def test_what_is_not_whole_is_not_signed(bundle: Path, keys: tuple[Path, Path]) -> None:
    (bundle / WEIGHTS).write_bytes(b"x" + (bundle / WEIGHTS).read_bytes()[1:])
    done = qcn("sign", bundle, "--key", keys[0])
    assert done.returncode == 2 and "was altered" in done.stderr and not (bundle / SIGNATURE).exists()


def pem(key: object) -> bytes:
    if hasattr(key, "private_bytes"):
        plain = serialization.NoEncryption()
        return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_bytes(serialization.Encoding.PEM, form))  # type: ignore[attr-defined]


def test_other_files_are_no_keys(bundle: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = keys
    wrong = tmp_path / "wrong.pem"
    locked = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    curve = ec.generate_private_key(ec.SECP256R1())
    for text, says in (
        (public.read_bytes(), "is a public key"),
        (locked, "is encrypted"),
        (pem(curve), "not an Ed25519 key"),
        (pem(x25519.X25519PrivateKey.generate()), "not an Ed25519 key"),
        (b"", "not a private key"),
        (b"\xff" * 9000, "not a private key"),
    ):
        wrong.write_bytes(text)
        with pytest.raises(UsageError, match=says):
            signing.private_key(wrong)
    for text, says in (
        (private.read_bytes(), "is a private key"),
        (pem(curve.public_key()), "not an Ed25519 public key"),
    ):
        wrong.write_bytes(text)
        with pytest.raises(UsageError, match=says):
            Bundle.open(bundle, wrong)
        assert load(bundle, public_key=text.decode())[0] == BAD_ARGUMENT


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_shared_cases_of_keys(case: dict[str, Any], tmp_path: Path) -> None:
    """libqcn is tested on the same ones (deploy/tests/test_keys.cpp)."""
    (tmp_path / "key.pem").write_bytes(case["pem"].encode())
    if case["taken"]:
        assert signing.public_key(tmp_path / "key.pem").public_bytes_raw()[::31].hex() == "3b29"
    else:
        with pytest.raises(UsageError, match=r"is not an Ed25519 public key in PEM form|is a private key"):
            signing.public_key(tmp_path / "key.pem")


def test_without_cryptography_one_line_says_what_to_install(bundle: Path, keys: tuple[Path, Path]) -> None:
    for command in (["sign", bundle, "--key", keys[0]], ["doctor", bundle, "--public-key", keys[1]]):
        done = qcn(*command, without="cryptography")
        assert done.returncode == 3 and "pip install 'qcn-toolkit[sign]'" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert qcn("doctor", bundle, without="cryptography").returncode == 0


def test_openssl_makes_keys_for_us_and_takes_our_signatures(bundle: Path, tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl")
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
    signed = qcn("sign", bundle, "--key", key)
    assert signed.returncode == 0 and signed.stdout.endswith("--public-key PUBLIC.pem\n"), signed.stdout + signed.stderr
    assert not refused(bundle, public)
    verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", bundle / MANIFEST]
    done = subprocess.run([*verify, "-sigfile", bundle / SIGNATURE], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Success" in done.stdout, done.stdout + done.stderr


def test_the_programs_take_a_public_key(bundle: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    programs = ROOT / "build" / "programs"
    if not (programs / "qcn-run").exists():
        pytest.skip("there is no build/programs/qcn-run: make build/libqcn.so")
    picture = tmp_path / "grey.pgm"
    picture.write_bytes(b"P5 16 16 255\n" + bytes(256))

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)

    commands = (
        [programs / "qcn-run", bundle, picture],
        [programs / "qcn-bench", bundle, "--duration", "0", "--runs", "1"],
    )
    for command in commands:
        done = run(*command, "--public-key", keys[1])
        assert done.returncode == 1 and "is not signed" in done.stderr, done.stderr
        for other in (tmp_path / "none.pem", tmp_path, keys[0]):
            assert run(*command, "--public-key", other).returncode == 2
    Bundle.open(bundle).sign(keys[0])
    for command in commands:
        done = run(*command, "--public-key", keys[1])
        assert done.returncode == 0, done.stderr


def holds(cases: list[tuple[bytes, bytes, bytes]]) -> list[bool]:
    """What libqcn's own verification says of keys, messages and signatures."""
    program = ROOT / "build" / "tests" / "test_ed25519"
    if not program.exists():
        pytest.skip("there is no build/tests/test_ed25519: make build/tests/.built")
    lines = "".join(f"{key.hex()} {signature.hex()} {message.hex()}\n" for key, message, signature in cases)
    done = subprocess.run([program, "-"], input=lines, capture_output=True, text=True, check=True)
    answers = [line == "1" for line in done.stdout.split()]
    assert len(answers) == len(cases)
    return answers


def by_cryptography(key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def test_libqcn_verifies_as_cryptography_does() -> None:
    """Random keys and messages of all sizes around SHA-512's blocks, and of each a few that are altered."""
    generator = random.Random(0)
    cases, expected = [], []
    for index in range(600):
        key = ed25519.Ed25519PrivateKey.from_private_bytes(generator.randbytes(32))
        public = key.public_key().public_bytes_raw()
        message = generator.randbytes(index % 300)
        signature = key.sign(message)
        point, scalar = signature[:32], int.from_bytes(signature[32:], "little")
        cases.append((public, message, signature))
        expected.append(True)
        wrong = [
            (public, message + b"\0", signature),
            (public, message, point + (scalar + ORDER).to_bytes(32, "little")),
            (public, message, signature[32:] + point),
            (public, message, bytes(64)),
            (bytes(32), message, signature),
        ]
        for part in range(3):
            altered = [bytearray(public), bytearray(message or b"x"), bytearray(signature)]
            place = generator.randrange(8 * len(altered[part]))
            altered[part][place // 8] ^= 1 << place % 8
            wrong.append((bytes(altered[0]), bytes(altered[1]), bytes(altered[2])))
        cases += wrong
        expected += [False] * len(wrong)
    found = holds(cases)
    assert found == expected
    assert [by_cryptography(*case) for case in cases[:900]] == expected[:900]


@pytest.mark.parametrize("room", [0, 60, 119])
def test_a_full_disk_leaves_no_half_of_a_key(tmp_path: Path, room: int) -> None:
    """RLIMIT_FSIZE stands in for the full disk: the private key has 119 bytes, and the public one 113."""
    code = f"""
import os, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
from qcn.cli import main
main()
"""
    command = [sys.executable, "-c", code, "sign", "--new-key", str(tmp_path / "key.pem")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if room < 119:
        assert done.returncode == 3 and "key.pem: File too large; nothing half-written was kept" in done.stderr
        assert not list(tmp_path.iterdir())
    else:
        assert done.returncode == 0 and len(list(tmp_path.iterdir())) == 2


def test_a_private_key_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while it is written, and not left behind when the public key cannot be: both are there, or neither."""
    modes = []
    before = os.fsync

    def fsync(descriptor: int) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        before(descriptor)
        if len(modes) == 4:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    signing.new_key(tmp_path / "a.pem")
    assert modes == [0o600, 0o644 & ~umask()] and (tmp_path / "a.pem").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="No space left on device") as error:
        signing.new_key(tmp_path / "b.pem")
    assert str(error.value.filename) == str(tmp_path / "b.pub.pem")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pem", "a.pub.pem"]


def umask() -> int:
    found = os.umask(0o22)
    os.umask(found)
    return found

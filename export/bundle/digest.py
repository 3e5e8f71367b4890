"""manifest.sha256: the hash of manifest.json, beside it, as `sha256sum` writes it and `sha256sum -c` checks it.

While a manifest is being replaced it has two lines, of the old and of the new one, so that it is right at every moment.
"""

import hashlib
import re

from qcn.errors import UsageError
from qcn.export.bundle.manifest import MANIFEST_SHA256
from qcn.names import MANIFEST

_LINES = re.compile(rf"([0-9a-f]{{64}}  {re.escape(MANIFEST)}\n){{1,2}}".encode())


def manifest_sums(*texts: bytes) -> bytes:
    """The contents of manifest.sha256 for these manifests: one, or the old and the new one."""
    return b"".join(f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode() for text in texts)


def check_manifest_digest(text: bytes, sums: bytes) -> None:
    """Refuse a manifest whose hash is not in manifest.sha256."""
    if not _LINES.fullmatch(sums):
        raise UsageError(f"{MANIFEST_SHA256} is not what `sha256sum {MANIFEST}` writes")
    if manifest_sums(text) not in sums.splitlines(keepends=True):
        result, says = hashlib.sha256(text).hexdigest(), sums[:12].decode()
        raise UsageError(f"it was altered: its sha256 is {result[:12]}…, {MANIFEST_SHA256} says {says}…")

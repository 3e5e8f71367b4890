"""Pictures that were rendered once and are kept in one file with their SHA-256. No torch here."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialised

from qcn.errors import UsageError
from qcn.storage.files import atomic_write


def keep(path: Path, images: NDArray[np.uint8]) -> None:
    content = serialised({"images": images}, {"sha256": hashlib.sha256(images.data).hexdigest()})
    with atomic_write(path) as aside:
        aside.write_bytes(content)


def read_kept(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The images of a file that `keep` wrote; refused if they are damaged, or not of this shape."""
    damaged = UsageError(f"the rendered pictures in {path} are damaged; delete the file, and they are rendered again")
    try:
        with safe_open(path, framework="numpy") as file:
            images: NDArray[np.uint8] = file.get_tensor("images")
            expected = (file.metadata() or {}).get("sha256")
    except SafetensorError:
        raise damaged from None
    if images.dtype != np.uint8 or images.shape != shape or hashlib.sha256(images.data).hexdigest() != expected:
        raise damaged
    return images

"""Pictures in every form that `Model.predict` takes, as pixels uint8 [H, W] or [H, W, C]. Imports no torch.

| given | taken as |
|---|---|
| `str`, `os.PathLike` | the name of a file |
| `bytes`, `bytearray`, `memoryview` | the contents of a file |
| a file object, opened in binary mode | the same, from where it stands |
| an image of Pillow, of any mode | turned as its EXIF entry says, as a file is |
| an array, uint8 | [H, W] or [H, W, C], C from 1 to 4; read in place |
| a tensor of torch, uint8, or floats from 0 to 1 | [H, W] or [C, H, W], C from 1 to 4; floats are rounded to 255ths |

Channels are last in arrays and first in tensors, as everybody's are; neither is guessed from the sizes. One dimension
more, in front, makes several pictures: arrays [N, H, W, C], tensors [N, C, H, W].

Types do not tell how many dimensions an array has: to a type checker it is one picture, and `list(array)` is several.
"""

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, Union

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import Pixels, decode_picture, read_picture
from qcn.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image


class Tensor(Protocol):
    """The methods used of a tensor of torch, which need not be installed."""

    def detach(self) -> Any: ...
    def is_floating_point(self) -> bool: ...


class Readable(Protocol):
    """A file object."""

    def read(self) -> bytes: ...


Picture: TypeAlias = Union[
    str, os.PathLike[str], bytes, bytearray, memoryview, Readable, "Image", NDArray[np.uint8], Tensor
]
ADDRESS = re.compile(r"(https?|ftp|s3|gs):/", re.IGNORECASE)  # a Path has one slash of two
CHANNELS = (1, 2, 3, 4)
WHAT = "a picture is a file's name, its bytes, a file object, an image of Pillow, an array or a tensor"


def pixels_of(picture: object) -> Pixels:
    """The pixels of one picture. UsageError says what else it is."""
    if isinstance(picture, (str, os.PathLike)):
        name = os.fspath(picture)
        refuse_address(str(name))
        return read_picture(Path(os.fsdecode(name)))
    if isinstance(picture, np.ndarray):
        return _of_array(picture)
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return decode_picture(io.BytesIO(picture), f"the picture of {len(bytes(picture)):,} bytes")
    if _is_tensor(picture):
        return _of_tensor(picture)
    if _is_image(picture):
        name = getattr(picture, "filename", "") or f"the {picture.mode} image of {picture.width}×{picture.height}"
        return decode_picture(picture, str(name))
    if _is_file(picture):
        return _of_file(picture)
    raise UsageError(f"{WHAT}, not {type(picture).__name__}")


def several_of(pictures: object) -> Iterator[Picture] | None:
    """The pictures of a list, a generator, an array [N, H, W, C] or a tensor [N, C, H, W]; None if it is one."""
    if isinstance(pictures, np.ndarray) or _is_tensor(pictures):
        several: Any = pictures
        return iter(several) if several.ndim == 4 else None
    single_types = (str, bytes, bytearray, memoryview, os.PathLike, Mapping, Set)
    is_single = isinstance(pictures, single_types) or _is_image(pictures) or _is_file(pictures)
    if is_single or not isinstance(pictures, Iterable):
        return None
    return iter(pictures)


def refuse_address(name: str) -> None:
    """Refuse what is not on this machine."""
    if ADDRESS.match(name):
        raise UsageError(f"{name} is an address, not a file: download it first")


def _of_array(array: NDArray[Any]) -> Pixels:
    shape = list(array.shape)
    if array.dtype != np.uint8:
        raise UsageError(f"an array is uint8, from 0 to 255, not {array.dtype} {shape}: convert it first")
    if array.ndim not in (2, 3) or 0 in shape:
        raise UsageError(f"an array is [H, W] or [H, W, C], or [N, H, W, C] for several pictures, not {shape}")
    if array.ndim == 3 and array.shape[2] not in CHANNELS:
        turned = array.shape[0] in CHANNELS
        hint = "array.transpose(1, 2, 0) makes it from [C, H, W]" if turned else "array[..., None] makes [N, H, W, 1]"
        raise UsageError(f"an array is [H, W, C] with 1 to 4 channels, not {shape}: {hint}")
    return array


def _of_tensor(tensor: Any) -> Pixels:
    shape, kind = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if len(shape) not in (2, 3) or 0 in shape:
        raise UsageError(f"a tensor is [H, W] or [C, H, W], or [N, C, H, W] for several pictures, not {shape}")
    if len(shape) == 3 and shape[0] not in CHANNELS:
        turned = shape[2] in CHANNELS
        hint = "tensor.permute(2, 0, 1) makes it from [H, W, C]" if turned else "tensor[:, None] makes [N, 1, H, W]"
        raise UsageError(f"a tensor is [C, H, W] with 1 to 4 channels, not {shape}: {hint}")
    here = tensor.detach().cpu()
    if tensor.is_floating_point():
        values = here.double().numpy()
        low, high = float(values.min()), float(values.max())
        if not (low >= 0 and high <= 1):
            raise UsageError(
                f"a tensor of floats is from 0 (black) to 1 (white), not from {low:.3g} to {high:.3g}: give it before "
                "it is normalised"
            )
        pixels = np.rint(255 * values).astype(np.uint8)
    elif kind == "uint8":
        pixels = here.numpy()
    else:
        raise UsageError(f"a tensor is uint8, or floats from 0 to 1, not {kind} {shape}: convert it first")
    return pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels


def _of_file(file: Any) -> Pixels:
    name = str(getattr(file, "name", "") or f"the file object ({type(file).__name__})")
    if isinstance(file, io.TextIOBase):
        raise UsageError(f"{name} is opened as text: open it in binary mode, as open(name, 'rb') does")
    try:
        contents: object = file.read()
    except (OSError, ValueError) as error:  # it is closed, or opened for writing
        raise UsageError(f"{name} cannot be read: {error}") from error
    if not isinstance(contents, (bytes, bytearray, memoryview)):
        raise UsageError(f"{name} gives {type(contents).__name__}, not bytes")
    return decode_picture(io.BytesIO(contents), name)


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    torch = sys.modules.get("torch")  # no tensor is there before it is imported
    return torch is not None and isinstance(value, torch.Tensor)


def _is_image(value: object) -> "TypeGuard[Image]":
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _is_file(value: object) -> TypeGuard[Readable]:
    return callable(getattr(value, "read", None))

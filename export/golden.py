"""golden.safetensors: images and the trained network's answers to them, so that any artefact can be checked anywhere.

    image                     uint8 [N, C, H, W]            as stored in the data set; the last rows are edge cases
    label                     int64 [N]                     -1 for an edge case
    input                     float32 [N, C, h, w]          the images pre-processed: what the network sees
    activation, pose          float64 [N, K], [N, K, 3]     by the reference in float64: the truth
    activation.float32, pose.float32                        by the same in float32: the noise floor
    LAYER.activation, .pose   float64 [N, J, H', W'], [N, J, 3, H', W']   of the capsule layers before the last, in
                                                            float64, before poses are divided by their running RMS;
                                                            and LAYER.activation.float32, LAYER.pose.float32

With them (`qcn.export.arrays`) goes a text `rows`: a JSON list of what each row is. `qcn.export.reference` makes it; no
torch here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qcn.errors import UsageError
from qcn.export.arrays import read_arrays, write_arrays
from qcn.export.network import Array

SCHEMA = "1"


@dataclass(frozen=True)
class Answers:
    """What a layer or the whole network gives: activations [N, K, …] and poses [N, K, 3, …]."""

    activation: Array
    pose: Array


@dataclass(frozen=True)
class Golden:
    """The file's contents. `layers` are the capsule layers before the last, by name, first to last, in float64."""

    rows: tuple[str, ...]
    image: Array
    label: Array
    input: Array
    reference: Answers
    float32: Answers
    layers: dict[str, Answers]
    layers_float32: dict[str, Answers]

    def __post_init__(self) -> None:
        """Refuse arrays that are not of their kind: they may come from a file."""
        arrays = [("image", self.image, "uint8", 4), ("label", self.label, "int64", 1)]
        arrays += [("input", self.input, "float32", 4)]
        for name, answers, dtype, axes in (
            ("float64", self.reference, "float64", 2),
            ("float32", self.float32, "float32", 2),
            *((layer, answers, "float64", 4) for layer, answers in self.layers.items()),
            *((f"{layer} float32", answers, "float32", 4) for layer, answers in self.layers_float32.items()),
        ):
            arrays += [(f"{name} activation", answers.activation, dtype, axes)]
            arrays += [(f"{name} pose", answers.pose, dtype, axes + 1)]
        for name, array, dtype, axes in arrays:
            if array.dtype != dtype or array.ndim != axes or len(array) != len(self.rows):
                found = f"{array.dtype} {list(array.shape)}"
                raise UsageError(f"'{name}' must be {dtype} of {axes} axes and {len(self.rows)} rows, not {found}")
        for name, answers in {"float64": self.reference, "float32": self.float32, **self.layers}.items():
            expected = (*answers.activation.shape[:2], 3, *answers.activation.shape[2:])
            if answers.pose.shape != expected or not np.isfinite(answers.pose).all():
                raise UsageError(f"the poses of '{name}' must be finite and {list(expected)}")
            if not np.isfinite(answers.activation).all():
                raise UsageError(f"the activations of '{name}' must be finite")
        if self.float32.activation.shape != self.reference.activation.shape:
            raise UsageError("float32 and float64 have different numbers of classes")
        for name, answers in self.layers.items():
            if self.layers_float32[name].activation.shape != answers.activation.shape:
                raise UsageError(f"'{name}' has other shapes in float32 than in float64")


def write(path: Path, golden: Golden) -> None:
    """Write the file `path`."""
    arrays = {"image": golden.image, "label": golden.label, "input": golden.input}
    prefixes = {"": golden.reference, **{f"{name}.": answers for name, answers in golden.layers.items()}}
    for prefix, answers in prefixes.items():
        arrays |= {f"{prefix}activation": answers.activation, f"{prefix}pose": answers.pose}
    prefixes = {"": golden.float32, **{f"{name}.": answers for name, answers in golden.layers_float32.items()}}
    for prefix, answers in prefixes.items():
        arrays |= {f"{prefix}activation.float32": answers.activation, f"{prefix}pose.float32": answers.pose}
    write_arrays(path, arrays, SCHEMA, rows=json.dumps(golden.rows, ensure_ascii=False))


def read(path: Path) -> Golden:
    """The contents of the file `path`; what is not such a file is refused."""
    try:
        arrays, texts = read_arrays(path, SCHEMA)
        return _golden(json.loads(texts.get("rows", "null")), arrays)
    except KeyError as error:
        raise UsageError(f"{path} is not a golden file: it has no {error}") from error
    except (UsageError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a golden file: {error}") from error


def _golden(rows: object, arrays: Mapping[str, Array]) -> Golden:
    if not isinstance(rows, list) or not all(type(row) is str for row in rows):
        raise UsageError(f"its rows must be named by a list of text, not {rows!r}")
    layers = sorted(name.removesuffix(".pose") for name in arrays if name.endswith(".pose"))
    return Golden(
        rows=tuple(rows),
        image=arrays["image"],
        label=arrays["label"],
        input=arrays["input"],
        reference=Answers(arrays["activation"], arrays["pose"]),
        float32=Answers(arrays["activation.float32"], arrays["pose.float32"]),
        layers={name: Answers(arrays[f"{name}.activation"], arrays[f"{name}.pose"]) for name in layers},
        layers_float32={
            name: Answers(arrays[f"{name}.activation.float32"], arrays[f"{name}.pose.float32"]) for name in layers
        },
    )

"""golden.safetensors: images and the trained network's answers to them, so that any artefact can be checked anywhere.

    image                     uint8 [N, C, H, W]            as stored in the data set; the last rows are edge cases
    label                     int64 [N]                     -1 for an edge case
    input                     float32 [N, C, h, w]          the images pre-processed: what the network sees
    logit, pose               float64 [N, K], [N, K, 3]     by the reference in float64: the truth; a CNN has no pose
    logit.float32, pose.float32                             by the same in float32: the noise floor
    LAYER.activation, .pose   float64 [N, J, H', W'], [N, J, 3, H', W']   of the capsule layers before the last, in
                                                            float64, before poses are divided by their running RMS;
                                                            and LAYER.activation.float32, LAYER.pose.float32; of a
                                                            calibrated bundle only the first rows
    LAYER.iterationT.mean, .variance, .logit                float64 [n, J, 3, p], [n, J, 3, p], [n, J, p] after the T-th
                                                            iteration of routing at p places, of all capsule layers but
                                                            only the first n rows; and the same with .float32
    trained.logit, trained.pose        float64              of a calibrated bundle: see below

The answers are those that files of the bundle must give: the trained network's. But those of a calibrated network
(program/quantise.py) are of its plan: its own program in float64, with the rounding to int8 and of its arrays; the
ones ending in .float32 are of the same program in float32, with all of its rounding, and so say how far apart two
bodies of it may be. What the trained network itself answered is there too, to show what the plan costs.

With them (`qcn.export.bundle.arrays`) go texts in JSON. Three are lists: `rows`, what each row is; `inputs_only`, the
rows whose input no image gives (denormal numbers), whose `image` is black and stands for nothing; `classes`, the names
of the classes. The fourth is `preprocessing`, what makes the inputs of the images. The last two must be the manifest's.
The fifth, which a calibrated bundle lacks, is `floors`: for fp16 and for bf16, the largest error that rounding to it
makes in each array, by names such as logit, capsules1.pose, capsules1/iteration2/mean. `qcn.export.program.reference`
makes all of it; no torch here.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.bundle.arrays import read_arrays, write_arrays
from qcn.export.program.program import Array
from qcn.storage import records
from qcn.terminal.text import readable

Floors = dict[str, dict[str, float]]  # by precision and array
SCHEMA = "3"
QUANTITIES = ("mean", "variance", "logit")
SINGLE, TRAINED = ".float32", "trained"
ITERATION = re.compile(r"\.(iteration[0-9]+)\.")
ANSWER = re.compile(rf"logit|pose|(?!{TRAINED}\.).+\.(activation|pose|iteration[0-9]+\.(mean|variance|logit))")


@dataclass(frozen=True)
class Evaluation:
    """The outputs of a network for some images, in one precision: `arrays` by name.

    logit [N, K], pose [N, K, 3]                        its answers; a CNN has no poses
    LAYER.activation [n, J, H', W'], LAYER.pose         of the capsule layers before the last, [n, J, 3, H', W']
    LAYER/iterationT/mean, variance [n, J, 3, p]        after an iteration of routing, at p places, of all capsule
    LAYER/iterationT/logit [n, J, p]                    layers, but of the first n rows alone
    """

    arrays: dict[str, Array]

    @property
    def logit(self) -> Array:
        return self.arrays["logit"]

    @property
    def pose(self) -> Array:
        """[N, K, 0] of a CNN."""
        return self.arrays.get("pose", np.empty((*self.logit.shape, 0), self.logit.dtype))

    @property
    def answers(self) -> "Evaluation":
        """The network's own outputs, without those of layers and iterations."""
        return Evaluation({name: array for name, array in self.arrays.items() if name in ("logit", "pose")})

    @property
    def layers(self) -> list[str]:
        """The capsule layers before the last, first to last."""
        return list(dict.fromkeys(name.rpartition(".")[0] for name in self.arrays if "." in name and "/" not in name))

    @property
    def steps(self) -> list[str]:
        """The iterations of routing, such as capsules1/iteration2, first to last."""
        return list(dict.fromkeys(name.rpartition("/")[0] for name in self.arrays if "/" in name))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    def check(self, dtype: str, rows: int, fewer: bool) -> None:
        """Refuse arrays that are not of their kind; with `fewer`, layers may be of the first of all `rows` alone."""
        groups: list[tuple[str, tuple[str, ...], int]] = [("logit", ("pose",) if "pose" in self.arrays else (), 2)]
        groups += [(f"{layer}.activation", (f"{layer}.pose",), 4) for layer in self.layers]
        groups += [(f"{step}/logit", (f"{step}/mean", f"{step}/variance"), 3) for step in self.steps]
        for name, vectors, axes in groups:
            shape, some = self.arrays[name].shape, axes == 3 or (fewer and axes == 4)
            if len(shape) != axes or not (len(self.arrays[name]) == rows or (some and 0 < shape[0] < rows)):
                raise UsageError(f"'{name}' must be of {axes} axes and {rows} rows, not {list(shape)}")
            expected = {name: shape} | dict.fromkeys(vectors, (*shape[:2], 3, *shape[2:]))
            for each, due in expected.items():
                array = self.arrays[each]
                if array.dtype != dtype or array.shape != due or not np.isfinite(array).all():
                    result = f"{array.dtype} {list(array.shape)}"
                    raise UsageError(f"'{each}' must be finite {dtype} {list(due)}, not {result}")


@dataclass(frozen=True)
class Golden:
    """The file's contents: images, and the network's outputs: `reference` in float64, the truth, and `float32`.

    `plan` says that the answers are those of a calibrated network's plan, and `trained` what the trained network gave.
    `floors` are the noise floors of half precisions, by precision and array.
    """

    rows: tuple[str, ...]
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    image: Array
    label: Array
    input: Array
    reference: Evaluation
    float32: Evaluation
    inputs_only: tuple[str, ...] = ()
    plan: bool = False
    trained: Evaluation | None = None
    floors: Floors = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names and arrays that are not of their kind: they may come from a file."""
        self._check_names()
        for name, dtype, axes in (("image", "uint8", 4), ("label", "int64", 1), ("input", "float32", 4)):
            array: Array = getattr(self, name)
            if array.dtype != dtype or array.ndim != axes or len(array) != len(self.rows):
                result = f"{array.dtype} {list(array.shape)}"
                raise UsageError(f"'{name}' must be {dtype} of {axes} axes and {len(self.rows)} rows, not {result}")
        for row, label in zip(self.rows, self.label, strict=True):
            if not -1 <= label < len(self.classes):
                classes = len(self.classes)
                raise UsageError(f"'{row}' has the label {label}, but there are {classes} classes (-1: no class)")
        if not np.isfinite(self.input).all():
            raise UsageError("the inputs must be finite")
        whole = {"float64": self.reference, "float32": self.float32}
        whole |= {"trained": self.trained} if self.trained else {}
        for kind, evaluation in whole.items():
            try:
                evaluation.check("float32" if kind == "float32" else "float64", len(self.rows), self.plan)
            except UsageError as error:
                raise UsageError(f"{kind}: {error}") from error
            expected = self.reference.answers if kind == "trained" else self.reference
            if evaluation.shapes != expected.shapes:
                raise UsageError(f"{kind} has other arrays, or arrays of other shapes, than float64")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the network's outputs: logits, and poses if it has any."""
        return ("logit", "pose") if "pose" in self.reference.arrays else ("logit",)

    def judged_by(self, precision: str) -> str:
        """Which tolerance counts for a file in this precision (`qcn.export.bundle.tolerance`)."""
        return "plan" if self.plan else precision

    @property
    def with_image(self) -> list[int]:
        """The places of the rows whose input is made from an image."""
        return [place for place, row in enumerate(self.rows) if row not in self.inputs_only]

    def _check_names(self) -> None:
        if twice := [row for row, count in Counter(self.rows).items() if count > 1]:
            raise UsageError(f"two of its rows are named '{readable(twice[0])}'")
        for kind, names in (("row", self.rows), ("array", self.reference.arrays)):
            if odd := [name for name in names if name != readable(name)]:
                raise UsageError(f"the {kind} '{readable(odd[0])}' has control characters in its name")
        if strange := set(self.inputs_only) - set(self.rows):
            raise UsageError(f"'{readable(min(strange))}' is not one of its rows")
        if not set(self.rows) - set(self.inputs_only):
            raise UsageError("it has no images")


def step_names(layers: Sequence[str], iterations: int) -> list[str]:
    """The steps of these capsule layers in the order in which they are made: capsules1/iteration1, …"""
    return [f"{layer}/iteration{t + 1}" for layer in layers for t in range(iterations)]


def write(path: Path, golden: Golden) -> None:
    """Write the file `path`."""
    arrays = {"image": golden.image, "label": golden.label, "input": golden.input}
    if golden.trained:
        arrays |= {f"{TRAINED}.{name}": array for name, array in golden.trained.arrays.items()}
    for evaluation, ending in ((golden.reference, ""), (golden.float32, SINGLE)):
        arrays |= {f"{name.replace('/', '.')}{ending}": array for name, array in evaluation.arrays.items()}
    texts: dict[str, Any] = {"rows": golden.rows, "inputs_only": golden.inputs_only, "classes": golden.classes}
    texts |= {"preprocessing": asdict(golden.preprocessing)}
    texts |= {"floors": golden.floors} if golden.floors else {}
    write_arrays(path, arrays, SCHEMA, **{name: json.dumps(text, ensure_ascii=False) for name, text in texts.items()})


def read(content: bytes, path: object = "the file") -> Golden:
    """Read the bytes of the file `path`; anything but a golden file is refused."""
    try:
        arrays, texts = read_arrays(content, SCHEMA)
        fields = records.parse(texts["preprocessing"], "'preprocessing'")
        # Of the answers in float64 the name in the file, and in an evaluation; the others have the same, and an ending.
        answers = {name: ITERATION.sub(r"/\1/", name) for name in sorted(arrays) if ANSWER.fullmatch(name)}
        trained = {name: arrays[f"{TRAINED}.{name}"] for name in ("logit", "pose") if f"{TRAINED}.{name}" in arrays}
        return Golden(
            rows=_names(texts, "rows"),
            classes=_names(texts, "classes"),
            preprocessing=records.read(Preprocessing, fields, "'preprocessing'"),
            image=arrays["image"],
            label=arrays["label"],
            input=arrays["input"],
            reference=Evaluation({name: arrays[stored] for stored, name in answers.items()}),
            float32=Evaluation({name: arrays[f"{stored}{SINGLE}"] for stored, name in answers.items()}),
            inputs_only=_names(texts, "inputs_only"),
            plan=bool(trained),
            trained=Evaluation(trained) if trained else None,
            floors=_floors(texts),
        )
    except KeyError as error:
        missing = str(error).replace("/", ".")  # an iteration's name in the file
        raise UsageError(f"{path} is not a golden file: it has no {missing}") from error
    except (UsageError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a golden file: {error}") from error


def _names(texts: Mapping[str, str], name: str) -> tuple[str, ...]:
    names = records.parse(texts[name], f"'{name}'")
    if not isinstance(names, list) or not all(type(row) is str for row in names):
        raise UsageError(f"'{name}' must be a list of text, not {names!r}")
    return tuple(names)


def _floors(texts: Mapping[str, str]) -> Floors:
    result = records.parse(texts.get("floors", "{}"), "'floors'")
    if not isinstance(result, dict) or not all(isinstance(of, dict) for of in result.values()):
        raise UsageError("'floors' must say, by precision, the noise floor of each array")
    if odd := [x for of in result.values() for x in of.values() if not (type(x) is float and 0 <= x < math.inf)]:
        raise UsageError(f"a noise floor must be a positive number, not {odd[0]!r}")
    return result

"""golden.safetensors: images and the trained network's answers to them, so that any artefact can be checked anywhere.

    image                     uint8 [N, C, H, W]            as stored in the data set; the last rows are edge cases
    label                     int64 [N]                     -1 for an edge case
    input                     float32 [N, C, h, w]          the images pre-processed: what the network sees
    activation, pose          float64 [N, K], [N, K, 3]     by the reference in float64: the truth; a CNN has no pose
    activation.float32, pose.float32                        by the same in float32: the noise floor
    LAYER.activation, .pose   float64 [N, J, H', W'], [N, J, 3, H', W']   of the capsule layers before the last, in
                                                            float64, before poses are divided by their running RMS;
                                                            and LAYER.activation.float32, LAYER.pose.float32; of a
                                                            calibrated bundle only the first rows
    LAYER.iterationT.mean, .variance, .activation           float64 [n, J, 3, p], [n, J, 3, p], [n, J, p] after the T-th
                                                            iteration of routing at p places, of all capsule layers but
                                                            only the first n rows; and the same with .float32
    trained.activation, trained.pose   float64              of a calibrated bundle: see below

The answers are those that files of the bundle must give: the trained network's. But those of a calibrated network
(`qcn.export.quantise`) are of its plan: its own program in float64, with the rounding to int8 and of its arrays; the
ones ending in .float32 are of the same program in float32, with all of its rounding, and so say how far apart two
bodies of it may be. What the trained network itself answered is there too, to show what the plan costs.

With them (`qcn.export.bundle.arrays`) go texts in JSON. Three are lists: `rows`, what each row is; `inputs_only`, the
rows whose input no image gives (denormal numbers), whose `image` is black and stands for nothing; `classes`, the names
of the classes. The fourth is `preprocessing`, what makes the inputs of the images. The last two must be the manifest's.
The fifth, which a calibrated bundle lacks, is `floors`: for fp16 and for bf16, the largest error that rounding to it
makes in each array, by names such as activation, capsules1.pose, capsules1/iteration2/mean. `qcn.export.reference`
makes all of it; no torch here.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qcn import records
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.bundle.arrays import read_arrays, write_arrays
from qcn.export.program import Array
from qcn.text import readable

Floors = dict[str, dict[str, float]]  # by precision and array
SCHEMA = "2"
QUANTITIES = ("mean", "variance", "activation")
TRAINED = "trained"


@dataclass(frozen=True)
class Answers:
    """What a layer or the whole network gives: activations [N, K, …] and poses [N, K, 3, …]."""

    activation: Array
    pose: Array


@dataclass(frozen=True)
class Step:
    """A capsule layer after an iteration of routing: mean and variance [n, J, 3, p], activation [n, J, p], p places."""

    mean: Array
    variance: Array
    activation: Array


@dataclass(frozen=True)
class Golden:
    """The file's contents.

    `layers` are the capsule layers before the last, by name, first to last, in float64; `steps` are the iterations of
    routing of all of them, by names such as capsules1/iteration2, first to last, of the first rows. A CNN has neither,
    and its poses are [N, K, 0].

    `plan` says that the answers are those of a calibrated network's plan, and `trained` what the trained network gave.
    `floors` are the noise floors of half precisions, by precision and array.
    """

    rows: tuple[str, ...]
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    image: Array
    label: Array
    input: Array
    reference: Answers
    float32: Answers
    layers: dict[str, Answers]
    layers_float32: dict[str, Answers]
    steps: dict[str, Step] = field(default_factory=dict)
    steps_float32: dict[str, Step] = field(default_factory=dict)
    inputs_only: tuple[str, ...] = ()
    plan: bool = False
    trained: Answers | None = None
    floors: Floors = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names and arrays that are not of their kind: they may come from a file."""
        self._check_rows()
        arrays = [("image", self.image, "uint8", 4), ("label", self.label, "int64", 1)]
        arrays += [("input", self.input, "float32", 4)]
        for name, answers, dtype, axes in (
            ("float64", self.reference, "float64", 2),
            ("float32", self.float32, "float32", 2),
            *([("trained", self.trained, "float64", 2)] if self.trained else []),
            *((layer, answers, "float64", 4) for layer, answers in self.layers.items()),
            *((f"{layer} float32", answers, "float32", 4) for layer, answers in self.layers_float32.items()),
        ):
            arrays += [(f"{name} activation", answers.activation, dtype, axes)]
            arrays += [(f"{name} pose", answers.pose, dtype, axes + 1)]
        for name, array, dtype, axes in arrays:
            few = self.plan and axes >= 4 and dtype.startswith("float") and 0 < len(array) < len(self.rows)
            rows = len(array) if few and name != "input" else len(self.rows)
            if array.dtype != dtype or array.ndim != axes or len(array) != rows:
                found = f"{array.dtype} {list(array.shape)}"
                raise UsageError(f"'{name}' must be {dtype} of {axes} axes and {len(self.rows)} rows, not {found}")
        for row, label in zip(self.rows, self.label, strict=True):
            if not -1 <= label < len(self.classes):
                classes = len(self.classes)
                raise UsageError(f"'{row}' has the label {label}, but there are {classes} classes (-1: no class)")
        if not np.isfinite(self.input).all():
            raise UsageError("the inputs must be finite")
        singles = {f"{name} float32": answers for name, answers in self.layers_float32.items()}
        whole = {"float64": self.reference, "float32": self.float32}
        whole |= {"trained": self.trained} if self.trained else {}
        for name, answers in {**whole, **self.layers, **singles}.items():
            sides = answers.pose.shape[2] if name in whole and answers.pose.shape[2] == 0 else 3
            expected = (*answers.activation.shape[:2], sides, *answers.activation.shape[2:])
            if answers.pose.shape != expected or not np.isfinite(answers.pose).all():
                raise UsageError(f"the poses of '{name}' must be finite and {list(expected)}")
            if not np.isfinite(answers.activation).all():
                raise UsageError(f"the activations of '{name}' must be finite")
        if len({(answers.activation.shape, answers.pose.shape) for answers in whole.values()}) > 1:
            raise UsageError(f"{' and '.join(whole)} have different numbers of classes, or poses in one alone")
        for name, answers in self.layers.items():
            if self.layers_float32[name].activation.shape != answers.activation.shape:
                raise UsageError(f"'{name}' has other shapes in float32 than in float64")
        for name, step in self.steps.items():
            self._check_step(name, step, "float64", step.activation.shape)
            self._check_step(name, self.steps_float32[name], "float32", step.activation.shape)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the network answers with: its activations, and its poses if it has any."""
        return ("activation", "pose") if self.reference.pose.size else ("activation",)

    def arrays(self, name: str) -> tuple[Array, Array]:
        """One of the answers in float64 and in float32: activation, LAYER.pose or LAYER/iterationT/mean."""
        step, _, quantity = name.rpartition("/")
        layer, _, output = name.rpartition(".")
        if step:
            return getattr(self.steps[step], quantity), getattr(self.steps_float32[step], quantity)
        if layer:
            return getattr(self.layers[layer], output), getattr(self.layers_float32[layer], output)
        return getattr(self.reference, name), getattr(self.float32, name)

    def judged_by(self, precision: str) -> str:
        """Which tolerance counts for a file in this precision (`qcn.export.bundle.tolerance`)."""
        return "plan" if self.plan else precision

    @property
    def with_image(self) -> list[int]:
        """The places of the rows whose input is made from an image."""
        return [place for place, row in enumerate(self.rows) if row not in self.inputs_only]

    def _check_rows(self) -> None:
        if twice := [row for row, count in Counter(self.rows).items() if count > 1]:
            raise UsageError(f"two of its rows are named '{readable(twice[0])}'")
        for kind, names in (("row", self.rows), ("layer", self.layers), ("iteration", self.steps)):
            if odd := [name for name in names if name != readable(name)]:
                raise UsageError(f"the {kind} '{readable(odd[0])}' has control characters in its name")
        if strange := set(self.inputs_only) - set(self.rows):
            raise UsageError(f"'{readable(min(strange))}' is not one of its rows")
        if not set(self.rows) - set(self.inputs_only):
            raise UsageError("it has no images")

    def _check_step(self, name: str, step: Step, dtype: str, shape: tuple[int, ...]) -> None:
        if len(shape) != 3 or not 0 < shape[0] <= len(self.rows):
            raise UsageError(
                f"'{name}' must be of at most {len(self.rows)} rows, parents and places, not {list(shape)}"
            )
        statistic = (*shape[:2], 3, shape[2])
        for quantity, sides in zip(QUANTITIES, (statistic, statistic, shape), strict=True):
            array = getattr(step, quantity)
            if array.dtype != dtype or array.shape != sides or not np.isfinite(array).all():
                found = f"{array.dtype} {list(array.shape)}"
                raise UsageError(f"the {quantity} of '{name}' must be finite {dtype} {list(sides)}, not {found}")


def step_names(layers: Sequence[str], iterations: int) -> list[str]:
    """The steps of these capsule layers in the order in which they are made: capsules1/iteration1, …"""
    return [f"{layer}/iteration{t + 1}" for layer in layers for t in range(iterations)]


def flat(answers: Answers, layers: Mapping[str, Answers], steps: Mapping[str, Step]) -> dict[str, Array]:
    """All arrays by name: activation, LAYER.pose, LAYER/iterationT/mean."""
    named = {"activation": answers.activation, "pose": answers.pose}
    named |= {f"{layer}.{of}": getattr(one, of) for layer, one in layers.items() for of in ("activation", "pose")}
    named |= {f"{step}/{of}": getattr(one, of) for step, one in steps.items() for of in QUANTITIES}
    return {name: array for name, array in named.items() if array.size}  # a network without poses has empty ones


def write(path: Path, golden: Golden) -> None:
    """Write the file `path`."""
    arrays = {"image": golden.image, "label": golden.label, "input": golden.input}
    if golden.trained:
        arrays |= {f"{TRAINED}.{of}": getattr(golden.trained, of) for of in golden.outputs}
    for answers, layers, steps, ending in (
        (golden.reference, golden.layers, golden.steps, ""),
        (golden.float32, golden.layers_float32, golden.steps_float32, ".float32"),
    ):
        for prefix, layer in {"": answers, **{f"{name}.": layer for name, layer in layers.items()}}.items():
            arrays[f"{prefix}activation{ending}"] = layer.activation
            if layer.pose.size:
                arrays[f"{prefix}pose{ending}"] = layer.pose
        for name, step in steps.items():
            arrays |= {f"{_dotted(name)}.{of}{ending}": getattr(step, of) for of in QUANTITIES}
    texts: dict[str, Any] = {"rows": golden.rows, "inputs_only": golden.inputs_only, "classes": golden.classes}
    texts |= {"preprocessing": asdict(golden.preprocessing)}
    texts |= {"floors": golden.floors} if golden.floors else {}
    write_arrays(path, arrays, SCHEMA, **{name: json.dumps(text, ensure_ascii=False) for name, text in texts.items()})


def read(path: Path) -> Golden:
    """The contents of the file `path`; what is not such a file is refused."""
    try:
        arrays, texts = read_arrays(path, SCHEMA)
        written = records.parse(texts["preprocessing"], "'preprocessing'")
        spec = records.read(Preprocessing, written, "'preprocessing'")
        rows, without, classes = (_names(texts, name) for name in ("rows", "inputs_only", "classes"))
        return replace(_golden(rows, without, classes, spec, arrays), floors=_floors(texts))
    except KeyError as error:
        raise UsageError(f"{path} is not a golden file: it has no {error}") from error
    except (UsageError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a golden file: {error}") from error


def _names(texts: Mapping[str, str], name: str) -> tuple[str, ...]:
    names = records.parse(texts[name], f"'{name}'")
    if not isinstance(names, list) or not all(type(row) is str for row in names):
        raise UsageError(f"'{name}' must be a list of text, not {names!r}")
    return tuple(names)


def _floors(texts: Mapping[str, str]) -> Floors:
    found = records.parse(texts.get("floors", "{}"), "'floors'")
    if not isinstance(found, dict) or not all(isinstance(of, dict) for of in found.values()):
        raise UsageError("'floors' must say, by precision, the noise floor of each array")
    if odd := [x for of in found.values() for x in of.values() if not (type(x) is float and 0 <= x < math.inf)]:
        raise UsageError(f"a noise floor must be a positive number, not {odd[0]!r}")
    return found


def _golden(
    rows: tuple[str, ...],
    inputs_only: tuple[str, ...],
    classes: tuple[str, ...],
    preprocessing: Preprocessing,
    arrays: Mapping[str, Array],
) -> Golden:
    plan = f"{TRAINED}.activation" in arrays
    layers = sorted(name.removesuffix(".pose") for name in arrays if name.endswith(".pose"))
    layers = [name for name in layers if name != TRAINED]
    found = (re.fullmatch(r"(.+)\.iteration([0-9]+)\.mean", name) for name in arrays)
    # The layers as the network has them: capsules1, capsules2, …, and the classes, which sort behind them.
    steps = [f"{layer}/iteration{t}" for layer, t in sorted((match[1], int(match[2])) for match in found if match)]
    return Golden(
        rows=rows,
        classes=classes,
        preprocessing=preprocessing,
        image=arrays["image"],
        label=arrays["label"],
        input=arrays["input"],
        reference=_answers(arrays, ""),
        float32=_answers(arrays, ".float32"),
        layers={name: _answers(arrays, "", f"{name}.") for name in layers},
        layers_float32={name: _answers(arrays, ".float32", f"{name}.") for name in layers},
        steps={name: _step(arrays, name, "") for name in steps},
        steps_float32={name: _step(arrays, name, ".float32") for name in steps},
        inputs_only=inputs_only,
        plan=plan,
        trained=_answers(arrays, "", f"{TRAINED}.") if plan else None,
    )


def _answers(arrays: Mapping[str, Array], ending: str, of: str = "") -> Answers:
    activation = arrays[f"{of}activation{ending}"]
    without = np.empty((*activation.shape, 0), activation.dtype)  # the poses of a CNN
    return Answers(activation, arrays.get(f"{of}pose{ending}", without))


def _step(arrays: Mapping[str, Array], name: str, ending: str) -> Step:
    return Step(*(arrays[f"{_dotted(name)}.{of}{ending}"] for of in QUANTITIES))


def _dotted(name: str) -> str:
    """A step's name in the file."""
    return name.replace("/", ".")

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


@dataclass(frozen=True)
class ReferenceAnswers:
    """What the network answers: logits [N, K] and poses [N, K, 3]."""

    logit: Array
    pose: Array


@dataclass(frozen=True)
class CapsuleOutputs:
    """What a capsule layer before the last gives: activations [N, J, H', W'] and poses [N, J, 3, H', W']."""

    activation: Array
    pose: Array


@dataclass(frozen=True)
class Step:
    """A capsule layer after an iteration of routing: mean and variance [n, J, 3, p], logit [n, J, p], p places."""

    mean: Array
    variance: Array
    logit: Array


@dataclass(frozen=True)
class Evaluation:
    """What a network makes of images, in one precision.

    `layers` are the capsule layers before the last, by name, first to last; `steps` are the iterations of routing of
    all of them, by names such as capsules1/iteration2, first to last, of the first rows. A CNN has neither, and its
    poses are [N, K, 0].
    """

    answers: ReferenceAnswers
    layers: dict[str, CapsuleOutputs]
    steps: dict[str, Step]

    @staticmethod
    def of(named: Mapping[str, Array]) -> "Evaluation":
        """The inverse of `named`."""
        layers = dict.fromkeys(name.rpartition(".")[0] for name in named if "." in name and "/" not in name)
        steps = dict.fromkeys(name.rpartition("/")[0] for name in named if "/" in name)
        logit = named["logit"]
        without = np.empty((*logit.shape, 0), logit.dtype)  # the poses of a CNN
        return Evaluation(
            ReferenceAnswers(logit, named.get("pose", without)),
            {layer: CapsuleOutputs(named[f"{layer}.activation"], named[f"{layer}.pose"]) for layer in layers},
            {step: Step(*(named[f"{step}/{of}"] for of in QUANTITIES)) for step in steps},
        )

    def named(self) -> dict[str, Array]:
        """All arrays by name: logit, LAYER.pose, LAYER/iterationT/mean."""
        result = {"logit": self.answers.logit, "pose": self.answers.pose}
        for layer, capsules in self.layers.items():
            result |= {f"{layer}.{of}": getattr(capsules, of) for of in ("activation", "pose")}
        for name, step in self.steps.items():
            result |= {f"{name}/{of}": getattr(step, of) for of in QUANTITIES}
        return {name: array for name, array in result.items() if array.size}  # a network without poses has empty ones


@dataclass(frozen=True)
class Golden:
    """The file's contents: images, and what the network makes of them, `exact` in float64 and `single` in float32.

    `plan` says that the answers are those of a calibrated network's plan, and `trained` what the trained network gave.
    `floors` are the noise floors of half precisions, by precision and array.
    """

    rows: tuple[str, ...]
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    image: Array
    label: Array
    input: Array
    exact: Evaluation
    single: Evaluation
    inputs_only: tuple[str, ...] = ()
    plan: bool = False
    trained: ReferenceAnswers | None = None
    floors: Floors = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names and arrays that are not of their kind: they may come from a file."""
        self._check_rows()
        self._check_array("image", self.image, "uint8", 4)
        self._check_array("label", self.label, "int64", 1)
        self._check_array("input", self.input, "float32", 4)
        for row, label in zip(self.rows, self.label, strict=True):
            if not -1 <= label < len(self.classes):
                classes = len(self.classes)
                raise UsageError(f"'{row}' has the label {label}, but there are {classes} classes (-1: no class)")
        if not np.isfinite(self.input).all():
            raise UsageError("the inputs must be finite")
        whole = {"float64": self.reference, "float32": self.float32}
        whole |= {"trained": self.trained} if self.trained else {}
        for name, answers in whole.items():
            dtype = "float32" if name == "float32" else "float64"
            self._check_parents(name, "logit", answers.logit, answers.pose, dtype, 2)
        if len({(answers.logit.shape, answers.pose.shape) for answers in whole.values()}) > 1:
            raise UsageError(f"{' and '.join(whole)} have different numbers of classes, or poses in one alone")
        for name, capsules in self.exact.layers.items():
            rounded = self.single.layers[name]
            self._check_parents(name, "activation", capsules.activation, capsules.pose, "float64", 4)
            self._check_parents(f"{name} float32", "activation", rounded.activation, rounded.pose, "float32", 4)
            if rounded.activation.shape != capsules.activation.shape:
                raise UsageError(f"'{name}' has other shapes in float32 than in float64")
        for name, step in self.exact.steps.items():
            self._check_step(name, step, "float64", step.logit.shape)
            self._check_step(name, self.single.steps[name], "float32", step.logit.shape)

    @property
    def reference(self) -> ReferenceAnswers:
        """The truth: what the network answers in float64."""
        return self.exact.answers

    @property
    def float32(self) -> ReferenceAnswers:
        """The same in float32: how far rounding is off."""
        return self.single.answers

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the network answers with: its logits, and its poses if it has any."""
        return ("logit", "pose") if self.reference.pose.size else ("logit",)

    def arrays(self, name: str) -> tuple[Array, Array]:
        """One of the answers in float64 and in float32: logit, LAYER.pose or LAYER/iterationT/mean."""
        return self.exact.named()[name], self.single.named()[name]

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
        for kind, names in (("row", self.rows), ("layer", self.exact.layers), ("iteration", self.exact.steps)):
            if odd := [name for name in names if name != readable(name)]:
                raise UsageError(f"the {kind} '{readable(odd[0])}' has control characters in its name")
        if strange := set(self.inputs_only) - set(self.rows):
            raise UsageError(f"'{readable(min(strange))}' is not one of its rows")
        if not set(self.rows) - set(self.inputs_only):
            raise UsageError("it has no images")

    def _check_array(self, name: str, array: Array, dtype: str, axes: int, fewer: bool = False) -> None:
        few = fewer and array.ndim == axes and 0 < len(array) < len(self.rows)
        if array.dtype != dtype or array.ndim != axes or not (few or len(array) == len(self.rows)):
            result = f"{array.dtype} {list(array.shape)}"
            raise UsageError(f"'{name}' must be {dtype} of {axes} axes and {len(self.rows)} rows, not {result}")

    def _check_parents(self, name: str, kind: str, active: Array, pose: Array, dtype: str, axes: int) -> None:
        """Of the whole network, or of a layer, which has places too, and of which a plan keeps the first rows alone.

        `active` are logits or activations, as `kind` says.
        """
        layer = axes > 2
        self._check_array(f"{name} {kind}", active, dtype, axes, self.plan and layer)
        self._check_array(f"{name} pose", pose, dtype, axes + 1, self.plan and layer)
        sides = 3 if layer or pose.shape[2] else 0
        expected = (*active.shape[:2], sides, *active.shape[2:])
        if pose.shape != expected or not np.isfinite(pose).all():
            raise UsageError(f"the poses of '{name}' must be finite and {list(expected)}")
        if not np.isfinite(active).all():
            raise UsageError(f"the {kind}s of '{name}' must be finite")

    def _check_step(self, name: str, step: Step, dtype: str, shape: tuple[int, ...]) -> None:
        if len(shape) != 3 or not 0 < shape[0] <= len(self.rows):
            raise UsageError(
                f"'{name}' must be of at most {len(self.rows)} rows, parents and places, not {list(shape)}"
            )
        statistic = (*shape[:2], 3, shape[2])
        for quantity, sides in zip(QUANTITIES, (statistic, statistic, shape), strict=True):
            array = getattr(step, quantity)
            if array.dtype != dtype or array.shape != sides or not np.isfinite(array).all():
                result = f"{array.dtype} {list(array.shape)}"
                raise UsageError(f"the {quantity} of '{name}' must be finite {dtype} {list(sides)}, not {result}")


def step_names(layers: Sequence[str], iterations: int) -> list[str]:
    """The steps of these capsule layers in the order in which they are made: capsules1/iteration1, …"""
    return [f"{layer}/iteration{t + 1}" for layer in layers for t in range(iterations)]


def write(path: Path, golden: Golden) -> None:
    """Write the file `path`."""
    arrays = {"image": golden.image, "label": golden.label, "input": golden.input}
    if golden.trained:
        arrays |= {f"{TRAINED}.{of}": getattr(golden.trained, of) for of in golden.outputs}
    for evaluation, ending in ((golden.exact, ""), (golden.single, SINGLE)):
        arrays |= {f"{name.replace('/', '.')}{ending}": array for name, array in evaluation.named().items()}
    texts: dict[str, Any] = {"rows": golden.rows, "inputs_only": golden.inputs_only, "classes": golden.classes}
    texts |= {"preprocessing": asdict(golden.preprocessing)}
    texts |= {"floors": golden.floors} if golden.floors else {}
    write_arrays(path, arrays, SCHEMA, **{name: json.dumps(text, ensure_ascii=False) for name, text in texts.items()})


def read(content: bytes, path: object = "the file") -> Golden:
    """What is in the bytes of the file `path`; what is not such a file is refused."""
    try:
        arrays, texts = read_arrays(content, SCHEMA)
        fields = records.parse(texts["preprocessing"], "'preprocessing'")
        spec = records.read(Preprocessing, fields, "'preprocessing'")
        rows, without, classes = (_names(texts, name) for name in ("rows", "inputs_only", "classes"))
        plan = f"{TRAINED}.logit" in arrays
        trained = {
            name.removeprefix(f"{TRAINED}."): array for name, array in arrays.items() if name.startswith(TRAINED)
        }
        return Golden(
            rows=rows,
            classes=classes,
            preprocessing=spec,
            image=arrays["image"],
            label=arrays["label"],
            input=arrays["input"],
            exact=_evaluation(arrays, ""),
            single=_evaluation(arrays, SINGLE),
            inputs_only=without,
            plan=plan,
            trained=Evaluation.of(trained).answers if plan else None,
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


def _evaluation(arrays: Mapping[str, Array], ending: str) -> Evaluation:
    """From the arrays whose names end so, in the order in which the network makes them: classes after capsules."""
    names = {name: re.sub(r"\.(iteration[0-9]+)\.", r"/\1/", name) for name in sorted(arrays) if _is_answer(name)}
    return Evaluation.of({called: arrays[f"{name}{ending}"] for name, called in names.items()})


def _is_answer(name: str) -> bool:
    """Whether an array is one of float64 answers; of the others each has one of these, and its own ending."""
    return name.endswith(("logit", "activation", "pose", "mean", "variance")) and not name.startswith(TRAINED)

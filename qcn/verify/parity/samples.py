"""The images that backends are compared on: the golden ones, or others, with the reference's answers to them.

Others come from a data set, a folder or table of pictures, and need torch. With `--run` the truth is the run's own
network. Without it the truth is the deployment form (weights.safetensors) in float64, and the noise floor the same in
float32: before it judges anything it must itself answer the golden images as they say. Whatever the images are, they
come as a `Golden`, edge cases at the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qcn.data.cache import UNREADABLE
from qcn.data.fit import PICTURES, fit, read_picture
from qcn.data.folder import files_below, is_source, listing
from qcn.errors import CheckFailed, MissingError, UsageError, unknown_name
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.golden import Evaluation, Golden
from qcn.terminal.text import readable
from qcn.verify.parity.compare import compare
from qcn.verify.parity.run import Origin

if TYPE_CHECKING:
    from qcn.export.program.reference import Inputs

GOLDEN = "golden"
COUNT = 64


@dataclass(frozen=True)
class Samples:
    """Images with the reference's answers, and where they came from: `golden`, a data set's name, a folder or table.

    The last `edge_cases` of them come from no camera. `unreadable` says why each file was left out that could not be
    read.
    """

    name: str
    golden: Golden
    edge_cases: int
    unreadable: tuple[str, ...] = ()


def samples(
    bundle: Bundle,
    data: str = GOLDEN,
    count: int | None = None,
    data_dir: Path = Path("data"),
    origin: Origin | None = None,
) -> Samples:
    """The images that `--dataset` names: `count` (or `COUNT`) of a data set or folder, or all golden ones.

    An `origin`, to which the bundle's program was found to belong, answers them.
    """
    if data == GOLDEN:
        if count is not None:
            raise UsageError("--images is for a data set or a folder; golden images are all used")
        golden = bundle.golden()
        return Samples(GOLDEN, golden, int(np.sum(golden.label < 0)))
    if count is not None and count < 1:
        raise UsageError(f"--images must be 1 or more, not {count}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        fix = "pip install 'qcn-toolkit[train]', or compare on --dataset golden"
        raise MissingError(f"images other than the golden ones need torch, which is not installed: {fix}") from error
    from qcn.data.registry import DATASETS

    unreadable: list[str] = []
    if data in DATASETS:
        result = list(_of_dataset(bundle, data, count or COUNT, data_dir))
    elif is_source(data):
        result = _of_pictures(bundle, Path(data), count or COUNT, unreadable)
    else:
        raise unknown_name("data set or folder", data, [*DATASETS, GOLDEN])
    inputs = _inputs(bundle, result)
    answered = origin.answers(bundle, inputs) if origin else _answered(bundle, inputs)
    return Samples(readable(data), answered, len(answered.rows) - len(result), tuple(unreadable))


def _of_dataset(bundle: Bundle, name: str, count: int, data_dir: Path) -> Iterator[tuple[str, Any, int]]:
    """Images of its test splits, spread over splits and classes, each with a name and a label."""
    from qcn.data.registry import find, load
    from qcn.export.program.reference import real_images

    manifest = bundle.manifest
    if find(name).classes != manifest.classes:
        raise UsageError(f"{name} has other classes than {bundle.folder}, which has {', '.join(manifest.classes)}")
    for row, image, label in real_images(load(name, data_dir).tests, count):
        if image.shape != manifest.image:
            raise UsageError(f"images of {name} are {list(image.shape)}; {bundle.folder} takes {list(manifest.image)}")
        yield row, image, label


def _of_pictures(
    bundle: Bundle, source: Path, count: int, unreadable: list[str]
) -> list[tuple[str, NDArray[np.uint8], int]]:
    """Pictures of a folder or table, spread over its classes. Why a file could not be read goes into `unreadable`."""
    classes = bundle.manifest.classes
    named = _below(source, classes) if source.is_dir() else _listed(source)
    result: list[tuple[str, NDArray[np.uint8], int]] = []
    for index in _spread([kind for _, _, kind in named], len(named)):
        name, path, kind = named[index]
        try:
            pixels = read_picture(path)
        except UsageError as error:
            unreadable.append(str(error))
            if len(unreadable) > max(3, UNREADABLE * len(named)):
                raise UsageError(
                    f"too many files of {source} cannot be read ({len(unreadable)}), such as: {error}"
                ) from None
            continue
        result.append((readable(name), _image(pixels, path, bundle), classes.index(kind) if kind in classes else -1))
        if len(result) == count:
            break
    if not result:
        raise UsageError(unreadable[0] if unreadable else f"{source} has no pictures ({', '.join(PICTURES)})")
    return result


def _below(folder: Path, classes: Sequence[str]) -> list[tuple[str, Path, str]]:
    """Name, path and kind of the pictures below a folder: the sub-folder of a class's name, or the outermost one."""
    named = []
    for path in sorted(path for path in files_below(folder) if path.suffix.lower() in PICTURES and path.is_file()):
        name = path.relative_to(folder)
        parts = name.parent.parts
        named.append((str(name), path, next((part for part in parts if part in classes), parts[0] if parts else "")))
    return named


def _listed(table: Path) -> list[tuple[str, Path, str]]:
    """Name, path and class of the pictures of a table; one that it names twice is taken once."""
    result = listing(table)
    classes = {picture.path: result.classes[picture.label] for picture in result.pictures}
    return [(str(path), path, label) for path, label in classes.items()]


def _spread(kinds: Sequence[str], count: int) -> list[int]:
    """The places of `count` of them: random but reproducible, evenly over the kinds."""
    counts: dict[str, int] = {}
    turns = []
    for index in np.random.default_rng(0).permutation(len(kinds)):
        counts[kinds[index]] = turn = counts.get(kinds[index], -1) + 1
        turns.append((turn, kinds[index], int(index)))
    return [index for _, _, index in sorted(turns)[:count]]


def _image(pixels: NDArray[np.uint8], path: Path, bundle: Bundle) -> NDArray[np.uint8]:
    """A picture of any size as an image [C, H, W] of the data set, as its bundle says."""
    try:
        return fit(pixels, bundle.manifest.image, bundle.manifest.preprocessing.fit)
    except UsageError as error:
        raise UsageError(f"{path}: {error}; compare on a data set (--dataset NAME)") from error


def _inputs(bundle: Bundle, pictures: Sequence[tuple[str, Any, int]]) -> "Inputs":
    """The images pre-processed, with edge cases."""
    from qcn.export.program.reference import with_edge_cases

    rows, images, labels = zip(*pictures, strict=True)
    return with_edge_cases(rows, np.stack(images), labels, bundle.manifest.preprocessing)


def _answered(bundle: Bundle, inputs: "Inputs") -> Golden:
    from qcn.export.program.reference import evaluated, half_floors

    program = bundle.program()
    for evaluation in evaluated(program, bundle.golden().input):
        _hold_against(bundle, evaluation)
    floors = {} if program.calibrated else half_floors(program, inputs.input)
    exact, single = evaluated(program, inputs.input)
    classes, plan = bundle.manifest.classes, program.calibrated
    return Golden(**vars(inputs), classes=classes, reference=exact, float32=single, plan=plan, floors=floors)


def _hold_against(bundle: Bundle, answers: Evaluation) -> None:
    """Refuse a reference that does not answer the golden images as the trained network did."""
    golden = bundle.golden()
    named = {name: getattr(answers, name) for name in golden.outputs}
    for name, errors in compare(named, golden, "fp32", {}).items():
        if not errors.passed:
            raise CheckFailed(
                f"{bundle.folder / WEIGHTS} does not answer the golden images as the trained network did, so it "
                f"cannot be the reference for other images: {name} is {errors.words()}"
            )

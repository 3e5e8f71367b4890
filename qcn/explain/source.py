"""The network that is explained, in the form that is deployed: from a bundle, or lowered from a run in memory."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from qcn.data.spec import Preprocessing
from qcn.direction import Directions
from qcn.errors import UsageError
from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.program.program import Program
from qcn.names import RUN
from qcn.networks.confidence import Confidence, Known


@dataclass(frozen=True)
class Source:
    """A network with what is needed to give it an image. `image` is [C, H, W] before pre-processing."""

    name: str
    program: Program
    classes: tuple[str, ...]
    image: tuple[int, int, int]
    preprocessing: Preprocessing
    bundle: Bundle | None = None
    confidence: Confidence | None = None
    known: Known | None = None
    directions: Directions | None = None


def open_source(folder: Path) -> Source:
    """The network in this folder; one without capsules is refused."""
    if (folder / MANIFEST).exists():
        bundle = Bundle.open(folder)
        made = bundle.manifest
        about = (made.name, bundle.program(), made.classes, made.image, made.preprocessing)
        result = Source(*about, bundle, made.confidence, made.known, made.direction)
    elif (folder / RUN).exists():
        result = _from_run(folder)
    else:
        raise UsageError(f"{folder} is neither a bundle (no {MANIFEST}) nor a training run (no {RUN})")
    check_capsules(folder, result.program)
    return result


def _from_run(folder: Path) -> Source:
    from qcn.export.program.lower import lower
    from qcn.train.checkpoint import load_network

    network, run = load_network(folder)
    program = lower(network, *run.preprocessing.output_size(*run.data.image[1:]))
    about = (f"{run.data.name}-{run.model.name}", program, run.classes, run.data.image, run.preprocessing)
    return Source(*about, None, run.confidence, run.known, run.direction)


def check_capsules(folder: Path, program: Program) -> None:
    """Refuse a program that is no chain of capsule layers ending in the classes."""
    routes = program.routes
    if not routes:
        raise UsageError(
            f"{folder} has no capsules, so there are no poses, votes or routing to show. Capsule networks are "
            f"qcn, qcn-unbranched, qcn-deep and qcn-tiny"
        )
    for before, after in pairwise(routes):
        if (after.pose, after.activation) != (f"{before.name}.pose", f"{before.name}.activation"):
            raise UsageError(f"{folder}: the capsule layer '{after.name}' does not follow '{before.name}'")
    last, answers = routes[-1], {output.name: output.value for output in program.outputs}
    if answers != {"logit": f"{last.name}.logit", "pose": f"{last.name}.pose"}:
        raise UsageError(f"{folder}: the answer of this network does not come from its last capsule layer")
    if last.shape != (program.classes, 1, 1):
        raise UsageError(f"{folder}: the last capsule layer is {list(last.shape)}, not one capsule for each class")

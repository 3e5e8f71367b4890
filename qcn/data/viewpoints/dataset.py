"""`viewpoints`: stereo pictures of toys, rendered here, in smallNORB's own structure.

Five categories of ten instances, from 9 elevations and 18 azimuths under 6 lightings: 48,600 pairs, 96×96 grey pixels.
They are rendered once, on the GPU where there is one, and kept in the data folder. The set "viewpoints" tests on new
toys, and validates on further new ones, so that what is fitted on validation images holds for new toys too.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import ImageSet, Splits, Views
from qcn.data.rendered import keep, read_kept
from qcn.data.spec import Augmentation, Dataset, Preprocessing
from qcn.data.splits import FAMILIAR, Axis, by_instance, by_viewpoint
from qcn.data.viewpoints.light import LIGHTS
from qcn.data.viewpoints.toys import CATEGORIES, INSTANCES, Toy, toy
from qcn.errors import MissingError
from qcn.terminal.progress import doing, shown

RENDERER = 1  # raise it whenever a picture changes: the set is then rendered again, into a new file


@dataclass(frozen=True)
class Variant:
    """Which pictures to render: every instance from these angles (degrees) under these lightings (0..5)."""

    size: int = 96
    elevations: tuple[int, ...] = tuple(range(30, 71, 5))
    azimuths: tuple[int, ...] = tuple(range(0, 341, 20))
    lightings: tuple[int, ...] = tuple(range(6))
    seed: int = 0
    instances: tuple[int, ...] = tuple(range(INSTANCES))

    @property
    def shape(self) -> tuple[int, ...]:
        """Categories, instances, elevations, azimuths, lightings: the canonical order, the last going fastest."""
        axes = (self.instances, self.elevations, self.azimuths, self.lightings)
        return (len(CATEGORIES), *map(len, axes))

    def other_toys(self) -> "Variant":
        """For validation: as many toys, of another seed, from every third elevation under every third lighting."""
        return replace(self, seed=self.seed + 2, elevations=self.elevations[1::3], lightings=self.lightings[1::3])

    @property
    def file_name(self) -> str:
        subset = hashlib.sha256(repr((self.instances, self.elevations, self.azimuths, self.lightings)).encode())
        counts = "x".join(map(str, self.shape))
        return f"{counts}-{subset.hexdigest()[:8]}-{self.size}px-seed{self.seed}-renderer{RENDERER}.safetensors"


FULL = Variant()
DEV = Variant(seed=1)
DEMO = Variant(size=40, elevations=(30, 45, 60), lightings=(0, 3))


def render(variant: Variant) -> NDArray[np.uint8]:
    """All stereo pairs of a variant in the canonical order: uint8 [N, 2, size, size], the left eye first."""
    try:
        import torch

        from qcn.data.viewpoints import raytrace
    except ModuleNotFoundError as error:
        raise MissingError(f"rendering viewpoints needs {error.name}: pip install {error.name}") from None

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lights = tuple(LIGHTS[lighting] for lighting in variant.lightings)
    elevations, azimuths = np.array(variant.elevations), np.array(variant.azimuths)

    def pictures(one: Toy) -> NDArray[np.uint8]:
        return raytrace.render(one, elevations, azimuths, lights, size=variant.size, device=device)

    toys = [toy(category, i, variant.seed) for category in range(len(CATEGORIES)) for i in variant.instances]
    images = np.empty((len(toys), *variant.shape[2:], 2, variant.size, variant.size), np.uint8)
    # On a CPU the arrays of one toy are too small to share out: better one thread per toy than several within each.
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads if device.type == "cpu" else 1, initializer=torch.set_num_threads, initargs=(1,))
    try:
        with shown():
            for place, rendered in enumerate(pool.map(pictures, toys)):
                images[place] = rendered
                doing("rendering viewpoints", place + 1, of=len(toys))
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
    return images.reshape(-1, 2, variant.size, variant.size)


def load_viewpoints(folder: Path, variant: Variant = FULL) -> ImageSet:
    """The pictures of a variant with their labels and views, from the file in `folder`, or rendered and kept there."""
    path = folder / variant.file_name
    if path.exists():
        images = read_kept(path, (int(np.prod(variant.shape)), 2, variant.size, variant.size))
    else:
        images = render(variant)
        keep(path, images)
    labels, *views = (index.reshape(-1) for index in np.indices(variant.shape))
    angles = (variant.instances, variant.elevations, variant.azimuths, variant.lightings)
    chosen = (np.array(values)[index] for values, index in zip(angles, views, strict=True))
    return ImageSet(images, labels, CATEGORIES, Views(*chosen))


def _load(folder: Path, name: str, axis: Axis | None, pooled: bool, variant: Variant) -> Splits:
    images = load_viewpoints(folder, variant)
    if axis:
        return by_viewpoint(images, name, axis, pooled, TRAINED.get(name))
    return by_instance(images, name, load_viewpoints(folder, variant.other_toys()))


def _dataset(name: str, summary: str, axis: Axis | None, pooled: bool, variant: Variant) -> Dataset:
    return Dataset(
        name=name,
        summary=summary,
        classes=CATEGORIES,
        channels=2,
        size=variant.size,
        folder="viewpoints",
        load=lambda folder: _load(folder, name, axis, pooled, variant),
        preprocessing=Preprocessing(resize=48 if variant.size == FULL.size else None, crop=32, standardise="image"),
        augmentation=dict.fromkeys(("paper", "best"), Augmentation(random_crop=True)),
        augment="light" if variant == DEMO else "turned",
        terms="rendered by this product, whose licence applies",
    )


# The azimuths that a set trains on, where they are not smallNORB's.
TRAINED = {"viewpoints-between": tuple(range(0, 360, 40))}
# By name: the summary, the axis that is split by, whether instances are pooled, and which pictures.
SETS: dict[str, tuple[str, Axis | None, bool, Variant]] = {
    "viewpoints": ("rendered toys in stereo, 96×96 grey; test on new instances", None, False, FULL),
    "viewpoints-azimuth": ("viewpoints, test on new instances from new azimuths", "azimuth", False, FULL),
    "viewpoints-azimuth-pooled": ("viewpoints, test on known instances from new azimuths", "azimuth", True, FULL),
    "viewpoints-elevation": ("viewpoints, test on new instances from new elevations", "elevation", False, FULL),
    "viewpoints-elevation-pooled": ("viewpoints, test on known instances from new elevations", "elevation", True, FULL),
    "viewpoints-between": ("viewpoints, test on known instances between trained azimuths", "azimuth", True, FULL),
    "viewpoints-dev": ("viewpoints-azimuth-pooled with other toys: to choose settings by", "azimuth", True, DEV),
    "viewpoints-demo": ("a ninth of viewpoints-azimuth-pooled, 40×40, for a quick look", "azimuth", True, DEMO),
}
DATASETS = tuple(_dataset(name, *about) for name, about in SETS.items())


def familiar(name: str) -> dict[Axis, tuple[int, ...]]:
    """The angles, in degrees, that the training images of a set are seen from."""
    _, axis, _, variant = SETS[name]
    every: dict[Axis, tuple[int, ...]] = {"azimuth": variant.azimuths, "elevation": variant.elevations}
    return every | {axis: tuple(at for at in TRAINED.get(name, FAMILIAR[axis]) if at in every[axis])} if axis else every

"""The data sets of the product, by name; and folders of pictures, by their path.

A new one is a module with a tuple `DATASETS`, and a line here.
"""

from pathlib import Path

from qcn.data import checksums, cifar10, coil20, eth80, folder, mnist, scanned, smallnorb, svhn, viewpoints
from qcn.data.imageset import Splits
from qcn.data.spec import Dataset, Stored
from qcn.errors import MissingError, UsageError, unknown_name
from qcn.terminal.text import command_line

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        *mnist.DATASETS,
        *cifar10.DATASETS,
        *svhn.DATASETS,
        *smallnorb.DATASETS,
        *coil20.DATASETS,
        *eth80.DATASETS,
        *scanned.DATASETS,
        *viewpoints.DATASETS,
    )
}

AS_IT_IS = Stored()


def find(name: str, stored: Stored = AS_IT_IS) -> Dataset:
    """The data set of this name, or of the folder or table of pictures at this path, kept as `stored` says."""
    if name in DATASETS:
        if stored != AS_IT_IS:
            raise UsageError(
                f"size, fit, channels and group_by are for folders of pictures; {name} has its own images and splits"
            )
        return DATASETS[name]
    if folder.is_source(name):
        return folder.find(Path(name), stored)
    if "/" in name or "." in name:
        raise UsageError(f"there is no folder, table of pictures or data set named '{name}'")
    raise unknown_name("data set or folder", name, DATASETS)


def dataset_name(name: str) -> str:
    """What a data set is called in the names of folders: its own name, or the last part of its path."""
    return name if name in DATASETS else folder.plain(Path(name).resolve().stem)


def load(name: str, data_dir: Path, stored: Stored = AS_IT_IS) -> Splits:
    """Read the data set of this name, or the folder of pictures at this path, and split it."""
    return read(find(name, stored), data_dir)


def read(dataset: Dataset, data_dir: Path) -> Splits:
    """Read a data set from its folder below `data_dir`, and split it."""
    place = data_dir / dataset.folder
    if not dataset.files:
        return dataset.load(place)
    command = command_line("qcn", "datasets", "fetch", dataset.name, "--data-dir", data_dir)
    try:
        splits = dataset.load(place)  # first: a reader says more precisely what is wrong
        checksums.check(dataset, place)
        return splits
    except MissingError as error:
        raise MissingError(f"{error}; get it with: {command}") from None
    except UsageError as error:
        raise UsageError(f"{error}; delete the file and get it again with: {command}") from None

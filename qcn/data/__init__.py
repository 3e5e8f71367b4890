"""The data sets of the product, by name. A new one is a module with a tuple `DATASETS`, and a line here."""

from pathlib import Path

from qcn.data import checksums, cifar10, mnist, smallnorb, svhn, viewpoints
from qcn.data.imageset import Splits
from qcn.data.spec import Dataset
from qcn.errors import MissingError, UsageError, unknown_name

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        *mnist.DATASETS,
        *cifar10.DATASETS,
        *svhn.DATASETS,
        *smallnorb.DATASETS,
        *viewpoints.DATASETS,
    )
}


def find(name: str) -> Dataset:
    """The data set of this name."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name]


def load(name: str, data_dir: Path) -> Splits:
    """Read the data set of this name from its folder below `data_dir`, and split it."""
    dataset = find(name)
    folder = data_dir / dataset.folder
    if not dataset.files:
        return dataset.load(folder)
    command = f"qcn datasets fetch {name} --data-dir {data_dir}"
    try:
        splits = dataset.load(folder)  # first: a reader says more precisely what is wrong
        checksums.check(dataset, folder)
        return splits
    except MissingError as error:
        raise MissingError(f"{error}; get it with: {command}") from None
    except UsageError as error:
        raise UsageError(f"{error}; delete the file and get it again with: {command}") from None

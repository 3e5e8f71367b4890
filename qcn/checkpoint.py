"""A training run on disk: tensors in safetensors files, everything else in one JSON that names them.

    run.json                       settings, data, progress, history, and the names and sha256 of the files below
    weights-<step>.safetensors     what evaluation and export read (the averaged weights, where a run keeps them)
    state-<step>.safetensors       what resuming needs: raw weights and the optimiser's moments

Tensor files are written under a new name; then run.json is replaced in one rename; then what it no longer names is
deleted. So at every moment run.json names files that are whole. Nothing is ever unpickled.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialised
from torch import Tensor, nn

import qcn
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError, unknown_name
from qcn.files import atomic_write, file_sha256, write_text
from qcn.zoo import create

SCHEMA = 1


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file of the run, and the epoch it was written after."""

    file: str
    sha256: str
    epoch: int


@dataclass(frozen=True)
class TrainingData:
    """What a run was trained on: the data set, [C, H, W] of its stored images, how many, and the sha256 of them."""

    name: str
    image: list[int]
    train: int
    validation: int
    sha256: str


@dataclass(frozen=True)
class Progress:
    """The epoch and step to go on from, and the sums (of losses, of wrong answers) of an epoch under way."""

    epoch: int = 0
    step: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])


@dataclass(frozen=True)
class Run:
    """The contents of run.json.

    model        name and keyword arguments for `qcn.create`
    settings     the training settings (`qcn.settings.Settings`)
    history      one entry an epoch, the rows of metrics.csv
    """

    model: dict[str, Any]
    classes: list[str]
    preprocessing: Preprocessing
    data: TrainingData
    settings: dict[str, Any]
    progress: Progress = field(default_factory=Progress)
    history: list[dict[str, Any]] = field(default_factory=list)
    last: TensorFile | None = None
    best: TensorFile | None = None
    state: TensorFile | None = None
    schema: int = SCHEMA
    qcn_version: str = qcn.__version__

    def __post_init__(self) -> None:
        """Refuse a record whose entries are not of their kind: it may have been altered."""
        right = (
            type(self.data.name) is str
            and _whole_numbers(self.progress.epoch, self.progress.step, *self.data.image)
            and len(self.data.image) == 3
            and len(self.progress.sums) == 2
            and all(type(number) is float for number in self.progress.sums)
            and all(type(name) is str for name in self.classes)
            and all(type(file.file) is type(file.sha256) is str for file in (self.last, self.best, self.state) if file)
        )
        if not right:
            raise TypeError("an entry is not of its kind")


def _whole_numbers(*values: object) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def save(
    folder: Path, run: Run, weights: dict[str, Tensor], state: dict[str, Tensor], *, epoch: int, best: bool
) -> Run:
    """Write a checkpoint. `best` says whether these weights are the best so far on the validation split."""
    step = run.progress.step
    last = _write_tensors(folder / f"weights-{step:08d}.safetensors", weights, epoch)
    resumable = _write_tensors(folder / f"state-{step:08d}.safetensors", state, epoch)
    run = replace(run, last=last, state=resumable, best=last if best else run.best)
    write_text(folder / "run.json", json.dumps(asdict(run), indent=1) + "\n")
    clean(folder, run)
    return run


def clean(folder: Path, run: Run) -> None:
    """Delete what an interrupted write or an older checkpoint left behind."""
    named = {file.file for file in (run.last, run.best, run.state) if file}
    for pattern in ("weights-*.safetensors", "state-*.safetensors", ".*.part"):
        for path in folder.glob(pattern):
            if path.name not in named:
                path.unlink()


def load_run(folder: Path) -> Run:
    """Read run.json, refusing what is not one."""
    path = folder / "run.json"
    if not path.is_file():
        raise UsageError(f"{folder} is not a training run: it has no run.json (make one with `qcn train`)")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise UsageError(f"{path} is not a run record but a JSON {type(record).__name__}")
        if record.get("schema") != SCHEMA:
            raise UsageError(f"{path} has schema {record.get('schema')!r}; this version of qcn reads {SCHEMA}")
        known = {f.name for f in fields(Run)}
        if unknown := sorted(set(record) - known):
            raise UsageError(f"{path} has unknown entries: {', '.join(unknown)}")
        for name in ("last", "best", "state"):
            record[name] = TensorFile(**record[name]) if record.get(name) else None
        seen = {**record["preprocessing"]}
        record["preprocessing"] = Preprocessing(**{**seen, "mean": tuple(seen["mean"]), "std": tuple(seen["std"])})
        record["data"] = TrainingData(**record["data"])
        record["progress"] = Progress(**record["progress"])
        return Run(**record)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def load_tensors(folder: Path, file: TensorFile | None) -> dict[str, Tensor]:
    """The tensors of a file that run.json names; a missing or altered one is refused."""
    if file is None:
        raise UsageError(f"{folder} has no such checkpoint yet")
    path = folder / file.file
    if not path.is_file():
        raise UsageError(f"{path} is missing, though run.json names it")
    found = file_sha256(path)
    if found != file.sha256:
        raise UsageError(f"{path} was altered: its sha256 is {found[:12]}…, run.json says {file.sha256[:12]}…")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def load_network(folder: Path, which: str = "best") -> tuple[nn.Module, Run]:
    """The trained network of a run ("best" on validation, or "last"), in evaluation mode on the CPU, and its record."""
    if which not in ("best", "last"):
        raise unknown_name("checkpoint", which, ("best", "last"))
    run = load_run(folder)
    try:
        network = create(**run.model)
    except TypeError as error:
        raise UsageError(f"{folder / 'run.json'} does not describe a network: {error}") from error
    restore(network, load_tensors(folder, run.best if which == "best" and run.best else run.last), folder)
    return network.eval(), run


def restore(network: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Copy tensors into a network; names or shapes that do not fit are refused in one line."""
    own = network.state_dict()
    if own.keys() != tensors.keys():
        name = sorted(own.keys() ^ tensors.keys())[0]
        raise UsageError(f"the weights in {folder} are of another network: '{name}' is in one and not in the other")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise UsageError(f"the weights in {folder} do not fit: '{name}' is {list(tensors[name].shape)}")
    network.load_state_dict(tensors)


def _write_tensors(path: Path, tensors: dict[str, Tensor], epoch: int) -> TensorFile:
    content = serialised({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    with atomic_write(path) as aside:
        aside.write_bytes(content)
    return TensorFile(path.name, hashlib.sha256(content).hexdigest(), epoch)


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: `optimizer.<moment>.<parameter>`."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{moment}.{names[index]}": value
        for index, moments in state.items()
        for moment, value in moments.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, names: list[str], tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    record = optimizer.state_dict()
    record["state"] = {}
    for key, value in tensors.items():
        prefix, moment, name = key.split(".", 2)
        if prefix == "optimizer":
            record["state"].setdefault(names.index(name), {})[moment] = value
    optimizer.load_state_dict(record)

"""A training run on disk: tensors in safetensors files, everything else in one JSON that names them.

    run.json                       settings, data, progress, history, and the names and sha256 of the files below
    weights-<step>.safetensors     what evaluation and export read (the averaged weights, where a run keeps them)
    state-<step>.safetensors       what resuming needs: raw weights and the optimiser's moments

Tensor files are written under a new name; then run.json is replaced in one rename; then what it no longer names is
deleted. So at every moment run.json names files that are whole. Nothing is ever unpickled.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as serialised
from torch import Tensor, nn

from qcn.errors import UsageError, unknown_name
from qcn.names import RUN
from qcn.networks.zoo import MODELS
from qcn.storage.files import atomic_write
from qcn.train.record import Run, TensorFile, load_run


def save(
    folder: Path, run: Run, weights: dict[str, Tensor], state: dict[str, Tensor], *, epoch: int, best: bool
) -> Run:
    """Write a checkpoint. `best` says whether, of those so far, these weights are chosen."""
    step = run.progress.step
    last = _write_tensors(folder / f"weights-{step:08d}.safetensors", weights, epoch)
    resumable = _write_tensors(folder / f"state-{step:08d}.safetensors", state, epoch)
    run = replace(run, last=last, state=resumable, best=last if best else run.best)
    run.write(folder)
    clean(folder, run)
    return run


def clean(folder: Path, run: Run) -> None:
    """Delete what an interrupted write or an older checkpoint left behind."""
    named = {file.file for file in (run.last, run.best, run.state) if file}
    for pattern in ("weights-*.safetensors", "state-*.safetensors", ".*.part"):
        for path in folder.glob(pattern):
            if path.name not in named:
                path.unlink()


def load_tensors(folder: Path, file: TensorFile | None) -> dict[str, Tensor]:
    """The tensors of a file that run.json names; a missing or altered one is refused."""
    if file is None:
        raise UsageError(f"{folder} has no checkpoint yet")
    path = folder / file.file
    if not path.is_file():
        raise UsageError(f"{path} is missing, though run.json names it")
    content = path.read_bytes()
    result = hashlib.sha256(content).hexdigest()
    if result != file.sha256:
        raise UsageError(f"{path} was altered: its sha256 is {result[:12]}…, run.json says {file.sha256[:12]}…")
    try:
        return load(content)
    except SafetensorError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def load_network(folder: Path, which: str = "best") -> tuple[nn.Module, Run]:
    """The trained network of a run, in evaluation mode on the CPU, and its record. "best": chosen on validation."""
    if which not in ("best", "last"):
        raise unknown_name("checkpoint", which, ("best", "last"))
    run = load_run(folder)
    try:
        network = run.model.create()
    except UsageError as error:
        own = (
            ""
            if run.model.name in MODELS
            else "; one of your own is added by your file: python FILE.py … (docs/ideas.md)"
        )
        raise UsageError(f"{folder / RUN} does not describe a network: {error}{own}") from None
    if which == "last" and run.best and not run.last:
        raise UsageError(f"{folder} has only the weights that were chosen on validation: leave out checkpoint=last")
    restore(network, load_tensors(folder, run.weights(which)), folder)
    return network.eval(), run


def restore(network: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Copy tensors into a network; names or shapes that do not fit are refused in one line."""
    own = network.state_dict()
    if own.keys() != tensors.keys():
        name = sorted(own.keys() ^ tensors.keys())[0]
        raise UsageError(f"the weights in {folder} belong to another network: '{name}' is only in one of the two")
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
    """The inverse of `optimizer_tensors`. Moments are laid out in memory as their parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    record = optimizer.state_dict()
    record["state"] = {}
    for key, value in tensors.items():
        prefix, moment, name = key.split(".", 2)
        if prefix == "optimizer":
            place = names.index(name)
            alike = value.shape == parameters[place].shape  # the count of steps is not
            laid_out = torch.empty_like(parameters[place]).copy_(value) if alike else value
            record["state"].setdefault(place, {})[moment] = laid_out
    optimizer.load_state_dict(record)

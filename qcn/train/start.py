"""What a run takes from others: their weights to start from (`--init`), their answers to learn (`--teacher`)."""

import torch
from torch import nn

from qcn.errors import UsageError
from qcn.shipped import place
from qcn.train.checkpoint import load_network
from qcn.train.record import Run
from qcn.train.settings import Settings


def start_from(network: nn.Module, init: str | None) -> tuple[str, ...]:
    """Copy the chosen weights of the run `init` into a new network, where they fit; says in words what was kept anew.

    Layers whose shape depends on the number of classes or channels stay as they were initialised.
    """
    if init is None:
        return ()
    trained, run = load_network(place(init))
    given, own = trained.state_dict(), network.state_dict()
    fitting = {name: tensor for name, tensor in given.items() if name in own and own[name].shape == tensor.shape}
    learnt = {name for name, _ in network.named_parameters()}
    if not learnt & fitting.keys():
        raise UsageError(f"none of the weights of {init}, a {run.model.name}, fits this network")
    network.load_state_dict(fitting, strict=False)
    anew = sorted({name.rpartition(".")[0] for name in learnt - fitting.keys()})
    if not anew:
        return (f"starting from {init}, all of it",)
    return (f"starting from {init}; these layers start anew, since they have another shape: {', '.join(anew)}",)


def teachers_of(settings: Settings, record: Run, device: torch.device) -> list[nn.Module]:
    """The networks that the run `record` learns from. They must take the same images and know the same classes."""
    teachers = []
    for name in settings.teachers:
        teacher, run = load_network(place(name))
        if (run.classes, run.preprocessing) != (record.classes, record.preprocessing):
            raise UsageError(f"{name} cannot teach this network: it has other classes or other pre-processing")
        teachers.append(teacher.eval().requires_grad_(False).to(device))
        if device.type == "cuda":
            channels_innermost(teacher)
    return teachers


def channels_innermost(network: nn.Module) -> None:
    """Lay out the weights of convolutions as tensor cores take them. What they compute is the same."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):  # and not rotors, which have four dimensions too
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)

"""What a run takes from others: weights to start from (`--init`, ImageNet's), answers to learn (`--teacher`)."""

import torch
from torch import nn

from qcn.errors import UsageError
from qcn.networks.backbone import backbone_of
from qcn.networks.lite0 import Lite0, load_imagenet
from qcn.networks.shipped import run_of
from qcn.train.checkpoint import load_network
from qcn.train.record import Run
from qcn.train.settings import RANDOM, Settings


def start_from(network: nn.Module, init: str | None) -> tuple[str, ...]:
    """Copy the chosen weights of the run `init` into a new network, where they fit; says what keeps random ones.

    Layers whose shape depends on the number of classes or channels stay as they were initialised. So do the blocks that
    a network for larger images has more. Without `init`, a network on a backbone starts from ImageNet's weights.
    """
    backbone = backbone_of(network)
    if init is None and isinstance(backbone, Lite0):
        load_imagenet(backbone)
        return ("its backbone, EfficientNet-Lite0, starts from weights learnt on ImageNet",)
    if init in (None, RANDOM):
        return ()
    trained, run = load_network(run_of(init))
    given, own = _named_as_in(network, trained), network.state_dict()
    fitting = {name: tensor for name, tensor in given.items() if name in own and own[name].shape == tensor.shape}
    learnt = {name for name, _ in network.named_parameters()}
    if not learnt & fitting.keys():
        raise UsageError(f"none of the weights of {init}, a {run.model.name}, fits this network")
    network.load_state_dict(fitting, strict=False)
    anew = sorted({name.rpartition(".")[0] for name in learnt - fitting.keys()})
    if not anew:
        return (f"starting from {init}, all of it",)
    return (f"starting from {init}; these layers keep random weights, because their shapes differ: {', '.join(anew)}",)


def _named_as_in(network: nn.Module, trained: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of `trained` by the names that they have in `network`, which may have more blocks in front."""

    def rows(of: nn.Module) -> dict[str, int]:
        return {name: len(part) for name, part in of.named_modules() if isinstance(part, nn.Sequential)}

    lengths = rows(network)
    more = {f"{name}.": lengths[name] - length for name, length in rows(trained).items() if name in lengths}

    def renamed(name: str) -> str:
        for row, count in more.items():
            place, dot, rest = name.removeprefix(row).partition(".")
            if count and name.startswith(row) and place.isdigit():
                return f"{row}{int(place) + count}{dot}{rest}"
        return name

    return {renamed(name): tensor for name, tensor in trained.state_dict().items()}


def teachers_of(settings: Settings, record: Run, device: torch.device) -> list[nn.Module]:
    """The networks that the run `record` learns from. They must take the same images and know the same classes."""
    teachers = []
    for name in settings.teachers:
        try:
            folder = run_of(name)
        except UsageError as error:
            raise UsageError(
                f"its teacher '{name}' was not found: {error}. Run the command in the folder in which `qcn train` ran"
            ) from None
        teacher, run = load_network(folder)
        if (run.classes, run.preprocessing) != (record.classes, record.preprocessing):
            raise UsageError(f"{name} cannot teach this network: it has other classes or other pre-processing")
        teachers.append(teacher.eval().requires_grad_(False).to(device))
        channels_innermost(teacher)
    return teachers


def channels_innermost(network: nn.Module) -> None:
    """Lay out the weights of convolutions, and so all maps, as convolutions are fastest. They compute the same."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):  # and not rotors, which have four dimensions too
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)

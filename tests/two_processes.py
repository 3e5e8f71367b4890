"""Started by torchrun, twice: gradients and statistics of a shared batch, in float64, against one process alone."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from qcn.networks.distributed import process_group, rank
from qcn.networks.model import qcn_tiny
from qcn.networks.vb import VBCapsuleNetwork


def gradients(
    network: nn.Module, module: nn.Module, image: torch.Tensor, label: torch.Tensor
) -> dict[str, torch.Tensor]:
    network.zero_grad()
    nn.functional.cross_entropy(module(image).logit, label).backward()
    found = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    return found | {name: b.clone() for name, b in network.named_buffers()}


def main() -> None:
    found, alone = {}, {}
    torch.manual_seed(0)
    image, label = torch.randn(8, 2, 24, 24, dtype=torch.float64), torch.arange(8) % 5
    networks = {"qcn-tiny": qcn_tiny(2, 5).double(), "vb": VBCapsuleNetwork(2, 5, stem=8, capsules=(3, 3, 3)).double()}
    starts = {name: {k: v.clone() for k, v in n.state_dict().items()} for name, n in networks.items()}
    with process_group(torch.device("cpu")):
        me = rank()
        half = slice(4 * me, 4 * me + 4)
        for name, network in networks.items():
            module = DistributedDataParallel(network, broadcast_buffers=False)
            found[name] = gradients(network, module, image[half], label[half])
    assert not dist.is_initialized()
    for name, network in networks.items():
        network.load_state_dict(starts[name])
        alone[name] = gradients(network, network, image, label)
        for tensor, value in alone[name].items():
            torch.testing.assert_close(
                found[name][tensor], value, rtol=1e-7, atol=1e-9, msg=lambda m, t=tensor: f"{t}: {m}"
            )
    if me == 0:
        print("gradients agree")


main()

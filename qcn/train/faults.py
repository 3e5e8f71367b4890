"""Where a NaN came from."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qcn.networks.model import Prediction


def first_non_finite(network: nn.Module, image: Tensor, loss_of: Callable[[Prediction], Tensor]) -> str:
    """Name the first place of a forward and backward pass, in the order of computation, that is NaN or infinite."""
    if not image.isfinite().all():
        return "the input images"
    for name, parameter in network.named_parameters():
        if not parameter.isfinite().all():
            return f"the weights of '{name}'"
    result: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
            tensors = outputs if isinstance(outputs, tuple) else (outputs,)
            if not all(tensor.isfinite().all() for tensor in tensors):
                result.append(f"the output of layer '{name}' ({type(module).__name__})")

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in network.named_modules() if name]
    try:
        loss = loss_of(network(image))
    finally:
        for handle in hooks:
            handle.remove()
    if result:
        return result[0]
    if not loss.isfinite():
        return "the loss"
    network.zero_grad()
    torch.autograd.backward(loss)
    # Gradients flow backwards from the loss: of the wrong ones, the one nearest the loss was wrong first.
    for name, parameter in reversed(list(network.named_parameters())):
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of '{name}'"
    return "a gradient, which is finite when computed again"

"""From a trained network to its deployment form (`qcn.export.network`), and that form as a torch module.

Folding is done in float64 and rounded once. The module routes by the reference formula of `qcn.routing`; TorchScript
and torch.export are made from it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn.errors import BuildError, UsageError, unknown_name
from qcn.export.network import Array, Capsules, Network, Structure
from qcn.model import (
    QCN,
    BranchedExtractor,
    ConvCapsules,
    Projection,
    ResidualBlock,
    RunningRMS,
    UnbranchedExtractor,
    at_least_single,
)
from qcn.quaternion import rotation_matrix, rotor
from qcn.routing import MASS_FLOOR, VARIANCE_FLOOR, Body, route

CLASSES = "classes"  # the name of the last capsule layer; those before it are capsules1, capsules2, …


def lower(network: nn.Module, height: int, width: int) -> Network:
    """The deployment form of a trained QCN for images of this size."""
    if not isinstance(network, QCN):
        raise UsageError(f"export carries Quaternion Capsule Networks (qcn, qcn-…), not {type(network).__name__}")
    if min(height, width) < network.smallest_input:
        side = network.smallest_input
        raise UsageError(f"images of {height}×{width} are too small for this network: at least {side}×{side}")
    extractor: Any = network.extractor
    if isinstance(network.extractor, BranchedExtractor):
        stacks = {"pose": list(extractor.pose[:-1]), "activation": list(extractor.activation[:-1])}
        projections = {"pose": extractor.pose[-1], "activation": extractor.activation[-1]}
    elif isinstance(network.extractor, UnbranchedExtractor):
        stacks = {"stem": list(extractor.stem)}
        projections = {"pose": extractor.pose, "activation": extractor.activation}
    else:
        raise UsageError(f"export does not know the extractor {type(extractor).__name__}")
    tensors: dict[str, Tensor] = {}
    for name, blocks in stacks.items():
        tensors |= _folded_stack(name, blocks)
    for name, projection in projections.items():
        tensors |= _folded_projection(name, projection)
    names = [*(f"capsules{i + 1}" for i in range(len(network.layers))), CLASSES]
    scales = [None, *network.scales]
    for name, layer, scale in zip(names, [*network.layers, network.class_capsules], scales, strict=True):
        tensors |= _folded_capsules(name, layer, scale)
    strides = {name: tuple(int(block.conv1.stride[0]) for block in blocks) for name, blocks in stacks.items()}
    structure = Structure(
        channels=network.in_channels,
        height=height,
        width=width,
        classes=network.classes,
        stem=strides.get("stem", ()),
        pose=strides.get("pose", ()),
        activation=strides.get("activation", ()),
        capsules=(
            *(Capsules(f"capsules{i + 1}", size.kernel, size.stride) for i, size in enumerate(network.config.layers)),
            Capsules(CLASSES, None),
        ),
        iterations=network.config.iterations,
        mode=network.config.mode,
        variance_floor=VARIANCE_FLOOR,
        mass_floor=MASS_FLOOR,
    )
    arrays: dict[str, Array] = {name: tensor.float().contiguous().numpy() for name, tensor in tensors.items()}
    return Network(structure, arrays)


def _folded_stack(name: str, blocks: list[ResidualBlock]) -> dict[str, Tensor]:
    """Residual blocks whose batch norms have gone into the convolution before them; the first has none before it."""
    scale, shift = _affine(blocks[0].norm1)
    out = {f"{name}.scale": scale, f"{name}.shift": shift}
    for i, block in enumerate(blocks):
        scale, shift = _affine(block.norm2)
        out[f"{name}.{i}.conv1.weight"] = _double(block.conv1.weight) * scale[:, None, None, None]
        out[f"{name}.{i}.conv1.bias"] = shift
        # What follows a block is the next block's batch norm, or, after the last one, a projection's ReLU alone.
        follows = blocks[i + 1].norm1 if i + 1 < len(blocks) else None
        channels = block.conv2.out_channels
        ones = torch.ones(channels, dtype=torch.float64)
        scale, shift = _affine(follows) if follows else (ones, torch.zeros_like(ones))
        out[f"{name}.{i}.conv2.weight"] = _double(block.conv2.weight) * scale[:, None, None, None]
        out[f"{name}.{i}.conv2.bias"] = shift
        out[f"{name}.{i}.skip.weight"] = _double(block.skip.weight) * scale[:, None, None, None]
    return out


def _folded_projection(name: str, projection: Projection) -> dict[str, Tensor]:
    conv: Any = projection[1]
    norm = projection[2]
    scale, shift = _affine(norm)
    return {
        f"{name}.projection.weight": _double(conv.weight) * scale[:, None, None, None],
        f"{name}.projection.bias": _double(conv.bias) * scale + shift,
    }


def _folded_capsules(name: str, layer: nn.Module, scale: RunningRMS | None) -> dict[str, Tensor]:
    """Rotors as rotations; `scale` is what the poses of the layer before are divided by."""
    rotors: Any = layer.rotors
    rotation = rotation_matrix(rotor(_double(rotors.theta), _double(rotors.axis)))
    if not isinstance(layer, ConvCapsules):
        rotation = rotation[None, None]  # all places of the window share their rotations
    if scale:
        rotation = rotation * _double(scale.running_square).rsqrt()
    return {
        f"{name}.rotation": rotation,
        f"{name}.beta_u": _double(rotors.beta_u),
        f"{name}.beta_a": _double(rotors.beta_a),
    }


def _affine(norm: Any) -> tuple[Tensor, Tensor]:
    """A batch norm with its running statistics as a scale and a shift."""
    scale = _double(norm.weight) * (_double(norm.running_var) + norm.eps).rsqrt()
    return scale, _double(norm.bias) - _double(norm.running_mean) * scale


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Deployed(nn.Module):
    """The deployment form as a torch module: image -> activation [B, classes], pose [B, classes, 3].

    With `every_layer` also the pose [B, J, 3, H', W'] and activation [B, J, H', W'] of each capsule layer before it.
    Images and outputs are float32 in every precision. Half precisions are for the convolutions and their weights, as
    in training; routing takes logarithms of variances, and stays float32.
    """

    routing: Body = "reference"

    def __init__(self, network: Network, every_layer: bool = False, precision: str = "fp32") -> None:
        super().__init__()
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
        self.structure, self.sites = network.structure, list(network.sites())
        self.precision, self.every_layer = precision, every_layer
        for name, array in network.arrays.items():
            convolution = name.rpartition(".")[0].endswith(("conv1", "conv2", "skip", "projection"))
            tensor = torch.tensor(array, dtype=PRECISIONS[precision] if convolution else torch.float32)
            if not tensor.isfinite().all():
                raise BuildError(f"the weight '{name}' does not fit {precision}: its largest is {abs(array).max():g}")
            self.register_buffer(name.replace(".", "_"), tensor)

    def example(self) -> Tensor:
        """Images to trace it with: two, so that nothing is taken for a batch of one."""
        structure = self.structure
        return torch.zeros(2, structure.channels, structure.height, structure.width)

    def facts(self) -> dict[str, Any]:
        """What a program must know to run this, and in which precision which part was made."""
        structure = self.structure
        outputs = {"activation": [structure.classes], "pose": [structure.classes, 3]}
        if self.every_layer:
            for site in self.sites[:-1]:
                outputs[f"{site.name}.pose"] = [site.parents, 3, site.rows, site.columns]
                outputs[f"{site.name}.activation"] = [site.parents, site.rows, site.columns]
        return {
            "precision": self.precision,
            "convolutions": str(PRECISIONS[self.precision]).removeprefix("torch."),
            "routing": "float32",
            "inputs": {"image": ["batch", structure.channels, structure.height, structure.width]},
            "outputs": {name: ["batch", *shape] for name, shape in outputs.items()},
            "torch": torch.__version__,
        }

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """[B, channels, height, width] -> the outputs that `facts` names, in that order."""
        structure = self.structure
        trunk = self._stack("stem", structure.stem, image)
        pose = self._convolution("pose.projection", self._stack("pose", structure.pose, trunk))
        pose = at_least_single(pose).unflatten(1, (-1, 3))
        activation = self._convolution("activation.projection", self._stack("activation", structure.activation, trunk))
        activation = torch.sigmoid(at_least_single(activation))
        layers: list[Tensor] = []
        for site in self.sites:
            pose, activation = route(
                pose,
                activation,
                self._array(f"{site.name}.rotation"),
                self._array(f"{site.name}.beta_u"),
                self._array(f"{site.name}.beta_a"),
                window=site.window,
                stride=site.stride,
                iterations=structure.iterations,
                mode=structure.mode,
                body=self.routing,
            )
            layers += [pose, activation]
        out = (activation.flatten(1), pose.flatten(2))
        return (*out, *layers[:-2]) if self.every_layer else out

    def _stack(self, name: str, strides: tuple[int, ...], x: Tensor) -> Tensor:
        if hasattr(self, f"{name}_scale"):
            x = F.relu(x * self._array(f"{name}.scale")[:, None, None] + self._array(f"{name}.shift")[:, None, None])
        for i, stride in enumerate(strides):
            y = F.relu(self._convolution(f"{name}.{i}.conv1", x, stride, padding=1))
            y = self._convolution(f"{name}.{i}.conv2", y, padding=1)
            x = F.relu(y + self._convolution(f"{name}.{i}.skip", x, stride))
        return x

    def _convolution(self, name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
        weight = self._array(f"{name}.weight")
        bias = None if name.endswith(".skip") else self._array(f"{name}.bias")
        return F.conv2d(x.to(weight.dtype), weight, bias, stride, padding)

    def _array(self, name: str) -> Tensor:
        return self.get_buffer(name.replace(".", "_"))

"""From a trained network to its program (`qcn.export.program.program`): all that the device side knows of a network.

Batch norms are folded into the convolutions before them, rotors become rotation matrices, and the running RMS by which
poses are divided between capsule layers, a constant by now, goes into the next layer's rotations. Folding is done in
float64 and rounded once.

A new network needs a function registered with `lower_network`, a QCN's new extractor one registered with
`lower_extractor`, here or in your own file (docs/ideas.md). Nothing else. What is not known is refused, and so is a
subclass whose forward is its own: it would be lowered as if it computed what its parent does.
"""

from collections.abc import Iterable
from functools import singledispatch
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qcn.errors import UsageError
from qcn.export.program import operations as ops
from qcn.export.program.program import Array, Output, Program, Shape, Value, slide
from qcn.networks.baselines import CNN, ResidualCNN
from qcn.networks.lite0 import ConvNorm, InvertedResidual, Lite0, Lite0CNN, Lite0Extractor
from qcn.networks.model import (
    QCN,
    BranchedExtractor,
    Capsules,
    ClassCapsules,
    ConvCapsules,
    UnbranchedExtractor,
    check_sides,
)
from qcn.quaternion import rotation_matrix, rotor

IMAGE = "image"
CLASSES = "classes"  # the name of the last layer; a QCN's capsule layers before it are capsules1, capsules2, …


def lower(network: nn.Module, height: int, width: int) -> Program:
    """The program of a trained network, for images of this size."""
    return _lowered(network, height, width)[0]


def layer_scales(network: nn.Module, plan: Program) -> dict[str, float]:
    """The input scale of each layer that the calibrated program has in int8, by the layer's name in the network."""
    program, modules = _lowered(network, *plan.input.shape[1:])
    if [op.name for op in program.operations] != [op.name for op in plan.operations]:
        raise UsageError("the plan belongs to another network: its operations have other names")
    names = {id(module): name for name, module in network.named_modules()}
    return {
        names[id(module)]: scale
        for op in plan.operations
        if isinstance(op, ops.Product) and op.precision == "int8"
        for module, scale in zip(modules[op.name], op.input_scales, strict=True)
    }


def _lowered(network: nn.Module, height: int, width: int) -> tuple[Program, dict[str, list[nn.Module]]]:
    """The program, and the layers of each convolution and linear in it, in the order of its inputs."""
    check_forward(network, lower_network.registry)
    build = ProgramBuilder(getattr(network, "in_channels", 0), height, width)
    return lower_network(network, build), build.layers


def check_forward(module: Any, classes: Iterable[type]) -> Any:
    """The module itself, unless it is of a subclass of a known class with a forward of its own."""
    kind = next((one for one in type(module).__mro__ if one in classes), object)
    if kind is not object and type(module).forward is not kind.forward:  # type: ignore[attr-defined]
        name = type(module).__name__
        raise UsageError(
            f"{name} cannot be exported: it does not compute the same as its base class {kind.__name__}, and "
            f"has no lowering of its own"
        )
    return module


class ProgramBuilder:
    """A program in the making. Each method adds an operation and returns the name of the value that it makes."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        self.input = Value(IMAGE, (channels, height, width))
        self.operations: list[ops.Operation] = []
        self.arrays: dict[str, Array] = {}
        self.shapes: dict[str, Shape] = {IMAGE: self.input.shape}
        self.layers: dict[str, list[nn.Module]] = {}  # of convolutions and linears, by operation

    def program(self, **outputs: tuple[str, Shape]) -> Program:
        """The whole; outputs by name, each a value and the shape to give it out in."""
        named = tuple(Output(name, value, shape) for name, (value, shape) in outputs.items())
        return Program(self.input, tuple(self.operations), named, self.arrays)

    def affine(self, name: str, value: str, norm: nn.Module, ending: ops.Ending) -> str:
        """A batch norm on its own: with nothing before it that it could be folded into."""
        scale, shift = scale_and_shift(norm)
        return self._add(
            ops.Affine(
                name=name,
                input=value,
                scale=self._array(name, "scale", scale),
                shift=self._array(name, "shift", shift),
                ending=ending,
                shape=self.shapes[value],
            )
        )

    def convolution(
        self,
        name: str,
        value: str,
        convolution: nn.Module,
        *,
        norm: nn.Module | None = None,
        ending: ops.Ending = "none",
        skip: tuple[str, nn.Module] | None = None,
    ) -> str:
        """A convolution and the batch norm behind it; `skip` is a second value and its convolution, added first."""
        sources: list[tuple[str, str, Any]] = [(value, "weight", convolution)]
        if skip:
            sources.append((skip[0], "skip", skip[1]))
        for _, _, conv in sources:
            check_convolution(name, conv, alone=not skip)
        main: Any = convolution
        channels = main.out_channels
        bias = double(main.bias) if main.bias is not None else torch.zeros(channels, dtype=torch.float64)
        scale, shift = scale_and_shift(norm) if norm else (torch.ones_like(bias), torch.zeros_like(bias))
        weights = tuple(
            self._array(name, role, double(conv.weight) * scale[:, None, None, None]) for _, role, conv in sources
        )
        self.layers[name] = [conv for _, _, conv in sources]
        stride, padding = int(main.stride[0]), int(main.padding[0])
        places = slide(self.shapes[value][1:], main.kernel_size, stride, padding)
        return self._add(
            ops.Convolution(
                name=name,
                inputs=tuple(source for source, _, _ in sources),
                weights=weights,
                bias=self._array(name, "bias", bias * scale + shift),
                strides=tuple(int(conv.stride[0]) for _, _, conv in sources),
                paddings=tuple(int(conv.padding[0]) for _, _, conv in sources),
                ending=ending,
                shape=(channels, *places),
                depthwise=main.groups > 1,
            )
        )

    def sum(self, name: str, value: str, other: str) -> str:
        """Two maps, added up."""
        return self._add(ops.Sum(name=name, inputs=(value, other), shape=self.shapes[value]))

    def residual_blocks(self, name: str, value: str, stack: Any, norm: nn.Module | None = None) -> str:
        """Pre-activation residual blocks, one after the other; what follows the last is `norm`, and a ReLU."""
        blocks: list[Any] = list(stack)
        value = self.affine(f"{name}.entry", value, blocks[0].norm1, "relu")
        for i, block in enumerate(blocks):
            # The batch norm behind a block is the next block's first; the ReLU behind the last is of what reads it.
            follows = blocks[i + 1].norm1 if i + 1 < len(blocks) else norm
            inner = self.convolution(f"{name}.{i}.conv1", value, block.conv1, norm=block.norm2, ending="relu")
            value = self.convolution(
                f"{name}.{i}.conv2", inner, block.conv2, norm=follows, ending="relu", skip=(value, block.skip)
            )
        return value

    def projection(self, name: str, value: str, projection: Any, ending: ops.Ending = "none") -> str:
        """A 1×1 convolution and its batch norm; a ReLU before them is the ending of what made `value`."""
        *_, convolution, norm = projection
        return self.convolution(f"{name}.projection", value, convolution, norm=norm, ending=ending)

    def conv_norm(self, name: str, value: str, layer: ConvNorm) -> str:
        """A convolution with its batch norm and, if it has one, its ReLU6."""
        convolution, norm = layer[0], layer[1]
        return self.convolution(name, value, convolution, norm=norm, ending="relu6" if len(layer) > 2 else "none")

    def inverted_residual(self, name: str, value: str, block: InvertedResidual) -> str:
        """A block of Lite0; its skip is a sum."""
        wide = value if block.expand is None else self.conv_norm(f"{name}.expand", value, block.expand)
        wide = self.conv_norm(f"{name}.depthwise", wide, block.depthwise)
        narrow = self.conv_norm(f"{name}.project", wide, block.project)
        return self.sum(f"{name}.sum", value, narrow) if block.adds else narrow

    def lite0(self, backbone: Lite0) -> str:
        """The features of an image."""
        value = IMAGE
        for i, layer in enumerate(backbone):
            lowered = self.conv_norm if isinstance(layer, ConvNorm) else self.inverted_residual
            value = lowered(f"backbone.{i}", value, layer)  # type: ignore[arg-type]
        return value

    def pool(self, name: str, value: str, kind: Literal["max", "average"], kernel: int, stride: int) -> str:
        """The maximum or average of each window."""
        channels, *sides = self.shapes[value]
        shape = (channels, *slide(sides, (kernel, kernel), stride))
        return self._add(ops.Pool(name=name, input=value, kind=kind, kernel=kernel, stride=stride, shape=shape))

    def linear(self, name: str, value: str, linear: nn.Linear, ending: ops.Ending) -> str:
        """A fully connected layer, of all numbers of the value in order."""
        self.layers[name] = [linear]
        return self._add(
            ops.Linear(
                name=name,
                input=value,
                weight=self._array(name, "weight", linear.weight),
                bias=self._array(name, "bias", linear.bias),
                ending=ending,
                shape=(linear.out_features,),
            )
        )

    def route(
        self, name: str, pose: str, activation: str, layer: nn.Module, scale: nn.Module | None
    ) -> tuple[str, str]:
        """A capsule layer; `scale` is the running RMS that divides the poses which it reads."""
        capsules: Capsules = check_forward(layer, (ConvCapsules, ClassCapsules))
        if capsules.rule is not None:
            raise UsageError(
                f"{name} cannot be exported: it has its own routing rule, and backends only have EM routing "
                f"(qcn/routing.py)"
            )
        rotation = rotation_matrix(rotor(double(capsules.rotors.theta), double(capsules.rotors.axis)))
        _, *sides = self.shapes[activation]
        if isinstance(layer, ConvCapsules):
            window, stride = (layer.kernel, layer.kernel), layer.stride
        else:  # the class capsules see the whole map, and all its places share their rotations
            rotation, window, stride = rotation[None, None], (sides[0], sides[1]), 1
        if scale is not None:
            rotation = rotation * double(scale.get_buffer("running_square")).rsqrt()
        route = ops.Route(
            name=name,
            pose=pose,
            activation=activation,
            rotation=self._array(name, "rotation", rotation),
            beta_u=self._array(name, "beta_u", capsules.rotors.beta_u),
            beta_a=self._array(name, "beta_a", capsules.rotors.beta_a),
            window=window,
            stride=stride,
            iterations=capsules.iterations,
            mode=capsules.mode,
            ending="sigmoid" if isinstance(layer, ConvCapsules) else "none",
            shape=(rotation.shape[3], *slide(sides, window, stride)),
        )
        self._add(route)
        turned, active = route.outputs
        return turned.name, active.name

    def _array(self, operation: str, role: str, tensor: Tensor) -> str:
        name = f"{operation}.{role}"
        self.arrays[name] = tensor.detach().cpu().float().contiguous().clone().numpy()
        return name

    def _add(self, operation: ops.Operation) -> str:
        self.operations.append(operation)
        self.shapes |= {value.name: value.shape for value in operation.outputs}
        return operation.name


@singledispatch
def lower_network(network: nn.Module, build: ProgramBuilder) -> Program:
    """The program of a network: its operations, by the methods of `build`, and its outputs."""
    raise UsageError(
        f"{type(network).__name__} is for training only. Quaternion Capsule Networks (qcn, qcn-…) and CNNs (cnn, "
        f"cnn-…) can be exported; matrix capsules with EM or VB routing cannot. Your own network needs a "
        f"function registered with qcn.export.program.lower.lower_network"
    )


@lower_network.register
def _qcn(network: QCN, build: ProgramBuilder) -> Program:
    _, height, width = build.input.shape
    check_sides(height, width, network.smallest_input)
    pose, active = lower_extractor(check_forward(network.extractor, lower_extractor.registry), build)
    names = [*(f"capsules{i + 1}" for i in range(len(network.layers))), CLASSES]
    layers = [*network.layers, network.class_capsules]
    for name, layer, scale in zip(names, layers, [None, *network.scales], strict=True):
        pose, active = build.route(name, pose, active, layer, scale)
    return build.program(logit=(active, (network.classes,)), pose=(pose, (network.classes, 3)))


@lower_network.register
def _cnn(network: CNN, build: ProgramBuilder) -> Program:
    _, height, width = build.input.shape
    if (height, width) != (network.size, network.size):
        size = f"{network.size}×{network.size}"
        raise UsageError(f"this CNN was built for images of {size}, not {height}×{width}")
    value = build.convolution("conv1", IMAGE, network.conv1, ending="relu")
    value = build.pool("pool1", value, "max", 2, 2)
    value = build.convolution("conv2", value, network.conv2, ending="relu")
    value = build.pool("pool2", value, "max", 2, 2)
    value = build.linear("hidden", value, network.hidden, "relu")
    value = build.linear(CLASSES, value, network.classifier, "none")
    return build.program(logit=(value, (network.classes,)))


@lower_network.register
def _residual_cnn(network: ResidualCNN, build: ProgramBuilder) -> Program:
    value = build.residual_blocks("blocks", IMAGE, network.blocks, network.norm)
    return _classified("cnn-small", build, value, network.classifier)


@lower_network.register
def _lite0_cnn(network: Lite0CNN, build: ProgramBuilder) -> Program:
    return _classified("cnn-lite0", build, build.lite0(network.backbone), network.classifier)


def _classified(name: str, build: ProgramBuilder, features: str, classifier: nn.Linear) -> Program:
    """The mean over a square map of features, and the linear layer that answers."""
    _, height, width = build.input.shape
    if height != width:
        raise UsageError(f"{name} can be exported for square images, not for {height}×{width}")
    side = build.shapes[features][1]
    mean = build.pool("mean", features, "average", side, side)
    value = build.linear(CLASSES, mean, classifier, "none")
    return build.program(logit=(value, (classifier.out_features,)))


@singledispatch
def lower_extractor(extractor: nn.Module, build: ProgramBuilder) -> tuple[str, str]:
    """Add an extractor's operations; returns the values of the primary poses [3C, H, W] and activations [C, H, W]."""
    raise UsageError(
        f"the extractor {type(extractor).__name__} cannot be exported: it needs a function registered with "
        "qcn.export.program.lower.lower_extractor"
    )


@lower_extractor.register
def _branched(extractor: BranchedExtractor, build: ProgramBuilder) -> tuple[str, str]:
    pose = build.residual_blocks("pose", IMAGE, extractor.pose[:-1])
    activation = build.residual_blocks("activation", IMAGE, extractor.activation[:-1])
    return (
        build.projection("pose", pose, extractor.pose[-1]),
        build.projection("activation", activation, extractor.activation[-1], "sigmoid"),
    )


@lower_extractor.register
def _unbranched(extractor: UnbranchedExtractor, build: ProgramBuilder) -> tuple[str, str]:
    stem = build.residual_blocks("stem", IMAGE, extractor.stem)
    pose = build.projection("pose", stem, extractor.pose)
    return pose, build.projection("activation", stem, extractor.activation, "sigmoid")


@lower_extractor.register
def _lite0(extractor: Lite0Extractor, build: ProgramBuilder) -> tuple[str, str]:
    features = build.lite0(extractor.backbone)
    pose = build.projection("pose", features, extractor.pose)
    return pose, build.projection("activation", features, extractor.activation, "sigmoid")


def check_convolution(name: str, convolution: Any, alone: bool = True) -> None:
    """Refuse what an operation of a program cannot say; `alone`: without a second one that is added to it."""
    conv = convolution
    square = len({*conv.stride}) == 1 and len({*conv.padding}) == 1 and not isinstance(conv.padding, str)
    depthwise = alone and conv.groups == conv.in_channels == conv.out_channels
    if not (conv.groups == 1 or depthwise) or {*conv.dilation} != {1} or not square or conv.padding_mode != "zeros":
        raise UsageError(
            f"{name}, {conv}, cannot be exported: a convolution must have one group or, without a skip, one per "
            f"channel; no dilation; and the same stride and the same numeric zero padding along both axes"
        )


def scale_and_shift(norm: Any) -> tuple[Tensor, Tensor]:
    """A batch norm with its running statistics as x · scale + shift."""
    if getattr(norm, "running_var", None) is None:
        raise UsageError(f"{norm} cannot be exported: only batch norms with running statistics can be folded")
    scale = (double(norm.running_var) + norm.eps).rsqrt()
    if not norm.affine:
        return scale, -double(norm.running_mean) * scale
    scale = double(norm.weight) * scale
    return scale, double(norm.bias) - double(norm.running_mean) * scale


def double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()

"""Quaternion Capsule Networks: train one, and carry it to a verified, fast engine on an edge device.

    import qcn
    network = qcn.create("qcn", in_channels=2, classes=5)   # any network of the product, by name
    model = qcn.load("runs/export/my-toys")                 # a bundle, ready to answer: see `qcn.runtime`

Importing this package imports no torch: the half of the product that runs on a device does without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from qcn.runtime import load

__version__ = "0.1.0"
__all__ = ["__version__", "create", "load"]


def create(name: str, *, in_channels: int, classes: int, **options: Any) -> "nn.Module":
    """A freshly initialised network: "qcn", "qcn-unbranched", "qcn-tiny", "em", "vb", "cnn", … (see `qcn.zoo`)."""
    from qcn.zoo import create as create_network

    return create_network(name, in_channels=in_channels, classes=classes, **options)


def __getattr__(name: str) -> Any:
    """`qcn.load`, when it is first asked for: importing the package stays quick."""
    if name == "load":
        from qcn.runtime import load

        return load
    raise AttributeError(f"module 'qcn' has no attribute '{name}'")

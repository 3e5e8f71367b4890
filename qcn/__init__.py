"""Quaternion Capsule Networks: train one, and carry it to a verified, fast engine on an edge device.

    import qcn
    run = qcn.train("my/pictures", size=64)                 # a Run; qcn.open("runs/train/…") opens one: see `qcn.api`
    bundle = run.export("onnx")                             # a Bundle
    assert bundle.verify(run=run).passed
    model = qcn.load("runs/export/my-toys")                 # a bundle, ready to answer: see `qcn.runtime`
    answer = model.predict("photo.jpg")
    network = qcn.create("qcn", in_channels=2, classes=5)   # any network of the product, by name

Importing this package imports no torch: the half of the product that runs on a device does without it.
"""

import os.path  # and no other module: `qcn.__main__` should be reached at once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torch import nn

    from qcn.api import Bundle, Run, open, train
    from qcn.runtime import Answer, Model, load
    from qcn.train.trackers import Callback

    __version__: str

# In a clone `qcn.export` and `qcn.calibrate` are beside this folder. An editable install knows that. Python that is
# started in a clone takes this folder from the current directory, installed or not, and finds them by this line.
if not os.path.isdir(os.path.join(__path__[0], "export")):  # noqa: PTH112, PTH118
    __path__.append(os.path.dirname(__path__[0]))  # noqa: PTH120

__all__ = ["Answer", "Bundle", "Callback", "Model", "Run", "__version__", "create", "load", "open", "train"]


def create(name: str, *, in_channels: int, classes: int, **options: "Any") -> "nn.Module":
    """A freshly initialised network: "qcn", "qcn-deep", "qcn-tiny", "em", "vb", "cnn", … (see `qcn.networks.zoo`)."""
    from qcn.networks.zoo import create as create_network

    return create_network(name, in_channels=in_channels, classes=classes, **options)


_MODULES = dict.fromkeys(("Answer", "Model", "load"), "runtime") | dict.fromkeys(("Bundle", "Run", "open"), "api")
_MODULES["Callback"] = "train.trackers"


def __getattr__(name: str) -> "Any":
    """`qcn.load` and the like, when they are first asked for: importing the package stays quick."""
    from importlib import import_module

    if name == "__version__":
        return import_module("importlib.metadata").version("qcn-toolkit")
    if name in ("api", "train"):  # `train` is a package that can be called: importing a part of it puts it here too
        return import_module(f"qcn.{name}")
    if name in _MODULES:
        return getattr(import_module(f"qcn.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'qcn' has no attribute '{name}'")


def __dir__() -> list[str]:
    """All public names, loaded or not."""
    return sorted({*__all__, *globals()} - {"TYPE_CHECKING", "os"})

"""The names that several parts of the product share. No torch here."""

from typing import Literal, get_args

RUN, MANIFEST = "run.json", "manifest.json"  # what a training run and a bundle have
BUNDLE = "{bundle}"  # stands for the bundle's folder in the commands that rebuild its files
CALIBRATION = "calibration.json"  # what a calibrated bundle has too, for people
CARD, CARD_TEXT = "card.json", "card.md"  # what a bundle that ships with the product has too (tools/cards.py)

# Networks to train, as `qcn.networks.zoo` has them: known without torch, which takes seconds to import.
NETWORKS = (
    "qcn",
    "qcn-unbranched",
    "qcn-deep",
    "qcn-tiny",
    "qcn-lite0",
    "em",
    "em-branched",
    "em-unbranched",
    "vb",
    "cnn",
    "cnn-small",
    "cnn-wide",
    "cnn-lite0",
)
PRETRAINED = ("qcn-lite0", "cnn-lite0")  # on a backbone with weights of ImageNet
Loss = Literal["spread", "ce"]  # what training minimises, see qcn/train/losses.py
Kernels = Literal["auto", "fused", "reference"]  # auto: fused where there is a fused kernel, else the reference
Mode = Literal["logistic", "unit"]  # how a parent's activation follows from its votes, see qcn/routing.py
Precision = Literal["fp32", "fp16", "bf16"]  # what `qcn export` makes of a whole network
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
OperationPrecision = Literal[Precision, "int8"]  # what an operation computes in; int8 comes of `qcn calibrate`
AnyPrecision = Literal[OperationPrecision, "fp64"]  # the same, and that of the reference
# What routes a program in torch: plain operators arranged for speed, a fused kernel, or the readable reference.
Engine = Literal["process", "ray"]  # who does many pieces of work: this process, or several that Ray starts
ProgramKernels = Literal["unrolled", "fused", "reference"]

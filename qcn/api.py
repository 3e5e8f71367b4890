"""The Python interface: a training run and a bundle as objects, with the settings of the shell.

    run = qcn.train("my/pictures")                   # a Run; qcn.open("runs/train/…") opens one
    bundle = run.export("onnx", "trt")               # a Bundle
    assert bundle.verify(run=run).passed
    print(bundle.benchmark(), bundle.calibrate().verify().summary)
    print(bundle.predict("photo.jpg").label)

Keywords are the settings of the command of the same name (docs/python.md), and the shell calls what these methods
call. Nothing is imported before it is needed: a bundle does without torch.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from qcn.errors import UsageError, unknown_name
from qcn.export import bundle as stored
from qcn.names import PRETRAINED, RUN
from qcn.networks.shipped import place, run_of
from qcn.settings import make
from qcn.terminal.progress import doing, say, shown
from qcn.terminal.text import command_line

if TYPE_CHECKING:
    from qcn.evaluate.evaluation import Evaluated
    from qcn.export.backends.format import Made
    from qcn.runtime import Answer, Model
    from qcn.runtime.pictures import Picture
    from qcn.train.record import Quantised
    from qcn.train.record import Run as Record
    from qcn.train.trackers import Callback
    from qcn.verify.parity.check import Checked
    from qcn.verify.speed.check import Benchmarked

Name = str | os.PathLike[str]
DATA = Path("data")


def open(name: Name, *, public_key: Name | None = None) -> "Run | Bundle":
    """The training run or the bundle in this folder, or the shipped network of this name, which is a bundle."""
    folder = place(os.fsdecode(name))
    if (folder / RUN).is_file():
        if public_key:
            raise UsageError(f"{folder} is a training run, and only bundles are signed: leave out public_key")
        return Run(folder)
    return Bundle.open(folder, Path(public_key) if public_key else None)


class _Source:
    """The methods that runs and bundles share.

    pictures   the folder or table of a user that it was trained on, where it is known; None for other data sets
    """

    folder: Path
    pictures: str | None = None
    public_key: Path | None = None

    def __fspath__(self) -> str:
        return str(self.folder)

    def export(
        self,
        *formats: str,
        out: Name | None = None,
        data_dir: Name = DATA,
        benchmark: Name | None = None,
        **settings: Any,
    ) -> "Bundle":
        """A bundle with files in these formats, `onnx` if none is named; a bundle gets them added (`qcn export`)."""
        from qcn.export import pipeline
        from qcn.export.request import ExportRequest
        from qcn.verify.speed.timings import for_serving

        latencies = for_serving(Path(benchmark)) if benchmark else None
        request = make(
            ExportRequest,
            **{"formats": formats or None, "benchmark": latencies, "public_key": self.public_key, **settings},
        )
        with shown():
            doing(f"loading {self.folder}")
            bundle, made = pipeline.export(self.folder, Path(out) if out else None, request, Path(data_dir))
        exported = Bundle.of(bundle)
        exported.made, exported.pictures = tuple(made), self.pictures
        return exported

    def calibrate(self, **settings: Any) -> "Bundle":
        """The fastest mix of int8, fp16 and fp32 that keeps the accuracy, as a new bundle (`qcn calibrate`)."""
        from qcn.calibrate.command import calibrate
        from qcn.calibrate.request import CalibrationRequest

        request = make(CalibrationRequest, **{**self._own(), **settings})
        calibrated = Bundle.of(calibrate(self.folder, request).bundle)
        calibrated.pictures = self.pictures
        return calibrated

    def evaluate(self, **settings: Any) -> "Evaluated":
        """The error with its 95 % interval on each test split, by class and by viewpoint (`qcn evaluate`)."""
        from qcn.evaluate.evaluation import evaluate
        from qcn.evaluate.request import Request

        return evaluate(self.folder, make(Request, **{**self._own(), **settings}))

    @overload
    def predict(self, picture: "Picture") -> "Answer": ...  # type: ignore[overload-overlap]  # text is a list of texts
    @overload
    def predict(self, picture: "Iterable[Picture]") -> "list[Answer]": ...
    def predict(self, picture: "Picture | Iterable[Picture]") -> "Answer | list[Answer]":
        """The answer to a picture of any size, or a list of answers to several: see `qcn.Model.predict`."""
        return self.model.predict(picture)

    @cached_property
    def model(self) -> "Model":
        """Its network by the fastest backend that runs here; `load` of a bundle chooses another."""
        raise NotImplementedError

    def _own(self) -> dict[str, Any]:
        """Settings with known values, such as the folder of pictures."""
        return {}


class Run(_Source):
    """A training run: its `folder`, and what run.json says of it, the `record`. Needs torch."""

    def __init__(self, folder: Name, record: "Record | None" = None) -> None:
        from qcn.train.record import load_run

        self.folder = Path(folder)
        self.record = record or load_run(self.folder)
        settings = self.record.settings
        self.pictures = None if settings.size is None else settings.dataset

    def __repr__(self) -> str:
        return f"qcn.open({str(self.folder)!r})"

    @cached_property
    def model(self) -> "Model":
        """Its best network, by torch."""
        from qcn.predict.open import open_model

        return open_model(str(self.folder), "auto")

    def resume(
        self,
        *,
        epochs: int | None = None,
        data_dir: Name = DATA,
        device: str = "auto",
        callbacks: "Sequence[Callback]" = (),
    ) -> "Run":
        """Continue it from its last checkpoint, to so many epochs if it should become longer, in its trackers too."""
        if epochs is not None and epochs < 1:
            raise UsageError(f"epochs must be positive, not {epochs}")
        with shown():
            doing("loading torch")
            from qcn.train import begin

            return Run(self.folder, begin.resume(self.folder, Path(data_dir), device, epochs, callbacks))

    @property
    def exportable(self) -> bool:
        """Whether its network can be exported. Matrix capsules and other routing rules are for training only."""
        from qcn.export.program.lower import lower

        run = self.record
        try:
            lower(run.model.create(), *run.preprocessing.output_size(*run.data.image[1:]))
        except UsageError:
            return False
        return True


class Bundle(_Source, stored.Bundle):
    """A bundle: what `qcn export` writes and every device reads. `made` says what an export made of each format."""

    made: "tuple[Made, ...]" = ()

    @staticmethod
    def of(bundle: stored.Bundle) -> "Bundle":
        """The same bundle as an object of this interface."""
        return Bundle(bundle.folder, bundle.manifest, bundle.public_key, bundle.text)

    @staticmethod
    def open(folder: Path, public_key: Path | None = None) -> "Bundle":
        """Read and check the manifest, and nothing else yet; with a public key, its signature first."""
        return Bundle.of(stored.Bundle.open(Path(folder), public_key))

    def __repr__(self) -> str:
        return f"qcn.open({str(self.folder)!r})"

    def verify(self, **settings: Any) -> "Checked":
        """Whether each backend answers as the trained network does (`qcn verify-parity`): see `Checked`.

        `run` is a Run, its folder or a shipped network's name: the bundle must then be built from its network.
        """
        from qcn.verify.parity.check import check
        from qcn.verify.parity.request import ParityRequest

        return check(self, make(ParityRequest, **settings))

    def benchmark(self, **settings: Any) -> "Benchmarked":
        """How fast each backend is (`qcn benchmark`); printed, a table."""
        from qcn.verify.speed.check import benchmark
        from qcn.verify.speed.request import BenchmarkRequest

        return benchmark(self, make(BenchmarkRequest, **settings))

    def load(self, backend: str = "auto", **settings: Any) -> "Model":
        """Load it with this backend: the settings of `qcn.load`."""
        from qcn.runtime.model import load_opened

        return load_opened(self, backend, **settings)

    @cached_property
    def model(self) -> "Model":
        """Its network by the fastest backend that runs here."""
        return self.load()

    def _own(self) -> dict[str, Any]:
        return {"public_key": self.public_key, "dataset": self.pictures}


def train(
    dataset: Name,
    *,
    model: str | None = None,
    preset: str = "best",
    quantise: Name | None = None,
    data_dir: Name = DATA,
    device: str = "auto",
    out: Name | None = None,
    tracker: str | Iterable[str] = (),
    callbacks: "Sequence[Callback]" = (),
    **settings: Any,
) -> Run:
    """Train a network on a data set or a folder of pictures, into the folder `out` (`qcn train`).

    The other keywords are the fields of `qcn.train.settings.Settings`. `tracker` names services that keep the run;
    `callbacks` are called at each epoch (`qcn.train.trackers`).
    """
    from qcn.train.trackers import trackers_named

    if quantise and not settings.get("init"):
        raise UsageError("--quantise needs the network that was calibrated: name it with --init")
    chosen = {"dataset": dataset, "model": model, **settings}
    _check(preset, **chosen | {"model": model or "qcn"})
    callbacks = [*trackers_named(tracker), *callbacks]
    with shown():
        doing("loading torch")
        from qcn.data.folder import is_source
        from qcn.data.registry import dataset_name
        from qcn.networks.distributed import first_process
        from qcn.storage.files import new_folder
        from qcn.train import begin
        from qcn.train.record import load_run
        from qcn.train.settings import settings_from

        begun = load_run(run_of(settings["init"])).model if settings.get("init") else None
        chosen["model"] = model or (begun.name if begun else None)
        if is_source(str(dataset)):
            chosen |= _for_photographs(Path(dataset), chosen["model"], settings.get("size"))
        chosen["model"] = chosen["model"] or "qcn"
        if begun and begun.name == chosen["model"]:  # the same kind of network, to its routing
            iterations = settings.get("iterations")
            chosen |= {"mode": begun.mode, "iterations": begun.iterations if iterations is None else iterations}
        complete = settings_from(preset, **chosen)
        quantised = _quantised(Path(quantise), str(complete.init)) if quantise else None
        named = Path(out) if out else Path("runs/train") / f"{dataset_name(complete.dataset)}-{complete.model}"
        with nullcontext(named) if out or not first_process() else new_folder(named) as folder:
            return Run(folder, begin.train(complete, Path(data_dir), folder, device, quantised, callbacks))


def _for_photographs(source: Path, model: str | None, size: int | None) -> dict[str, Any]:
    """Network and size for a folder of pictures, where they are not chosen: of photographs a pretrained one."""
    from qcn.data.folder import BACKBONE_SIDES, side_for_backbone
    from qcn.networks.lite0 import EXTRA, PACKAGE
    from qcn.packages import installed

    if model not in (None, *PRETRAINED):
        return {}
    side = size or side_for_backbone(source)
    if model:
        return {"size": side or min(BACKBONE_SIDES)}
    if side is None or side < min(BACKBONE_SIDES):
        return {}
    if not installed(PACKAGE):
        say(f"for photographs like these, qcn-lite0 errs far less, on a pretrained backbone: {EXTRA}")
        return {}
    say("photographs: training qcn-lite0, on a pretrained backbone; --model qcn trains a network from scratch")
    return {"model": "qcn-lite0", "size": side}


def _check(preset: str, **chosen: Any) -> None:
    """Refuse wrong settings before torch is imported, which takes seconds."""
    from qcn.data.folder import is_source
    from qcn.data.registry import find
    from qcn.names import NETWORKS
    from qcn.train.settings import settings_from

    settings = settings_from(preset, **chosen)
    zoo = sys.modules.get("qcn.networks.zoo")  # imported where a user's file added a network to it
    known = zoo.MODELS if zoo else NETWORKS
    if settings.model not in known:
        raise unknown_name("model", settings.model, known)
    if not is_source(settings.dataset):  # a folder is looked through when it is read
        find(settings.dataset, settings.stored)
    for name in filter(None, (settings.init, *settings.teachers)):
        run_of(name)


def _quantised(plan: Path, init: str) -> "Quantised":
    """The scales of the calibrated bundle `plan`, by layer of the network that training starts from."""
    from qcn.export.program.lower import layer_scales
    from qcn.train.checkpoint import load_network
    from qcn.train.record import Quantised

    program = stored.Bundle.open(plan).program()
    if program.precision != "int8":
        again = command_line("qcn", "calibrate", init, "--out", plan)
        raise UsageError(f"{plan} has no int8 layers: `{again}` makes a bundle that has")
    return Quantised(str(plan), layer_scales(load_network(run_of(init))[0], program))

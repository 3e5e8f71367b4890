"""Begin a run, or go on with one: alone in its folder, and in step with the other processes of a distributed run."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from qcn.data.imageset import Splits
from qcn.data.registry import find, read
from qcn.data.spec import Dataset
from qcn.errors import UsageError, unknown_name
from qcn.names import MANIFEST, RUN
from qcn.networks.devices import pick_device
from qcn.networks.distributed import barrier, first_process, process_group, rank
from qcn.networks.zoo import MODELS
from qcn.storage.files import alone_in, refuse_no_text
from qcn.terminal.progress import doing, say
from qcn.terminal.text import command_line, counted, started
from qcn.train.loop import Training
from qcn.train.record import Quantised, Run, load_run
from qcn.train.settings import RANDOM, Settings
from qcn.train.trackers import Callback, trackers_of


def train(
    settings: Settings,
    data_dir: Path,
    out: Path,
    device: str = "auto",
    quantised: Quantised | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a network from scratch into the folder `out`; returns the finished run's record.

    The layers that `quantised` names round as in int8 while it trains (`qcn.train.quantise`).
    """
    data_dir, out = Path(data_dir), Path(out)  # a script may give text
    refuse_no_text(out)
    if (out / MANIFEST).exists():
        raise UsageError(f"{out} is a bundle, and a run needs its own folder: choose another --out")
    with _alone_in(out):
        if (out / RUN).exists():
            raise UsageError(
                f"{out} already holds a run: continue it with "
                f"`{command_line(*started, 'train', '--resume', out)}`, or choose another --out"
            )
        if settings.model not in MODELS:
            raise unknown_name("model", settings.model, MODELS)
        chosen = pick_device(device)
        dataset = find(settings.dataset, settings.stored)
        if kept := dataset.stored:  # what was chosen from the pictures belongs to the run
            settings = replace(settings, size=kept.size, fit=kept.fit, channels=kept.channels)
        with process_group(chosen):
            splits = load_once(dataset, data_dir)
            doing("preparing the network")
            return Training(settings, splits, out, chosen, dataset, quantised, data_dir).run(callbacks)


def resume(
    out: Path,
    data_dir: Path,
    device: str = "auto",
    epochs: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Continue the run in `out` from its last checkpoint, to the same weights as if it had never stopped.

    With `epochs` it becomes a run of so many, without patience: the learning rate follows the schedule of the longer
    run from there on.
    """
    data_dir, out = Path(data_dir), Path(out)
    load_run(out)  # what is no run is left as it is, without a lock
    callbacks = [*trackers_of(out), *callbacks]
    with _alone_in(out):
        run = load_run(out)
        if epochs is not None:
            run = _lengthened(run, out, epochs)
        elif run.progress.epoch >= run.settings.epochs and first_process():
            say(f"{out} has run all of its {counted(run.settings.epochs, 'epoch')}: --epochs extends it")
        chosen = pick_device(device)
        with process_group(chosen):
            dataset = run.dataset()
            settings = replace(run.settings, init=RANDOM)  # its weights are in the checkpoint
            splits = load_once(dataset, data_dir)
            training = Training(settings, splits, out, chosen, dataset, run.quantised, data_dir)
            training.restore(run)
            return training.run(callbacks)


def _lengthened(run: Run, out: Path, epochs: int) -> Run:
    if epochs <= run.progress.epoch:
        raise UsageError(
            f"{out} has already run {counted(run.progress.epoch, 'epoch')}: --epochs must be more, not {epochs}"
        )
    settings = replace(run.settings, epochs=epochs, patience=None)
    return replace(run, settings=settings, confidence=None, known=None, direction=None)


def _alone_in(out: Path) -> AbstractContextManager[None]:
    """Of several processes, the first one writes, and keeps the folder for this run."""
    return alone_in(out) if first_process() else nullcontext()


def load_once(dataset: Dataset, data_dir: Path) -> Splits:
    """Load a data set, process 0 first, so that it is rendered, unpacked or read only once."""
    if rank() > 0:
        barrier()
    splits = read(dataset, data_dir)
    if rank() == 0:
        barrier()
    return splits

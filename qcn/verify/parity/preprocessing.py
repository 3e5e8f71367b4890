"""Does the manifest's pre-processing still make of the golden images what the network saw? No torch where libqcn is.

A mean or channel that was changed shows in no backend, since backends are given what was pre-processed already; on a
device it makes every answer wrong. Pre-processing is defined to the last bit (`qcn.data.preprocess`), so the answer is
yes or no. libqcn's own is asked, or torch's where there is no libqcn. Golden images have the size of the data set's; so
libqcn is also asked for pictures of other sizes, which must become what `qcn.data.fit` says. What a server's
repository has before the network is asked too.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import fit
from qcn.data.numpy_preprocess import preprocess
from qcn.errors import MissingError, QcnError
from qcn.export.backends.candidates import Candidate
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.native.runner import NativeRunner
from qcn.export.backends.runner import Options
from qcn.export.backends.triton.config import LABELS
from qcn.export.backends.triton.repository import read_repository
from qcn.export.backends.triton.runner import SEEN
from qcn.export.bundle import WEIGHTS, Artefact, Bundle
from qcn.export.bundle.tolerance import last_place
from qcn.names import MANIFEST
from qcn.packages import installed
from qcn.verify.parity.compare import Allowed, errors
from qcn.verify.parity.verdict import PREPROCESSING, Verdict

OTHER_SIZES = ((1, 1), (97, 33), (480, 640))  # of pictures, rows and columns


def check_preprocessing(bundle: Bundle) -> Verdict:
    """A verdict on the manifest; `missing` where this machine has nothing to pre-process with."""
    golden = bundle.golden()
    places = golden.with_image
    images, expected = golden.image[places], golden.input[places]
    about = (PREPROCESSING, MANIFEST, "fp32")
    try:
        result, by, reasons = _preprocessed(bundle, images)
    except MissingError as error:
        return Verdict(*about, "missing", (str(error),))
    except QcnError as error:
        return Verdict(*about, "failed", (f"it does not fit the golden images: {error}",))
    return _compared(about, result, expected, by, reasons)


def check_repositories(bundle: Bundle, served: Iterable[Candidate], time_limit: float) -> list[Verdict]:
    """Verdicts on the pre-processing and class names in each model repository for a server.

    The golden images go through the whole ensemble, from their bytes on.
    """
    golden = bundle.golden()
    places = golden.with_image
    verdicts = []
    for candidate in (one for one in served if one.artefact.format == "triton"):
        about = (PREPROCESSING, candidate.artefact.file, candidate.precision)
        try:
            with candidate.runner(bundle, time_limit=time_limit) as runner:
                parts = [runner.infer(golden.image[[row]])[SEEN] for row in places]
        except MissingError as error:
            verdicts.append(Verdict(*about, "missing", (str(error),)))
        except QcnError as error:
            verdicts.append(Verdict(*about, "failed", (f"it does not run: {error}",)))
        else:
            reasons = _other_labels(bundle, candidate.artefact)
            verdicts.append(_compared(about, np.concatenate(parts), golden.input[places], runner.name, reasons))
    return verdicts


def _other_labels(bundle: Bundle, artefact: Artefact) -> tuple[str, ...]:
    """Label files that differ from the manifest's classes, in words."""
    lines = "".join(f"{label}\n" for label in bundle.manifest.classes).encode()
    files = read_repository(bundle.read(artefact), bundle.folder / artefact.file)
    wrong = [name for name, text in files.items() if name.endswith(f"/{LABELS}") and text != lines]
    return tuple(f"{name} has other classes, or in another order, than {MANIFEST}" for name in wrong)


def _compared(
    about: tuple[str, str, str],
    inputs: NDArray[np.float32],
    expected: NDArray[np.float32],
    by: str,
    reasons: tuple[str, ...],
) -> Verdict:
    """Compare inputs bit by bit with those of training."""
    if inputs.shape != expected.shape:
        shapes = f"images become {list(inputs.shape[1:])}, and the network saw {list(expected.shape[1:])}"
        return Verdict(*about, "failed", (shapes,), by)
    exact = expected.astype(np.float64)
    compared = errors(inputs, exact, last_place(exact), "fp32", Allowed())
    first_wrong = "picture" if reasons else None
    if not compared.passed:
        apart = np.abs(inputs - expected).max(axis=(0, 2, 3))
        channels = ", ".join(str(index) for index in np.flatnonzero(apart))
        reason = f"what the network sees is not what it saw: off by {compared.max_abs:.2g} in channels {channels}"
        reasons = (reason, *reasons)
        first_wrong = "input"
    outputs = {"input": compared}
    verdict = Verdict(*about, "passed", reasons, by, outputs=outputs, images=len(inputs), first_wrong=first_wrong)
    return verdict.settled()


def _preprocessed(bundle: Bundle, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], str, tuple[str, ...]]:
    """The pre-processed images, what pre-processed them, and faults found with other picture sizes."""
    native = ""
    try:
        with NativeRunner(ModelFile.of_bundle(bundle, bundle.find(WEIGHTS)), Options()) as runner:
            return runner.preprocess(images), runner.name, _of_other_sizes(bundle, runner)
    except QcnError as error:  # not there, or the weights cannot be loaded, which is for their own verdict to say
        native = str(error)
    try:
        import torch
    except ImportError as error:
        raise MissingError(f"it was not checked: torch is not installed, and {native}") from error
    from qcn.data.preprocess import preprocess as by_torch

    return by_torch(torch.from_numpy(images), bundle.manifest.preprocessing).numpy(), f"torch {torch.__version__}", ()


def _of_other_sizes(bundle: Bundle, runner: NativeRunner) -> tuple[str, ...]:
    """Whether libqcn fits pictures of other sizes as defined (by Pillow, which a device may lack)."""
    if not installed("PIL"):
        return ()
    manifest, random = bundle.manifest, np.random.default_rng(0)
    for height, width in OTHER_SIZES:
        picture = random.integers(0, 256, (height, width, manifest.image[0]), np.uint8)
        image = fit(picture, manifest.image, manifest.preprocessing.fit)
        result = runner.preprocess(picture.transpose(2, 0, 1)[None])
        if not np.array_equal(result, preprocess(image[None], manifest.preprocessing)):
            return (f"libqcn makes of a picture of {width}×{height} something else than docs/bundle.md defines",)
    return ()

"""The engines behind `qcn.load`: libqcn, else ONNX Runtime, or the backend named."""

import threading
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import fit
from qcn.data.numpy_preprocess import preprocess
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.backends import BACKENDS
from qcn.export.backends.candidates import create
from qcn.export.backends.model_file import ModelFile
from qcn.export.bundle import GOLDEN, MANIFEST, WEIGHTS, Bundle
from qcn.export.bundle.manifest import MANIFEST_SHA256, Artefact, manifest_sums
from qcn.export.bundle.tolerance import tolerances
from qcn.libqcn import binding
from qcn.libqcn.location import find_library
from qcn.names import PRECISIONS
from qcn.terminal.text import command_line

Answers = tuple[NDArray[np.float32], NDArray[np.float32] | None]  # logits [B, classes], poses [B, classes, 3]


class Engine(ABC):
    """Answers to pictures [H, W] or [H, W, C] of any size. `name` says in words what gives them."""

    name: str

    @abstractmethod
    def classify(self, pictures: list[NDArray[np.uint8]]) -> Answers: ...


class LibqcnEngine(Engine):
    """libqcn does all of it, pre-processing included; it tests itself while it loads."""

    def __init__(self, bundle: Bundle, backend: str, precision: str | None, threads: int, device: int) -> None:
        find_library()  # before files are read that only it needs
        files = _libqcn_files(bundle, backend, precision)
        model = binding.NativeModel(
            files, bundle.folder, backend=backend, precision=precision, threads=threads, device=device
        )
        self._model, self._sessions = model, threading.local()
        self.name = f"libqcn, {model.backend_name}"

    def classify(self, pictures: list[NDArray[np.uint8]]) -> Answers:
        session: binding.Session | None = getattr(self._sessions, "session", None)
        if session is None:
            session = self._sessions.session = binding.Session(self._model)
        return session.classify([binding.image_of(pixels) for pixels in pictures])


class RunnerEngine(Engine):
    """A file by its own runtime, behind pre-processing in numpy."""

    def __init__(self, bundle: Bundle, backend: str, precision: str | None, threads: int) -> None:
        artefact = _artefact(bundle, BACKENDS[backend].formats[0], precision or bundle.find(WEIGHTS).precision)
        model = ModelFile.of_bundle(bundle, artefact)
        artefact = self._artefact = bundle.find(artefact.file)  # a writer may have replaced it
        self._manifest = bundle.manifest
        self._most = artefact.batch.max if artefact.batch else None
        if artefact.batch and artefact.batch.min > 1:
            raise UsageError(f"{artefact.file} takes batches of {artefact.batch}; export it with --batch 1:8:64")
        self._runner = create(backend, model, threads=threads or None)
        self._runner.open()
        self.name = self._runner.name
        self._check(bundle)

    def classify(self, pictures: list[NDArray[np.uint8]]) -> Answers:
        spec = self._manifest.preprocessing
        images = np.stack([fit(pixels, self._manifest.image, spec.fit) for pixels in pictures])
        return self._infer(preprocess(images, spec))

    def _infer(self, inputs: NDArray[np.float32]) -> Answers:
        step = self._most or len(inputs)
        parts = [self._runner.infer(inputs[start : start + step]) for start in range(0, len(inputs), step)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return joined["logit"], joined.get("pose")

    def _check(self, bundle: Bundle) -> None:
        """As libqcn's self-test: golden images must give what the network saw, and answers within the tolerance."""
        golden = bundle.golden()
        tested = sorted({0, len(golden.rows) // 2, len(golden.rows) - 1})
        rows = golden.with_image
        if not np.array_equal(preprocess(golden.image[rows], bundle.manifest.preprocessing), golden.input[rows]):
            raise CheckFailed(
                f"{bundle.folder}: pre-processing the golden images does not give what the network saw in training"
            )
        result = dict(zip(("logit", "pose"), self._infer(golden.input[tested]), strict=True))
        for name, limit in tolerances(golden, self._artefact.precision).items():
            answer = result[name]
            if answer is None:
                raise CheckFailed(f"{bundle.folder}: {self.name} returns no {name}")
            error = float(np.abs(answer - getattr(golden.reference, name)[tested]).max())
            if not error <= limit:
                raise CheckFailed(
                    f"{bundle.folder}: {self.name} answers the golden images wrongly: {name} is off by "
                    f"{error:.2g}, but only {limit:.2g} is allowed; see "
                    f"`{command_line('qcn', 'verify-parity', bundle.folder)}`"
                )


def _libqcn_files(bundle: Bundle, backend: str, precision: str | None) -> dict[str, bytes]:
    """The files of a bundle that libqcn needs, by name. A damaged engine is left out: it may be another machine's."""
    needed = [GOLDEN] if backend == "tensorrt" else [GOLDEN, WEIGHTS]
    engines = [one for one in bundle.manifest.files if one.format == "trt" and precision in (None, one.precision)]
    files = bundle.read_together(needed, [one.file for one in engines if backend != "native"])
    return {MANIFEST: bundle.text, MANIFEST_SHA256: manifest_sums(bundle.text), **files}


def _artefact(bundle: Bundle, format: str, precision: str) -> Artefact:
    """The bundle's file of this format, in this precision and no other."""
    for artefact in bundle.manifest.files:
        if (artefact.format, artefact.precision) == (format, precision):
            return artefact
    words: list[object] = ["qcn", "export", bundle.folder, "--format", format, "--precision", precision]
    make = command_line(*words) if precision in PRECISIONS else "qcn calibrate RUN"
    raise MissingError(f"{bundle.folder} has no {format} file in {precision}; make one: `{make}`")

"""The files of a bundle in the backends that run them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qcn.errors import UsageError
from qcn.export.backends import BACKENDS, find
from qcn.export.backends.definition import Backend, load
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import TIME_LIMIT, Options, Runner
from qcn.export.bundle import Artefact, Bundle
from qcn.names import AnyPrecision

if TYPE_CHECKING:
    from qcn.export.backends.isolated import IsolatedRunner


def create(name: str, model: ModelFile, threads: int | None = None) -> Runner:
    """The runner of a backend for a model file, in this process."""
    backend = find(name)
    return _create(backend, model, Options(backend.device, kernels=backend.kernels, threads=threads))


def _create(backend: Backend, model: ModelFile, options: Options) -> Runner:
    runner: Runner = load(backend.runner)(model, options)
    return runner


@dataclass(frozen=True)
class Candidate:
    """An artefact in a backend, in a precision; `trusted` says whether code that it carries may run."""

    backend: Backend
    artefact: Artefact
    precision: AnyPrecision
    trusted: bool = False

    @property
    def key(self) -> str:
        return key(self.backend.name, self.artefact.file, self.precision)

    @property
    def untrusted(self) -> str:
        """Why it must not run; empty if it may."""
        if self.trusted or not self.artefact.carries_code:
            return ""
        return "it can carry code: add --trust if you trust its author"

    @property
    def least(self) -> int:
        """The fewest images that it takes at once."""
        return self.artefact.batch.min if self.artefact.batch else 1

    def takes(self, batch: int) -> bool:
        limits = self.artefact.batch
        return limits is None or limits.min <= batch <= limits.max

    def runner(self, bundle: Bundle, every_layer: bool = False, time_limit: float = TIME_LIMIT) -> Runner:
        """Its runner, not yet open, with the artefact's bytes, whose hash was checked.

        What may be a stranger's program runs isolated. With `every_layer` it gives out every capsule layer too, in
        backends that can be made to. It is for checking answers, not for timing them.
        """
        runner = self._runner(bundle, every_layer, thrifty=True)
        return self._isolated(runner, time_limit) if self.backend.isolated else runner

    def isolated(self, bundle: Bundle, time_limit: float = TIME_LIMIT) -> "IsolatedRunner":
        """Its runner in a process of its own, whatever the backend."""
        return self._isolated(self._runner(bundle), time_limit)

    def runner_to_time(self, bundle: Bundle, time_limit: float = TIME_LIMIT) -> Runner:
        """Its runner in this process, where nothing adds to its time; isolated only where it carries code."""
        runner = self._runner(bundle)
        return self._isolated(runner, time_limit) if self.artefact.carries_code else runner

    def _isolated(self, runner: Runner, time_limit: float) -> "IsolatedRunner":
        from qcn.export.backends.isolated import IsolatedRunner

        return IsolatedRunner(runner, self.backend.name, carries_code=self.artefact.carries_code, time_limit=time_limit)

    def _runner(self, bundle: Bundle, every_layer: bool = False, thrifty: bool = False) -> Runner:
        if self.untrusted:
            raise UsageError(f"{self.artefact.file} is not run: {self.untrusted}")
        layers = capsule_layers(bundle) if every_layer and self.backend.shows_layers else ()
        options = Options(self.backend.device, self.precision, self.backend.kernels, layers, thrifty=thrifty)
        return _create(self.backend, ModelFile.of_bundle(bundle, self.artefact), options)


def capsule_layers(bundle: Bundle) -> tuple[str, ...]:
    """The names of the network's capsule layers, first to last; none where it has none."""
    return tuple(route.name for route in bundle.program().routes)


def candidates(
    bundle: Bundle, names: Iterable[str] | None, trust: bool = False, file: str | None = None
) -> list[Candidate]:
    """Every artefact, or one `file`, in every backend that was asked for, or in every one; one for each precision.

    Without `trust` those that can carry code are listed as such, and refused where they were asked for by name.
    """
    backends = [find(name) for name in dict.fromkeys(names or BACKENDS)]
    result = []
    for backend in backends:
        own = [
            Candidate(backend, artefact, precision, trust)
            for artefact in bundle.manifest.files
            if artefact.format in backend.formats and file in (None, artefact.file)
            for precision in backend.precisions or (artefact.precision,)
        ]
        if names and not own:
            formats, add = " or ".join(backend.formats), f"qcn export {bundle.folder} --format {backend.formats[0]}"
            where = ", on the device" if "trt" in backend.formats else ""  # where an engine is built
            raise UsageError(
                f"{bundle.folder} has no file for the backend {backend.name}, which runs {formats}; add "
                f"one{where}: {add}"
            )
        if names and (refused := [one for one in own if one.untrusted]):
            raise UsageError(f"{backend.name} does not run {refused[0].artefact.file}: {refused[0].untrusted}")
        result += own
    if not result:
        add = f"qcn export RUN --out {bundle.folder}"
        raise UsageError(f"{bundle.folder} has no file that a backend can run; add one with: {add}")
    return result


def key(backend: str, file: str, precision: str) -> str:
    """The name of an artefact in a backend, in tables and records; unique in a bundle."""
    return f"{backend}: {file} ({precision})"

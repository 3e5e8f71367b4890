"""The whole verdict on a bundle in one call, for the shell, for `qcn ship-check` and for Python."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qcn.errors import UsageError
from qcn.export.backends.candidates import candidates
from qcn.export.backends.runner import TIME_LIMIT
from qcn.export.bundle import Bundle
from qcn.progress import doing, shown
from qcn.verify.parity.compare import Allowed
from qcn.verify.parity.preprocessing import check_preprocessing, check_repositories
from qcn.verify.parity.run import Origin, check_run
from qcn.verify.parity.samples import GOLDEN, Samples, samples
from qcn.verify.parity.soak import Soak
from qcn.verify.parity.verdict import Verdict
from qcn.verify.parity.verify import verify


@dataclass(frozen=True)
class Request:
    """What to check, and how; the fields are the options of `qcn verify-parity`.

    backends   by name; None: every one that has a file
    file       one file of the bundle; None: every one
    run        the training run that the bundle must come from; None: that is not checked
    """

    backends: Sequence[str] | None = None
    file: str | None = None
    data: str = GOLDEN
    samples: int | None = None
    data_dir: Path = Path("data")
    atol: Sequence[str] = ()
    rtol: Sequence[str] = ()
    run: str | None = None
    bisect: bool = False
    trust: bool = False
    time_limit: float = TIME_LIMIT
    soak: Soak | None = None


@dataclass(frozen=True)
class Checked:
    """What was found, on which images; `run` is the training run that the bundle was compared with."""

    verdicts: list[Verdict]
    samples: Samples
    run: str | None


def check(bundle: Bundle, request: Request) -> Checked:
    """Every verdict: on the files in their backends, on pre-processing, and with `run` on where the bundle is from.

    Nothing of a bundle is run that is not of the `run` which it should be of.
    """
    allowed = tolerances(request.atol, request.rtol, [port.name for port in bundle.manifest.outputs])
    origin, of_run = None, list[Verdict]()
    with shown():
        if request.run:
            doing(f"comparing with {request.run}")
            origin = Origin.open(request.run, bundle)
            of_run = [check_run(bundle, origin, request.data_dir)]
            if of_run[0].status == "failed":
                return Checked([*_not_run(bundle, request), *of_run], samples(bundle), request.run)
        doing(f"reading {request.data} images")
        chosen = samples(bundle, request.data, request.samples, request.data_dir, origin)
        trust = request.trust or origin is not None  # then files are compared with their program before they run
        served = candidates(bundle, request.backends, trust, request.file)
        found = verify(
            bundle,
            request.backends,
            allowed,
            request.bisect,
            chosen.golden,
            trust,
            request.time_limit,
            request.file,
            origin,
            request.soak,
        )
        doing("checking pre-processing")
        found += [check_preprocessing(bundle), *check_repositories(bundle, served, request.time_limit), *of_run]
    return Checked(found, chosen, request.run)


def _not_run(bundle: Bundle, request: Request) -> list[Verdict]:
    """A verdict for each file of a bundle that is not of the run."""
    found, why = candidates(bundle, request.backends, True, request.file), f"the bundle is not of {request.run}"
    return [Verdict(one.backend.name, one.artefact.file, one.precision, "untrusted", (why,)) for one in found]


def tolerances(atol: Iterable[str], rtol: Iterable[str], names: Sequence[str]) -> dict[str, Allowed]:
    """From what `--atol` and `--rtol` were given, by output: each "1e-4" for all `names`, "pose:1e-4" for one."""
    absolute, relative = _by_output("--atol", atol, names), _by_output("--rtol", rtol, names)
    named = {name for given in (absolute, relative) for name in (names if "" in given else given)}
    return {
        name: Allowed(*(given.get(name, given.get("", 0.0)) for given in (absolute, relative)))
        for name in names
        if name in named
    }


def _by_output(option: str, given: Iterable[str], names: Sequence[str]) -> dict[str, float]:
    """The numbers by output; under "" what is for all of them."""
    found = {}
    for text in given:
        name, _, number = text.rpartition(":")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if name not in ("", *names) or not 0 <= found[name] < float("inf"):
            raise UsageError(f"{option} takes a number, or OUTPUT:NUMBER with {' or '.join(names)}, not '{text}'")
    return found

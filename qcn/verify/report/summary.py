"""What a report says first: the verdict in plain words, the figures one wants at once, and the backends in order."""

from collections.abc import Sequence

from qcn.terminal.text import counted
from qcn.verify.machine import Environment
from qcn.verify.parity.compare import Share
from qcn.verify.parity.results import Images, ParityReport
from qcn.verify.parity.verdict import NO_BACKENDS, PREPROCESSING, RUN, Status, Verdict
from qcn.verify.ship.outcome import Ship
from qcn.verify.words import milliseconds, share

ORDER: dict[Status, int] = {"failed": 0, "passed": 1, "missing": 2, "untrusted": 3}


def in_order(report: ParityReport) -> list[Verdict]:
    """Failures first, what could not run last."""
    return sorted(report.backends.values(), key=lambda verdict: ORDER[verdict.status])


def headline(verdicts: Sequence[Verdict]) -> tuple[Status, str]:
    """The status, and a sentence."""
    ran = [verdict for verdict in verdicts if verdict.ran and verdict.backend not in NO_BACKENDS]
    wrong = [verdict for verdict in ran if verdict.status != "passed"]
    answers = "answer as the trained network does"
    if any(verdict.backend == RUN and verdict.status == "failed" for verdict in verdicts):
        return "failed", "The bundle does not come from the training run that it was compared with."
    if not ran:
        if any(verdict.status == "untrusted" for verdict in verdicts):
            return (
                "untrusted",
                "Nothing was checked: the files that could run here can carry code, and --trust was not given.",
            )
        return "missing", "Nothing could be checked: no backend runs here."
    if wrong:
        of = f"{len(wrong)} of {len(ran)} backends {'does' if len(wrong) == 1 else 'do'}"
        return "failed", f"{of if len(ran) > 1 else 'The backend does'} not {answers}."
    if any(verdict.backend == PREPROCESSING and verdict.status == "failed" for verdict in verdicts):
        return "failed", "Pre-processing does not give the network what it was trained on."
    some = any(not verdict.ran and verdict.backend not in NO_BACKENDS for verdict in verdicts)
    return "passed", f"Every backend{' that ran' if some else ''} answers{answers.removeprefix('answer')}."


def images(data: Images) -> str:
    """What was looked at: 22 golden images, 6 of them edge cases."""
    of = f"{data.count} golden images" if data.name == "golden" else f"{data.count} images of {data.name}"
    return of + (f", {data.edge_cases} of them edge cases" if data.edge_cases else "")


def basis(reports: Sequence[ParityReport]) -> str:
    """What a verdict is based on: the images, and whether the bundle was compared with its training run."""
    compared = all(any(one.backend == RUN for one in report.backends.values()) for report in reports)
    run = "compared with the training run" if compared else "not proven: that it is of a training run (--run RUN)"
    return f"{images(reports[0].images)}; {run}"


def rate(value: Share | None) -> tuple[str, str]:
    """21 of 21, and the interval: 84.5 to 100 %."""
    if value is None:
        return "–", ""
    return f"{value.right} of {value.of}", f"{100 * value.low:.1f} to {100 * value.high:.1f} %"


def machine(environment: Environment) -> str:
    """What was measured on: processor, cores, GPU or Jetson, system."""
    gpu = environment.gpu.name if environment.gpu else "no GPU"
    cores = f"{environment.processor}, {counted(environment.cores, 'core')}"
    return ", ".join(filter(None, (environment.jetson, cores, gpu, environment.system)))


def ship_tiles(ship: Ship, report: ParityReport) -> list[tuple[str, str, str]]:
    """The tiles of what ships, accuracy first: name, value, note."""
    result = []
    for row in ship.rows:
        if row.name.startswith("accuracy") and row.value is not None:
            result.append((row.name, f"{100 * row.value:.1f} %", row.found.partition(" (")[2].replace(")", "")))
    for row in ship.rows:
        if row.name.endswith("latency") or row.name == "memory":
            value, _, more = row.found.partition(", ")
            result.append((row.name, value, "; ".join(filter(None, (more, row.asked or "no limit")))))
    return result + _changed([one for one in report.backends.values() if one.ran])


def tiles(report: ParityReport) -> list[tuple[str, str, str]]:
    """Tiles: name, value, note; right answers first."""
    backends = [verdict for verdict in report.backends.values() if verdict.backend not in NO_BACKENDS]
    ran = [verdict for verdict in backends if verdict.ran]
    absent = f"{len(backends) - len(ran)} more were not run" if len(backends) > len(ran) else "all that were asked for"
    result = []
    rights = [verdict.accuracy for verdict in ran if verdict.accuracy]
    if report.images.show_accuracy and rights and len(rights) == len(ran):
        least = min(rights, key=lambda verdict: verdict.right)
        result.append(("right answers", f"{least.right} of {least.of}", f"{rate(least)[1]}; by the worst backend"))
    passed = sum(verdict.status == "passed" for verdict in ran)
    result.append(("backends that passed", f"{passed} of {len(ran)}", absent))
    shares = {verdict.key: verdict.share for verdict in ran if verdict.share is not None}
    if shares and len(shares) == len(ran):
        worst = max(shares, key=shares.__getitem__)
        result.append(("allowed deviation used", share(shares[worst]), f"at most, by {worst}"))
    result += _changed(ran)
    results = report.benchmark.results.values() if report.benchmark else ()
    timed = [(verdict.median, verdict) for verdict in results if verdict.batch == 1 and verdict.median is not None]
    if timed:
        median, fastest = min(timed, key=lambda pair: pair[0])
        unstable = ", unstable" if fastest.unstable else ""  # its times cannot be relied on
        result.append(("fastest, one image", milliseconds(median), f"{fastest.backend}: {fastest.file}{unstable}"))
    return result


def _changed(ran: Sequence[Verdict]) -> list[tuple[str, str, str]]:
    if not ran:
        return []
    return [("changed decisions", str(sum(len(one.flips) for one in ran)), "over all backends and golden images")]

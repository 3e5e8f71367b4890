"""`qcn calibrate` from a bundle to a calibrated one, stopped and gone on with; the search; what is refused."""

import json
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import ask

from qcn.calibrate import assignments, outcome, pipeline, record, search
from qcn.calibrate.bodies import Body, TargetBody, Timed, TorchBody, find_body
from qcn.calibrate.sensitivity import Sensitivity
from qcn.calibrate.simulation import ProgramOutputs, answers
from qcn.data.imageset import ImageSet
from qcn.data.registry import load
from qcn.direction import Directions
from qcn.errors import CheckFailed, UsageError
from qcn.export.backends.openvino.runner import OpenVinoRunner
from qcn.export.bundle import Bundle
from qcn.export.program.program import Convolution, Program
from qcn.export.program.quantise import quantised
from qcn.names import CALIBRATION
from qcn.train.record import load_run


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcn.export.targets.this_gpu", lambda: None)


@pytest.fixture(scope="module")
def images(data_dir: Path) -> ImageSet:
    return load("mnist", data_dir).validation


@pytest.fixture(scope="module")
def calibration(
    run: Path, program: Program, images: ImageSet, tmp_path_factory: pytest.TempPathFactory
) -> record.Calibration:
    spec = load_run(run).preprocessing
    path, key = tmp_path_factory.mktemp("ranges") / CALIBRATION, record.Key.of(program, spec, images)
    return record.calibrate(path, program, spec, images, "mnist", "mse", key, "")


@pytest.mark.slow
def test_a_target_that_refuses_says_why(bundle: Bundle, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as an installed library that is older than calibrated bundles."""

    def refused(*_: object) -> None:
        raise UsageError("libqcn 0.1.0 reads no int8")

    monkeypatch.setattr(TargetBody, "answers", refused)
    body = find_body(bundle, "native", program)
    assert "native does not run here (it refuses a calibrated bundle: libqcn 0.1.0 reads no int8)" in body.name


@pytest.mark.slow
def test_the_road_stopped_and_gone_on_with(
    bundle: Bundle, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = tmp_path / "calibrated", tmp_path / "report"
    arguments = ("calibrate", bundle.folder, "--data-dir", data_dir, "--max-drop", 40, "--backend", "tensorrt")
    arguments += ("--out", out, "--set", f"report={report}")
    judged, answers = list[str](), TorchBody.answers

    def stopped_at_third(self: TorchBody, program: Program, images: object, said: str) -> object:
        judged.append(said)
        if len(judged) == 3:
            raise KeyboardInterrupt
        return answers(self, program, images, said)  # type: ignore[arg-type]

    monkeypatch.setattr(TorchBody, "answers", stopped_at_third)
    code, said = ask(*arguments)
    assert code == 130 and not out.exists()
    assert "numbers of routing" in said  # before anything is built
    code, said = ask(*arguments)
    assert code == 0, said
    assert len(judged) == len({*judged}) + 2  # float32 again, to compare with, and the one that was stopped
    assert "tensorrt does not run here (there is no GPU), so times are estimated" in said
    assert "with 95 % confidence (40 allowed); an estimated" in said and f"\nnext: qcn verify-parity {out}\n" in said
    made = Bundle.open(out).program()
    assert made.calibrated and {one.precision for one in made.operations} >= {"int8", "fp16"}
    assert assignments.array_bytes(made) < 0.4 * assignments.array_bytes(bundle.program())
    found = json.loads((report / "report.json").read_text())
    assert found["search"]["chosen"]["assignment"] == assignments.lowest(bundle.program())
    assert len(found["pareto"]) >= 1 and len(found["digits"]) == 12 * len(made.routes)
    page = (report / "report.html").read_text()
    first = page[page.index("<h1") : page.index("</h1>")]
    assert "By an estimate" in first and "times as fast as float32, accuracy within 40 points" in first
    assert "<script" not in page and '<th scope="col"></th>' not in page

    for options, code, words in (
        ((bundle.folder,), 2, f"{out} exists: remove it, or name another bundle with --out"),
        ((out, "--out", tmp_path / "again"), 2, "is already calibrated"),
    ):
        where = ("--set", f"report={tmp_path}/other", *(() if "--out" in options else ("--out", out)))
        ended, said = ask("calibrate", *options, *arguments[2:8], *where)
        assert ended == code and words in said, said


def test_an_axis_has_a_few_round_marks() -> None:
    assert outcome.axis_marks([0.55, 0.77, 1.0]) == [0.6, 0.7, 0.8, 0.9, 1.0]
    assert outcome.axis_marks([7.2, 12.9]) == [8.0, 9.0, 10.0, 11.0, 12.0]
    assert outcome.axis_marks([1.0]) == [1.0] and outcome.axis_marks([]) == []


@pytest.mark.slow  # it calibrates; tests/verify/test_openvino.py has the int8 of a network that was
def test_openvino_computes_int8_or_nothing_is_written(
    bundle: Bundle,
    program: Program,
    calibration: record.Calibration,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On x86-64 it computes int8 convolutions; elsewhere in floats, which is refused before and after the search."""
    pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")
    there = platform.machine() == "x86_64"
    lowered = assignments.apply(program, assignments.lowest(program), calibration)
    if not there:
        with pytest.raises(
            CheckFailed, match=r"cannot calibrate for openvino here: .* in floating point on this processor"
        ):
            find_body(bundle, "openvino", lowered)
        monkeypatch.setattr(OpenVinoRunner, "_require_integers", lambda self: None)
    out = tmp_path / "calibrated"
    code, said = ask(
        *("calibrate", bundle.folder, "--data-dir", data_dir, "--max-drop", 40, "--backend", "openvino"),
        *("--set", "goal=size", "--out", out, "--set", f"report={tmp_path}/report"),
    )
    assert "openvino; times are the least of many runs" in (tmp_path / "report/search.json").read_text(), said
    if there:
        assert code == 0 and (out / "model.int8.xml").is_file(), said
    else:
        assert code == 1 and "should run in int8, but runs in fp32" in said and not out.exists(), said


def test_capsule_layers_of_openvino_gain_nothing(bundle: Bundle, program: Program) -> None:
    body, lowest = TorchBody(bundle.manifest.preprocessing, "openvino", "missing"), assignments.lowest(program)
    capsules = {name: one for name, one in lowest.items() if one == "fp16"}
    assert body.timed(program, capsules, None).share == 1  # type: ignore[arg-type]
    assert body.timed(program, lowest, None).share < 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--set", "method=kl"), 2, "no method named 'kl'; known: entropy, minmax, mse, percentile"),
        (("--backend", "cuda"), 2, "no backend named 'cuda'"),
        (("--set", "goal=speed"), 2, "no goal named 'speed'; known: latency, size"),
        (("--max-drop", "0"), 2, "--max-drop is in percentage points of accuracy, above 0 and up to 100, not 0"),
        (("--max-drop", "0.2"), 2, "for --max-drop 0.2 use at least 1,351 images, or allow --max-drop 12.0"),
        (("--images", "0"), 2, "--images must be 1 or more, not 0"),
        (("--dataset", "nothing/here"), 2, "there is no folder, table of pictures or data set named 'nothing/here'"),
        (("--data-dir", "elsewhere"), 3, "get it with: qcn datasets fetch mnist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_one_line(
    bundle: Bundle, data_dir: Path, tmp_path: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    arguments = {"--data-dir": str(data_dir), "--max-drop": "40", "--set": f"report={tmp_path}/report"}
    arguments |= dict([options])
    ended, said = ask("calibrate", bundle.folder, *(part for pair in arguments.items() for part in pair))
    assert ended == code and words in said, said
    assert not (tmp_path / "report/bundle").exists()


# The search


class Planted(Body):
    """Times and errors as told: `right` by assignment, how many of 1,000 images, all of class 0, are right.

    `degrees` is what every pose turns by.
    """

    name = "planted"

    def __init__(
        self,
        right: Callable[[dict[str, str]], int],
        share: Callable[[dict[str, str]], float],
        degrees: Callable[[dict[str, str]], float] = lambda low: 0.0,
    ) -> None:
        self.right, self.share, self.degrees = right, share, degrees

    def answers(self, program: Program, images: object, said: str) -> ProgramOutputs:
        assignment = {one.name: str(one.precision) for one in program.operations if one.precision != "fp32"}
        classes, turned = np.arange(1000) >= self.right(assignment), np.radians(self.degrees(assignment))
        pose = np.tile(np.float32([np.cos(turned), np.sin(turned), 0]), (1000, 2, 1))
        return ProgramOutputs(np.eye(2, dtype=np.float32)[classes.astype(int)], pose)

    def timed(self, program: Program, assignment: object, calibration: object) -> Timed:
        share = self.share(dict(assignment))  # type: ignore[call-overload]
        return Timed(share, 10 * share, 10.0)


def searched(
    program: Program,
    calibration: record.Calibration,
    body: Body,
    max_drop: float = 1.0,
    goal: str = "latency",
    max_turn: float | None = None,
) -> search.Search:
    images = ImageSet(np.zeros((1000, 1, 1, 1), np.uint8), np.zeros(1000, np.int64), ("a", "b"))
    first = next(one.name for one in program.operations if isinstance(one, Convolution))
    harm = [
        Sensitivity(one, p, 1, 0.1 if one == first else 0.001, 0, 0, 0, 0.1 if p == "fp16" else 0.001)
        for one, p in assignments.lowest(program).items()
    ]
    new = search.Search(calibration.key, "mse", "native", body.name, goal, max_drop, max_turn)  # type: ignore[arg-type]
    directions = Directions((1, 1), True, (), (10.0,))
    return search.Searcher(program, calibration, images, body, harm, new, lambda record: None, directions).run()


def test_the_bound_decides_and_not_the_drop(program: Program, calibration: record.Calibration) -> None:
    """Five answers in a thousand are lost by the first convolution alone: 0.5 points, and up to 1.05."""
    first = next(one.name for one in program.operations if isinstance(one, Convolution))
    body = Planted(lambda low: 990 - 5 * (first in low), lambda low: 1 - 0.01 * len(low) if low else 1.0)
    whole = assignments.lowest(program)
    assert searched(program, calibration, body, max_drop=1.2).chosen.assignment == whole  # type: ignore[union-attr]
    found = searched(program, calibration, body, max_drop=1.0)
    assert found.chosen is not None and found.chosen.assignment == {k: v for k, v in whole.items() if k != first}
    lost = found.find(whole)
    assert lost is not None and lost.drop == pytest.approx(0.5) and 1.0 < lost.bound < 1.2
    front = search.pareto(found.trials)
    assert found.chosen in front and found.find({}) not in front  # as many errors, and slower
    slower = replace(found.chosen, timed=Timed(1.5), bytes=found.chosen.bytes + 1)
    assert slower not in search.pareto([*found.trials, slower])


def test_the_turn_of_directions_is_bounded(program: Program, calibration: record.Calibration) -> None:
    """Every capsule layer in fp16 turns poses by one degree: they go back to float32 until two degrees are left."""
    whole = assignments.lowest(program)
    routes = [name for name, precision in whole.items() if precision == "fp16"]
    body = Planted(
        lambda low: 990,
        lambda low: 1 - 0.01 * len(low) if low else 1.0,
        lambda low: float(sum(precision == "fp16" for precision in low.values())),
    )
    assert len(routes) > 2
    free = searched(program, calibration, body).chosen
    assert free is not None and free.assignment == whole and free.turn == pytest.approx(len(routes), rel=1e-5)
    bounded = searched(program, calibration, body, max_turn=2.1).chosen
    assert (
        bounded is not None
        and bounded.turn == pytest.approx(2, rel=1e-5)
        and len(bounded.assignment) == len(whole) - len(routes) + 2
    )
    stiff = Planted(body.right, body.share, lambda low: 3.0 if low else 0.0)
    with pytest.raises(CheckFailed, match=r"turns directions by at most 1°: .* turns them by 3°.*--set max_turn=3"):
        searched(program, calibration, stiff, max_turn=1.0)


def test_what_is_not_faster_is_refused_unless_size_is_asked_for(
    program: Program, calibration: record.Calibration
) -> None:
    slow = Planted(lambda low: 990, lambda low: 1.04 if "int8" in low.values() else 0.6 if low else 1.0)
    found = searched(program, calibration, slow)
    assert found.chosen is not None and {*found.chosen.assignment.values()} == {"fp16"}
    assert found.refused == (
        "convolutions and linear layers in int8 are not faster on native: 10.4 ms per image, 10 ms in float32",
    )
    small = searched(program, calibration, slow, goal="size").chosen
    assert small is not None and small.assignment == assignments.lowest(program)
    never = Planted(lambda low: 990, lambda low: 1.0)
    with pytest.raises(CheckFailed, match="calibrating would gain nothing; --set goal=size makes a smaller bundle"):
        searched(program, calibration, never)
    with pytest.raises(CheckFailed, match=r"no assignment keeps the drop within 1 points: .* drops 49.00"):
        searched(program, calibration, Planted(lambda low: 500 if low else 990, lambda low: 0.5 if low else 1.0))


# Assignments


def test_a_corrected_bias_keeps_the_mean(
    run: Path, program: Program, calibration: record.Calibration, images: ImageSet
) -> None:
    """Of each convolution's output on the calibration images, over all of them: nearer than without."""
    spec = load_run(run).preprocessing
    off = {True: 0.0, False: 0.0}
    for one in (one for one in program.operations if isinstance(one, Convolution) and one.ending == "none"):
        from qcn.calibrate.observers import batches
        from qcn.export.backends.torch.interpreter import Interpreter

        scales = [calibration.scales[value] for value in one.reads]
        for corrected in (True, False):
            base = assignments.with_corrected_bias(program, one, calibration) if corrected else program
            with torch.inference_mode():
                _, batch = next(batches(images.images, spec))
                rounded = Interpreter(quantised(base, one.name, scales)).values(batch)[one.name]
                exact = Interpreter(program).values(batch)[one.name]
            off[corrected] += float((rounded - exact).mean((0, 2, 3)).square().sum())
    assert 0 < off[True] < off[False]


def test_every_precision_is_simulated(
    run: Path, program: Program, calibration: record.Calibration, images: ImageSet
) -> None:
    spec, few = load_run(run).preprocessing, images.images[:4]
    exact = answers(program, few, spec)
    for name, precision in pipeline.sensitivity.lowered_alone(program):
        lowered = answers(assignments.apply(program, {name: precision}, calibration), few, spec)
        assert 0 < np.abs(lowered.logit - exact.logit).max() < 0.1, (name, precision)

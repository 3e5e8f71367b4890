"""A soak of `verify-parity`: faults that 64 calls do not show, honest bundles that pass, and the time it takes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from graphs import at_size
from plants import from_call, spoilt, times

from qcn.errors import UsageError
from qcn.export.backends.native.runner import NativeRunner
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import Batch
from qcn.kernels import native
from qcn.verify.parity import soak as soaking
from qcn.verify.parity.calls import Call, random_calls
from qcn.verify.parity.results import read_report
from qcn.verify.parity.soak import MORE, Soak, SoakLimits, run_soak

needs_libqcn = pytest.mark.skipif(not native.available(), reason="libqcn is not built")
EXACT = {"logit": np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])}
SMALL = Batch(1, 2, 4)
LIMITS = SoakLimits({"logit": 0.1}, 0.01)


@pytest.mark.slow
def test_a_fault_of_one_batch_size(small: Bundle, qcn: Command, tmp_path: Path) -> None:
    at_size(37)(small)
    check = ("verify-parity", small.folder, "--backends", "onnxruntime")
    code, said = qcn(*check)
    assert code == 0, "64 calls do not show it"
    code, said = qcn(*check, "--set", "soak=60s", "--set", "seed=25", "--report", tmp_path)
    words = " ".join(said.split())
    assert code == 1 and "--set seed=25 repeats it" in words
    found = re.search(
        r"logit is off by .* times .*, in batches of 37; first at call (\d+) of the soak, a batch of 37", words
    )
    assert found, said
    sizes = [call.size for call, _ in zip(random_calls(12, Batch(1, 8, 64), 25), range(64), strict=False)]
    assert sizes[int(found[1]) - 1] == 37
    report = read_report(tmp_path / "report.json")
    (verdict,) = (one for one in report.backends.values() if one.backend == "onnxruntime")
    assert verdict.status == "failed" and verdict.share and verdict.share > 1 and verdict.first_wrong == "logit"
    assert not report.contradictions()
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "failed"


@needs_libqcn
def test_a_fault_after_a_hundred_calls(small: Bundle, qcn: Command) -> None:
    with spoilt(from_call(100)):
        check = ("verify-parity", small.folder, "--backends", "native")
        code, said = qcn(*check)
        assert code == 0, "64 calls do not show it"
        code, said = qcn(*check, "--set", "soak=1min")
    words = " ".join(said.split())
    assert code == 1 and "from call 100 of the soak on, a batch of " in words, said
    assert re.search(r"soak: 164 further calls of 1 to 64 images in .* answers, all compared \(seed=\d+\)", words)


@needs_libqcn
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_honest_bundles_pass_and_share_the_time(honest_folders: dict[str, Path], qcn: Command, precision: str) -> None:
    check = ("verify-parity", honest_folders[precision], "--backends", "native,onnxruntime")
    code, said = qcn(*check, "--set", "soak=2s")
    notes = re.findall(r"soak: ([\d,]+) further calls? of \d+ to \d+ images in ([\d.]+) s: ", " ".join(said.split()))
    assert code == 0 and len(notes) == 2, said
    for calls, seconds in notes:
        assert int(calls.replace(",", "")) > 0 and 0.9 < float(seconds) < 20


@needs_libqcn
def test_a_backend_that_stops_answering(small: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails, with the call that it did not answer."""
    honest, calls = NativeRunner.infer, []

    def infer(self: Any, images: Any) -> Any:
        calls.append(len(images))
        if len(calls) > 64 + 30:
            raise UsageError("out of memory")
        return honest(self, images)

    monkeypatch.setattr(NativeRunner, "infer", infer)
    code, said = qcn("verify-parity", small.folder, "--backends", "native", "--set", "soak=60s")
    words = " ".join(said.split())
    assert code == 1 and f"it stops at call 31 of the soak, a batch of {calls[-1]}: out of memory" in words, said


def soaked(spoil: Callable[[int, Any], Any], seconds: float = 60.0, batch: Batch = SMALL) -> Any:
    number = 0

    def answer(call: Call) -> Any:
        nonlocal number
        number += 1
        return spoil(number, {"logit": EXACT["logit"][list(call.rows)].astype(np.float32)})

    return run_soak(answer, random_calls(3, batch, 0), EXACT, LIMITS, seconds, "x")


def test_what_wrong_calls_have_in_common_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    one = soaked(lambda number, right: times(0.5, right) if number == 9 else right)
    assert re.fullmatch(r"in 1 of 73 calls of the soak; first at call 9 of the soak, a batch of \d", one.when())
    assert one.calls == 9 + MORE
    assert (
        soaked(lambda number, right: times(0.5, right)).when().startswith("in every call of the soak; first at call 1")
    )
    monkeypatch.setattr(soaking, "MORE", 10**9)
    fine = soaked(lambda number, right: right, seconds=0.05)
    assert fine.when() == "" and not fine.changed and fine.seconds >= 0.05
    assert fine.words(4, 5).startswith(f"soak: {fine.calls:,} further calls of 1 to 4 images in 0.0")
    short = soaked(lambda number, right: right, seconds=1e-9, batch=Batch(1, 8, 64))
    assert short.calls == 1 and "63 of 64 batch sizes got no turn: soak for longer" in short.words(64, 5)


def test_a_changed_decision_counts_though_it_is_within_what_is_allowed() -> None:
    near = SoakLimits({"logit": 10.0}, 0.01)
    answers = iter([EXACT["logit"][[0]], EXACT["logit"][[0]][:, ::-1]])
    found = run_soak(lambda call: {"logit": next(answers)}, [Call((0,))] * 2, EXACT, near, 60.0, "x")
    assert found.first == (2, 1) and found.changed[0][0] == 1.0


@pytest.mark.parametrize("text", ["", "60", "s", "0s", "-5s", "1d", "1e9s", "nan s", "8000h", "10 minutes"])
def test_times_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError, match="soak takes a time of up to 7 days, such as 60s, 10min or 2h"):
        Soak.parse(text, None)


def test_times_and_seeds() -> None:
    assert [Soak.parse(text, 1) for text in ("60s", "1.5min", "2 h")] == [Soak(60, 1), Soak(90, 1), Soak(7200, 1)]
    assert Soak.parse(None, None) is None
    fresh = {found.seed for _ in range(8) if (found := Soak.parse("1s", None))}
    assert len(fresh) > 4
    with pytest.raises(UsageError, match="seed is for a soak"):
        Soak.parse(None, 1)
    with pytest.raises(UsageError, match="seed must be from 0"):
        Soak.parse("1s", -1)

"""`verify-parity --run`: a bundle whose own truth was replaced, hashes and all, is found by the training run itself."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundles import answering, put_manifest
from command import Command
from graphs import put_golden
from plants import one_iteration, with_arrays

from qcn.calibrate import record as calibration
from qcn.calibrate.assignments import apply, lowest
from qcn.data.imageset import ImageSet
from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Evaluation, Golden
from qcn.export.calibrated import write_calibrated
from qcn.export.program.program import Program
from qcn.intervals import paired_drop
from qcn.names import CALIBRATION, MANIFEST
from qcn.storage import records
from qcn.verify.parity.program import differences
from qcn.verify.parity.run import Origin, check_run
from qcn.verify.parity.verdict import Verdict


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    """The training run that `bundle` is of, for the test to alter."""
    return shutil.copytree(run, tmp_path / "run")


def checked(bundle: Bundle, run: Path) -> Verdict:
    return check_run(bundle, Origin.open(str(run), bundle))


def edit(bundle: Bundle, **changes: Any) -> Bundle:
    path = bundle.folder / MANIFEST
    put_manifest(bundle.folder, json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}))
    return Bundle.open(bundle.folder)


def test_a_bundle_of_the_run_passes(bundle: Bundle, own_run: Path, qcn: Command) -> None:
    verdict = checked(bundle, own_run)
    assert verdict.status == "passed" and verdict.outputs["logit"].share < 0.01, verdict.reasons
    code, said = qcn("verify-parity", bundle.folder, "--backends", "torch", "--run", own_run)
    assert code == 0 and "passed    run: golden.safetensors (fp64)" in said, said


def moved(quantity: str, by: float) -> Callable[[Golden], Golden]:
    """One number of an output of the reference, moved by so many noise floors."""

    def change(golden: Golden) -> Golden:
        values = getattr(golden.reference, quantity).copy()
        values[3].flat[0] += by * float(
            np.abs(getattr(golden.float32, quantity) - getattr(golden.reference, quantity)).max()
        )
        return replace(golden, reference=answering(golden.reference, **{quantity: values}))

    return change


def other_layer(golden: Golden) -> Golden:
    """What the second capsule layer gives, a thousandth larger: it would mislead the search for a fault."""
    return replace(
        golden,
        reference=answering(golden.reference, **{"capsules2.pose": golden.reference.arrays["capsules2.pose"] * 1.001}),
    )


def other_input(golden: Golden) -> Golden:
    inputs = golden.input.copy()
    inputs[0, 0, 0, 0] += 1e-4
    return replace(golden, input=inputs)


def fewer(*left_out: int) -> Callable[[Golden], Golden]:
    """Without some images, such as those that a faulty network fails on; what is there is right."""

    def change(golden: Golden) -> Golden:
        kept = [row for row in range(len(golden.rows)) if row not in left_out]
        exact, single = (
            Evaluation({name: x if "/" in name else x[kept] for name, x in of.arrays.items()})
            for of in (golden.reference, golden.float32)
        )
        rows = tuple(golden.rows[row] for row in kept)
        arrays = {name: getattr(golden, name)[kept] for name in ("image", "label", "input")}
        return replace(golden, rows=rows, **arrays, reference=exact, float32=single)

    return change


GOLDENS = {
    "there are 15 golden images of the data set": fewer(5),
    "the golden edge case 'grey' is missing": fewer(17),
    "the golden logit is not the run's": moved("logit", 0.5),
    "the golden pose is not the run's": moved("pose", 0.5),
    "the golden capsules2.pose is not the run's": other_layer,
    "the golden inputs are not what the run's pre-processing makes": other_input,
}


@pytest.mark.parametrize("says", GOLDENS)
def test_altered_golden_answers_are_found(bundle: Bundle, own_run: Path, says: str) -> None:
    put_golden(bundle, GOLDENS[says](bundle.golden()))
    verdict = checked(Bundle.open(bundle.folder), own_run)
    assert verdict.status == "failed" and any(reason.startswith(says) for reason in verdict.reasons), verdict.reasons


def test_a_small_data_set_has_fewer_golden_images(
    bundle: Bundle, own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`qcn export` takes all that there are: such a bundle is honest."""
    put_golden(bundle, fewer(5)(bundle.golden()))
    says = "there are 15 golden images of the data set, where `qcn export` takes 16"
    assert says in checked(Bundle.open(bundle.folder), own_run).reasons
    few = SimpleNamespace(tests={"test": range(15)})
    monkeypatch.setattr("qcn.data.registry.read", lambda *_: few)
    assert says not in checked(Bundle.open(bundle.folder), own_run).reasons


def test_an_altered_manifest_is_found(bundle: Bundle, own_run: Path) -> None:
    manifest = json.loads((bundle.folder / MANIFEST).read_text(encoding="utf-8"))
    classes, source, spec = manifest["classes"], manifest["source"], manifest["preprocessing"]
    perfect = {"split": "test", "images": 60, "wrong": 0, "calibration_error": 0.0}
    for says, changes in {
        "the classes: the bundle says": {"classes": [*classes[1:], classes[0]]},
        "mean: the bundle says": {"preprocessing": {**spec, "mean": [0.5]}},
        "std: the bundle says": {"preprocessing": {**spec, "std": [0.5]}},
        "fit: the bundle says stretch": {"preprocessing": {**spec, "fit": "stretch"}},
        "the epoch: the bundle says 7": {"source": {**source, "epoch": 7}},
        "the data set: the bundle says svhn": {"source": {**source, "data": "svhn"}},
        "the sha256 of the best weights": {"source": {**source, "sha256": "0" * 64}},
        "the sha256 of the training data": {"source": {**source, "data_sha256": "0" * 64}},
        "the temperature of probabilities: the bundle says 0.01": {"confidence": {"temperature": 0.01, "error": 0.1}},
        "when an answer counts as known: the bundle says {'score': 'logit'": {
            "known": {"score": "logit", "threshold": -1e9, "keep": 0.95, "auroc": 1.0, "false_positives": 0.0}
        },
        "what makes directions of poses: the bundle says {'symmetry'": {
            "direction": {"symmetry": [1] * len(classes), "elevation": True, "lengths": [], "spreads": [1.0]}
        },
        "the errors on test images": {"measured": {"data": "mnist", "date": "2026-11-16", "splits": [perfect]}},
    }.items():
        verdict = checked(edit(bundle, **changes), own_run)
        assert verdict.status == "failed" and verdict.reasons[0].startswith(says), verdict.reasons
        put_manifest(bundle.folder, json.dumps(manifest))


def plan_bundle(bundle: Bundle, folder: Path, change: Callable[[Program], Program] = lambda plan: plan) -> Bundle:
    """A calibrated bundle of all that can be lowered."""
    program, images = bundle.program(), bundle.golden().image[:16]
    data = ImageSet(images, np.zeros(len(images), np.int64), bundle.manifest.classes)
    spec, path = bundle.manifest.preprocessing, folder.with_suffix(".json")
    key = calibration.Key.of(program, spec, data)
    ranges = calibration.calibrate(path, program, spec, data, "mnist", "mse", key, "again")
    text = records.text(ranges.shown())
    plan = change(apply(program, lowest(program), ranges))
    bound = 100 * paired_drop(0, 0, len(data))[1]
    facts = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "images": len(data), "drop": 0.0, "bound": bound}
    calibrated = write_calibrated(bundle, plan, folder, facts, "qcn calibrate RUN --out {bundle}")
    (folder / CALIBRATION).write_text(text, encoding="utf-8")
    return calibrated


def test_a_plan_of_the_run_passes(bundle: Bundle, own_run: Path, tmp_path: Path) -> None:
    calibrated = plan_bundle(bundle, tmp_path / "plan")
    verdict = checked(calibrated, own_run)
    assert verdict.status == "passed" and "what calibration makes of the run's network" in verdict.notes[0], verdict
    (calibrated.folder / CALIBRATION).unlink()
    verdict = checked(calibrated, own_run)
    assert verdict.status == "failed" and "has no calibration.json" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weight", lambda array: array + (array < 100)),
        ("weight.scale", lambda array: array * np.float32(1.001)),
        ("bias", lambda array: array + 2),
        ("rotation", lambda array: np.roll(array, 1, 2)),
        ("beta_u", lambda array: array * np.float32(1.0001)),
    ],
)
def test_what_calibration_would_not_make_is_named(
    bundle: Bundle, own_run: Path, tmp_path: Path, name: str, change: Callable[[Any], Any]
) -> None:
    array = ""

    def forge(plan: Program) -> Program:
        nonlocal array
        array = next(one for one in plan.arrays if one.endswith(f".{name}"))
        return with_arrays(plan, {array: change(plan.arrays[array]).astype(plan.arrays[array].dtype)})

    verdict = checked(plan_bundle(bundle, tmp_path / "plan", change=forge), own_run)
    assert verdict.status == "failed", verdict
    assert verdict.reasons[0] == f"weights.safetensors: the numbers of '{array}' are not the network's"


def test_operations_are_compared_setting_by_setting(program: Program) -> None:
    (said, *_) = differences(one_iteration(program), program)
    assert said.startswith("'iterations' of the operation 'capsules1' is 1, where the network's is")
    assert list(differences(program, program)) == []


def test_a_run_that_is_none_or_altered_is_refused(bundle: Bundle, own_run: Path, tmp_path: Path, qcn: Command) -> None:
    only = ("verify-parity", bundle.folder, "--backends", "torch", "--run")
    code, said = qcn(*only, tmp_path / "nothing")
    assert code == 2 and "is neither a training run" in said
    (file,) = own_run.glob("weights-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    code, said = qcn(*only, own_run)
    assert code == 2 and "was altered: its sha256 is" in said
    record = json.loads((own_run / "run.json").read_text(encoding="utf-8"))
    for name in ("best", "last"):  # the run's record made to fit: it is another run now
        record[name]["sha256"] = hashlib.sha256(content).hexdigest()
    (own_run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    code, said = qcn(*only, own_run)
    assert code == 1 and "the sha256 of the best weights: the bundle says" in said


def test_without_torch_it_is_missing(
    bundle: Bundle, own_run: Path, qcn: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, said = qcn("verify-parity", bundle.folder, "--run", own_run)
    assert code == 3 and "--run needs torch" in said


def test_nothing_of_a_bundle_is_run_that_is_not_of_the_run(bundle: Bundle, own_run: Path, qcn: Command) -> None:
    """Not even what is named. With its run, a file that is what its program builds needs no --trust."""
    code, said = qcn("export", bundle.folder, "--format", "torchscript")
    assert code == 0, said
    only = ("verify-parity", bundle.folder, "--backends", "torchscript", "--run", own_run)
    code, said = qcn(*only)
    assert code == 0 and "it is what its program builds" in said and f"the same network as {own_run}" in said, said
    edit(bundle, source={**asdict(bundle.manifest.source), "epoch": 7})
    code, said = qcn(*only)
    assert code == 1 and "the epoch: the bundle says 7" in said and "passed    torchscript" not in said, said

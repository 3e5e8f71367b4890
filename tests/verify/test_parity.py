"""`qcn verify-parity`: honest artefacts pass in every backend, planted faults are found, and the exit code says so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bundles import answering
from command import Command
from runners import create

from qcn.direction import Directions
from qcn.errors import UsageError
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.tolerance import FLOORS, TIES, floor_of, tie_band
from qcn.kernels import native as native_kernels
from qcn.verify.parity import verify as parity
from qcn.verify.parity.check import tolerances
from qcn.verify.parity.compare import Share, accuracy, compare, flips, pose_degrees, turn
from qcn.verify.parity.results import read_report

BOTH = ("logit", "pose")


def export(qcn: Command, bundle: Bundle, *options: object) -> None:
    code, said = qcn("export", bundle.folder, *options)
    assert code == 0, said


@pytest.mark.slow
def test_honest_artefacts_pass_in_every_backend(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    export(qcn, bundle, "--format", "torchscript", "--format", "pt2", "--format", "onnx", "--batch", 4)
    export(qcn, bundle, "--precision", "fp16", "--routing", "fused")
    code, said = qcn("verify-parity", bundle.folder, "--trust", "--report", tmp_path)
    assert code == 0, said
    passed = [one for one in read_report(tmp_path / "report.json").backends.values() if one.status == "passed"]
    assert {one.backend for one in passed} >= {"torch", "torchscript", "pt2", "onnxruntime", "preprocessing"}
    for verdict in (one for one in passed if one.backend != "preprocessing"):
        assert verdict.deterministic and all(flip.tie for flip in verdict.flips) and verdict.seconds > 0
        assert verdict.outputs.keys() == set(BOTH)
        assert all(0 < errors.share <= 1 for errors in verdict.outputs.values())
    assert "same class for 22 of 22 images" in said and "noise floors" not in said


def test_tolerances_follow_the_noise_floor_and_can_be_overridden(bundle: Bundle) -> None:
    golden = bundle.golden()
    found = {"logit": golden.float32.logit, "pose": golden.float32.pose}
    for precision, floors in FLOORS.items():
        for output, errors in compare(found, golden, precision, {}).items():
            scale = abs(getattr(golden.reference, output)).max()
            assert errors.tolerance == min(floors * errors.noise_floor, scale / 4)
            assert errors.noise_floors <= 1 and errors.share == errors.max_abs / errors.tolerance
    allowed = tolerances(["1e-3", "pose:0"], [], BOTH)
    errors = compare(found, golden, "fp32", allowed)
    assert (errors["logit"].tolerance, errors["pose"].tolerance) == (1e-3, 0)
    assert errors["logit"].passed and not errors["pose"].passed
    scale = abs(golden.reference.pose).max()
    allowed = tolerances(["1e-3"], ["pose:0.5"], BOTH)
    assert compare(found, golden, "fp32", allowed)["pose"].tolerance == 1e-3 + 0.5 * scale
    assert tolerances([], ["pose:0.5"], BOTH).keys() == {"pose"}  # ours for the logit
    for text in ("much", "1e-3:pose", "activation:1e-3", "-1", "inf", "nan", "pose:"):
        with pytest.raises(UsageError, match="atol takes a number"):
            tolerances([text], [], BOTH)
        with pytest.raises(UsageError, match="rtol takes a number"):
            tolerances([], [text], BOTH)
    with pytest.raises(UsageError, match="OUTPUT:NUMBER with logit, not 'pose:1'"):
        tolerances(["pose:1"], [], ["logit"])  # a network without poses


def test_a_flip_is_named_with_its_margin(bundle: Bundle) -> None:
    golden = bundle.golden()
    logit = golden.float32.logit.copy()
    best, worst = golden.reference.logit[5].argmax(), golden.reference.logit[5].argmin()
    logit[5, [best, worst]] = logit[5, [worst, best]]
    classes = bundle.manifest.classes
    rows = range(len(golden.rows))
    (flip,) = (flip for flip in flips(rows, logit, golden, classes, "fp32") if not flip.tie)
    assert (flip.row, flip.expected, flip.found) == (golden.rows[5], classes[best], classes[worst])
    assert flip.margin == np.ptp(golden.reference.logit[5])


def test_a_tie_is_no_flip(bundle: Bundle) -> None:
    """An image that the network has no opinion of, such as a black one, may fall to either side."""
    golden = bundle.golden()
    exact = golden.reference.logit.copy()
    exact[3] = 0.5
    exact[3, 1] += 1e-12
    tied = replace(golden, reference=answering(golden.reference, logit=exact))
    logit = exact.astype(np.float32)
    classes = bundle.manifest.classes
    found = flips(range(len(golden.rows)), logit, tied, classes, "fp32")
    assert [(flip.row, flip.expected, flip.found, flip.tie) for flip in found[:1]] == [
        (golden.rows[3], classes[1], classes[0], True)
    ]


@pytest.mark.parametrize(("precision", "floors"), [("fp32", 2.0), ("fp16", 2.0), ("bf16", 2.0)])
def test_the_tie_band_is_of_the_precision_and_never_all_there_is(bundle: Bundle, precision: str, floors: float) -> None:
    golden = bundle.golden()
    exact, single = golden.reference.logit, golden.float32.logit
    band = tie_band(golden, precision)
    floor = floor_of(golden, "logit", precision)
    assert band == pytest.approx(min(floors * floor, TIES[precision] * exact.max() / 4))
    assert band <= exact.max() / 16
    for margin, tie in ((0.9 * band, True), (1.1 * band, False)):
        near = exact.copy()
        near[3], near[3, 1] = near.max() - margin, near.max()
        rounded = single.copy()
        rounded[3] = near[3]
        close = replace(
            golden,
            reference=answering(golden.reference, logit=near),
            float32=answering(golden.float32, logit=rounded),
        )
        found = flips([3], np.eye(near.shape[1])[[0]], close, bundle.manifest.classes, precision)
        assert [flip.tie for flip in found] == [tie]


def test_an_image_that_flips_in_one_of_many_calls_is_named_once(bundle: Bundle) -> None:
    golden = bundle.golden()
    right = golden.reference.logit[[5, 5, 5]]
    best, worst = right[0].argmax(), right[0].argmin()
    answers = right.copy()
    answers[1, [best, worst]] = answers[1, [worst, best]]
    (flip,) = flips([5, 5, 5], answers, golden, bundle.manifest.classes, "fp32")
    assert (flip.index, flip.margin) == (5, np.ptp(right[0])) and not flip.tie


def test_the_angle_between_poses(bundle: Bundle) -> None:
    golden = bundle.golden()
    turn = np.radians(0.01)
    rotation = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    flat = golden.reference.pose * [1, 1, 0]
    poses = replace(golden, reference=answering(golden.reference, pose=flat))
    assert pose_degrees(flat @ rotation.T, poses) == pytest.approx(0.01, rel=1e-6)


def test_directions_may_turn_as_far_as_their_poses_may_be_off(bundle: Bundle) -> None:
    golden, record = bundle.golden(), Directions((1,) * 10, True, (), (12.0,))
    pose = golden.reference.pose
    limit = compare({"logit": golden.reference.logit, "pose": pose}, golden, "fp32", {})["pose"]
    assert (same := turn(pose, golden, record, limit)) and same.largest == 0 and same.noise_floor < same.allowed
    for off, passed in ((0.99 * limit.tolerance, True), (4 * limit.tolerance, False)):
        found = turn(pose + off * np.sign(np.cross(pose, [0.1, 0.7, -0.3])), golden, record, limit)
        assert found is not None and found.passed is passed and found.row in golden.rows, found
    mirrored = turn(pose * [1, -1, 1], golden, record, limit)
    assert mirrored is not None and not mirrored.passed and mirrored.largest > 1 > mirrored.allowed
    raised = pose * [1, 1, 2]
    assert (result := turn(raised, golden, replace(record, elevation=False), limit)) and result.largest < 1e-6
    assert (result := turn(raised, golden, record, limit)) and not result.passed
    assert (result := turn(pose * np.nan, golden, record, limit)) and result.largest == 180 and not result.passed
    assert turn(pose, golden, replace(record, symmetry=(0,) * 10), limit) is None


def test_a_network_without_poses_is_compared_by_its_logits(bundle: Bundle) -> None:
    golden = bundle.golden()
    exact, single = (answering(one, pose=one.pose[:, :, :0]) for one in (golden.reference, golden.float32))
    without = replace(golden, reference=exact, float32=single)
    assert without.outputs == ("logit",)
    found = compare({"logit": golden.float32.logit}, without, "fp32", {})
    assert found.keys() == {"logit"} and found["logit"].passed


def test_shares_have_wilsons_interval(bundle: Bundle) -> None:
    """As scipy has it, at both ends too."""
    from scipy.stats import binomtest

    for right, of in ((0, 7), (7, 7), (14, 16), (1, 1000)):
        interval = binomtest(right, of).proportion_ci(method="wilson")
        share = Share.count(right, of)
        assert (share.low, share.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    golden = bundle.golden()
    perfect = np.eye(10)[golden.label]  # of label -1 as well, and those must not count
    assert accuracy(perfect, golden) == Share.count(16, 16)
    assert accuracy(perfect, replace(golden, label=np.full_like(golden.label, -1))) is None


@pytest.mark.parametrize("format_", ["torchscript", pytest.param("pt2", marks=pytest.mark.slow)])
def test_files_with_every_layer_are_compared_layer_by_layer(small: Bundle, qcn: Command, format_: str) -> None:
    """TorchScript and pt2 say in the file what their outputs are; of the iterations they have nothing."""
    export(qcn, small, "--format", format_, "--set", "every_layer")
    for verdict in parity.verify(Bundle.open(small.folder), [format_], {}, bisect=True, trust=True):
        assert verdict.status == "passed"
        assert [stage.name for stage in verdict.stages] == [
            f"capsules{layer}.{output}" for layer in (1, 2) for output in ("activation", "pose")
        ]
        assert all(stage.passed for stage in verdict.stages) and "not its routing iterations" in verdict.inside


def test_exit_codes(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    assert qcn("verify-parity", tmp_path)[0] == 2
    assert qcn("verify-parity", bundle.folder, "--backends", "onnxruntme")[0] == 2
    only = ("verify-parity", bundle.folder, "--backends")
    code, said = qcn(*only, "onnxruntime")
    assert code == 2 and "has no file for the backend onnxruntime" in said
    export(qcn, bundle)
    code, said = qcn(*only, "onnxruntime-cuda")
    assert code == 3 and said.startswith("cannot    onnxruntime-cuda: model.onnx (fp32)")
    with (bundle.folder / "model.onnx").open("ab") as file:
        file.write(b"x")
    code, said = qcn(*only, "onnxruntime")
    assert code == 2 and "was altered" in said


def test_libqcn_answers_as_the_network_does(bundle: Bundle) -> None:
    """By the C interface, the batch as a whole and image by image: the same bits."""
    if not native_kernels.available():
        pytest.skip("libqcn is not built")
    (verdict,) = parity.verify(bundle, ["native"], {}, bisect=True)
    assert verdict.status == "passed" and verdict.deterministic and verdict.runner.startswith("libqcn (native")
    assert [stage.name for stage in verdict.stages if stage.layer == "capsules1"] == [
        *(f"capsules1/iteration{t}/{quantity}" for t in (1, 2) for quantity in ("mean", "variance")),
        *(f"capsules1.{output}" for output in ("activation", "pose")),
    ]
    assert verdict.stages[-1].name == "classes/iteration2/variance" and all(stage.passed for stage in verdict.stages)
    images = bundle.golden().input
    with create("native", bundle.folder / WEIGHTS) as runner:
        whole = runner.infer(images)
        for i in range(len(images)):
            one = runner.infer(images[i : i + 1])
            assert all(np.array_equal(one[name][0], whole[name][i]) for name in whole)
        with pytest.raises(UsageError, match="the network takes"):
            runner.infer(images[:, :, 1:])
    with pytest.raises(UsageError, match="not open"):
        runner.infer(images)


def test_a_file_that_does_not_name_its_outputs_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """A TorchScript file of someone else's."""
    import torch

    with pytest.warns(DeprecationWarning):
        torch.jit.save(torch.jit.script(torch.nn.Identity()), str(tmp_path / "other.ts"))
    with pytest.raises(UsageError, match="does not name its outputs"), create("torchscript", tmp_path / "other.ts"):
        pass

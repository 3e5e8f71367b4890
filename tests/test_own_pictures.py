"""A folder of pictures from training to a device, by the commands of the documentation: everywhere the same answers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import CLASSES, picture, write_pictures
from PIL import Image

import qcn

BUILD = Path(__file__).parents[1] / "build"
SETTINGS = ("--epochs", 30, "--batch-size", 12, "--lr", 0.02, "--augment", "none", "--device", "cpu", "--seed", 0)


class Shell:
    """Commands as a user gives them, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, program: object, *arguments: object) -> str:
        """What the command prints; it ends with 0."""
        command = [str(program), *map(str, arguments)]
        # Threads that wait for each other must not take the time of whatever else runs on the machine.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def qcn(self, *arguments: object) -> str:
        return self(sys.executable, "-m", "qcn", *arguments)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with `shapes`, trained on and exported to `bundle`, and `new`, pictures that training never saw."""
    if not (BUILD / "programs" / "qcn-run").exists():
        pytest.skip("there is no build/programs/qcn-run: make build/libqcn.so")
    shell = Shell(tmp_path_factory.mktemp("own"))
    write_pictures(shell.folder / "shapes", 60)
    write_frames(shell.folder / "new", 8)
    checked = shell.qcn("datasets", "check", "shapes", "--size", 32)
    assert "180 pictures as 32×32 colour" in checked and all(name in checked for name in CLASSES)
    shell.qcn("train", "--dataset", "shapes", "--model", "qcn-tiny", "--size", 32, *SETTINGS, "--out", "run")
    assert "error" in shell.qcn("evaluate", "run", "--out", "evaluated")
    shell.qcn("export", "run", "--format", "onnx,native", "--out", "bundle")
    return shell


def write_frames(folder: Path, per_class: int) -> None:
    """PNG and PPM files, which every reader decodes to the same bytes. JPEG decoders may round differently."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for number in range(per_class * len(CLASSES)):
        name = f"{number:02}{('.png', '.ppm')[number % 2]}"
        Image.fromarray(picture(CLASSES[number % len(CLASSES)], rng)).save(folder / name)


def by_predict(shell: Shell, source: str, backend: str, batch: int = 16) -> list[dict[str, Any]]:
    options = ("--model", "bundle", "--backend", backend, "--batch", batch, "--json", "answers.json")
    shell.qcn("predict", source, *options)
    answers: list[dict[str, Any]] = json.loads((shell.folder / "answers.json").read_text(encoding="utf-8"))
    return answers


def activations(answers: list[dict[str, Any]]) -> NDArray[np.float32]:
    """[pictures, classes], classes by name."""
    return np.array([[answer["logit"][name] for name in CLASSES] for answer in answers], np.float32)


@pytest.mark.slow  # it trains
def test_the_network_has_learnt_and_is_whole(shell: Shell) -> None:
    answers = by_predict(shell, "shapes", "native")
    assert len(answers) == 180
    right = np.mean([answer["label"] == Path(answer["file"]).parent.name for answer in answers])
    assert right > 0.5, right  # by chance 0.33, and more than 0.45 in one of a thousand folders
    assert "passed" in shell.qcn("verify-parity", "bundle", "--backends", "native,onnxruntime")
    assert "weights.safetensors" in shell.qcn("doctor", "bundle")


@pytest.mark.slow  # it trains
def test_shell_python_cpp_and_camera_give_the_same_answers(shell: Shell) -> None:
    """To the last bit by libqcn, picture by picture; ONNX Runtime sums up in another order, by how many it is given."""
    files = sorted((shell.folder / "new").iterdir())
    native = by_predict(shell, "new", "native", batch=1)
    labels, active = [answer["label"] for answer in native], activations(native)
    assert [Path(answer["file"]).name for answer in native] == [file.name for file in files]
    assert len(set(labels)) > 1

    model = qcn.load(shell.folder / "bundle", "native")
    python = [model.predict(file) for file in files]
    assert [answer.label for answer in python] == labels
    assert np.array_equal(np.stack([answer.logit for answer in python]), active)
    assert [answer.probability for answer in python] == [answer["probability"] for answer in native]

    said = shell(BUILD / "programs/qcn-run", "bundle", "new", "--json", "--top", len(CLASSES), "--pose")
    for one, answer in zip(map(json.loads, said.splitlines()), python, strict=True):
        assert (one["label"], one["probability"]) == (answer.label, answer.probability)
        assert np.array_equal(np.float32([one["logit"][name] for name in CLASSES]), answer.logit)
        assert answer.pose is not None
        assert np.array_equal(np.float32([one["pose"][name] for name in CLASSES]), answer.pose)

    frames = shell(BUILD / "programs/qcn-camera", "bundle", "--folder", "new").splitlines()[1:]
    shares = [f"{answer.label}{' ' if answer.known else ', '}{100 * answer.probability:.1f} %" for answer in python]
    assert [share in line for line, share in zip(frames, shares, strict=True)] == [True] * len(files)

    for backend in ("native", "onnxruntime"):
        several = by_predict(shell, "new", backend)
        assert [answer["label"] for answer in several] == labels
        assert np.abs(activations(several) - active).max() < 1e-4


@pytest.mark.slow  # it trains
def test_files_of_every_format_get_the_same_answers_by_both_backends(shell: Shell) -> None:
    native, onnx = (by_predict(shell, "shapes", backend) for backend in ("native", "onnxruntime"))
    assert [answer["file"] for answer in native] == [answer["file"] for answer in onnx]
    assert {Path(answer["file"]).suffix for answer in native} == {".png", ".jpg", ".bmp", ".webp", ".tiff"}
    assert [answer["label"] for answer in native] == [answer["label"] for answer in onnx]
    assert np.abs(activations(onnx) - activations(native)).max() < 1e-4

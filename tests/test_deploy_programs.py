"""libqcn's pre-processing against Python's, bit by bit, and the programs around the library."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import bundle_of
from numpy.typing import NDArray
from PIL import Image

from qcn import create
from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.model import qcn_tiny

ROOT = Path(__file__).parents[1]
Make = Callable[[int, int, Preprocessing], Bundle]


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder in which `make` built the library and the programs."""
    if not (ROOT / "build" / "programs" / "qcn-run").exists():
        pytest.skip("there is no build/programs/qcn-run: make build/libqcn.so")
    return ROOT / "build"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes bundles of untrained networks that take this many channels and see this many pixels per side."""

    def make_bundle(channels: int, side: int, spec: Preprocessing) -> Bundle:
        torch.manual_seed(0)
        folder = tmp_path / f"bundle{len(list(tmp_path.glob('bundle*')))}"
        return bundle_of(folder, qcn_tiny(channels, 10).eval(), side, side, spec=spec)

    return make_bundle


class _Image(ctypes.Structure):
    _fields_ = (
        *(("size", ctypes.c_size_t), ("data", ctypes.c_void_p)),
        *((name, ctypes.c_int) for name in ("width", "height", "channels", "pixel")),
        *((name, ctypes.c_ssize_t) for name in ("column_stride", "row_stride", "channel_stride")),
        *((name, ctypes.c_int) for name in ("reverse_channels", "on_device")),
    )


class _Params(ctypes.Structure):
    _fields_ = (
        *(("size", ctypes.c_size_t), ("backend", ctypes.c_int), ("precision", ctypes.c_char_p)),
        *((name, ctypes.c_int) for name in ("self_test", "threads", "device")),
        *((name, ctypes.c_void_p) for name in ("log", "log_user")),
    )


class Library:
    """As much of qcn.h as pre-processing takes."""

    def __init__(self, build: Path) -> None:
        self.library = ctypes.CDLL(str(build / "libqcn.so"))
        self.library.qcn_last_error.restype = ctypes.c_char_p

    def preprocess(self, bundle: Bundle, pixels: NDArray[Any], reverse: bool = False) -> NDArray[np.float32]:
        """[C, H, W], in any memory layout, to what the network sees."""
        model = ctypes.c_void_p()
        params = _Params(ctypes.sizeof(_Params), 1, None, 0, 0, 0, None, None)
        self.succeed(self.library.qcn_model_load(os.fsencode(bundle.folder), ctypes.byref(params), ctypes.byref(model)))
        channels, height, width = pixels.shape
        kind = {np.dtype(np.uint8): 0, np.dtype(np.float32): 1}[pixels.dtype]
        strides = pixels.strides[2], pixels.strides[1], pixels.strides[0]
        image = _Image(
            ctypes.sizeof(_Image), pixels.ctypes.data, width, height, channels, kind, *strides, int(reverse), 0
        )
        out = np.empty(bundle.manifest.input.shape, np.float32)
        self.succeed(
            self.library.qcn_preprocess(model, ctypes.byref(image), out.ctypes.data_as(ctypes.POINTER(ctypes.c_float)))
        )
        self.library.qcn_model_free(model)
        return out

    def succeed(self, status: int) -> None:
        assert status == 0, self.library.qcn_last_error().decode()


def drawn(channels: int, height: int, width: int) -> NDArray[np.uint8]:
    """A photograph, nearly: smooth shading, edges, a texture and the noise of a sensor."""
    y, x = np.mgrid[:height, :width] / max(height, width, 2)
    generator = np.random.default_rng(height * 10007 + width)
    light = [120 + 90 * np.sin(5 * x + c) * np.cos(3 * y - c) for c in range(channels)]
    shape = 60 * ((x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.08) - 50 * (abs(x - y) < 0.03) + 20 * np.sin(90 * x * y)
    pixels = np.stack(light) + shape + generator.normal(0, 4, (channels, height, width))
    return np.clip(pixels, 0, 255).astype(np.uint8)


NORB = Preprocessing(resize=48, crop=32, standardise="image")
COLOURS = Preprocessing(resize=32, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616))


@pytest.mark.parametrize(
    ("channels", "spec"),
    [(2, NORB), (1, Preprocessing(resize=40, crop=32, mean=(0.1307,), std=(0.3081,))), (3, COLOURS)],
    ids=["by image", "by data set", "colours"],
)
def test_the_library_sees_what_python_sees(built: Path, make: Make, channels: int, spec: Preprocessing) -> None:
    library, bundle = Library(built), make(channels, 32, spec)
    for size in ((96, 96), (48, 48), (1, 1), (1, 9), (31, 33), (67, 41), (240, 321), (1081, 1917), (2, 1500)):
        pixels = drawn(channels, *size)
        seen = preprocess(torch.from_numpy(pixels)[None], spec)[0].numpy()
        assert np.array_equal(library.preprocess(bundle, pixels), seen), size
        # With the channels together, from below, mirrored, and the last channel first: it is the same image.
        together = np.ascontiguousarray(pixels.transpose(1, 2, 0)).transpose(2, 0, 1)
        below = np.ascontiguousarray(pixels[:, ::-1, ::-1])[:, ::-1, ::-1]
        assert np.array_equal(library.preprocess(bundle, together), seen), size
        assert np.array_equal(library.preprocess(bundle, below), seen), size
        assert np.array_equal(library.preprocess(bundle, pixels[::-1], reverse=True), seen), size
        floats = (pixels / 255).astype(np.float32)
        seen = preprocess(torch.from_numpy(floats)[None], spec)[0].numpy()
        np.testing.assert_array_max_ulp(library.preprocess(bundle, floats), seen, maxulp=1)


def test_edge_cases_are_seen_alike(built: Path, make: Make) -> None:
    library, bundle = Library(built), make(2, 32, NORB)
    for value in (0, 7, 255):
        constant = np.full((2, 53, 71), value, np.uint8)
        assert (library.preprocess(bundle, constant) == 0).all()
    floats = (drawn(2, 50, 60) / 255).astype(np.float32)
    floats[1, 25, 30] = np.nan
    seen = preprocess(torch.from_numpy(floats)[None], NORB)[0].numpy()
    answer = library.preprocess(bundle, floats)
    np.testing.assert_array_max_ulp(answer[0], seen[0], maxulp=1)
    assert np.isnan(answer[1]).all()
    assert np.isnan(seen[1]).all()


def run(program: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def write_pictures(bundle: Bundle, folder: Path) -> NDArray[np.float64]:
    """The golden images of the bundle as PGM, PNG, JPEG, … files; returns their golden activations."""
    from safetensors.numpy import load_file

    golden = load_file(bundle.folder / "golden.safetensors")
    folder.mkdir()
    for i, pixels in enumerate(golden["image"][:4, 0]):
        Image.fromarray(pixels).save(folder / f"{i}{('.pgm', '.png', '.ppm', '.pgm')[i]}")
    return np.asarray(golden["activation"][:4])


def test_pictures_get_their_golden_answers(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    golden = write_pictures(bundle, tmp_path / "pictures")
    done = run(built / "programs/qcn-run", bundle.folder, tmp_path / "pictures", "--json", "--top", "10", "--pose")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["name"] == "tiny"
    assert answer["backend"].startswith("native")
    for picture, activation in zip(answer["pictures"], golden, strict=True):
        found = {each["class"]: each["activation"] for each in picture["answers"]}
        assert [found[str(k)] for k in range(10)] == pytest.approx(activation, abs=1e-5)
        assert picture["class"] == str(activation.argmax()) == picture["answers"][0]["class"]
        assert len(picture["answers"][0]["pose"]) == 3
    done = run(built / "programs/qcn-run", bundle.folder, tmp_path / "pictures/0.pgm", "--top=2")
    assert done.stdout.startswith(f"{tmp_path}/pictures/0.pgm: {golden[0].argmax()} 0.")
    assert done.stdout.count(",") == 1


def test_a_file_that_fails_does_not_stop_the_others(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    write_pictures(bundle, tmp_path / "pictures")
    good = tmp_path / "pictures/0.pgm"
    jpeg, png = tmp_path / "cut.jpg", tmp_path / "cut.png"
    Image.fromarray(drawn(3, 64, 64).transpose(1, 2, 0)).save(jpeg)
    Image.fromarray(drawn(3, 64, 64).transpose(1, 2, 0)).save(png)
    for file in (jpeg, png):
        file.write_bytes(file.read_bytes()[:-200])
    (tmp_path / "text.pgm").write_text("P5 hello")
    (tmp_path / "cut.pgm").write_bytes(good.read_bytes()[:-1])
    (tmp_path / "small.pgm").write_bytes(b"P5 3 2 255 abcdef")
    (tmp_path / "empty.png").touch()
    bad = {
        "gone.pgm": "No such file",
        "text.pgm": "its width is not a number",
        "cut.pgm": "ends too early",
        "cut.jpg": "JPEG",
        "cut.png": "PNG",
        "empty.png": "not a PGM",
        "small.pgm": "28×28",
    }
    done = run(built / "programs/qcn-run", bundle.folder, *(tmp_path / name for name in bad), good, "--json")
    assert done.returncode == 1
    *failed, last = json.loads(done.stdout)["pictures"]
    for picture, (name, message) in zip(failed, bad.items(), strict=True):
        assert picture["files"] == [str(tmp_path / name)]
        assert message in picture["error"]
    assert "class" in last
    done = run(built / "programs/qcn-run", bundle.folder, tmp_path / "gone.pgm", good)
    assert done.returncode == 1
    assert "gone.pgm: No such file" in done.stderr
    assert done.stdout.count("\n") == 1


def test_two_views_are_two_files_or_one(built: Path, make: Make, tmp_path: Path) -> None:
    bundle = make(2, 32, NORB)
    views = drawn(2, 96, 80)
    for name, pixels in (("left.pgm", views[0]), ("right.png", views[1]), ("both.pgm", np.hstack([*views]))):
        Image.fromarray(pixels).save(tmp_path / name)
    Image.fromarray(np.ascontiguousarray(views.transpose(1, 2, 0)), "LA").save(tmp_path / "pair.png")
    program = built / "programs/qcn-run"

    def answers(*arguments: object) -> list[Any]:
        done = run(program, bundle.folder, *arguments, "--json", "--top", 10, "--no-self-test")
        assert done.returncode == 0, done.stdout + done.stderr
        return [picture["answers"] for picture in json.loads(done.stdout)["pictures"]]

    left, right = tmp_path / "left.pgm", tmp_path / "right.png"
    two = answers(left, right, right, left)
    assert two[0] != two[1]
    assert answers(tmp_path / "pair.png") == two[:1]
    assert answers(tmp_path / "both.pgm", "--beside") == two[:1]
    done = run(program, bundle.folder, left, right, left, "--no-self-test")
    assert done.returncode == 1
    assert "2 views of an object" in done.stderr
    assert done.stdout.startswith(f"{left} + {right}: ")


def test_colours_become_grey_and_grey_colours(built: Path, make: Make, tmp_path: Path) -> None:
    colours = Image.fromarray(drawn(3, 60, 50).transpose(1, 2, 0))
    colours.save(tmp_path / "colours.png")
    colours.convert("RGBA").save(tmp_path / "alpha.png")
    colours.convert("L").save(tmp_path / "grey.pgm")
    colours.convert("L").convert("RGB").save(tmp_path / "grey.ppm")
    program = built / "programs/qcn-run"
    for bundle, names in (
        (make(1, 32, NORB), ("colours.png", "grey.pgm", "alpha.png", "grey.ppm")),
        (make(3, 32, COLOURS), ("colours.png", "alpha.png")),
        (make(3, 32, COLOURS), ("grey.pgm", "grey.ppm")),
    ):
        files = [tmp_path / name for name in names]
        done = run(program, bundle.folder, *files, "--json", "--top", "10", "--no-self-test")
        assert done.returncode == 0, done.stderr
        first, *rest = (picture["answers"] for picture in json.loads(done.stdout)["pictures"])
        assert all(other == first for other in rest)


def test_exit_codes(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    write_pictures(bundle, tmp_path / "pictures")
    good = tmp_path / "pictures/0.pgm"
    for program in (built / "programs/qcn-run", built / "programs/qcn-bench"):
        rest = (good,) if program.name == "qcn-run" else ("--duration", "0", "--warmup", "0")
        for arguments, code, message in (
            ((), 2, "--help"),
            ((bundle.folder, *rest, "--bakend", "native"), 2, "no option --bakend"),
            ((bundle.folder, *rest, "--threads", "two"), 2, "--threads must be a number from 1 to 1024"),
            ((bundle.folder, *rest, "--backend", "cuda"), 2, "auto, native or tensorrt"),
            ((tmp_path / "none", *rest), 2, "none"),
            ((bundle.folder, *rest, "--backend", "tensorrt"), 3, "no TensorRT engine"),
        ):
            done = run(program, *arguments)
            assert done.returncode == code, (arguments, done.stdout, done.stderr)
            assert message in done.stderr
        assert run(program, "--help").stdout.startswith("usage: ")
        altered = tmp_path / f"altered-{program.name}"
        shutil.copytree(bundle.folder, altered)
        weights = (altered / WEIGHTS).read_bytes()
        (altered / WEIGHTS).write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
        assert run(program, altered, *rest).returncode == 1
    with Path("/dev/full").open("w") as full:
        command = [built / "programs/qcn-run", bundle.folder, good]
        assert subprocess.run(command, stdout=full, check=False).returncode == 1


def test_the_benchmark_counts_and_sorts(built: Path, bundle: Bundle) -> None:
    brief = ("--duration", "0.3", "--warmup", "20", "--json")
    program = built / "programs/qcn-bench"
    for arguments in ((), ("--batch", 4), ("--sessions", 3, "--threads", 1), ("--infer",)):
        done = run(program, bundle.folder, *brief, *arguments)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        latency = list(found["latency_ms"].values())
        ordered = [found["latency_ms"][name] for name in ("min", "p50", "p90", "p95", "p99", "max")]
        assert ordered == sorted(ordered)
        assert min(latency) > 0
        assert found["runs"] >= 10
        assert found["images_per_second"] == pytest.approx(found["runs"] * found["batch"] / found["seconds"], rel=1e-3)
    paced = json.loads(run(program, bundle.folder, "--json", "--warmup", "0", "--duration", "0.5", "--fps", 20).stdout)
    assert paced["runs"] <= 12
    assert paced["runs"] + paced["dropped"] >= 10
    assert "throughput: " in run(program, bundle.folder, "--duration", "0.1").stdout


def test_the_smallest_program(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    golden = write_pictures(bundle, tmp_path / "pictures")
    pixels = np.asarray(Image.open(tmp_path / "pictures/1.png")).tobytes()
    command = [built / "examples/minimal", bundle.folder, "28", "28", "1"]
    done = subprocess.run(command, input=pixels, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == [str(golden[1].argmax()), f"{golden[1].max():.4f}"]
    assert subprocess.run(command, input=pixels[:-1], capture_output=True, check=False).returncode == 1


def test_the_camera_sees_a_folder_of_frames(built: Path, bundle: Bundle, make: Make, tmp_path: Path) -> None:
    golden = write_pictures(bundle, tmp_path / "pictures")
    program = built / "examples/camera"
    done = run(program, bundle.folder, "--folder", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    found = [line.split(": ")[1].split()[0] for line in done.stdout.splitlines()[1:]]
    assert found == [str(activation.argmax()) for activation in golden]
    assert run(program, bundle.folder, "--folder", tmp_path / "pictures", "--frames", 2).stdout.count("frame ") == 2
    done = run(program, bundle.folder, "--camera", "/dev/no-such-camera")
    assert done.returncode == 1
    assert "/dev/no-such-camera: cannot be opened: No such file" in done.stderr

    # A stereo frame: the camera example and qcn-run see the same pair of views.
    pair = make(2, 32, NORB)
    (tmp_path / "stereo").mkdir()
    Image.fromarray(drawn(1, 96, 192)[0]).save(tmp_path / "stereo/frame.png")
    seen = run(program, pair.folder, "--folder", tmp_path / "stereo", "--no-self-test").stdout.splitlines()[1]
    told = run(built / "programs/qcn-run", pair.folder, tmp_path / "stereo", "--beside", "--no-self-test").stdout
    assert seen.split(": ")[1].split(",")[0] == told.strip().split(": ")[1]


def test_ctrl_c_ends_the_camera_in_order(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    frame = drawn(1, 28, 28)[0]
    for i in range(20000):
        os.link(tmp_path / "0.pgm", tmp_path / f"{i}.pgm") if i else Image.fromarray(frame).save(tmp_path / "0.pgm")
    command = [built / "examples/camera", bundle.folder, "--folder", tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as camera:
        assert camera.stdout is not None
        camera.stdout.readline()
        time.sleep(0.2)
        camera.send_signal(signal.SIGINT)
        lines = camera.stdout.readlines()
        assert camera.wait(timeout=20) == 0
    assert 0 < len(lines) < 20000


def test_a_network_without_poses(built: Path, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path / "cnn", create("cnn", in_channels=1, classes=7, size=28).eval(), 28, 28)
    Image.fromarray(drawn(1, 28, 28)[0]).save(tmp_path / "p.pgm")
    assert run(built / "programs/qcn-run", bundle.folder, tmp_path / "p.pgm", "--json").returncode == 0
    assert run(built / "programs/qcn-bench", bundle.folder, "--duration", "0").returncode == 0
    done = run(built / "programs/qcn-run", bundle.folder, tmp_path / "p.pgm", "--pose")
    assert (done.returncode, "without poses" in done.stderr) == (2, True)

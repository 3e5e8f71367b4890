"""The programs around libqcn."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import bundle_of, put_manifest, with_directions
from numpy.typing import NDArray
from pictures import drawn
from PIL import Image
from runners import model_at

import qcn
from qcn import create
from qcn.data.fit import fit, read_picture
from qcn.data.numpy_preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.backends.native.runner import NativeRunner
from qcn.export.backends.runner import Options
from qcn.export.bundle import MANIFEST, WEIGHTS, Bundle
from qcn.export.pipeline import export
from qcn.export.request import ExportRequest
from qcn.networks.confidence import (
    SCORES,
    Confidence,
    Known,
    ScoreName,
    is_known,
    order,
    probabilities,
    temperature_of,
)
from qcn.networks.model import qcn_tiny

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


NORB = Preprocessing(resize=48, crop=32, standardise="image")
COLOURS = Preprocessing(resize=32, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616))


def run(program: Path | str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def lines_of(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    """The objects that qcn-run --json prints, one per line."""
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_file_that_may_not_be_read_is_not_called_broken(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    """By libqcn and by Python: why, and what allows it."""
    # Root may read all files, but not without these capabilities.
    user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else ["env"]
    weights = bundle.folder / WEIGHTS
    weights.chmod(0)
    if shutil.which(user[0]) is None or run(*user, "cat", weights).returncode == 0 or run(*user, "true").returncode:
        pytest.skip("root cannot be kept from reading a file here: run the tests as another user")
    fix = f"Permission denied; allow it with: chmod -R a+rX {bundle.folder}"
    done = run(*user, built / "programs/qcn-run", bundle.folder, tmp_path / "any.png")
    assert done.returncode and f"{weights} cannot be opened: {fix}" in done.stderr
    assert "rebuild" not in done.stderr
    done = run(*user, sys.executable, "-m", "qcn", "export", bundle.folder, "--format", "onnx")
    fix_of_one = f"Permission denied; allow it with: chmod a+rX {weights}"
    assert done.returncode == 2 and f"{weights} cannot be read: {fix_of_one}" in done.stderr
    done = run(*user, sys.executable, "-m", "qcn", "doctor", bundle.folder)
    assert done.returncode == 1 and f"denied    {WEIGHTS}: cannot be read: Permission denied" in done.stdout
    assert f"{bundle.folder} may not be read: {WEIGHTS}" in done.stderr
    (bundle.folder / MANIFEST).chmod(0)
    done = run(*user, built / "programs/qcn-run", bundle.folder, tmp_path / "any.png")
    assert done.returncode and f"{bundle.folder / MANIFEST} cannot be opened: {fix}" in done.stderr
    done = run(*user, sys.executable, "-m", "qcn", "doctor", bundle.folder)
    assert (done.returncode, done.stderr) == (2, f"qcn: {bundle.folder / MANIFEST} cannot be read: {fix}\n")


def write_pictures(bundle: Bundle, folder: Path) -> NDArray[np.float64]:
    """The golden images of the bundle as PGM, PNG, JPEG, … files; returns their golden logits."""
    from safetensors.numpy import load_file

    golden = load_file(bundle.folder / "golden.safetensors")
    folder.mkdir()
    for i, pixels in enumerate(golden["image"][:4, 0]):
        Image.fromarray(pixels).save(folder / f"{i}{('.pgm', '.png', '.ppm', '.pgm')[i]}")
    return np.asarray(golden["logit"][:4])


def test_pictures_get_their_golden_answers(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    golden = write_pictures(bundle, tmp_path / "pictures")
    answers = lines_of(run(built / "programs/qcn-run", bundle.folder, tmp_path / "pictures", "--json"))
    expected = probabilities(golden, temperature_of(bundle.manifest.confidence))
    for answer, logit, probability in zip(answers, golden, expected, strict=True):
        assert list(answer) == ["file", "label", "probability", "known", "direction", "logit", "pose"]
        assert list(answer["logit"]) == list(answer["pose"]) == [str(k) for k in range(10)]
        assert list(answer["logit"].values()) == pytest.approx(logit, abs=1e-5)
        assert answer["label"] == str(logit.argmax()) and answer["known"] is True
        assert answer["probability"] == pytest.approx(probability.max(), abs=1e-6)
        assert all(len(pose) == 3 for pose in answer["pose"].values())
    done = run(built / "programs/qcn-run", bundle.folder, tmp_path / "pictures/0.pgm", "--top=2")
    first, second = order(golden)[0][:2]
    said = f"{first} {100 * expected[0][first]:.1f} %, {second} {100 * expected[0][second]:.1f} %"
    assert done.stdout == f"{tmp_path}/pictures/0.pgm: {said}\n"
    done = run(built / "programs/qcn-run", bundle.folder, tmp_path / "pictures/0.pgm", "--pose")
    assert re.fullmatch(r".*: \d \d+\.\d % \((-?\d\.\d{4}(, )?){3}\)\n", done.stdout)


@pytest.mark.parametrize("score", ["probability", "logit", "energy"])
def test_what_is_like_nothing_in_training_is_unknown(
    built: Path, bundle: Bundle, score: ScoreName, tmp_path: Path
) -> None:
    """Between the scores of four pictures: those below it are unknown, in all programs and in Python."""
    golden = write_pictures(bundle, tmp_path / "pictures")
    scores = np.sort(SCORES[score](golden, 2.5))
    known = Known(score, float(scores[1:3].mean()), keep=0.95, auroc=0.9, false_positives=0.1)
    manifest = replace(bundle.manifest, confidence=Confidence(2.5, 0.01), known=known)
    put_manifest(bundle.folder, manifest.to_json())
    files = sorted((tmp_path / "pictures").iterdir())
    answers = lines_of(run(built / "programs/qcn-run", bundle.folder, *files, "--json"))
    expected = is_known(golden, 2.5, known).tolist()
    assert [answer["known"] for answer in answers] == expected and sorted(expected) == [False, False, True, True]
    printed = run(built / "programs/qcn-run", bundle.folder, *files).stdout.splitlines()
    frames = run(built / "programs/qcn-camera", bundle.folder, "--folder", tmp_path / "pictures").stdout.splitlines()[
        1:
    ]
    for answer, line, frame in zip(answers, printed, frames, strict=True):
        label, percent = answer["label"], f"{100 * answer['probability']:.1f} %"
        said = f"{label} {percent}" if answer["known"] else f"unknown (most like {label}, {percent})"
        assert line == f"{answer['file']}: {said}" and f": {said}, " in frame
    shown = run(built / "programs/qcn-camera", bundle.folder, "--folder", tmp_path / "pictures", "--least", 1)
    assert shown.returncode == 0 and "frame" not in shown.stdout
    python = qcn.load(bundle.folder, "native").predict([read_picture(file) for file in files])
    assert [answer.known for answer in python] == expected
    assert [answer.probability for answer in python] == pytest.approx([one["probability"] for one in answers], abs=1e-9)


@pytest.mark.parametrize("elevation", [True, False])
def test_directions_are_said_as_in_python(built: Path, bundle: Bundle, elevation: bool, tmp_path: Path) -> None:
    write_pictures(bundle, tmp_path / "pictures")
    lengths = tuple(np.linalg.norm(bundle.golden().reference.pose[:, 0], axis=1)[:1])
    with_directions(bundle, symmetry=(1, 4, 2, *(1,) * 7), elevation=elevation, lengths=lengths, spreads=(30.0, 12.0))
    files = sorted((tmp_path / "pictures").iterdir())
    answers = lines_of(run(built / "programs/qcn-run", bundle.folder, *files, "--json"))
    printed = run(built / "programs/qcn-run", bundle.folder, *files).stdout.splitlines()
    frames = run(built / "programs/qcn-camera", bundle.folder, "--folder", tmp_path / "pictures").stdout.splitlines()[
        1:
    ]
    python = qcn.load(bundle.folder, "native").predict([read_picture(file) for file in files])
    for answer, line, frame, expected in zip(answers, printed, frames, python, strict=True):
        direction = expected.direction
        assert direction is not None and (direction.elevation is None) != elevation
        assert list(answer["direction"]) == ["azimuth", "elevation", "vector", "spread"]
        assert answer["direction"].pop("vector") == pytest.approx(direction.vector, abs=1e-6)
        assert answer["direction"] == pytest.approx(
            {"azimuth": direction.azimuth, "elevation": direction.elevation, "spread": direction.spread}, abs=1e-3
        )
        assert line.endswith(f" %, seen from {direction.words()}") and f", seen from {direction.words()}, " in frame
    with_directions(bundle, symmetry=(0,) * 10)
    assert "seen" not in run(built / "programs/qcn-run", bundle.folder, files[0]).stdout


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
    (tmp_path / "empty.png").touch()
    bad = {
        "gone.pgm": "No such file",
        "text.pgm": "its width is not a number",
        "cut.pgm": "ends too early",
        "cut.jpg": "JPEG",
        "cut.png": "PNG",
        "empty.png": "not a PBM",
    }
    done = run(built / "programs/qcn-run", bundle.folder, *(tmp_path / name for name in bad), good, "--json")
    assert done.returncode == 1
    *failed, last = map(json.loads, done.stdout.splitlines())
    for picture, (name, message) in zip(failed, bad.items(), strict=True):
        assert list(picture) == ["file", "error"] and picture["file"] == str(tmp_path / name)
        assert message in picture["error"]
    assert "label" in last
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
        found = lines_of(run(program, bundle.folder, *arguments, "--json", "--no-self-test"))
        return [[picture["logit"], picture["pose"]] for picture in found]

    left, right = tmp_path / "left.pgm", tmp_path / "right.png"
    two = answers(left, right, right, left)
    assert two[0] != two[1]
    assert answers(tmp_path / "pair.png") == two[:1]
    assert answers(tmp_path / "both.pgm", "--beside") == two[:1]
    done = run(program, bundle.folder, left, right, left, "--no-self-test")
    assert done.returncode == 1
    assert done.stdout.startswith(f"{left} + {right}: ")
    for way in ("two views of an object, and this is one", "two files", "a file of two channels", "--beside"):
        assert way in done.stderr
    Image.fromarray(drawn(3, 96, 80).transpose(1, 2, 0)).save(tmp_path / "colours.png")
    done = run(program, bundle.folder, tmp_path / "colours.png", "--no-self-test")
    assert (done.returncode, done.stdout) == (1, "")
    done = run(program, make(1, 32, NORB).folder, left, "--beside", "--no-self-test")
    assert (done.returncode, "takes one view" in done.stderr) == (2, True)


def answers_of(built: Path, bundle: Bundle, files: list[Path]) -> list[list[float]]:
    """The logits that qcn-run finds in each file."""
    found = lines_of(run(built / "programs/qcn-run", bundle.folder, *files, "--json", "--no-self-test"))
    return [[picture["logit"][name] for name in bundle.manifest.classes] for picture in found]


def check_alike(built: Path, bundle: Bundle, files: list[Path]) -> None:
    """qcn-run decodes these files as Python does: libqcn's answers to both are the same numbers."""
    spec, image = bundle.manifest.preprocessing, bundle.manifest.image
    inputs = np.concatenate([preprocess(fit(read_picture(file), image, spec.fit)[None], spec) for file in files])
    with NativeRunner(model_at(bundle.folder / WEIGHTS), Options()) as runner:
        expected = [runner.infer(one[None])["logit"][0] for one in inputs]
    assert len({one.tobytes() for one in expected}) > 1
    for file, found, due in zip(files, answers_of(built, bundle, files), expected, strict=True):
        assert np.array_equal(np.array(found, np.float32), due), file.name


def deep_png(pixels: NDArray[np.uint16], colour: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of 16 bits, which Pillow writes in grey only: [H, W, C] of this colour type."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    return png(pixels.shape[1], pixels.shape[0], 16, colour, rows, *chunks)


def png(width: int, height: int, bits: int, colour: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of any depth and colour type; each of its rows begins with its filter, 0."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = ((b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    framed = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def write_kinds(folder: Path) -> list[Path]:
    """Picture files of every kind that qcn-run and Pillow both read, of a size that no network has."""
    colours = Image.fromarray(np.ascontiguousarray(drawn(3, 45, 70).transpose(1, 2, 0)))
    grey, alpha = colours.convert("L"), Image.fromarray(drawn(1, 45, 70)[0]).transpose(Image.Transpose.ROTATE_180)
    deep = np.random.default_rng(0).integers(0, 65536, (40, 30, 4), np.uint16)
    deep.ravel()[:1200] = np.arange(1200) * 54
    palette, few = colours.convert("P", palette=Image.Palette.ADAPTIVE), colours.quantize(4)
    kinds = {
        "grey.png": (grey, {}),
        "grey.pgm": (grey, {}),
        "colours.png": (colours, {}),
        "colours.ppm": (colours, {}),
        "palette.png": (palette, {}),
        "four.png": (few, {"bits": 2}),
        "palette-transparent.png": (palette, {"transparency": bytes(range(0, 250, 2))}),
        "colours-transparent.png": (colours, {"transparency": colours.getpixel((3, 4))}),
        "grey-transparent.png": (grey, {"transparency": grey.getpixel((3, 4))}),
        "two.png": (grey.convert("1"), {}),
        "grey-alpha.png": (Image.merge("LA", [grey, alpha]), {}),
        "alpha.png": (Image.merge("RGBA", [*colours.split(), alpha]), {}),
        "deep.png": (Image.fromarray(deep[..., 0]), {}),
        "deep.pgm": (Image.fromarray(deep[..., 0]), {}),
        "grey.jpg": (grey, {"quality": 90}),
        "colours.jpg": (colours, {"quality": 90, "subsampling": 0}),
        "cmyk.jpg": (colours.convert("CMYK"), {"quality": 90}),
        "two.pbm": (grey.convert("1"), {}),
    }
    for name, (image, options) in kinds.items():
        image.save(folder / name, **options)
    gamma = (b"gAMA", struct.pack(">I", 100000))  # linear light: neither reader changes the numbers for it
    (folder / "deep-colours.png").write_bytes(deep_png(deep[..., :3], 2))
    (folder / "deep-alpha.png").write_bytes(deep_png(deep, 6))
    (folder / "deep-grey-alpha.png").write_bytes(deep_png(deep[..., :2], 4))
    (folder / "gamma.png").write_bytes(deep_png(deep[..., :1], 0, gamma))
    clear = (b"tRNS", struct.pack(">3H", *deep[3, 4, :3].tolist()))
    (folder / "deep-colours-transparent.png").write_bytes(deep_png(deep[..., :3], 2, clear))
    rng = np.random.default_rng(1)
    for bits in (1, 2, 4):
        rows = b"".join(b"\0" + rng.bytes(40 * bits // 8) for _ in range(30))
        some = (b"PLTE", rng.bytes(3 * 2**bits))
        (folder / f"{bits}-bit.png").write_bytes(png(40, 30, bits, 0, rows))
        (folder / f"{bits}-bit-transparent.png").write_bytes(png(40, 30, bits, 0, rows, (b"tRNS", b"\0\1")))
        (folder / f"{bits}-bit-palette.png").write_bytes(png(40, 30, bits, 3, rows, some, (b"tRNS", b"\x07\xc8")))
    (folder / "text.pbm").write_bytes(b"P1\n# by hand\n5 2\n01011 1 1 0\n0 1\n")
    # Pillow writes the colours of ink; others write their transform as well (2), or leave out Adobe's marker.
    ink = (folder / "cmyk.jpg").read_bytes()
    place = ink.index(b"Adobe")
    (folder / "ycck.jpg").write_bytes(ink[: place + 11] + b"\2" + ink[place + 12 :])
    (folder / "cmyk-unmarked.jpg").write_bytes(ink[: place - 4] + ink[place + 12 :])
    return sorted(folder.iterdir())


@pytest.mark.parametrize("channels", [1, 3])
def test_files_are_decoded_as_python_does(built: Path, make: Make, channels: int, tmp_path: Path) -> None:
    (tmp_path / "kinds").mkdir()
    files = write_kinds(tmp_path / "kinds")
    assert len(files) == 35
    check_alike(built, make(channels, 32, NORB), files)


def test_what_is_refused_is_refused_by_all(built: Path, bundle: Bundle, data_dir: Path, tmp_path: Path) -> None:
    """By libqcn, ONNX Runtime and training, which Python reads pictures for, and by qcn-run."""
    export(bundle.folder, None, ExportRequest(formats=("onnx",)), data_dir)
    whole = png(40, 30, 8, 0, (b"\0" + bytes(range(40))) * 30)
    Image.fromarray(drawn(1, 64, 64)[0]).save(tmp_path / "whole.jpg")
    black = (b"\0" + bytes(2048)) * 16384
    cases = {
        "long.pgm": b"P5 16385 1 255\n" + bytes(16385),
        "high.png": png(1, 16385, 8, 0, b"\0\0" * 16385),
        "huge.png": png(16384, 16384, 1, 0, black),  # 268 million pixels
        "huge.pbm": b"P4 16384 16384\n" + bytes(2048 * 16384),
        "none.png": png(0, 1, 8, 0, b""),
        "cut.png": whole[: len(whole) // 2],
        "cut.jpg": (tmp_path / "whole.jpg").read_bytes()[:400],
        "cut.pbm": b"P4 9 9\n" + bytes(17),
        "text.pbm": b"P1 2 1\n0 2\n",
        "text.jpg": b"no picture",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    done = run(built / "programs/qcn-run", bundle.folder, *(tmp_path / name for name in cases), "--json")
    answers = map(json.loads, done.stdout.splitlines())
    assert [Path(one["file"]).name for one in answers if "error" in one] == [*cases]
    models = [qcn.load(bundle.folder, backend) for backend in ("native", "onnxruntime")]
    for name in cases:
        for model in models:
            with pytest.raises(UsageError) as raised:
                model.predict(tmp_path / name)
            assert name in str(raised.value)
    long = np.zeros((1, 16385), np.uint8)
    for model in models:
        with pytest.raises(UsageError, match="at most 16384×16384 pixels, not 16385×1"):
            model.predict(long)


def test_exif_says_which_way_is_up(built: Path, make: Make, tmp_path: Path) -> None:
    picture, files = Image.fromarray(np.ascontiguousarray(drawn(3, 40, 56).transpose(1, 2, 0))), []
    for orientation in (*range(1, 9), 0, 9, 65535):
        exif = Image.Exif()
        exif[0x010F], exif[0x0112] = "a camera", orientation
        for suffix in ("jpg", "png"):
            files.append(tmp_path / f"{orientation}.{suffix}")
            picture.save(files[-1], exif=exif, **({"quality": 95, "subsampling": 0} if suffix == "jpg" else {}))
    bundle = make(3, 32, COLOURS)
    check_alike(built, bundle, files)
    assert len({tuple(found) for found in answers_of(built, bundle, files[:16])}) == 16


def test_hostile_exif_is_a_picture_the_right_way_up_or_refused(built: Path, make: Make, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(drawn(3, 20, 30).transpose(1, 2, 0)).save(tmp_path / "good.jpg", exif=exif)
    good = (tmp_path / "good.jpg").read_bytes()
    start = good.index(b"Exif") - 4
    rng, files = np.random.default_rng(0), []
    for trial in range(200):
        bad = bytearray(good)
        for place in rng.integers(start, start + 40, 1 + trial % 4):
            bad[place] = rng.choice([0, 1, 255, rng.integers(256)])
        files.append(tmp_path / f"{trial:03}.jpg")
        files[-1].write_bytes(bad)
    bundle = make(3, 32, COLOURS)
    done = run(built / "programs/qcn-run", bundle.folder, *files, "--json", "--no-self-test")
    assert done.returncode in (0, 1) and done.stderr == ""
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 200


def test_names_give_a_terminal_no_orders_and_pipes_are_not_waited_for(
    built: Path, bundle: Bundle, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a\x1b[2Jb.png", "c\u009b1md.png", "e\u202ef.png", "g\nh.png", "é×.png", "\x1b]0;no\x07.png"):
        Image.fromarray(np.zeros((28, 28), np.uint8)).save(folder / name)
    (folder / "\x1b[31mno.png").write_bytes(b"no picture")
    (tmp_path / "\x1b[31m").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    done = run(built / "programs" / "qcn-run", bundle.folder, folder, tmp_path / "pipe.png")
    shown = done.stdout + done.stderr
    assert done.returncode == 1 and not set(shown) & set("\x1b\x07\u009b\u202e")
    for words in (r"a\x1b[2Jb.png: ", r"c\x9b1md.png: ", r"e\u202ef.png: ", r"g\nh.png: ", "é×.png: "):
        assert words in done.stdout
    assert "pipe.png: it is not a plain file" in done.stderr
    for program, *arguments in (("qcn-run", "--json", folder), ("qcn-camera", "--folder", folder), ("qcn-bench",)):
        done = run(built / "programs" / program, bundle.folder, *arguments)
        assert not set(done.stdout + done.stderr) & set("\x1b\x07\u009b"), program
        done = run(built / "programs" / program, tmp_path / "\x1b[31m", *arguments)
        assert done.returncode and "\x1b" not in done.stderr and r"\x1b[31m" in done.stderr, program


def test_a_picture_of_any_size_is_classified(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    files = []
    for height, width in ((1, 1), (28, 28), (2, 3), (480, 640), (1, 16384), (16384, 1)):
        files.append(tmp_path / f"{height}x{width}.pgm")
        Image.fromarray(drawn(1, height, width)[0]).save(files[-1])
    check_alike(built, bundle, files)


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
            ((bundle.folder, *rest, "--precision", "int8"), 3, "the native backend computes in fp32, not in int8"),
        ):
            done = run(program, *arguments)
            assert done.returncode == code, (arguments, done.stdout, done.stderr)
            assert message in done.stderr
        shown = run(program, "--help").stdout
        assert shown.startswith("usage: ")
        assert all(line[24] == " " != line[25] for line in shown.splitlines() if line.startswith("  --"))
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
    command = [built / "examples/classify", bundle.folder, "28", "28", "1"]
    done = subprocess.run(command, input=pixels, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    probability = probabilities(golden, temperature_of(bundle.manifest.confidence))[1].max()
    assert done.stdout.decode() == f"{golden[1].argmax()} {100 * probability:.1f} %\n"
    assert subprocess.run(command, input=pixels[:-1], capture_output=True, check=False).returncode == 1


def test_the_camera_sees_a_folder_of_frames(built: Path, bundle: Bundle, make: Make, tmp_path: Path) -> None:
    golden = write_pictures(bundle, tmp_path / "pictures")
    (tmp_path / "pictures" / "._0.png").write_bytes(b"hidden: what a Mac leaves beside 0.png")
    program = built / "programs/qcn-camera"
    done = run(program, bundle.folder, "--folder", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    found = [line.split(": ")[1].split()[0] for line in done.stdout.splitlines()[1:]]
    assert found == [str(logit.argmax()) for logit in golden]
    assert run(program, bundle.folder, "--folder", tmp_path / "pictures", "--frames", 2).stdout.count("frame ") == 2
    done = run(program, bundle.folder, "--camera", "/dev/no-such-camera")
    assert done.returncode == 1
    assert "/dev/no-such-camera: cannot be opened (--camera names another device" in done.stderr

    # A stereo frame: qcn-camera and qcn-run see the same pair of views, and never guess it.
    pair = make(2, 32, NORB)
    (tmp_path / "stereo").mkdir()
    Image.fromarray(np.ascontiguousarray(drawn(3, 96, 192).transpose(1, 2, 0))).save(tmp_path / "stereo/frame.png")
    arguments = (pair.folder, "--folder", tmp_path / "stereo", "--no-self-test")
    frame = run(program, *arguments, "--beside").stdout.splitlines()[1]
    answer = run(built / "programs/qcn-run", pair.folder, tmp_path / "stereo", "--beside", "--no-self-test").stdout
    assert frame.split(": ")[1].split(",")[0] == answer.strip().split(": ")[1]
    done = run(program, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this network takes two views; --beside takes the left and right half of a frame" in done.stderr
    done = run(program, bundle.folder, "--folder", tmp_path / "pictures", "--beside")
    assert (done.returncode, "takes one view; leave out --beside" in done.stderr) == (2, True)
    Image.fromarray(drawn(1, 96, 191)[0]).save(tmp_path / "stereo/frame.png")
    done = run(program, *arguments, "--beside")
    assert (done.returncode, "191 pixels across has no two equal halves" in done.stderr) == (1, True)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_camera_takes_frames_of_a_webcam(built: Path, make: Make, channels: int, tmp_path: Path) -> None:
    bundle = make(channels, 32, NORB)
    for number, image in enumerate((drawn(3, 480, 640), drawn(3, 720, 1280), drawn(1, 480, 640), drawn(4, 480, 640))):
        pixels = np.squeeze(np.ascontiguousarray(image.transpose(1, 2, 0)))
        Image.fromarray(pixels).save(tmp_path / f"{number}.png", compress_level=1)
    done = run(built / "programs/qcn-camera", bundle.folder, "--folder", tmp_path, "--no-self-test")
    assert done.returncode == 0, done.stderr
    found = [line.split(": ")[1].split(",")[0] for line in done.stdout.splitlines()[1:]]
    files = sorted(tmp_path.glob("*.png"))
    expected = answers_of(built, bundle, files)
    likely = probabilities(np.array(expected), 1.0)
    assert found == [f"class{np.argmax(each)} {100 * each.max():.1f} %" for each in likely]
    check_alike(built, bundle, files)


def test_ctrl_c_ends_the_camera_in_order(built: Path, bundle: Bundle, tmp_path: Path) -> None:
    frame = drawn(1, 28, 28)[0]
    for i in range(20000):
        os.link(tmp_path / "0.pgm", tmp_path / f"{i}.pgm") if i else Image.fromarray(frame).save(tmp_path / "0.pgm")
    command = [built / "programs/qcn-camera", bundle.folder, "--folder", tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as camera:
        assert camera.stdout is not None
        camera.stdout.readline()
        assert camera.stdout.readline()  # of the first frame
        camera.send_signal(signal.SIGINT)
        lines = camera.stdout.readlines()
        assert camera.wait(timeout=60) == 0
    assert len(lines) < 19999


def test_a_network_without_poses(built: Path, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path / "cnn", create("cnn", in_channels=1, classes=7, size=28).eval(), 28, 28)
    Image.fromarray(drawn(1, 28, 28)[0]).save(tmp_path / "p.pgm")
    assert lines_of(run(built / "programs/qcn-run", bundle.folder, tmp_path / "p.pgm", "--json"))[0]["pose"] is None
    assert run(built / "programs/qcn-bench", bundle.folder, "--duration", "0").returncode == 0
    done = run(built / "programs/qcn-run", bundle.folder, tmp_path / "p.pgm", "--pose")
    assert (done.returncode, "without poses" in done.stderr) == (2, True)

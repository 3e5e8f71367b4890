"""`qcn predict`: sources, tables, files, drawings, exit codes."""

import csv
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Command
from PIL import Image
from typer.testing import CliRunner

from qcn.cli import app
from qcn.errors import MissingError, UsageError
from qcn.export.bundle import Bundle
from qcn.predict import sources
from qcn.predict.open import open_model
from qcn.predict.reading import pictures_of

RNG = np.random.default_rng(0)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for name, size in (("a.jpg", (64, 48)), ("b.png", (28, 28)), ("deep/c.webp", (300, 200))):
        Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name)
    return folder


def pictures(names: list[str], frames: int | None = None) -> Iterator[sources.Found]:
    return pictures_of(sources.items(names, frames), names)


def predict(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["predict", *map(str, arguments)], catch_exceptions=False)
    return result.output


def test_a_folder_is_answered_and_written_down(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (photos / "._a.jpg").write_bytes(b"what a Mac leaves beside a.jpg")
    said = predict(
        photos, "--model", bundle.folder, "--top", "2", "--json", out / "a.json", "--csv", out / "a.csv", "--save", out
    )
    assert "3 pictures in" in said and "a.jpg" in said
    answers = json.loads((out / "a.json").read_text())
    assert [Path(answer["file"]).name for answer in answers] == ["a.jpg", "b.png", "c.webp"]
    classes = bundle.manifest.classes
    for answer in answers:
        assert answer["label"] == max(answer["logit"], key=answer["logit"].get)
        assert tuple(answer["logit"]) == tuple(answer["pose"]) == classes and 0 <= answer["probability"] <= 1
    table = list(csv.DictReader((out / "a.csv").read_text().splitlines()))
    assert [row["label"] for row in table] == [answer["label"] for answer in answers]
    with Image.open(out / "sheet.png") as sheet:
        assert sheet.width > 480
    assert len(list(out.glob("000*.png"))) == 3


def test_a_name_that_is_no_text_is_written_down(bundle: Bundle, tmp_path: Path) -> None:
    picture = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png"))
    Image.fromarray(RNG.integers(0, 256, (28, 28), dtype=np.uint8)).save(picture)
    predict(picture, "--model", bundle.folder, "--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv")
    assert [Path(answer["file"]) for answer in json.loads((tmp_path / "a.json").read_text())] == [picture]
    assert "\\udcff.png," in (tmp_path / "a.csv").read_text()


def test_large_pictures_are_read_without_a_warning_or_refused_in_a_sentence(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for size in (12, 20):
        Image.new("L", (size, size)).save(tmp_path / f"{size}.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    command = Command(monkeypatch, capsys)
    code, said = command("predict", tmp_path / "12.png", "--model", bundle.folder)
    assert code == 0 and "Warning" not in said
    code, said = command("predict", tmp_path / "20.png", "--model", bundle.folder)
    assert code == 1 and "20.png has more than 200 pixels, the most that can be read: make it smaller" in said


def test_patterns_and_single_files(bundle: Bundle, photos: Path) -> None:
    assert "2 pictures in" in predict(photos / "*.*", "--model", bundle.folder)
    assert "1 picture in" in predict(photos / "b.png", "--model", bundle.folder)


def test_a_run_answers_as_its_bundle(bundle: Bundle, run: Path) -> None:
    pixels = RNG.integers(0, 256, (50, 70, 3), dtype=np.uint8)
    one, other = (open_model(str(folder), "auto").predict(pixels) for folder in (bundle.folder, run))
    assert np.allclose(one.logit, other.logit, atol=1e-5)
    with pytest.raises(UsageError, match="is a training run, which runs in torch"):
        open_model(str(run), "native")


def test_networks_that_ship_are_known_by_name() -> None:
    model = open_model("fashion-mnist", "auto")
    assert "Sneaker" in model.classes
    with pytest.raises(UsageError, match="did you mean 'cifar10-qcn'"):
        open_model("cifar10-qcm", "auto")


def test_wrong_usage(bundle: Bundle, tmp_path: Path) -> None:
    for arguments, reason in (
        ((tmp_path / "none*.png",), "no file matches"),
        ((tmp_path,), "has no pictures"),
        ((tmp_path / "film.mp4",), "there is no file"),
        ((tmp_path / "a.png", "--json", tmp_path), "is a folder"),
    ):
        with pytest.raises(UsageError, match=reason):
            predict(*arguments, "--model", bundle.folder)


def test_a_video_needs_opencv_or_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    monkeypatch.setattr(sources, "installed", lambda package: False)
    monkeypatch.setattr(sources.shutil, "which", lambda program: None)
    with pytest.raises(MissingError, match="opencv-python-headless, or install ffmpeg"):
        list(pictures([str(tmp_path / "film.mp4")]))


@pytest.mark.parametrize(
    ("source", "arguments"),
    [("film.mp4", ["-i", "file:film.mp4"]), ("camera1", ["-f", "v4l2", "-i", "/dev/video1"])],
)
def test_frames_by_an_ffmpeg_that_complains_a_lot(
    source: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = f"assert sys.argv[4 : {4 + len(arguments)}] == {arguments}, sys.argv"
    words = "signal.alarm(20); sys.stderr.write('error\\n' * 100_000)"
    frames = r"sys.stdout.buffer.write(b'P6\n4 2\n255\n' + bytes(24) + b'P6\n2 4\n255\n' + bytes(range(24, 48)))"
    text = f"#!{sys.executable}\nimport signal, sys\n{check}\n{words}\n{frames}\n"
    (tmp_path / "ffmpeg").write_text(text, encoding="utf-8")
    (tmp_path / "ffmpeg").chmod(0o755)
    (tmp_path / "film.mp4").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sources, "installed", lambda package: False)
    found = list(pictures([source]))
    assert [one.name for one in found] == [f"{source}#0", f"{source}#1"]
    assert found[1].pixels is not None and found[1].pixels.shape == (4, 2, 3)
    assert found[1].pixels.ravel().tolist() == list(range(24, 48))


FFMPEG = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="ffmpeg is not installed")


@FFMPEG
@pytest.mark.parametrize("opencv", [False, True])
def test_a_telephones_video_turned_and_of_no_fixed_rate(
    opencv: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every frame once, upright, to the last bit, by whichever reads it."""
    if opencv:
        pytest.importorskip("cv2")
    monkeypatch.setattr(sources, "installed", lambda package: opencv)
    frames = np.random.default_rng(0).integers(0, 256, (4, 32, 48, 3), np.uint8)
    film = tmp_path / "film.mov"
    uneven = tmp_path / "uneven.mkv"  # Matroska keeps times as they are, and a copy does
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "48x32", "-r", "10", "-i", "-"]
    ffmpeg = ["ffmpeg", "-v", "error"]
    once = [*ffmpeg, *raw, "-vf", "setpts=(N+N*N)/10/TB", "-c:v", "png", str(uneven)]
    subprocess.run(once, input=frames.tobytes(), check=True)
    subprocess.run([*ffmpeg, "-i", str(uneven), "-c", "copy", str(film)], check=True)
    stored = bytearray(film.read_bytes())
    matrix = stored.index(b"tkhd") + 44  # how to turn it when it is shown, in the header of the track
    stored[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 32 << 16, 0, 1 << 30)
    film.write_bytes(stored)
    found = [one.pixels for one in pictures([str(film)])]
    assert len(found) == 4
    for pixels, frame in zip(found, frames, strict=True):
        assert pixels is not None and np.array_equal(pixels, np.rot90(frame, -1))


@FFMPEG
@pytest.mark.parametrize("opencv", [False, True])
def test_a_video_that_cannot_be_read_is_one_line(
    opencv: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if opencv:
        pytest.importorskip("cv2")
    monkeypatch.setattr(sources, "installed", lambda package: opencv)
    (tmp_path / "film.mp4").write_bytes(b"no film")
    with pytest.raises(UsageError, match=r"cannot (open|read) .*film.mp4"):
        list(pictures([str(tmp_path / "film.mp4")]))
    assert capfd.readouterr() == ("", "")


def test_a_video_without_a_frame_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    monkeypatch.setattr(sources, "installed", lambda package: True)
    monkeypatch.setattr(sources, "_by_opencv", lambda source: iter(()))
    with pytest.raises(UsageError, match=r"film\.mp4 has no frame that can be read"):
        list(pictures([str(tmp_path / "film.mp4")]))


def test_frames_of_a_video(bundle: Bundle, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for shade in range(0, 250, 50):
        writer.write(np.full((48, 64, 3), (shade, 0, 0), np.uint8))  # blue: OpenCV's order is BGR
    writer.release()
    found = list(pictures([str(path)], frames=3))
    assert [one.name for one in found] == [f"{path}#{number}" for number in range(3)]
    assert found[2].pixels is not None and found[2].pixels[..., 2].mean() > 80 > found[2].pixels[..., 0].mean()
    assert "3 pictures in" in predict(path, "--frames", "3", "--model", bundle.folder)

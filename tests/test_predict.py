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
from command import ask
from PIL import Image

from qcn.errors import MissingError, UsageError
from qcn.export.bundle import Bundle
from qcn.predict import sources
from qcn.predict.open import open_model
from qcn.predict.reading import Row, pictures_of

RNG = np.random.default_rng(0)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for name, size in (("a.jpg", (64, 48)), ("b.png", (28, 28)), ("deep/c.webp", (300, 200))):
        Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name)
    return folder


def pictures(names: list[str], frames: int | None = None) -> Iterator[Row]:
    return pictures_of(sources.items(names, frames), names)


def test_a_folder_a_pattern_and_a_file_are_answered_and_written_down(
    bundle: Bundle, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (photos / "._a.jpg").write_bytes(b"what a Mac leaves beside a.jpg")
    where = ("--json", out / "a.json", "--csv", out / "a.csv", "--save", out)
    said = ask("predict", photos, "--model", bundle.folder, "--top", "2", *where)[1]
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
    assert "2 pictures in" in ask("predict", photos / "*.*", "--model", bundle.folder)[1]
    assert "1 picture in" in ask("predict", photos / "b.png", "--model", bundle.folder)[1]


def test_a_name_that_is_no_text_is_written_down(bundle: Bundle, tmp_path: Path) -> None:
    picture = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png"))
    Image.fromarray(RNG.integers(0, 256, (28, 28), dtype=np.uint8)).save(picture)
    ask("predict", picture, "--model", bundle.folder, "--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv")
    assert [Path(answer["file"]) for answer in json.loads((tmp_path / "a.json").read_text())] == [picture]
    assert "\\udcff.png," in (tmp_path / "a.csv").read_text()


def test_large_pictures_are_read_without_a_warning_or_refused_in_a_sentence(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (12, 20):
        Image.new("L", (size, size)).save(tmp_path / f"{size}.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    code, said = ask("predict", tmp_path / "12.png", "--model", bundle.folder)
    assert code == 0 and "Warning" not in said
    code, said = ask("predict", tmp_path / "20.png", "--model", bundle.folder)
    assert code == 1 and "20.png has more than 200 pixels, the most that can be read: make it smaller" in said


def test_a_run_answers_as_its_bundle(bundle: Bundle, run: Path) -> None:
    pixels = RNG.integers(0, 256, (50, 70, 3), dtype=np.uint8)
    one, other = (open_model(str(folder), "auto").predict(pixels) for folder in (bundle.folder, run))
    assert np.allclose(one.logit, other.logit, atol=1e-5)
    with pytest.raises(UsageError, match="is a training run, which runs in torch"):
        open_model(str(run), "native")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("none*.png",), "no file matches"),
        ((".",), "has no pictures"),
        (("film.mp4",), "there is no file"),
        (("a.png", "--json", "."), "is a folder"),
        (("https://example.org/a.png",), "download it first"),
        (("a.png", "--resume"), "--resume goes on with a file: name it by --jsonl or --csv"),
        (("a.png", "--resume", "--json", "a.json"), "not with --json, which is one document"),
        (("a.png", "--resume", "--csv", "-"), "not with standard output"),
        (("a.png", "--csv", "-", "--jsonl", "-"), "--jsonl and --csv name the same file"),
        (("a.png", "--engine", "ray"), "name it by --out"),
        (("a.png", "--out", "out", "--jsonl", "a.jsonl", "--frames", 1), "does not go with --jsonl and --frames"),
        (("film.mp4", "--out", "out"), "film.mp4 is a video or a camera"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_usage_is_one_line(
    words: tuple[object, ...], reason: str, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    code, said = ask("predict", *words, "--model", bundle.folder)
    assert code == 2 and reason in " ".join(said.split())


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
    assert [one.file for one in found] == [f"{source}#0", f"{source}#1"]
    assert found[1].pixels is not None and found[1].pixels.shape == (4, 2, 3)
    assert found[1].pixels.ravel().tolist() == list(range(24, 48))
    assert [one.file for one in pictures([source], frames=1)] == [f"{source}#0"]


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

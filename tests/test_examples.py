"""The programs in examples/: each does what its first lines say. Those in C and C++ are in test_deploy*.py."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from pictures import CLASSES, picture
from PIL import Image

import qcn
from qcn.export.bundle import Bundle

EXAMPLES = Path(__file__).parent.parent / "examples"


def python(name: str, *arguments: object, folder: Path) -> str:
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_index_names_every_program() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    programs = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".c", ".cpp")]
    assert len(programs) >= 6 and all(f"]({name})" in page for name in programs)


def test_a_bundle_is_asked(bundle: Bundle, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(pixels).save(tmp_path / name)
    answer = qcn.load(bundle.folder).predict(pixels)
    said = python("classify.py", bundle.folder, "a.png", "b.png", folder=tmp_path).splitlines()
    assert said == [f"{name}: {answer.words()}, {100 * answer.probability:.1f} %" for name in ("a.png", "b.png")]


@pytest.mark.slow
def test_pictures_become_a_verified_bundle(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in CLASSES:
        (tmp_path / "my/pictures" / kind).mkdir(parents=True)
        for number in range(40):
            Image.fromarray(picture(kind, rng)).save(tmp_path / "my/pictures" / kind / f"{number}.png")
    Image.fromarray(picture(CLASSES[0], rng)).save(tmp_path / "photo.jpg")
    options = ("--size", 32, "--epochs", 1, "--model", "qcn-tiny")
    said = python("train_and_verify.py", "my/pictures", "photo.jpg", *options, folder=tmp_path)
    assert "the same network as" in " ".join(said.split()) and "\nphoto.jpg: " in said, said


def test_a_page_is_served_with_the_headers_that_threads_need(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("a page")
    command = [sys.executable, str(EXAMPLES / "serve_page.py"), str(tmp_path), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout
            with urllib.request.urlopen(server.stdout.readline().strip()) as answer:
                assert answer.read() == b"a page"
                assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
                assert answer.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
        finally:
            server.terminate()

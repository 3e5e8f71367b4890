"""The guide for Jetsons quotes what the programs say, and the example for CSI cameras reads what GStreamer writes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import bundle_of

import qcn
from qcn.networks.model import qcn_tiny

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "deploy" / "jetson" / "README.md"
CAMERA = ROOT / "deploy" / "jetson" / "csi_camera.py"
SOURCES = [
    path
    for folder in ("qcn", "export", "deploy")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".cpp", ".h")
]


def quoted() -> list[str]:
    """The messages in the table of the section on errors."""
    section = GUIDE.read_text(encoding="utf-8").split("\n## 11. ")[1].split("\n## ")[0]
    return [found[2].strip() for found in re.finditer(r"^\| (`+)(.+?)\1", section, re.MULTILINE)]


def test_every_message_in_the_guide_is_one_that_a_program_prints() -> None:
    """Its words between the places for what differs (a device and a product among it) stand in one source file."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    messages = quoted()
    assert len(messages) > 20
    for message in messages:
        words = [
            part.strip() for part in re.split(r"…|/dev/video…:|^TensorRT |^cuda-bindings ", message) if part.strip()
        ]
        assert max(map(len, words)) >= 8, f"{message} could be anything"
        pattern = re.compile(".{0,200}?".join(map(re.escape, words)), re.DOTALL)
        assert any(pattern.search(text) for text in texts), message


GSTREAMER = """#!{python}
import os, sys
pipeline = " ".join(sys.argv[1:])
assert pipeline.startswith("-q ") and pipeline.endswith("! fdsink fd=1"), pipeline
assert "format=RGBA,width=20,height=10" in pipeline, pipeline
if "broken" in pipeline:
    sys.exit("no such element")
frames = open({frames!r}, "rb").read()
try:
    while True:
        os.write(1, frames)
        if "endless" not in pipeline:
            break
except BrokenPipeError:
    pass
"""


@pytest.fixture
def camera(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle; and first in the path a GStreamer that writes three frames of 20×10 pixels, which lie in `frames`."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 10, 20, 4), np.uint8)
    pixels[..., 3] = 255
    (tmp_path / "frames").write_bytes(pixels.tobytes())
    program = tmp_path / "bin" / "gst-launch-1.0"
    program.parent.mkdir()
    program.write_text(GSTREAMER.format(python=sys.executable, frames=str(tmp_path / "frames")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    torch.manual_seed(0)
    return bundle_of(tmp_path / "bundle", qcn_tiny(3, 4).eval(), 16, 16).folder


def classify(bundle: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CAMERA), str(bundle), "--width", "20", "--height", "10", *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_frames_of_a_csi_camera_are_classified(camera: Path) -> None:
    pixels = np.frombuffer((camera.parent / "frames").read_bytes(), np.uint8).reshape(3, 10, 20, 4)
    model = qcn.load(camera)
    answers = [model.predict(np.ascontiguousarray(frame[..., :3])) for frame in pixels]
    done = classify(camera)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^frame (\d): (\S+) ([\d.]+), [\d.]+ ms$", done.stdout, re.M)
    assert found == [
        (str(number), answer.label, f"{answer.probability:.4f}") for number, answer in enumerate(answers, 1)
    ]
    few = classify(camera, "--source", "endless", "--frames", "2")  # and GStreamer is stopped
    assert few.returncode == 0 and few.stdout.count("frame ") == 2, few.stderr


def test_a_csi_camera_that_does_not_work_is_one_line(camera: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = classify(camera, "--source", "broken")
    assert broken.returncode == 3 and "gst-launch-1.0 ended with 1; its pipeline was: broken ! " in broken.stderr
    (camera / "manifest.json").unlink()
    gone = classify(camera)
    assert gone.returncode == 2 and gone.stderr.startswith("csi_camera: ") and "is not a bundle" in gone.stderr

"""`qcn predict --out DIR`: shards by one process and by Ray, going on with them, and an actor that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bundles import put_manifest
from command import ask
from PIL import Image

from qcn.export.bundle import MANIFEST, Bundle
from qcn.packages import installed
from qcn.predict import shards
from qcn.workers import INSTALL

needs_ray = pytest.mark.skipif(not installed("ray"), reason=f"Ray is not installed: {INSTALL}")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten pictures, one of them broken; four to a shard."""
    monkeypatch.setattr(shards, "PICTURES", 4)
    return pictures(tmp_path / "photos", 10)


def pictures(folder: Path, count: int) -> Path:
    """So many pictures, of which the sixth is broken."""
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (10, 28, 28), np.uint8)
    for number in range(count):
        if number < len(pixels):
            Image.fromarray(pixels[number]).save(folder / f"{number:05}.png")
        else:
            os.link(folder / "00000.png", folder / f"{number:05}.png")
    (folder / "00005.png").unlink()
    (folder / "00005.png").write_bytes(b"no picture")
    return folder


def joined(folder: Path) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl")))


def test_shards_are_the_rows_of_jsonl(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    ask("predict", photos, "--model", bundle.folder, "--jsonl", tmp_path / "a.jsonl")
    code, said = ask("predict", photos, "--model", bundle.folder, "--out", tmp_path / "out")
    assert code == 1 and "1 of 10 pictures could not be read" in said
    assert len([*(tmp_path / "out").glob("*.jsonl")]) == 3
    assert joined(tmp_path / "out") == (tmp_path / "a.jsonl").read_text(encoding="utf-8")


def test_what_is_finished_is_skipped_and_what_changed_is_not(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    words = ("predict", photos, "--model", bundle.folder, "--out", tmp_path / "out")
    ask(*words)
    whole = joined(tmp_path / "out")
    first, second, third = sorted((tmp_path / "out").glob("*.jsonl"))
    before = (first.stat().st_mtime_ns, first.stat().st_ino)
    second.unlink()
    third.unlink()
    code, said = ask(*words)
    assert code == 1 and "5 pictures in" in said and "after 4 that were answered before" in said
    assert joined(tmp_path / "out") == whole and before == (first.stat().st_mtime_ns, first.stat().st_ino)
    os.utime(photos / "00009.png", (0, 0))
    code, said = ask(*words)
    assert code == 2 and f"such as {third.name}: remove them" in said
    third.unlink()
    code, said = ask(*words)
    assert "2 pictures in" in said and joined(tmp_path / "out") == whole


def test_shards_of_another_network_are_not_gone_on_with(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    words = ("predict", photos, "--model", bundle.folder, "--out", tmp_path / "out")
    ask(*words)
    manifest = json.loads((bundle.folder / MANIFEST).read_text(encoding="utf-8"))
    put_manifest(bundle.folder, json.dumps({**manifest, "name": "another"}))
    code, said = ask(*words)
    assert code == 2 and "or of another network" in said


def test_parquet_has_the_objects_of_json(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason=f"pyarrow is not installed: {INSTALL}")
    words = ("predict", photos, "--model", bundle.folder, "--out")
    ask(*words, tmp_path / "out")
    ask(*words, tmp_path / "out.parquet")
    rows = [json.loads(line) for line in joined(tmp_path / "out").splitlines()]
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for row, stored in zip(rows, table, strict=True):
        assert stored == {**dict.fromkeys(stored), **row}
    code, said = ask(*words, tmp_path / "out.parquet")
    assert code == 1 and "0 pictures in" in said and "1 of 10 pictures could not be read" in said


def actors(mark: str) -> Iterator[int]:
    """The process IDs of Ray's actors that have this text in their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:  # it ended
            continue
        if title.startswith(b"ray::Worker.answer") and mark.encode() in environment:
            yield int(process.name)


@pytest.mark.slow  # Ray takes seconds to start
@needs_ray
def test_ray_answers_as_one_process_also_if_an_actor_is_killed(bundle: Bundle, tmp_path: Path) -> None:
    photos, out, mark = pictures(tmp_path / "photos", 6000), tmp_path / "ray", f"mark-{uuid.uuid4().hex}"
    words = ("predict", photos, "--model", bundle.folder, "--out")
    ask(*words, tmp_path / "one")
    shell = [sys.executable, "-m", "qcn", *map(str, (*words, out, "--engine", "ray"))]
    with subprocess.Popen(shell, env={**os.environ, "MARK": mark}, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr
        until = time.monotonic() + 120
        while not (killed := [*actors(mark)]) and time.monotonic() < until and running.poll() is None:
            time.sleep(0.01)
        assert killed, running.stderr.read()
        os.kill(killed[0], signal.SIGKILL)
        _, said = running.communicate(timeout=120)
    assert running.returncode == 1 and "1 of 6,000 pictures could not be read" in said
    assert joined(out) == joined(tmp_path / "one")
    assert not [path for path in out.iterdir() if path.suffix != ".jsonl"]

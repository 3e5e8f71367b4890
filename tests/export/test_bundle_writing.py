"""Whatever interrupts a writer leaves the bundle as it was, and several may write at once."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qcn.errors import UsageError
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle, golden, transaction
from qcn.export.bundle.manifest import MANIFEST, Batch, Format, Manifest
from qcn.export.pipeline import FROM_RUN

COMMAND = "qcn export {bundle} --format"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != transaction.LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def add(bundle: Bundle, file: str = "model.onnx", content: bytes = b"graph") -> None:
    format: Format = "trt" if file.endswith(".engine") else "pt2" if file.endswith(".pt2") else "onnx"
    with bundle.adding(file, format, "fp32", f"{COMMAND} {format}", batch=Batch(1, 1, 1)) as draft:
        draft.path.write_bytes(content)
        draft.found = "fp32"
        draft.facts["opset"] = 17


def states(bundle: Bundle) -> dict[str, str]:
    return {finding.file: finding.state for finding in bundle.check()}


def test_several_formats_land_in_one_bundle(bundle: Bundle, manifest: Manifest) -> None:
    add(bundle)
    again = Bundle.create(bundle.folder, replace(manifest, tools={"onnx": "1.23"}))
    assert again.manifest.tools == {**manifest.tools, "onnx": "1.23"}
    assert set(manifest.tools) == {"qcn", "torch"}
    add(again, "engines/fp32.engine", b"plan")
    add(again, content=b"a better graph")
    read = Bundle.open(bundle.folder)
    assert [artefact.file for artefact in read.manifest.files] == [GOLDEN, WEIGHTS, "engines/fp32.engine", "model.onnx"]
    assert read.path(read.find("model.onnx")).read_bytes() == b"a better graph"
    assert read.find("model.onnx").facts == {"opset": 17}
    facts = json.loads((bundle.folder / "engines/fp32.json").read_text())
    assert facts["sha256"] == read.find("engines/fp32.engine").sha256
    assert set(states(read).values()) == {"whole"}


def test_a_bundle_of_other_weights_is_left_alone(bundle: Bundle, manifest: Manifest, tmp_path: Path) -> None:
    before = contents(bundle.folder)
    other = replace(manifest, source=replace(manifest.source, sha256="f" * 64))
    with pytest.raises(UsageError, match=rf"{manifest.source.sha256[:12]}….* not from .*ffffffffffff….*another --out"):
        Bundle.create(bundle.folder, other)
    renamed = replace(manifest, classes=tuple("abcdefghij"))
    with pytest.raises(UsageError, match="its classes differ"):
        Bundle.create(bundle.folder, renamed)
    assert contents(bundle.folder) == before

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match=r"neither a bundle nor empty: it has 'thesis.tex'; choose another --out"):
        Bundle.create(tmp_path / "mine", manifest)
    with pytest.raises(UsageError, match="is a file"):
        Bundle.create(tmp_path / "mine" / "thesis.tex", manifest)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("file", ["model.onnx", "model.pt2", "engines/fp32.engine"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_block_changes_nothing(bundle: Bundle, file: str, error: type[BaseException]) -> None:
    add(bundle)
    before = contents(bundle.folder)
    formats: dict[str, Format] = {".onnx": "onnx", ".pt2": "pt2", ".engine": "trt"}
    with pytest.raises(error), bundle.adding(file, formats[Path(file).suffix], "fp32", f"{COMMAND} onnx") as draft:
        draft.path.write_bytes(b"half of")
        raise error
    assert contents(bundle.folder) == before


@pytest.mark.parametrize("file", ["model.onnx", "model.pt2", "engines/fp32.engine", "engines/new.engine"])
def test_a_full_disk_changes_nothing(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """The disk is full at the first, second, … thing that is written or moved, until there is none left to fail."""
    add(bundle)
    add(bundle, "engines/fp32.engine")
    before = contents(bundle.folder)
    failures = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **options)

        return call

    for step in range(1, 40):
        left = step
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(os.fsync))
            for name in ("write_text", "write_bytes", "replace", "mkdir"):
                patch.setattr(Path, name, failing(getattr(Path, name)))
            try:
                add(bundle, file, b"other")
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failures += 1
            else:
                break
        assert contents(bundle.folder) == before
        assert Bundle.open(bundle.folder).manifest == bundle.manifest
    assert failures >= 6
    assert set(states(Bundle.open(bundle.folder)).values()) == {"whole"}


KILLED = """
import os, signal, sys
from pathlib import Path
from qcn.export.bundle import Bundle
bundle, fatal = Bundle.open(Path(sys.argv[1])), int(sys.argv[2])
real, count = Path.replace, 0
def replace(self, target):
    global count
    count += 1
    if count == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)
Path.replace = replace
with bundle.adding("model.onnx", "onnx", "fp32", "qcn export {bundle} --format onnx") as draft:
    draft.path.write_bytes(b"other")
    if fatal == 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("fatal", [0, 1, 2, 3], ids=["in the block", "first move", "second move", "manifest"])
def test_what_a_killed_writer_left_is_undone_by_the_next(bundle: Bundle, fatal: int) -> None:
    add(bundle)
    before = contents(bundle.folder)
    result = subprocess.run([sys.executable, "-c", KILLED, str(bundle.folder), str(fatal)], check=False)
    assert result.returncode == -signal.SIGKILL
    assert list(bundle.folder.glob(".*.part"))
    add(bundle, "model.pt2")
    after = contents(bundle.folder)
    assert after.pop("model.pt2") == b"graph"
    assert after.keys() == before.keys()
    assert all(after[file] == before[file] for file in before if file != MANIFEST)
    assert set(states(Bundle.open(bundle.folder)).values()) == {"whole"}


def test_a_writer_at_work_is_not_disturbed(bundle: Bundle) -> None:
    """Two blocks at once: neither removes the other's work, and both entries are in the manifest."""
    other = Bundle.open(bundle.folder)
    with bundle.adding("model.onnx", "onnx", "fp32", f"{COMMAND} onnx") as slow:
        slow.path.write_bytes(b"slow")
        add(other, "model.pt2")
    assert states(Bundle.open(bundle.folder)) == dict.fromkeys((GOLDEN, WEIGHTS, "model.pt2", "model.onnx"), "whole")


def test_writers_at_once_lose_no_entry(bundle: Bundle) -> None:
    code = """
import sys
from pathlib import Path
from qcn.export.bundle import Bundle
bundle = Bundle.open(Path(sys.argv[1]))
for i in range(10):
    with bundle.adding(f"engines/{sys.argv[2]}-{i}.engine", "trt", "fp32", "qcn export {bundle}") as draft:
        draft.path.write_bytes(b"plan")
"""
    command = [sys.executable, "-c", code, str(bundle.folder)]
    writers = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    read = Bundle.open(bundle.folder)
    assert len(read.manifest.files) == 32
    assert set(states(read).values()) == {"whole"}
    assert not list(bundle.folder.glob(".*.part"))


def test_other_golden_answers_bring_other_tolerances(bundle: Bundle) -> None:
    """They decide what is allowed of every other file: in float32 they depend on the processor."""
    add(bundle)
    before = {artefact.file: artefact.tolerance for artefact in bundle.manifest.files}
    answers = bundle.golden()
    single = replace(answers.float32, activation=answers.float32.activation + np.float32(1e-4))
    with bundle.adding(GOLDEN, "golden", "fp64", FROM_RUN) as draft:
        golden.write(draft.path, replace(answers, float32=single))
    read = Bundle.open(bundle.folder)
    for file in (WEIGHTS, "model.onnx"):
        after, allowed = read.find(file).tolerance, before[file]
        assert after is not None and allowed is not None
        assert after["activation"] > 2 * allowed["activation"] and after["pose"] == allowed["pose"]
    assert read.golden().outputs == ("activation", "pose")


def test_golden_answers_come_first(manifest: Manifest, tmp_path: Path) -> None:
    """Without them nothing has a tolerance."""
    bundle = Bundle.create(tmp_path / "new", manifest)
    with pytest.raises(UsageError, match=GOLDEN), bundle.adding(WEIGHTS, "native", "fp32", FROM_RUN):
        raise AssertionError("nothing is to be written")
    assert not bundle.manifest.files and contents(bundle.folder).keys() == {MANIFEST}


def test_a_bundle_that_may_only_be_read_is_read(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to look at one; writing says what is not allowed. (Tests may run as root: hence no chmod.)"""

    def refuse(path: Path, *arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert set(states(Bundle.open(bundle.folder)).values()) == {"whole"}
    assert bundle.program() and bundle.golden()
    before = contents(bundle.folder)
    with pytest.raises(PermissionError, match="Permission denied"):
        add(bundle)
    assert contents(bundle.folder) == before


def test_files_are_for_everyone_who_may_read_the_bundle(bundle: Bundle) -> None:
    with bundle.adding("model.onnx", "onnx", "fp32", f"{COMMAND} onnx") as draft:
        draft.path.touch(mode=0o600)
    assert (bundle.folder / "model.onnx").stat().st_mode == (bundle.folder / MANIFEST).stat().st_mode


@pytest.mark.parametrize("link", ["engines", ".replaced"])
def test_a_prepared_folder_aside_moves_nothing_out_of_the_bundle(bundle: Bundle, tmp_path: Path, link: str) -> None:
    """As if a writer had been killed, in a bundle from a stranger: what it "replaced" is put back nowhere else."""
    outside, aside = tmp_path / "outside", bundle.folder / ".00000000.part"
    outside.mkdir()
    (outside / "victim").write_text("mine")
    aside.mkdir()
    (aside / MANIFEST).write_text("{}")
    if link == "engines":  # it would be overwritten
        (bundle.folder / "engines").symlink_to(outside)
        (aside / ".replaced" / "engines").mkdir(parents=True)
        (aside / ".replaced" / "engines" / "victim").write_text("theirs")
    else:  # it would be taken away
        (aside / ".replaced").symlink_to(outside)
    with pytest.raises(UsageError, match="would be put back outside of"):
        add(bundle)
    assert (outside / "victim").read_text() == "mine"
    assert not (bundle.folder / "victim").exists()

"""Whatever interrupts a writer leaves the bundle as it was, and several may write at once."""

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import add, answering, contents, states

from qcn.errors import UsageError
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle, golden
from qcn.export.bundle.manifest import MANIFEST_SHA256, SIGNATURE, Manifest
from qcn.export.pipeline import FROM_RUN
from qcn.names import MANIFEST
from qcn.verify.doctor import diagnose

COMMAND, HASH = "qcn export {bundle} --format", "0" * 64


def create(bundle: Bundle, folder: Path, manifest: Manifest) -> Bundle:
    """A bundle of these weights and answers."""
    return Bundle.create(folder, manifest, bundle.program(), bundle.golden, FROM_RUN)


def test_several_formats_land_in_one_bundle(bundle: Bundle, manifest: Manifest) -> None:
    add(bundle)
    again = create(bundle, bundle.folder, replace(manifest, tools={"onnx": "1.23"}))
    assert again.manifest.tools == {**manifest.tools, "onnx": "1.23"}
    assert set(manifest.tools) == {"qcn", "torch"}
    add(again, "engines/fp32.engine", b"plan")
    add(again, content=b"a better graph")
    read = Bundle.open(bundle.folder)
    assert [artefact.file for artefact in read.manifest.files] == [GOLDEN, WEIGHTS, "engines/fp32.engine", "model.onnx"]
    assert read.read(read.find("model.onnx")) == b"a better graph"
    assert read.find("model.onnx").facts == {"opset": 17}
    facts = json.loads((bundle.folder / "engines/fp32.json").read_text())
    assert facts["sha256"] == read.find("engines/fp32.engine").sha256
    assert set(states(read).values()) == {"intact"}


def test_a_bundle_of_other_weights_is_left_alone(bundle: Bundle, manifest: Manifest, tmp_path: Path) -> None:
    before = contents(bundle.folder)
    other = replace(manifest, source=replace(manifest.source, sha256="f" * 64))
    with pytest.raises(UsageError, match=rf"{manifest.source.sha256[:12]}….* not from .*ffffffffffff….*another --out"):
        create(bundle, bundle.folder, other)
    renamed = replace(manifest, classes=tuple("abcdefghij"))
    with pytest.raises(UsageError, match="with a different 'classes'"):
        create(bundle, bundle.folder, renamed)
    assert contents(bundle.folder) == before

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match=r"neither a bundle nor empty: it has 'thesis.tex'; choose another --out"):
        create(bundle, tmp_path / "mine", manifest)
    with pytest.raises(UsageError, match="is a file"):
        create(bundle, tmp_path / "mine" / "thesis.tex", manifest)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("file", ["model.onnx", "model.pt2", "engines/fp32.engine"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_block_changes_nothing(bundle: Bundle, file: str, error: type[BaseException]) -> None:
    add(bundle)
    before = contents(bundle.folder)
    formats: dict[str, str] = {".onnx": "onnx", ".pt2": "pt2", ".engine": "trt"}
    with pytest.raises(error), bundle.adding(file, formats[Path(file).suffix], "fp32", f"{COMMAND} onnx") as draft:
        draft.path.write_bytes(b"half of")
        raise error
    assert contents(bundle.folder) == before


class FullDisk:
    """A disk that is full once, at the call of this number of all functions that are made `failing`."""

    def __init__(self, at: int) -> None:
        self.left = at

    def failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **options)

        return call


@pytest.mark.parametrize("file", ["model.onnx", "model.pt2", "engines/fp32.engine", "engines/new.engine"])
def test_a_full_disk_changes_nothing(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """The disk is full at the first, second, … thing that is written or moved, until there is none left to fail."""
    add(bundle)
    add(bundle, "engines/fp32.engine")
    before, failures = contents(bundle.folder), 0
    for step in range(1, 100):
        disk, folder = FullDisk(step), Path(shutil.copytree(bundle.folder, tmp_path / str(step)))
        with monkeypatch.context() as patch:
            for name in ("fsync", "rename", "link", "mkdir"):
                patch.setattr(os, name, disk.failing(getattr(os, name)))
            patch.setattr(Path, "write_bytes", disk.failing(Path.write_bytes))
            try:
                add(Bundle.open(folder), file, b"other")
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failures += 1
        there = Bundle.open(folder)
        assert {one.state for one in there.check() if one.file not in (".kept", ".manifest.sha256.new")} == {"intact"}
        if there.manifest == bundle.manifest:  # else the failure came after the last step that counts
            assert contents(folder) == before
        if disk.left > 0:
            break
    assert failures >= 6 and there.manifest != bundle.manifest
    assert set(states(there).values()) == {"intact"}


def kill(bundle: Bundle, *more: str) -> dict[str, dict[str, Any]]:
    """The counts of kills.py, whose temporary files are in memory where that is possible."""
    memory = Path("/dev/shm")
    environment = os.environ | ({"TMPDIR": str(memory)} if os.access(memory, os.W_OK) else {})
    command = [sys.executable, str(Path(__file__).with_name("kills.py")), str(bundle.folder), *more]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    counts: dict[str, dict[str, Any]] = json.loads(result.stdout)
    return counts


@pytest.mark.slow
def test_no_kill_leaves_a_reader_a_broken_bundle(bundle: Bundle) -> None:
    """At every step of every kind of writer, and at random while others read and write; the next writer sets it right.

    A first export that was killed has left no bundle, or a whole one, and the next export into its folder works.
    """
    counts = kill(bundle, "--random", "12")
    assert {name: (found["broken"], found["not mended"]) for name, found in counts.items()} == dict.fromkeys(
        ("at every step", "first export", "at random"), ([], [])
    )
    assert counts["at every step"]["kills"] > 80 and counts["first export"]["kills"] > 20
    assert 10 < counts["first export"]["no bundle"] < counts["first export"]["kills"]
    assert counts["at random"]["kills"] == 12 and counts["at random"]["reads meanwhile"] > 5


def test_a_writer_at_work_is_not_disturbed(bundle: Bundle) -> None:
    """Two blocks at once: neither removes the other's work, and both entries are in the manifest."""
    other = Bundle.open(bundle.folder)
    with bundle.adding("model.onnx", "onnx", "fp32", f"{COMMAND} onnx") as slow:
        slow.path.write_bytes(b"slow")
        add(other, "model.pt2")
    assert states(Bundle.open(bundle.folder)) == dict.fromkeys((GOLDEN, WEIGHTS, "model.pt2", "model.onnx"), "intact")


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
    assert set(states(read).values()) == {"intact"}
    assert not list(bundle.folder.glob(".*.part"))


def test_other_golden_answers_bring_other_tolerances(bundle: Bundle) -> None:
    """They decide what is allowed of every other file: in float32 they depend on the processor."""
    add(bundle)
    before = {artefact.file: artefact.tolerance for artefact in bundle.manifest.files}
    answers = bundle.golden()
    single = answering(answers.float32, logit=answers.float32.logit + np.float32(1e-4))
    with bundle.adding(GOLDEN, "golden", "fp64", FROM_RUN) as draft:
        golden.write(draft.path, replace(answers, float32=single))
    read = Bundle.open(bundle.folder)
    for file in (WEIGHTS, "model.onnx"):
        after, allowed = read.find(file).tolerance, before[file]
        assert after is not None and allowed is not None
        assert after["logit"] > 2 * allowed["logit"] and after["pose"] == allowed["pose"]
    assert read.golden().outputs == ("logit", "pose")


def test_nothing_is_added_where_the_golden_answers_are_altered(bundle: Bundle) -> None:
    """They decide the tolerances. It is refused before the artefact is made, which may take long."""
    (bundle.folder / GOLDEN).write_bytes(b"other")
    before = contents(bundle.folder)
    with pytest.raises(UsageError, match=GOLDEN), bundle.adding("model.onnx", "onnx", "fp32", f"{COMMAND} onnx"):
        raise AssertionError("nothing is to be made")
    assert contents(bundle.folder) == before


def test_an_interrupted_first_export_is_no_bundle(bundle: Bundle, manifest: Manifest, tmp_path: Path) -> None:
    """For `doctor` either; and what is left of it does not hinder the next. Files of others do."""
    folder, program = tmp_path / "new", bundle.program()

    def interrupted() -> golden.Golden:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Bundle.create(folder, manifest, program, interrupted, FROM_RUN)
    for read in (Bundle.open, diagnose):
        with pytest.raises(UsageError, match=r"is not a bundle: it has no manifest\.json"):
            read(folder)
    (folder / WEIGHTS).write_bytes(b"somebody's own")
    with pytest.raises(UsageError, match=f"neither a bundle nor empty: it has '{WEIGHTS}'"):
        create(bundle, folder, manifest)
    assert (folder / WEIGHTS).read_bytes() == b"somebody's own"
    (folder / WEIGHTS).unlink()
    assert states(create(bundle, folder, manifest)) == {GOLDEN: "intact", WEIGHTS: "intact"}


def test_what_is_not_whole_is_made_anew_by_the_next_export(bundle: Bundle, manifest: Manifest) -> None:
    program, answers = bundle.program(), bundle.golden()
    (bundle.folder / WEIGHTS).write_bytes(b"other")
    (bundle.folder / GOLDEN).unlink()
    Bundle.create(bundle.folder, manifest, program, lambda: answers, FROM_RUN)
    assert set(states(Bundle.open(bundle.folder)).values()) == {"intact"}


def test_a_new_artefact_takes_the_signature_away(bundle: Bundle) -> None:
    (bundle.folder / SIGNATURE).write_bytes(b"of the manifest before")
    assert set(states(bundle)) == {GOLDEN, WEIGHTS}
    add(bundle)
    assert not (bundle.folder / SIGNATURE).exists()


def test_the_manifest_has_its_hash_beside_it(bundle: Bundle) -> None:
    """As sha256sum writes it, and in one line or two: of the manifest before, and of the one to come."""
    add(bundle)
    subprocess.run(["sha256sum", "--check", "--strict", MANIFEST_SHA256], cwd=bundle.folder, check=True)
    sums = bundle.folder / MANIFEST_SHA256
    line, other = sums.read_bytes(), b"0" * 64 + b"  manifest.json\n"
    for right in (line, line + other, other + line):
        sums.write_bytes(right)
        assert Bundle.open(bundle.folder).manifest == bundle.manifest
    for wrong in (b"", other, other + other, line * 3, line.upper(), line.strip(), line.replace(b"  ", b" "), b"\xff"):
        sums.write_bytes(wrong)
        with pytest.raises(
            UsageError, match=r"manifest\.json cannot be read: (it was altered|manifest\.sha256 is not)"
        ):
            Bundle.open(bundle.folder)
        with pytest.raises(UsageError, match=r"manifest\.json cannot be read: "):
            add(bundle, "model.pt2")
    sums.unlink()
    with pytest.raises(UsageError, match=r"manifest\.sha256 is not what `sha256sum manifest\.json` writes"):
        Bundle.open(bundle.folder)


def test_a_bundle_that_may_only_be_read_is_read(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to look at one; writing says what is not allowed. (Tests may run as root: hence no chmod.)"""

    def refuse(path: Path, *arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def refuse_to_write(path: Path, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse(path)
        return real(path, flags, *arguments, **options)

    real = os.open
    monkeypatch.setattr(os, "open", refuse_to_write)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert set(states(Bundle.open(bundle.folder)).values()) == {"intact"}
    assert bundle.program() and bundle.golden()
    before = contents(bundle.folder)
    with pytest.raises(PermissionError, match="Permission denied"):
        add(bundle)
    assert contents(bundle.folder) == before


def test_files_are_for_everyone_who_may_read_the_bundle(bundle: Bundle) -> None:
    with bundle.adding("model.onnx", "onnx", "fp32", f"{COMMAND} onnx") as draft:
        draft.path.touch(mode=0o600)
    assert (bundle.folder / "model.onnx").stat().st_mode == (bundle.folder / MANIFEST).stat().st_mode


def stranger(folder: Path, outside: Path, part: str) -> None:
    """Put a link to `outside` in the place of a part of a bundle, or of what a writer may leave in one."""
    place = folder / part
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_file():
        place.unlink()
    place.symlink_to(outside if part in ("engines", ".kept", ".00000000.part") else outside / "victim")


@pytest.mark.parametrize(
    "part",
    [
        "engines",
        "engines/fp32.engine",
        "engines/fp32.json",
        ".kept",
        f".kept/{HASH}",
        ".lock",
        ".00000000.part",
        ".00000000.part/.lock",
        ".00000000.part/.replaced/engines",
        ".manifest.sha256.new",
        "manifest.json",
        "manifest.sha256",
        "manifest.sig",
        "model.onnx",
        WEIGHTS,
        GOLDEN,
    ],
)
def test_no_link_leads_out_of_the_bundle(bundle: Bundle, tmp_path: Path, part: str) -> None:
    """In any part of a bundle from a stranger: whatever a writer does then, nothing outside is changed or taken."""
    outside = tmp_path / "outside"
    outside.mkdir()
    content = (bundle.folder / part).read_bytes() if (bundle.folder / part).is_file() else b"mine"
    (outside / "victim").write_bytes(content)
    (outside / "fp32.engine").write_bytes(b"mine too")
    before = contents(outside)
    stranger(bundle.folder, outside, part)
    for file in ("model.onnx", "engines/fp32.engine"):
        with contextlib.suppress(UsageError):
            add(Bundle.open(bundle.folder), file, b"theirs")
    assert contents(outside) == before
    if (bundle.folder / part).is_symlink() and part not in (MANIFEST, MANIFEST_SHA256):  # with these it is no bundle
        named = {one.file: one for one in Bundle.open(bundle.folder).check()}
        assert named[part].state != "intact" and "is a symbolic link" in named[part].reason


@pytest.mark.parametrize("part", ["engines", ".kept", ".lock", "manifest.json", "manifest.sha256", GOLDEN])
def test_a_writer_refuses_such_a_link_by_its_name(bundle: Bundle, tmp_path: Path, part: str) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(bundle.folder, outside)
    stranger(bundle.folder, outside, part)
    with pytest.raises(UsageError, match=rf"{re.escape(str(bundle.folder / part))} .*is a symbolic link, to {outside}"):
        add(Bundle.open(bundle.folder), "engines/fp32.engine")


def test_what_does_not_belong_to_a_bundle_is_named(bundle: Bundle, tmp_path: Path) -> None:
    folder = bundle.folder
    for strange in ("notes.txt", "engines/more/x", ".00000000.part/left", ".kept/left", "bell\x07"):
        (folder / strange).parent.mkdir(parents=True, exist_ok=True)
        (folder / strange).touch()
    (folder / "way out").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    found = {one.file: (one.reason, one.fix) for one in bundle.check() if one.state == "unknown"}
    assert set(found) == {"notes.txt", "engines/more", ".00000000.part", ".kept", r"bell\x07", "way out", "pipe"}
    assert found["notes.txt"] == ("is not in manifest.json", f"if it is not yours: rm -r -- {folder}/notes.txt")
    assert found["way out"][0].startswith(f"is a symbolic link, to {tmp_path}")
    assert found["way out"][1] == f"rm -r -- '{folder}/way out'"
    for left in (".00000000.part", ".kept"):
        assert found[left] == ("was left by a writer that was killed", "the next `qcn export` removes it")
    add(bundle)
    assert not {".00000000.part", ".kept"} & set(states(bundle))


@pytest.mark.parametrize("part", [".lock", "manifest.sig", ".manifest.sha256.new", "model.onnx"])
def test_a_folder_in_the_place_of_a_file_is_refused_by_its_name(bundle: Bundle, part: str) -> None:
    (bundle.folder / part).unlink(missing_ok=True)
    (bundle.folder / part).mkdir()
    with pytest.raises(
        UsageError, match=f"{re.escape(str(bundle.folder / part))} is a folder and not a file: remove it"
    ):
        add(bundle)
    assert Bundle.open(bundle.folder).manifest == bundle.manifest


def test_a_writer_at_work_is_nothing_foreign(bundle: Bundle) -> None:
    with bundle.adding("model.onnx", "onnx", "fp32", f"{COMMAND} onnx") as draft:
        draft.path.write_bytes(b"slow")
        assert set(states(bundle).values()) == {"intact"}


def test_what_is_no_plain_file_does_not_hold_up_a_reader(bundle: Bundle) -> None:
    """A pipe that nobody writes to would be waited for without end."""
    for file in (GOLDEN, MANIFEST):
        (bundle.folder / file).unlink()
        os.mkfifo(bundle.folder / file)
        with pytest.raises(UsageError, match="is not a plain file"):
            Bundle.open(bundle.folder).golden()

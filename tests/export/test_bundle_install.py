"""`qcn install`: a place has a whole bundle at every moment, and goes back to the one before."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from bundles import add, contents
from command import call
from test_bundle_writing import FullDisk, kill

from qcn.errors import UsageError
from qcn.export.bundle import MANIFEST, WEIGHTS, Bundle
from qcn.export.bundle.install import install, rollback
from qcn.export.bundle.manifest import SIGNATURE
from qcn.runtime import load


@pytest.fixture
def old(bundle: Bundle) -> Path:
    add(bundle)
    add(bundle, "engines/fp32.engine", b"plan")
    return bundle.folder


@pytest.fixture
def new(old: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(old, tmp_path / "new"))
    add(Bundle.open(folder), content=b"another graph")
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "on the device" / "net"


def versions(place: Path) -> list[str]:
    """What lies in the folder of versions, but for the lock."""
    return sorted(one.name for one in place.with_name(f".{place.name}.versions").iterdir() if one.name != ".lock")


def test_no_place_is_inside_of_a_bundle(old: Path, new: Path, place: Path) -> None:
    """It would go with the version that it is in."""
    install(old, place)
    before = contents(place)
    for inside in (place / "sub", place / "engines" / "sub", old / "sub"):
        with pytest.raises(UsageError, match="would be inside of the bundle"):
            install(new, inside)
    assert contents(place) == before


def test_a_bundle_is_installed_replaced_and_brought_back(old: Path, new: Path, place: Path) -> None:
    (old / "notes.txt").write_text("not part of the bundle")
    done = call("install", old, place)
    assert done.returncode == 0, done.stderr
    assert "is now version 1," in done.stdout and done.stdout.endswith(f"next: qcn verify-parity '{place}'\n")
    assert contents(place) == {name: data for name, data in contents(old).items() if name != "notes.txt"}
    again = call("install", old, place)
    assert again.returncode == 0 and "already has this bundle" in again.stdout
    assert "is now version 2," in call("install", new, place).stdout
    assert contents(place) == contents(new) and len(versions(place)) == 2
    back = call("install", "--rollback", place)
    assert back.returncode == 0 and "is now version 1," in back.stdout, back.stderr
    assert contents(place)[MANIFEST] == contents(old)[MANIFEST]
    nothing = call("install", "--rollback", place)
    assert nothing.returncode == 2 and f"{place} has no earlier version to go back to" in nothing.stderr
    assert f"qcn install BUNDLE '{place}'" in nothing.stderr


def test_the_version_before_is_the_one_that_was_in_use(bundle: Bundle, tmp_path: Path, place: Path) -> None:
    """After a rollback too: what was found bad does not come back by another rollback."""
    bundles = [Path(shutil.copytree(bundle.folder, tmp_path / str(number))) for number in range(4)]
    for number, folder in enumerate(bundles):
        add(Bundle.open(folder), content=b"%d" % number)
    for folder in bundles[:3]:
        install(folder, place)
    assert [name[0] for name in versions(place)] == ["2", "3"]
    rollback(place)
    install(bundles[3], place)
    assert contents(place) == contents(bundles[3])
    rollback(place)
    assert contents(place) == contents(bundles[1])


def test_wrong_usage_says_what_is_right(old: Path, place: Path) -> None:
    for wrong in ([], [old], [old, place, "--rollback", place]):
        said = call("install", *wrong)
        assert said.returncode == 2 and "qcn install --rollback DIR" in said.stderr
    assert not place.parent.exists()


def test_a_place_that_is_taken_is_left_alone(old: Path, new: Path, tmp_path: Path) -> None:
    """A file, a folder that is or is not a bundle, a link that leads elsewhere, this folder, one in a file."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(old)
    before = contents(tmp_path)
    for name, words in {
        "file": "is a file that `qcn install` did not make",
        "folder": "is a folder that `qcn install` did not make",
        "new": "is a folder that `qcn install` did not make",
        "link": f"is a link to {old} that `qcn install` did not make",
        ".": "is a folder that `qcn install` did not make",
    }.items():
        for do in (lambda place: install(old, place), rollback):
            with pytest.raises(UsageError, match=words):
                do(tmp_path / name)
    with pytest.raises(NotADirectoryError):
        install(old, tmp_path / "file" / "net")
    assert contents(tmp_path) == before
    assert f"mv {tmp_path / 'folder'} {tmp_path / 'folder'}.old" in call("install", old, tmp_path / "folder").stderr


@pytest.mark.parametrize("damage", ["no bundle", "altered", "missing", "manifest", "file"])
def test_what_is_not_a_whole_bundle_is_not_installed(old: Path, new: Path, place: Path, damage: str) -> None:
    install(old, place)
    if damage == "no bundle":
        (new / MANIFEST).unlink()
    elif damage == "altered":
        with (new / WEIGHTS).open("ab") as weights:
            weights.write(b"x")
    elif damage == "missing":
        (new / "engines" / "fp32.engine").unlink()
    elif damage == "manifest":
        (new / MANIFEST).write_text((new / MANIFEST).read_text() + " ")
    source = new / WEIGHTS if damage == "file" else new
    refused = call("install", source, place)
    assert refused.returncode == 2 and str(new) in refused.stderr, refused.stderr
    assert contents(place) == contents(old) and len(versions(place)) == 1


def test_a_damaged_version_is_not_brought_back_and_is_replaced(old: Path, new: Path, place: Path) -> None:
    install(old, place)
    install(new, place)
    before = next(place.with_name(".net.versions").glob("1-*"))
    (before / WEIGHTS).write_bytes(b"damage")
    with pytest.raises(UsageError, match=f"{WEIGHTS} was altered"):
        rollback(place)
    assert contents(place) == contents(new)
    (place / WEIGHTS).write_bytes(b"damage")
    assert install(new, place) is not None  # it has this bundle already, but not whole
    assert contents(place) == contents(new)


def test_a_signature_is_asked_for_and_carried_along(old: Path, new: Path, place: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from qcn.export.bundle import signing

    key = tmp_path / "key.pem"
    public = signing.new_key(key)
    with pytest.raises(UsageError, match="is not signed"):
        install(old, place, public)
    assert not place.parent.exists()
    install(old, place)
    Bundle.open(old).sign(key)
    assert install(old, place, public) is not None  # the same manifest, but it was not signed
    assert (place / SIGNATURE).read_bytes() == (old / SIGNATURE).read_bytes()
    assert install(old, place, public) is None
    with pytest.raises(UsageError, match="is not signed"):  # the one before
        rollback(place, public)
    Bundle.open(new).sign(key)
    other = signing.new_key(tmp_path / "other.pem")
    with pytest.raises(UsageError, match="somebody else signed it"):
        install(new, place, other)
    assert contents(place) == contents(old)


def test_engines_that_were_added_on_the_device_survive_the_same_bundle(old: Path, place: Path) -> None:
    install(old, place)
    add(Bundle.open(place), "engines/orin.engine", b"built here")
    assert install(old, place) is None
    assert (place / "engines" / "orin.engine").read_bytes() == b"built here"


def test_who_has_the_old_bundle_open_goes_on(bundle: Bundle, new: Path, place: Path) -> None:
    """Loaded or only opened: all that it reads later is of one bundle."""
    install(bundle.folder, place)
    opened, model = Bundle.open(place), load(place)
    answer = model.predict(opened.golden().image[0].transpose(1, 2, 0))
    install(new, place)
    assert {one.file: one.state for one in opened.check()}["model.onnx"] == "intact"
    assert opened.read(opened.find("model.onnx")) == b"graph"
    assert (model.predict(opened.golden().image[0].transpose(1, 2, 0)).activation == answer.activation).all()
    assert Bundle.open(place).read(Bundle.open(place).find("model.onnx")) == b"another graph"


@pytest.mark.slow
def test_no_kill_leaves_the_place_without_a_whole_bundle(bundle: Bundle) -> None:
    """At every step of installing and of going back, and at random while others install and read."""
    counts = kill(bundle, "--install", "--random", "12")
    assert {name: (found["broken"], found["not mended"]) for name, found in counts.items()} == dict.fromkeys(
        ("at every step", "at random"), ([], [])
    )
    assert counts["at every step"]["kills"]["install"] > 30 and counts["at every step"]["kills"]["rollback"] > 5
    assert counts["at every step"]["ends"] == 4  # either was seen with the old bundle, and with the new one
    assert counts["at random"]["reads meanwhile"] > 0


def test_those_who_install_at_once_do_so_one_after_the_other(old: Path, new: Path, place: Path) -> None:
    code = "import sys; from pathlib import Path; from qcn.export.bundle.install import install\n"
    code += "for i in range(8): install(Path(sys.argv[1 + i % 2]), Path(sys.argv[3]))"
    at_once = [subprocess.Popen([sys.executable, "-c", code, old, new, place]) for _ in range(3)]
    assert [one.wait(60) for one in at_once] == [0, 0, 0]
    assert contents(place) in (contents(old), contents(new))
    numbers = sorted(int(name.partition("-")[0]) for name in versions(place))
    assert len(numbers) == 2 and numbers[0] + 1 == numbers[1]


def test_a_full_disk_changes_nothing(
    old: Path, new: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is full at the first, second, … thing that is made, moved or synced, until there is none left to fail."""
    install(old, place)
    failures = 0
    for step in range(1, 100):
        disk = FullDisk(step)
        there = Path(shutil.copytree(place.parent, tmp_path / str(step), symlinks=True)) / place.name
        with monkeypatch.context() as patch:
            for name in ("fsync", "rename", "symlink", "mkdir"):
                patch.setattr(os, name, disk.failing(getattr(os, name)))
            try:
                install(new, there)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failures += 1
        assert contents(there) in (contents(old), contents(new))
        assert not [name for name in versions(there) if name.endswith(".part")]
        assert len(versions(there)) == (1 if contents(there) == contents(old) else 2)
        if disk.left > 0:
            break
    assert failures >= 10 and contents(there) == contents(new)


def test_a_bundle_comes_from_another_disk(old: Path, place: Path) -> None:
    """As from a USB stick: nothing is moved from it, and it may be for reading only."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == old.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    with tempfile.TemporaryDirectory(dir=memory) as other:
        install(Path(shutil.copytree(old, Path(other) / "bundle")), place)
        assert contents(place) == contents(old)
        install(old, Path(other) / "net")
        assert contents(Path(other) / "net") == contents(old)


def test_a_version_is_named_by_the_manifest_it_came_with(old: Path, place: Path) -> None:
    folder = install(old, place)
    assert folder is not None and place.resolve() == folder
    assert folder.name == f"1-{hashlib.sha256((old / MANIFEST).read_bytes()).hexdigest()}"
    assert place.readlink() == Path(".net.versions") / folder.name  # it leads on when the folder above is moved
    moved = place.parent.rename(place.parent.with_name("elsewhere"))
    assert contents(moved / "net") == contents(old)

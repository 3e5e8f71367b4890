"""`qcn predict` of very many pictures: rows as they are answered, memory that does not grow, kills, and going on."""

import csv
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import put_manifest
from command import ask
from PIL import Image

from qcn.errors import UsageError
from qcn.export.bundle import MANIFEST, Bundle
from qcn.predict import sources
from qcn.predict.reading import read_ahead
from qcn.predict.rows import RowFile
from qcn.predict.sources import Item, count, files

RNG = np.random.default_rng(0)
OPTIONS = {"--jsonl": "a.jsonl", "--csv": "a.csv"}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """60 pictures, two of them broken, some with names that a table must quote."""
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    pixels = RNG.integers(0, 256, (12, 28, 28), np.uint8)
    for number in range(60):
        name = {7: 'a "quoted", name', 8: "two\r\nlines", 20: "deep/é"}.get(number, f"{number:03}")
        Image.fromarray(pixels[number % 12]).save(folder / f"{name}.png")
    (folder / "030.png").write_bytes(b"no picture")
    (folder / "deep" / "zz.jpg").write_bytes(b"")
    return folder


def rows_of(path: Path) -> list[Any]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))[1:]
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def process(*arguments: object, **options: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "qcn", "predict", *map(str, arguments)], **options)


def test_three_forms_say_the_same(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    where = [word for option, name in {**OPTIONS, "--json": "a.json"}.items() for word in (option, tmp_path / name)]
    code, said = ask("predict", photos, "--model", bundle.folder, *where)
    assert code == 1 and "2 of 61 pictures could not be read" in said
    lines, table = rows_of(tmp_path / "a.jsonl"), rows_of(tmp_path / "a.csv")
    assert lines == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [row["file"] for row in lines] == [row[0] for row in table] == list(files(str(photos)))
    assert [row.get("label", "") for row in lines] == [row[1] for row in table]
    assert {len(row) for row in table} == {len(bundle.manifest.classes) + 8}
    assert {row["model"] for row in lines} == {row[-1] for row in table}
    assert [row["file"] for row in lines if "error" in row] == [str(photos / "030.png"), str(photos / "deep/zz.jpg")]


def test_the_terminal_gets_the_first_twenty_and_the_sheet_the_first_sixty(
    bundle: Bundle, photos: Path, tmp_path: Path
) -> None:
    for number in range(5):
        (photos / f"more{number}.png").write_bytes((photos / "001.png").read_bytes())
    _, said = ask("predict", photos, "--model", bundle.folder, "--save", tmp_path / "drawn")
    assert "… and 44 more; --jsonl FILE or --csv FILE has all of them" in said
    assert str(photos / "019.png") in said and str(photos / "050.png") not in said
    assert "64 pictures in" in said and f"by {bundle.manifest.name} on libqcn" in said
    assert f"{tmp_path / 'drawn/sheet.png'} (the first 60 of 64)" in said
    assert len(list((tmp_path / "drawn").glob("*.png"))) == 65


@pytest.mark.parametrize("option", ["--jsonl", "--csv", "--json"])
def test_standard_output_has_the_rows_and_nothing_else(bundle: Bundle, photos: Path, option: str) -> None:
    with process(photos, "--model", bundle.folder, option, "-", stdout=-1, stderr=-1) as running:
        out, err = (part.decode() for part in running.communicate())
    assert running.returncode == 1 and "59 pictures in" in err and "2 of 61" in err
    if option == "--csv":
        assert len(list(csv.reader(out.splitlines(keepends=True)))) == 62
    else:
        assert len(json.loads(out) if option == "--json" else [json.loads(line) for line in out.splitlines()]) == 61


def test_a_reader_that_leaves_is_no_traceback(bundle: Bundle, photos: Path) -> None:
    words = f"{sys.executable} -m qcn predict '{photos}' --model '{bundle.folder}' --jsonl - | head -n 1"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["label"] and "Traceback" not in done.stderr


def slow(delay: float) -> str:
    """`qcn predict` in which every picture takes a while to be read."""
    return (
        "import signal, sys, time; from qcn.predict import sources; read = sources.read_picture\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a background job
        f"def slowly(path):\n    time.sleep({delay})\n    return read(path)\n"
        "sources.read_picture = slowly\nfrom qcn.cli import main\nmain()"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_to_the_same_bytes(bundle: Bundle, photos: Path, tmp_path: Path, number: int) -> None:
    common = ["predict", str(photos), "--model", str(bundle.folder), "--batch", "4"]

    def ask(folder: str, *more: str) -> list[str]:
        where = [word for option, name in OPTIONS.items() for word in (option, str(tmp_path / folder / name))]
        return [*common, *where, *more]

    whole = subprocess.run([sys.executable, "-m", "qcn", *ask("whole")], capture_output=True, check=False)
    assert whole.returncode == 1
    stopped = [sys.executable, "-c", slow(0.3), *ask("parts")]
    with subprocess.Popen(stopped, stdout=-1, stderr=-1) as running:
        parts = [tmp_path / "parts" / name for name in OPTIONS.values()]
        written = tmp_path / "parts" / "a.jsonl"
        while not all(part.exists() and part.read_bytes().count(b"\n") > 10 for part in parts):
            assert running.poll() is None, running.communicate()
            time.sleep(0.02)
        running.send_signal(number)
        _, said = running.communicate(timeout=60)
    assert running.returncode == (-9 if number == signal.SIGKILL else 130)
    found = {name: rows_of(tmp_path / "parts" / name) for name in OPTIONS.values()}
    assert all(9 < len(rows) < 60 for rows in found.values())
    if number != signal.SIGKILL:  # whole rows, the same in both
        assert len(found["a.csv"]) == len(found["a.jsonl"]) and written.read_bytes().endswith(b"\n")
        assert f"{len(found['a.csv'])} pictures answered; go on with:" in said.decode() and b"stopped" in said
    done = subprocess.run([sys.executable, "-m", "qcn", *ask("parts", "--resume")], capture_output=True, check=False)
    assert done.returncode == 1 and b"that were answered before" in done.stdout, done.stderr
    assert b"2 of 61 pictures could not be read" in done.stderr
    for name in OPTIONS.values():
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("written", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_a_signal_between_two_files_leaves_the_same_rows_in_both(
    bundle: Bundle,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    written: bool,
) -> None:
    write = RowFile.write

    def interrupted(self: RowFile, row: Any) -> None:
        stop = self.path.suffix == ending and self._rows == 5
        if written or not stop:
            write(self, row)
        if stop:
            raise KeyboardInterrupt

    where = [word for option, name in OPTIONS.items() for word in (option, tmp_path / name)]
    monkeypatch.setattr(RowFile, "write", interrupted)
    code, printed = ask("predict", photos, "--model", bundle.folder, *where)
    assert code == 130 and "5 pictures answered" in printed, printed
    assert [len(rows_of(tmp_path / name)) for name in OPTIONS.values()] == [5, 5]


def test_whatever_byte_a_file_ends_at_it_is_gone_on_with(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    for option, name in OPTIONS.items():
        path = tmp_path / name
        words = ("predict", photos, "--model", bundle.folder, option, path)
        ask(*words)
        whole = path.read_bytes()
        middle = whole.index(b"lines.png")  # a name of two lines, which CSV quotes
        cuts = {0, 1, 40, len(whole) - 1, len(whole), *range(middle - 8, middle + 3)}
        cuts |= set(range(middle + 200, middle + 2200, 150))
        for cut in sorted(cuts):
            path.write_bytes(whole[:cut])
            code, said = ask(*words, "--resume")
            assert code == 1 and path.read_bytes() == whole, (option, cut, said)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_file_of_something_else_is_refused_and_kept(
    option: str, bundle: Bundle, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / OPTIONS[option]
    words = ("predict", photos, "--model", bundle.folder, option, path)
    ask(*words)
    whole = path.read_bytes()
    (photos / "0000.png").write_bytes((photos / "001.png").read_bytes())
    code, said = ask(*words, "--resume")
    assert code == 2 and "row 2 of" in said and "but picture 2 is" in said and "written anew" in said
    (photos / "0000.png").unlink()
    code, said = ask("predict", photos / "000.png", *words[2:], "--resume")
    assert code == 2 and "but there are only 1 pictures" in said
    monkeypatch.setattr("qcn.runtime.model.sha256", lambda data: __import__("hashlib").sha256(data + b"other"))
    code, said = ask(*words, "--resume")
    assert code == 2 and f"row 1 of {path} was answered by {bundle.manifest.name}@" in said
    monkeypatch.undo()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"no row\n", *lines[3:]]))
    code, said = ask(*words, "--resume")
    assert code == 2 and f"line 4 of {path} was not written by `qcn predict`" in said
    assert path.read_bytes() == b"".join([*lines[:3], b"no row\n", *lines[3:]])
    if option == "--csv":
        path.write_bytes(b"file,label,probability,known,other,model\r\n")
        code, said = ask(*words, "--resume")
        assert code == 2 and "has other columns than this model's: file, label, probability, known, other" in said


def test_no_name_becomes_a_formula(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a spreadsheet, whoever names a picture could run a formula. --resume reads the names back."""
    monkeypatch.chdir(tmp_path)
    names = ["=HYPERLINK(0).png", "+1.png", "-1.png", "@a.png", "'=a.png", "plain.png"]
    for name in names:
        Image.fromarray(RNG.integers(0, 256, (28, 28), np.uint8)).save(name)
    record = json.loads((bundle.folder / MANIFEST).read_text(encoding="utf-8"))
    put_manifest(bundle.folder, json.dumps({**record, "name": "=model"}))
    words = ("--model", bundle.folder, "--csv", "a.csv", "--", *names)
    assert ask("predict", *words)[0] == 0
    rows = rows_of(Path("a.csv"))
    assert [row[0] for row in rows] == [*(f"'{name}" for name in names[:-1]), "plain.png"]
    assert all(row[-1].startswith("'=model@") and all(float(cell) < 99 for cell in row[7:-1]) for row in rows)
    whole = Path("a.csv").read_bytes()
    Path("a.csv").write_bytes(whole[: whole.index(b"@a.png")])
    code, said = ask("predict", "--resume", *words)
    assert code == 0 and Path("a.csv").read_bytes() == whole, said


def test_pipes_and_devices_are_not_waited_for(bundle: Bundle, tmp_path: Path) -> None:
    """Each would hang: nobody ever writes to the pipe."""
    (tmp_path / "photos").mkdir()
    Image.fromarray(RNG.integers(0, 256, (28, 28), np.uint8)).save(tmp_path / "photos/a.png")
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "photos/pipe.png")
    (tmp_path / "photos/link.png").symlink_to("/dev/tty")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.png"))
        names = [tmp_path / "pipe.png", tmp_path / "socket.png", "/dev/zero", tmp_path / "photos"]
        running = process("--model", bundle.folder, *names, "--jsonl", tmp_path / "a.jsonl", stderr=subprocess.PIPE)
        said = running.communicate(timeout=120)[1].decode()
    assert running.returncode == 1 and "3 of 4 pictures could not be read" in " ".join(said.split()), said
    for row in rows_of(tmp_path / "a.jsonl")[:3]:
        assert row["error"] == f"{row['file']} is not a plain file: a pipe, socket or device is not read"


def test_two_files_are_gone_on_with_together(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    where = [word for option, name in OPTIONS.items() for word in (option, tmp_path / name)]
    words = ("predict", photos, "--model", bundle.folder, *where)
    ask(*words)
    whole = {name: (tmp_path / name).read_bytes() for name in OPTIONS.values()}
    lines = whole["a.jsonl"].splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines[:-1]))  # killed between the two
    code, _ = ask(*words, "--resume")
    assert code == 1 and all((tmp_path / name).read_bytes() == whole[name] for name in whole)
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines[:-2]))
    code, said = ask(*words, "--resume")
    assert code == 2 and "a.csv has more rows than the other file: resume one at a time" in said
    assert (tmp_path / "a.csv").read_bytes() == whole["a.csv"]


def test_nobody_else_writes_to_the_file(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    options = ("--model", bundle.folder, "--jsonl", tmp_path / "a.jsonl", "--batch", 2)
    words = ["predict", *map(str, (photos, *options))]
    with subprocess.Popen([sys.executable, "-c", slow(0.2), *words], stdout=-1, stderr=-1) as running:
        while not ((tmp_path / "a.jsonl").exists() and (tmp_path / "a.jsonl").stat().st_size):
            assert running.poll() is None
            time.sleep(0.02)
        code, said = ask(*words, "--resume")
        running.kill()
    assert code == 2 and "another process is writing to" in said


def test_a_full_disk_leaves_whole_rows(bundle: Bundle, photos: Path, tmp_path: Path) -> None:
    limited = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n" + slow(0)
    for option, name in OPTIONS.items():
        words = ["predict", str(photos), "--model", str(bundle.folder), option, str(tmp_path / name)]
        done = subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 3 and "no room left on the disk" in done.stderr
        written = (tmp_path / name).read_bytes()
        assert 5000 < len(written) < 10_000 and written.endswith(b"\n") and rows_of(tmp_path / name)
        code, _ = ask(*words, "--resume")
        assert code == 1 and len(rows_of(tmp_path / name)) == 61


def test_pictures_are_read_ahead_in_order_and_not_without_end() -> None:
    begun: list[int] = []

    def item(number: int) -> Item:
        def read() -> Any:
            begun.append(number)
            time.sleep(0.001 * (number % 3))
            if number == 5:
                raise UsageError("broken")
            return np.full((2, 2), number, np.uint8)

        return Item(str(number), read)

    found = read_ahead(map(item, range(100)), ahead=8)
    assert next(found).file == "0"
    time.sleep(0.1)
    assert sorted(begun) == list(range(9))
    rest = list(found)
    assert [one.file for one in rest] == [str(number) for number in range(1, 100)]
    assert [one.file for one in rest if one.pixels is None] == ["5"] and rest[4].error == "broken"


def test_large_pictures_are_read_ahead_by_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcn.predict.reading.ROOM", 1000)
    read: list[int] = []

    def items() -> Iterator[Item]:
        for number in range(40):
            yield Item(str(number), lambda number=number: (read.append(number), np.zeros((20, 20), np.uint8))[1])
            time.sleep(0.01)

    assert next(found := read_ahead(items(), ahead=32)).file == "0"
    assert len(read) < 8
    assert len(list(found)) == 39


def test_a_folder_is_listed_in_order_and_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}.png" for number in range(0, 40, 3)] + ["b/1.jpg", "b/c/2.jpg", "b.jpg", "B.JPG", "no.txt"]
    for name in [*names, ".hidden.png", ".git/a.png"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "dead.png").symlink_to("nowhere")
    expected = sorted(tmp_path / name for name in names if name != "no.txt")
    for at_once in (1, 2, 7, 1000):
        monkeypatch.setattr(sources, "AT_ONCE", at_once)
        assert [Path(name) for name in files(str(tmp_path))] == expected
        assert sorted(map(str, expected[:3])) == list(files(f"{tmp_path}/[0-2]*.png"))[:3]
    assert count([str(tmp_path), str(tmp_path / "b")]) == len(expected) + 2
    monkeypatch.chdir(tmp_path)
    assert next(files(".")) == "0.png" and next(files("b/")) == "b/1.jpg"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_pictures(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python holds at most, of 200 and of 1,500 pictures; with all that can be asked for."""
    monkeypatch.setattr(sources, "AT_ONCE", 100)
    monkeypatch.setattr("qcn.predict.draw.save", lambda image, path: None)
    peaks = {}
    Image.fromarray(RNG.integers(0, 256, (28, 28), np.uint8)).save(tmp_path / "a.png")
    for number in (200, 200, 1500):  # the first time modules are imported
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        for index in range(number):
            (folder / f"{index:06}.png").unlink(missing_ok=True)
            os.link(tmp_path / "a.png", folder / f"{index:06}.png")
        where = [word for option, name in OPTIONS.items() for word in (option, tmp_path / name)]
        gc.collect()
        tracemalloc.start()
        code, said = ask("predict", folder, "--model", bundle.folder, *where, "--json", tmp_path / "a.json")
        peaks[number] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert code == 0, said
    assert peaks[1500] < peaks[200] + 100_000, peaks

"""What libqcn records in the field, and what `qcn report field` and `qcn datasets add` make of it."""

import csv
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command import call
from PIL import Image

from qcn.data.fit import read_picture
from qcn.errors import UsageError
from qcn.export.bundle import Bundle
from qcn.field.drift import compare
from qcn.field.recorded import BINS, Counts, read_devices

QCN_RUN = Path(__file__).parents[1] / "build" / "programs" / "qcn-run"


def record(bundle: Bundle, pictures: list[Path], folder: Path) -> None:
    subprocess.run(
        [QCN_RUN, bundle.folder, *pictures, "--field", folder, "--field-pictures", "5"], check=True, capture_output=True
    )


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Sixty pictures of noise, which a network of bars is uncertain of."""
    generator = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(60)]
    for path in paths:
        Image.fromarray(generator.integers(0, 255, (28, 28), np.uint8)).save(path)
    return paths


def test_from_a_device_back_into_training(
    bundle: Bundle, run: Path, data_dir: Path, pictures: list[Path], tmp_path: Path
) -> None:
    """Counts on a page, pictures in a table; what was typed into it stays, and its pictures join their class."""
    device, out = tmp_path / "gate", tmp_path / "report"
    for _ in range(3):
        record(bundle, pictures, device)
    options = ("--baseline", run, "--data-dir", data_dir, "--out", out)
    done = call("report", "field", device, *options)
    assert done.returncode == 0 and "too few answers or periods to say of gate" in done.stdout, done.stderr
    (counted,) = json.loads((out / "field.json").read_text())["devices"]
    assert counted["answers"] == 180 and counted["pictures"] == 3 and counted["latency_ms_p50"] > 0
    assert sum(counted["confidence"]) == pytest.approx(1) == sum(counted["classes"].values())
    assert (out / "field.html").read_text().count('<img src="data:image/png') == 3
    with (out / "label.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [""] * 3 and {row["answer"] for row in rows} <= {*map(str, range(10))}

    rows[0]["label"], rows[1]["label"] = "3", "a new class"
    with (out / "label.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(rows)
    call("report", "field", device, *options)
    with (out / "label.csv").open(newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == ["3", "a new class", ""]

    home = tmp_path / "mine"
    for name in ("train/3", "test/3"):
        (home / name).mkdir(parents=True)
    done = call("datasets", "add", home, out / "label.csv")
    assert "3: 1 picture\na new class: 1 picture (a new class)\n1 line without a label: left out\n" in done.stdout
    added = [*(home / "train").glob("*/*")]
    assert sorted(path.parent.name for path in added) == ["3", "a new class"]
    assert all(read_picture(path).shape == (28, 28, 1) for path in added)
    assert "2 pictures were there already" in call("datasets", "add", home, out / "label.csv").stdout


def test_a_table_that_is_no_text_is_refused_in_a_line(bundle: Bundle, pictures: list[Path], tmp_path: Path) -> None:
    """As a spreadsheet may save it."""
    record(bundle, pictures[:1], tmp_path / "gate")
    table = tmp_path / "report" / "label.csv"
    table.parent.mkdir()
    table.write_bytes("path,label\npictures/gate/1.png,Fuß\n".encode("latin-1"))
    for words in (("report", "field", tmp_path / "gate", "--out", table.parent), ("datasets", "add", tmp_path, table)):
        done = call(*words)
        assert done.returncode == 2 and "label.csv cannot be read as CSV" in done.stderr, done.stderr


def test_drift_since_an_earlier_recording_fails(bundle: Bundle, pictures: list[Path], tmp_path: Path) -> None:
    before, after, same = tmp_path / "before", tmp_path / "after", tmp_path / "same"
    white = tmp_path / "white.png"
    Image.new("L", (28, 28), 255).save(white)
    for number in range(4):
        record(bundle, pictures[number::2], before)
        record(bundle, pictures[number::2], same)
        record(bundle, [white] * 30, after)
    out = ("--out", tmp_path / "report")
    done = call("report", "field", same, "--baseline", before, *out)
    assert (done.returncode, done.stdout.splitlines()[-2]) == (0, "No drift"), done.stderr
    done = call("report", "field", same, after, "--baseline", before, *out)
    assert done.returncode == 1 and "1 device drifted: after (" in done.stderr
    assert "drifted: after" in (tmp_path / "report" / "field.html").read_text()


def counts(generator: np.random.Generator, answers: int, shares: np.ndarray) -> Counts:
    return Counts(answers, 0, generator.multinomial(answers, shares), np.zeros(2, np.int64))


@pytest.mark.parametrize("alike", [20, 1000, 1e9])
def test_false_alarms_are_rare_and_drift_is_found(alike: float) -> None:
    """Periods differ among themselves, the more the smaller `alike`, as they do where pictures follow each other."""
    generator = np.random.default_rng(0)
    usual = generator.dirichlet(np.full(BINS, 0.3))
    other = 0.6 * usual + 0.4 * np.eye(BINS)[3]

    def drifted(shares: np.ndarray) -> bool:
        periods = [counts(generator, 200, generator.dirichlet(shares * alike + 1e-9)) for _ in range(8)]
        return compare(counts(generator, 2000, usual), periods, 1, mix=False)[0].drifted

    assert sum(drifted(usual) for _ in range(100)) <= 3
    assert sum(drifted(other) for _ in range(20)) >= 18


def test_a_small_difference_is_no_drift_however_certain() -> None:
    generator = np.random.default_rng(0)
    usual = np.full(BINS, 1 / BINS)
    periods = [counts(generator, 100_000, 0.95 * usual + 0.05 * np.eye(BINS)[0]) for _ in range(5)]
    (drift,) = compare(counts(generator, 100_000, usual), periods, 1, mix=False)
    assert drift.p is not None and drift.p < 1e-4 and 0.04 < drift.distance < 0.05 and not drift.drifted


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 2}, "schema"),
        ({"answers": -1}, "negative"),
        ({"classes": {"10": 1}}, "no class 10"),
        ({"latency": {"100": 1}}, "below 100"),
        ({"confidence": [1]}, "bins of confidence"),
    ],
)
def test_counts_that_libqcn_does_not_write_are_refused(
    bundle: Bundle, pictures: list[Path], tmp_path: Path, change: dict[str, object], why: str
) -> None:
    record(bundle, pictures[:1], tmp_path / "gate")
    (path,) = (tmp_path / "gate").glob("counts-*.json")
    written = json.loads(path.read_text())
    (written if "schema" in change else written["periods"][0]).update(change)
    path.write_text(json.dumps(written))
    with pytest.raises(UsageError, match=why):
        read_devices([tmp_path / "gate"], None)


def test_counts_of_another_network_are_left_out(bundle: Bundle, pictures: list[Path], tmp_path: Path) -> None:
    record(bundle, pictures[:2], tmp_path / "gate")
    (path,) = (tmp_path / "gate").glob("counts-*.json")
    written = json.loads(path.read_text())
    path.with_name("counts-0.json").write_text(json.dumps({**written, "weights": "0" * 64}))
    (device,) = read_devices([tmp_path / "gate"], written["weights"])
    assert (len(device.files), device.others) == (1, 1)
    with pytest.raises(UsageError, match="another network only"):
        read_devices([tmp_path / "gate"], "1" * 64)


@pytest.mark.parametrize("label", ["../elsewhere", "..", "a\nb"])
def test_a_label_that_leaves_the_folder_is_refused(tmp_path: Path, label: str) -> None:
    (tmp_path / "mine" / "cat").mkdir(parents=True)
    Image.new("L", (4, 4)).save(tmp_path / "one.png")
    with (tmp_path / "label.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), ("one.png", label)])
    done = call("datasets", "add", tmp_path / "mine", tmp_path / "label.csv")
    assert done.returncode == 2 and "cannot be the name of a class" in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*.png")) == ["one.png"]

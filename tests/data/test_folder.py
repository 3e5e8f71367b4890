"""Folders and tables of pictures as data sets."""

import csv
import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pictures import CLASSES, write_pictures
from PIL import Image

from qcn.data.cache import IMAGES, INDEX, crossing, read_index
from qcn.data.directions import has_elevations, true_directions
from qcn.data.duplicates import near_duplicates
from qcn.data.fit import fit, read_picture
from qcn.data.registry import find, load
from qcn.data.spec import Stored
from qcn.direction import ROUND
from qcn.errors import MissingError, UsageError
from qcn.predict.sources import files
from qcn.storage.files import folder_aside
from qcn.train.loop import resident
from qcn.train.settings import Settings

SMALL = Stored(16, "crop", 3)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "my pets", 10)


def test_pictures_with_names_that_are_no_text(pictures: Path, tmp_path: Path) -> None:
    """As old archives have them; and a damaged one of them."""
    home = pictures / CLASSES[0]
    old = next(home.glob("*.png"))
    old.rename(home / os.fsdecode(b"caf\xe9.png"))
    (home / os.fsdecode(b"b\xe4d.png")).write_bytes(b"no picture")
    splits = load(str(pictures), tmp_path / "data", SMALL)
    index = read_index(tmp_path / "data" / find(str(pictures), SMALL).folder)
    assert f"{home.name}/caf\\udce9.png" in index.files
    assert index.skipped == {f"{home.name}/b\\udce4d.png": "is not a picture that Pillow can read"}
    assert len(splits.train) + len(splits.validation) + len(splits.tests["test"]) == len(index.files) == 30


def test_a_folder_whose_name_is_no_text_is_refused(pictures: Path) -> None:
    odd = pictures.rename(os.fsdecode(os.fsencode(pictures) + b"\xff"))
    with pytest.raises(UsageError, match="its name is not UTF-8: choose another"):
        find(str(odd))


def test_a_folder_per_class(pictures: Path, tmp_path: Path) -> None:
    dataset = find(str(pictures), SMALL)
    assert (dataset.name, dataset.classes, dataset.channels, dataset.size) == ("my pets", CLASSES, 3, 16)
    splits = load(str(pictures), tmp_path / "data", SMALL)
    parts = (splits.train, splits.validation, splits.tests["test"])
    assert [len(part) for part in parts] == [24, 3, 3]
    assert all((np.bincount(part.labels) == len(part) // 3).all() for part in parts)
    index = read_index(tmp_path / "data" / dataset.folder)
    stored = np.concatenate([part.images for part in parts])
    assert index.files == tuple(file for part in parts for file in part.files or ())
    for file, image in zip(index.files, stored, strict=True):
        assert np.array_equal(image, fit(read_picture(pictures / file), (3, 16, 16), "crop")), file


def test_progress_says_what_is_being_done(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def search(thumbnails: NDArray[np.float32]) -> list[tuple[int, int]]:
        said.append("the search")
        return near_duplicates(thumbnails)

    monkeypatch.setattr("qcn.data.cache.doing", lambda what, *_, **__: said.append(what))
    monkeypatch.setattr("qcn.data.cache.near_duplicates", search)
    load(str(pictures), tmp_path / "data", SMALL)
    assert list(dict.fromkeys(said)) == [
        "reading my pets, 30 pictures",
        "looking for near duplicates among 30 pictures",
        "the search",
        f"writing 30 pictures to {tmp_path / 'data' / 'folders'}",
    ]


def test_the_images_stay_on_disk_and_are_read_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(str(pictures), tmp_path / "data", SMALL)
    assert isinstance(first.train.images, np.memmap)
    monkeypatch.setattr("qcn.data.cache.read_picture", lambda path: pytest.fail(f"{path} was read again"))
    again = load(str(pictures), tmp_path / "data", SMALL)
    assert np.array_equal(first.train.images, again.train.images)


def test_a_changed_picture_makes_a_new_cache_and_removes_the_old_one(pictures: Path, tmp_path: Path) -> None:
    load(str(pictures), tmp_path / "data", SMALL)
    Image.fromarray(np.zeros((50, 50, 3), np.uint8)).save(pictures / "disc" / "000.png")
    os.utime(pictures / "disc" / "000.png", ns=(1, 1))
    splits = load(str(pictures), tmp_path / "data", SMALL)
    whole = np.concatenate([splits.train.images, splits.validation.images, splits.tests["test"].images])
    assert (whole == 0).all((1, 2, 3)).sum() == 1
    assert len(list((tmp_path / "data" / "folders").iterdir())) == 1


def test_splits_do_not_depend_on_where_the_folder_lies(pictures: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(pictures, moved)
    one, other = (load(str(folder), tmp_path / "data", SMALL) for folder in (pictures, moved))
    assert np.array_equal(one.train.images, other.train.images)


def test_given_splits_are_kept_and_missing_ones_dealt(tmp_path: Path) -> None:
    for part, count, seed in (("train", 10, 1), ("valid", 3, 2)):
        write_pictures(tmp_path / "set" / part, count, seed=seed)
    splits = load(str(tmp_path / "set"), tmp_path / "data", SMALL)
    assert [len(part) for part in (splits.train, splits.validation, splits.tests["test"])] == [27, 9, 3]
    assert "test chosen by qcn" in splits.remarks[1]


def test_tables(pictures: Path, tmp_path: Path) -> None:
    rows = [
        {
            "path": str(path.relative_to(tmp_path)),
            "label": path.parent.name,
            "split": "test" if "9" in path.stem else "train",
        }
        for path in sorted(pictures.rglob("*.*"))
    ]
    with (tmp_path / "set.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["path", "label", "split"])
        table.writeheader()
        table.writerows(rows)
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one, other = (load(str(tmp_path / f"set.{kind}"), tmp_path / "data", SMALL) for kind in ("csv", "jsonl"))
    assert len(one.tests["test"]) == 3 and np.array_equal(one.train.images, other.train.images)


def turntable(pictures: Path, table: Path, **split: str) -> Path:
    """A table of the pictures: four per object, 90° apart; squares look the same from four sides, discs from all."""
    symmetry = {"disc": "round", "square": "4", "stripes": ""}
    lines = ["path,label,azimuth,object,symmetry,split"]
    for place in sorted(pictures.iterdir()):
        for number, path in enumerate(sorted(place.iterdir())):
            item, azimuth = number // 4, "" if number == 1 else str(90 * (number % 4))
            name = path.relative_to(table.parent)
            lines.append(f"{name},{place.name},{azimuth},{item},{symmetry[place.name]},{split.get(path.stem, '')}")
    table.write_text("\n".join(lines))
    return table


def test_a_table_has_views_objects_and_symmetries(tmp_path: Path) -> None:
    table = turntable(write_pictures(tmp_path / "pictures", 40), tmp_path / "set.csv")
    splits = load(str(table), tmp_path / "data", SMALL)
    parts = (splits.train, splits.validation, splits.tests["test"])
    places = [
        {(label, item) for label, item in zip(part.labels, part.views.instance, strict=True)}  # type: ignore[union-attr]
        for part in parts
    ]
    assert sum(map(len, places)) == len(set.union(*places)) == 30  # no object is on two sides
    assert all(len(part) == 4 * len(place) for part, place in zip(parts, places, strict=True))
    train = splits.train
    assert train.classes == CLASSES and train.symmetry == (ROUND, 4, 1) and not has_elevations(train)
    for part in parts:
        assert part.files is not None and part.views is not None
        numbers = np.array([int(Path(file).stem) for file in part.files])
        assert np.array_equal(part.views.azimuth, np.where(numbers == 1, np.nan, numbers % 4 * 90), equal_nan=True)
        truth = true_directions(part, elevations=False)
        assert truth is not None and ((truth.symmetry == ROUND) == (part.labels == 0) | (numbers == 1)).all()
    assert not find(str(table), SMALL).augmentation["best"].flip  # azimuths need not count from the front
    assert find(str(tmp_path / "pictures"), SMALL).augmentation["best"].flip


def test_an_object_in_two_splits_is_refused(tmp_path: Path) -> None:
    given = {f"{number:03}": "test" if number in (5, 6) else "train" for number in range(8)}
    table = turntable(write_pictures(tmp_path / "pictures", 8), tmp_path / "set.csv", **given)
    with pytest.raises(UsageError, match="pictures of the object '1' of class disc are in two splits"):
        load(str(table), tmp_path / "data", SMALL)


def numbered(pictures: Path) -> Path:
    """The pictures of each class as five tracks, as GTSRB names them."""
    for place in pictures.iterdir():
        for number, path in enumerate(sorted(place.iterdir())):
            path.rename(place / f"{number % 5:05}_{number // 5:05}{path.suffix}")
    return pictures


def test_tracks_are_dealt_whole_unless_that_is_off(tmp_path: Path) -> None:
    tracks = numbered(write_pictures(tmp_path / "signs", 20))

    def shared(stored: Stored) -> tuple[set[str], tuple[str, ...]]:
        """Tracks with pictures in training and in another split, and what is said."""
        splits = load(str(tracks), tmp_path / "data", stored)
        named = [
            {file.partition("_")[0] for file in part.files or ()}
            for part in (splits.train, splits.validation, splits.tests["test"])
        ]
        return named[0] & (named[1] | named[2]), splits.remarks

    ids, said = shared(SMALL)
    assert not ids and said[2] == (
        "15 groups of 60 pictures by the numbers in their names, such as disc/00000_00000.png (--set group_by=off "
        "ignores that): each in one split"
    )
    ids, said = shared(replace(SMALL, group_by="off"))
    assert ids and len(said) == 2
    ids, said = shared(replace(SMALL, group_by="[a-z]+/0000[0-4]"))  # another cache than those
    assert not ids and said[2] == "15 groups of 60 pictures by group_by=[a-z]+/0000[0-4]: each in one split"


def test_tracks_in_several_given_splits_are_told(tmp_path: Path) -> None:
    tracks = numbered(write_pictures(tmp_path / "signs", 20))
    for place in ("train", "val", "test"):
        shutil.copytree(tracks, tmp_path / "given" / place)
    said = load(str(tmp_path / "given"), tmp_path / "data", SMALL).remarks
    assert said[2].endswith("each in one split")  # their numbers begin anew in each
    with pytest.raises(UsageError, match="pictures of the group '00000' are in two splits: put all of them into one"):
        load(str(tmp_path / "given"), tmp_path / "data", replace(SMALL, group_by="0000[0-4]"))
    for path in (tmp_path / "given").glob("*/*/*"):  # as if tracks 0 and 1 of each class were parted at random
        parted = path.stem[:5] in ("00000", "00001") and path.stem[-1] in "03"
        if path.parts[-3] != ("val" if parted else "train"):
            path.unlink()
    said = load(str(tmp_path / "given"), tmp_path / "data", SMALL).remarks
    assert "6 are in several splits, which makes errors look too small" in said[2]


def test_groups_of_a_table_may_have_several_classes(pictures: Path, tmp_path: Path) -> None:
    """As the photographs of a patient."""
    rows = [f"{path},{path.parent.name},{int(path.stem) % 5}" for path in sorted(pictures.glob("*/*"))]
    table = tmp_path / "set.csv"
    table.write_text("\n".join(["path,label,group", *rows]))
    splits = load(str(table), tmp_path / "data", SMALL)
    patients = [
        {int(Path(file).stem) % 5 for file in part.files or ()}
        for part in (splits.train, splits.validation, splits.tests["test"])
    ]
    assert sum(map(len, patients)) == len(set.union(*patients)) == 5 and all(patients)
    assert splits.remarks[2] == "5 groups of 30 pictures by the table: each in one split"


def test_splits_without_groups_are_those_of_earlier_versions(pictures: Path, tmp_path: Path) -> None:
    splits = load(str(pictures), tmp_path / "data", SMALL)
    assert splits.validation.files == ("disc/009.tiff", "square/006.jpg", "stripes/003.webp")
    assert splits.tests["test"].files == ("disc/006.jpg", "square/000.png", "stripes/006.jpg")


def test_a_picture_under_two_labels_is_named(pictures: Path, tmp_path: Path) -> None:
    shutil.copy(pictures / "disc" / "000.png", pictures / "square" / "copy.png")
    said = load(str(pictures), tmp_path / "data", SMALL).remarks[2]
    assert said == (
        "label conflict: 1 pair of nearly equal pictures with different labels, such as disc/000.png (disc), "
        "square/copy.png (square)"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path,label\na.png,\n", "line 2: columns named path and label are needed"),
        ("file,class\na.png,cat\n", "line 2: columns named path and label are needed"),
        ("path,label,split\na.png,cat,later\n", "the split is train, val or test, not 'later'"),
        ("path,label,split\na.png,cat,train\nb.png,dog,\n", "some lines have a split and some do not"),
        ("path,label\na.png,cat\n", "has 1 class"),
        ("path,label,azimuth\na.png,cat,left\n", "line 2: the azimuth is a number of degrees, not 'left'"),
        ("path,label,azimuth\na.png,cat,nan\n", "the azimuth is a number of degrees, not 'nan'"),
        ("path,label,elevation\na.png,cat,91\n", "the elevation is a number of degrees from -90 to 90, not '91'"),
        ("path,label,symmetry\na.png,cat,oval\n", "a symmetry is none, round, or .*, not 'oval'"),
        ("path,label,symmetry\na.png,cat,2\nb.png,cat,3\n", "line 3: class cat has the symmetry 2 .*, and 3 here"),
        ("", "has 0 classes"),
        ("\x00\x01", "CSV|needed|0 classes"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "set.csv").write_text(text)
    with pytest.raises(UsageError, match=reason):
        find(str(tmp_path / "set.csv"), SMALL)


def test_sizes_and_channels_are_chosen_from_the_pictures(tmp_path: Path) -> None:
    def folder(name: str, width: int, height: int, mode: str) -> str:
        for kind in ("a", "b"):
            (tmp_path / name / kind).mkdir(parents=True)
            for number in range(5):
                Image.new(mode, (width, height), number).save(tmp_path / name / kind / f"{number}.png")
        return str(tmp_path / name)

    chosen = {
        (28, 28, "L"): (28, 1),
        (32, 32, "RGB"): (32, 3),
        (40, 30, "L"): (32, 1),
        (640, 480, "RGB"): (64, 3),
    }
    for number, (picture, (size, channels)) in enumerate(chosen.items()):
        assert find(folder(str(number), *picture)).stored == Stored(size, "crop", channels)


def test_the_folder_of_one_class_is_refused_with_the_one_above_it(pictures: Path) -> None:
    with pytest.raises(UsageError, match="disc has pictures, but no subfolders: name the folder above it"):
        find(str(pictures / "disc"))


def test_too_few_pictures_are_refused_with_the_numbers(pictures: Path) -> None:
    for path in sorted((pictures / "disc").iterdir())[3:]:
        path.unlink()
    with pytest.raises(UsageError, match=r"too few pictures of disc \(3\): at least 5"):
        find(str(pictures), SMALL)


def test_pipes_are_not_waited_for(pictures: Path, tmp_path: Path) -> None:
    """In a folder and in a table: nobody ever writes to them."""
    home = pictures / CLASSES[0]
    os.mkfifo(home / "pipe.png")
    stored = Stored()  # the size is chosen by looking into pictures
    load(str(pictures), tmp_path / "data", stored)
    index = read_index(tmp_path / "data" / find(str(pictures), stored).folder)
    assert index.skipped == {f"{home.name}/pipe.png": "is not a plain file: a pipe, socket or device is not read"}
    table = tmp_path / "table.csv"
    rows = [f"{path},{path.parent.name}" for path in sorted(pictures.glob("*/*"))]
    table.write_text("\n".join(["path,label", *rows]))
    load(str(table), tmp_path / "data", SMALL)
    assert len(read_index(tmp_path / "data" / find(str(table), SMALL).folder).skipped) == 1


def test_unreadable_files_are_named_and_left_out_up_to_a_limit(pictures: Path, tmp_path: Path) -> None:
    (pictures / "disc" / "broken.png").write_bytes(b"\x89PNG")
    (pictures / "disc" / "notes.txt").write_text("not a picture by name: ignored")
    splits = load(str(pictures), tmp_path / "data", SMALL)
    assert splits.remarks[2] == "ignored 1 file without a picture's extension: 1 .txt"
    assert splits.remarks[3].endswith("such as disc/broken.png: is not a picture that Pillow can read")
    for number in range(4):
        (pictures / "disc" / f"broken{number}.png").write_bytes(b"")
    with pytest.raises(UsageError, match=r"5 of 35 pictures of .* cannot be read"):
        load(str(pictures), tmp_path / "data", SMALL)
    assert not list((tmp_path / "data" / "folders").glob(".*.part"))


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    left = tmp_path / ".pets-1.00000000.part"
    left.mkdir()
    with folder_aside(tmp_path / "pets-1") as first:
        assert not left.exists()
        with folder_aside(tmp_path / "pets-1") as second:
            assert sorted(tmp_path.iterdir()) == sorted((first, second))
        first.rename(tmp_path / "pets-1")
    assert list(tmp_path.iterdir()) == [tmp_path / "pets-1"]


def test_a_full_disk_is_said_before_pictures_are_read(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20_000))
    with pytest.raises(MissingError, match=r"folders has 0\.02 MB left; the pictures of .* need 0\.05: free some, or"):
        load(str(pictures), tmp_path / "data", SMALL)
    assert not list((tmp_path / "data" / "folders").iterdir())


@pytest.mark.parametrize(
    "listed", [lambda folder: find(folder, SMALL), lambda folder: [*files(folder)]], ids=["train", "predict"]
)
def test_a_folder_that_may_not_be_read_is_not_passed_over(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, listed: Callable[[str], object]
) -> None:
    (pictures / "disc" / "more").mkdir()
    listed(str(pictures))
    scandir = os.scandir

    def denied(place: str | Path) -> object:
        if Path(place).name == "more":
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(PermissionError, match="disc/more"):
        listed(str(pictures))


def test_every_class_has_pictures_to_train_on(pictures: Path, tmp_path: Path) -> None:
    """Whatever cannot be read, and wherever near duplicates are dealt to."""
    for kind in "abcdefgh":
        shutil.copytree(pictures / "disc", pictures / kind)  # so many that five are few
    burst = sorted((pictures / "disc").iterdir())
    for path in burst[1:]:
        shutil.copy(burst[0], path)
    splits = load(str(pictures), tmp_path / "data", SMALL)
    assert set(splits.train.labels) == set(range(len(splits.train.classes)))
    assert "there are no test pictures of disc" in splits.remarks
    for number, path in enumerate(burst):
        path.write_bytes(b"") if number < 5 else path.unlink()
    with pytest.raises(UsageError, match=r"too few pictures that can be read of disc \(0\): at least 5"):
        load(str(pictures), tmp_path / "data", SMALL)
    write_pictures(tmp_path / "given" / "train", 8)
    write_pictures(tmp_path / "given" / "test", 8)
    shutil.rmtree(tmp_path / "given" / "train" / "disc")
    with pytest.raises(UsageError, match="no training pictures of disc"):
        load(str(tmp_path / "given"), tmp_path / "data", SMALL)


def test_near_duplicates_across_given_splits_are_told(tmp_path: Path) -> None:
    for part, seed in (("train", 1), ("test", 2)):
        write_pictures(tmp_path / "set" / part, 8, seed=seed)
    with Image.open(tmp_path / "set" / "train" / "disc" / "000.png") as picture:
        picture.resize((96, 90)).save(tmp_path / "set" / "test" / "disc" / "copy.jpg", quality=80)
    splits = load(str(tmp_path / "set"), tmp_path / "data", Stored(32, "stretch", 3))
    assert any(
        "found 1 pair of near duplicates across splits" in remark and "copy.jpg" in remark for remark in splits.remarks
    )


def test_near_duplicates_are_dealt_into_one_split(pictures: Path, tmp_path: Path) -> None:
    for number in range(10):
        shutil.copy(pictures / "disc" / "000.png", pictures / "disc" / f"copy{number}.png")
    dataset = find(str(pictures), SMALL)
    load(str(pictures), tmp_path / "data", SMALL)
    index = read_index(tmp_path / "data" / dataset.folder)
    assert max(map(len, index.duplicates)) >= 11 and not crossing(index)


def test_a_folder_of_bursts_has_whole_ones_in_each_split(tmp_path: Path) -> None:
    """As frames of videos: three of each class, and nothing else."""
    for label, kind in enumerate(("cup", "pen")):
        (tmp_path / "set" / kind).mkdir(parents=True)
        for burst in range(3):
            rng = np.random.default_rng((label, burst))
            frame = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((40, 40))
            for number in range(10):
                noise = rng.normal(0, 3, (40, 40, 3))
                pixels = (np.asarray(frame) + noise).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "set" / kind / f"{burst}-{number}.png")
    splits = load(str(tmp_path / "set"), tmp_path / "data", SMALL)
    index = read_index(tmp_path / "data" / find(str(tmp_path / "set"), SMALL).folder)
    assert index.counts == (20, 20, 20) and not crossing(index)
    for part in (splits.train, splits.validation, splits.tests["test"]):
        assert list(np.bincount(part.labels)) == [10, 10]
    for path in (tmp_path / "set").glob("*/[12]-*.png"):
        path.unlink()  # one burst of each class is left
    splits = load(str(tmp_path / "set"), tmp_path / "data", SMALL)
    with pytest.raises(UsageError, match=r"has no validation images: .*\. Put some pictures into a folder 'val'"):
        splits.refuse_no_validation("the set")


def test_a_damaged_cache_is_refused(pictures: Path, tmp_path: Path) -> None:
    load(str(pictures), tmp_path / "data", SMALL)
    index = next((tmp_path / "data" / "folders").glob(f"*/{INDEX}"))
    for name, damage in (
        (INDEX, lambda content: content.replace(b'"labels": [', b'"labels": [0, ')),
        (INDEX, lambda content: json.dumps(json.loads(content) | {"files": []}).encode()),
        (IMAGES, lambda _: b""),
        (IMAGES, lambda content: content[:60]),
        (IMAGES, lambda content: content[:1000]),
    ):
        content = (index.parent / name).read_bytes()
        (index.parent / name).write_bytes(damage(content))
        with pytest.raises(UsageError, match="is damaged: delete it, and it is made again"):
            load(str(pictures), tmp_path / "data", SMALL)
        (index.parent / name).write_bytes(content)
    load(str(pictures), tmp_path / "data", SMALL)


def test_options_that_make_no_sense(pictures: Path) -> None:
    for wrong in ({"size": 3}, {"channels": 2}, {"fit": "squeeze"}, {"group_by": "("}):
        with pytest.raises(UsageError):
            Stored(**wrong)  # type: ignore[arg-type]
    for stored in (Stored(32), Settings("mnist", group_by="off").stored):
        with pytest.raises(UsageError, match="are for folders of pictures"):
            find("mnist", stored)
    with pytest.raises(UsageError, match="no folder, table of pictures or data set"):
        find("no/such/folder")


def test_training_reads_the_cache_picture_by_picture(pictures: Path, tmp_path: Path) -> None:
    """Not megabytes around each of them, which is what the system does unless it is told."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("there is no /proc/self/smaps, which says how mapped files are read")
    images = load(str(pictures), tmp_path / "data", SMALL).train.images
    assert resident(images, torch.device("cpu")).data_ptr() == images.ctypes.data
    lines = smaps.read_text(encoding="utf-8").splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.endswith("images.npy") and str(tmp_path) in line)
    flags = next(line for line in lines[start:] if line.startswith("VmFlags:"))
    assert "rr" in flags.split()  # random reads

"""Kill writers of a bundle and look at what readers find. The tests run it; by hand, with more kills:

    python tests/export/kills.py BUNDLE --random 200
    python tests/export/kills.py BUNDLE --install --random 200    # of `qcn install` instead

Writers are forks of this process, which has loaded no torch and has no threads. It prints counts as JSON.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qcn.errors import UsageError
from qcn.export.bundle import GOLDEN, Bundle, golden
from qcn.export.bundle.golden import Evaluation
from qcn.export.bundle.install import install, rollback

STEPS = ("open", "rename", "link", "symlink", "unlink", "mkdir", "rmdir", "fsync")
FROM_RUN = "qcn export RUN --format native --out {bundle}"


def add(folder: Path, file: str, content: bytes) -> None:
    format: str = "trt" if file.endswith(".engine") else "pt2" if file.endswith(".pt2") else "onnx"
    with Bundle.open(folder).adding(file, format, "fp32", "qcn export {bundle}") as draft:
        draft.path.write_bytes(content)


def other_answers(folder: Path) -> None:
    """Golden answers whose float32 is a little off: every tolerance changes with them."""
    bundle = Bundle.open(folder)
    answers = bundle.golden()
    moved = answers.float32.logit + np.float32(random.uniform(1e-5, 1e-4))
    single = Evaluation({**answers.float32.arrays, "logit": moved})
    with bundle.adding(GOLDEN, "golden", "fp64", FROM_RUN) as draft:
        golden.write(draft.path, replace(answers, float32=single))


WRITERS: dict[str, Callable[[Path], None]] = {
    "replace a graph": lambda folder: add(folder, "model.onnx", os.urandom(5000)),
    "add a graph": lambda folder: add(folder, "model.pt2", os.urandom(5000)),
    "replace an engine": lambda folder: add(folder, "engines/a.engine", os.urandom(5000)),
    "replace the golden answers": other_answers,
}


def look(folder: Path) -> str:
    """What a reader finds wrong; nothing, if the bundle is whole."""
    try:
        bundle = Bundle.open(folder)
        bundle.program()
        bundle.golden()
        broken = [finding for finding in bundle.check() if finding.state not in ("intact", "unknown")]
        return "; ".join(f"{finding.file} {finding.reason}" for finding in broken)
    except (UsageError, OSError) as error:
        return str(error)


def forked(do: Callable[[], object]) -> int:
    """The process id of a fork that does this and ends, by 0 if all went well."""
    if process := os.fork():
        return process
    try:
        do()
        os._exit(0)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(1)


def dying(at: int, do: Callable[[], object]) -> Callable[[], None]:
    """`do`, killed before step `at`, of all that is opened, moved, linked, removed, made or synced."""

    def run() -> None:
        left, os_open = at, os.open

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= real is not os_open or bool(arguments[1] & os.O_CREAT)  # to open for reading changes nothing
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return call

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        do()

    return run


def at_every_step(base: Path, work: Path) -> dict[str, Any]:
    """Each kind of writer, killed before its first step, its second, … until it ends unharmed."""
    kills, broken, not_mended = 0, [], []
    for name, write in WRITERS.items():
        for at in range(1, 1000):
            folder = Path(shutil.copytree(base, work / f"{name} {at}"))
            _, status = os.waitpid(forked(dying(at, lambda write=write, folder=folder: write(folder))), 0)
            where = f"{name}, killed before step {at}: "
            if wrong := look(folder):
                broken.append(where + wrong)
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0, f"{name}: the writer failed"
                break
            kills += 1
            add(folder, "engines/next.engine", b"the next writer")
            left = [finding.file for finding in Bundle.open(folder).check() if finding.state != "intact"]
            if left or (folder / ".kept").exists():
                not_mended.append(f"{where}{left} are left")
        else:
            raise AssertionError(f"{name} does not end")
    return {"kills": kills, "broken": broken, "not mended": not_mended}


def first_export(base: Path, work: Path) -> dict[str, Any]:
    """A first export, killed at every step: there is no bundle, or a whole one, and the next export makes it."""
    bundle = Bundle.open(base)
    program, answers, manifest = bundle.program(), bundle.golden(), replace(bundle.manifest, files=())
    kills, none, broken, not_mended = 0, 0, [], []
    for at in range(1, 1000):
        folder = work / f"first {at}"

        def create(folder: Path = folder) -> None:
            Bundle.create(folder, manifest, program, lambda: answers, FROM_RUN)

        _, status = os.waitpid(forked(dying(at, create)), 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the first export failed"
            break
        kills += 1
        wrong = look(folder)
        none += "is not a bundle" in wrong
        if wrong and "is not a bundle" not in wrong:
            broken.append(f"killed before step {at}: {wrong}")
        create()
        if wrong := look(folder) or str(*(one.file for one in Bundle.open(folder).check() if one.state != "intact")):
            not_mended.append(f"killed before step {at}: {wrong}")
    return {"kills": kills, "no bundle": none, "broken": broken, "not mended": not_mended}


def killing(
    kills: int, work: Callable[[], None], find: Callable[[], str], workers: int = 2, readers: int = 1
) -> tuple[list[str], int]:
    """Processes that do `work` without end, each killed at a random moment and replaced, while others `find` wrongs.

    Gives all that was found wrong, and how often readers looked meanwhile.
    """
    found, pipe_in = os.pipe()

    def read() -> None:
        while True:
            os.write(pipe_in, (json.dumps(find()) + "\n").encode())

    def write() -> None:
        random.seed(os.getpid() + time.time_ns())
        while True:
            work()

    reading, at_work = [forked(read) for _ in range(readers)], [forked(write) for _ in range(workers)]
    broken: list[str] = []
    for _ in range(kills):
        time.sleep(random.uniform(0.01, 0.1))
        victim = at_work.pop(0)
        os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        if not os.WIFSIGNALED(status):
            broken.append("one at work failed")
        if wrong := find():
            broken.append(f"after a kill: {wrong}")
        at_work.append(forked(write))
    for process in (*at_work, *reading):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    os.close(pipe_in)
    with os.fdopen(found) as lines:
        reports = [json.loads(line) for line in lines if line.endswith("\n")]
    return broken + [f"meanwhile or in the end: {wrong}" for wrong in (*reports, find()) if wrong], len(reports)


def at_random(base: Path, work: Path, kills: int) -> dict[str, Any]:
    """Writers at work on one bundle, each killed at a random moment, while a reader looks at it all the time."""
    folder = Path(shutil.copytree(base, work / "random"))
    broken, reads = killing(kills, lambda: random.choice(list(WRITERS.values()))(folder), lambda: look(folder))
    add(folder, "engines/next.engine", b"the next writer")
    left = [finding.file for finding in Bundle.open(folder).check() if finding.state != "intact"]
    return {"kills": kills, "reads meanwhile": reads, "broken": broken, "not mended": left}


def manifest_at(place: Path) -> str:
    return (place / "manifest.json").read_text()


def kept(place: Path) -> list[str]:
    """The versions of a place, and what else lies beside them, but for the lock."""
    return sorted(one.name for one in place.with_name(f".{place.name}.versions").iterdir() if one.name != ".lock")


def at_every_step_of_install(bundles: list[Path], work: Path) -> dict[str, Any]:
    """The third version installed over the second, and a rollback to the first, killed before each of their steps.

    The place has the old bundle or the new one; what it goes back to is what it had before that; the next one installs.
    """
    first, second, third, fourth = (manifest_at(bundle) for bundle in bundles)
    doings: dict[str, tuple[Callable[[Path], object], dict[str, str]]] = {  # by what is in use after, what was before
        "install": (lambda place: install(bundles[2], place), {second: first, third: second}),
        "rollback": (rollback, {second: first, first: ""}),
    }
    kills: dict[str, int] = dict.fromkeys(doings, 0)
    broken, not_mended, ends = [], [], set()
    for bundle in bundles[:2]:
        install(bundle, work / "before" / "place")
    for name, (do, allowed) in doings.items():
        for at in range(1, 1000):
            place = Path(shutil.copytree(work / "before", work / f"{name} {at}", symlinks=True)) / "place"
            _, status = os.waitpid(forked(dying(at, lambda do=do, place=place: do(place))), 0)
            where = f"{name}, killed before step {at}: "
            if wrong := look(place):
                broken.append(where + wrong)
                continue
            used = manifest_at(place)
            ends.add((name, used))
            if used not in allowed:
                broken.append(f"{where}another bundle is in use")
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0, f"{name} failed"
                break
            kills[name] += 1
            install(bundles[3], place)
            numbers = [int(one.partition("-")[0]) for one in kept(place)]
            if manifest_at(place) != fourth or look(place) or len(numbers) != 2:
                not_mended.append(f"{where}the next install left {kept(place)}")
            rollback(place)
            if manifest_at(place) != used:
                not_mended.append(f"{where}the rollback after it led elsewhere")
        else:
            raise AssertionError(f"{name} does not end")
    return {"kills": kills, "ends": len(ends), "broken": broken, "not mended": not_mended}


def installs_at_random(bundles: list[Path], work: Path, kills: int) -> dict[str, Any]:
    """Two who install and roll back at once, each killed at a random moment, while one reads all the time."""
    place = work / "random" / "place"
    install(bundles[0], place)

    def change() -> None:
        try:
            install(random.choice(bundles), place) if random.random() < 0.7 else rollback(place)
        except UsageError as error:
            if "no earlier version" not in str(error):
                raise

    def find() -> str:
        """A version is kept until two others were installed: who reads it for longer than that may lose it."""
        version = place.resolve()
        wrong = look(version)
        return wrong if version.exists() else ""

    broken, reads = killing(kills, change, find)
    install(bundles[0], place)
    install(bundles[1], place)
    mended = len(kept(place)) == 2
    return {"kills": kills, "reads meanwhile": reads, "broken": broken, "not mended": [] if mended else kept(place)}


def of_install(base: Path, work: Path, kills: int) -> dict[str, Any]:
    bundles = [Path(shutil.copytree(base, work / f"bundle {number}")) for number in range(4)]
    for number, bundle in enumerate(bundles):
        add(bundle, "engines/other.engine", b"%d" % number)
    return {
        "at every step": at_every_step_of_install(bundles, work),
        "at random": installs_at_random(bundles, work, kills),
    }


def of_writers(base: Path, work: Path, kills: int) -> dict[str, Any]:
    return {
        "at every step": at_every_step(base, work),
        "first export": first_export(base, work),
        "at random": at_random(base, work, kills),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--random", type=int, default=30, metavar="KILLS")
    parser.add_argument("--install", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        base = Path(shutil.copytree(arguments.bundle, Path(made) / "base"))
        add(base, "model.onnx", b"a graph")
        add(base, "engines/a.engine", b"a plan")
        counts = (of_install if arguments.install else of_writers)(base, Path(made), arguments.random)
    print(json.dumps(counts, indent=1))

"""Training from the cache of a folder, which is mapped into memory, beside the same pictures in memory.

    python benchmarks/folder.py --json benchmarks/results/folder-cpu.json

qcn-tiny with the settings of `make demo` on a folder of pictures of 32×32 in colour. Three runs take turns, step by
step, so that other work on the machine slows all: from memory, from the cache, and from the cache with none of its
pages in memory before each step, which is the worst that a folder larger than memory can do. Speeds are of the median
step.
"""

import argparse
import json
import mmap
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import facts
from PIL import Image

from qcn.data import find, read
from qcn.data.imageset import Splits
from qcn.train.loop import Training
from qcn.train.settings import settings_from

SIZE, CLASSES = 32, 5
DEMO = {"model": "qcn-tiny", "loss": "spread", "lr": 0.02, "batch_size": 27}  # the settings of `make demo`
WARM_UP = 5  # steps
MEMORY, MAPPED, COLD = "in memory", "mapped", "mapped, no page in memory"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=10000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="for the pictures, on the disk to be measured; /tmp if not given")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = measured(Path(folder), arguments.pictures, arguments.steps)
    record = {**facts(), "pictures": arguments.pictures, "steps": arguments.steps, "results": rows}
    arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def measured(folder: Path, pictures: int, steps: int) -> list[dict[str, Any]]:
    """Pictures per second, and pages read from the disk per step, of each way."""
    write_noise(folder / "noise", pictures)
    settings = settings_from("best", dataset=str(folder / "noise"), epochs=100, size=SIZE, **DEMO)
    dataset = find(settings.dataset, settings.stored)
    splits = {way: read(dataset, folder / way) for way in (MAPPED, COLD)}  # two caches: a page in use is not dropped
    train = replace(splits[MAPPED].train, images=np.array(splits[MAPPED].train.images))
    splits = {MEMORY: replace(splits[MAPPED], train=train)} | splits
    ways = {way: Training(settings, of, folder / "run", torch.device("cpu"), dataset) for way, of in splits.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    reads: dict[str, list[int]] = {way: [] for way in ways}
    steppers = {way: stepper(training) for way, training in ways.items()}
    (file,) = (folder / COLD).glob("**/images.npy")
    forget = forgetter(file, splits[COLD])
    for turn in range(WARM_UP + steps):
        for way, step in steppers.items():
            if way == COLD:
                forget()
            before, started = _pages_read(), time.perf_counter()
            step(turn)
            if turn >= WARM_UP:
                times[way].append(time.perf_counter() - started)
                reads[way].append(_pages_read() - before)
    rows = []
    for way in ways:
        seconds = statistics.median(times[way])
        rows.append(
            {
                "way": way,
                "images_per_second": settings.batch_size / seconds,
                "fastest_step": settings.batch_size / min(times[way]),
                "of_memory": statistics.median(times[MEMORY]) / seconds,
                "pages_read_per_step": statistics.mean(reads[way]),
            }
        )
        print(rows[-1], flush=True)
    return rows


def write_noise(folder: Path, count: int) -> None:
    """What is on the pictures does not change how fast they are read."""
    generator = np.random.default_rng(0)
    for kind in range(CLASSES):
        (folder / f"class{kind}").mkdir(parents=True)
    for number in range(count):
        pixels = generator.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"class{number % CLASSES}" / f"{number:06}.bmp")


def stepper(training: Training) -> Callable[[int], None]:
    """Step `turn` of the run's first epoch: a batch out of the pictures, forward, backward, update."""
    training.network.train()
    plan, batch = training.plan(0), training.settings.batch_size

    def step(turn: int) -> None:
        rows = slice(turn * batch, (turn + 1) * batch)
        training.update(training.network, *training.batch(plan, rows), plan.schedule[turn])

    return step


def forgetter(file: Path, splits: Splits) -> Callable[[], None]:
    """Drops the pages of the cache from this process and from the system."""
    mapping = splits.train.images
    while not isinstance(mapping.base, mmap.mmap):
        mapping = mapping.base  # type: ignore[assignment]
    held = mapping.base

    def forget() -> None:
        held.madvise(mmap.MADV_DONTNEED)
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    return forget


def _pages_read() -> int:
    """Faults of this process that had to wait for the disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


if __name__ == "__main__":
    main()

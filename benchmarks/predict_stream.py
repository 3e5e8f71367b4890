"""`qcn predict` of very many pictures: how fast, what limits it, and how much memory it takes.

    python benchmarks/predict_stream.py --json benchmarks/results/predict-stream-x86_64.json
    python benchmarks/predict_stream.py --json FILE --before 'OLD/qcn predict {folder} --model BUNDLE --json {out}'

Speed: a folder of JPEG files of 256×256 and one of PNG files of 32×32, with all answers written to a file. A command of
an earlier version (`--before`) takes turns with today's, so that other work on the machine slows both; rates are the
median of the rounds, as the command itself prints them: reading and answering, without the time to start.

Limit: the CPU time per picture of each part by itself, in one process: decoding in one thread, the network with all its
threads, writing rows. Their sum divided by the cores is the least time per picture; its inverse is the most that can be
reached, and the largest part is what limits the rate.

Memory: the most that the process had (VmHWM; ru_maxrss would have that of this script in it), for a folder of few and
of many pictures, which are hard links.
"""

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import put_results
from PIL import Image

import qcn
from qcn.data.fit import read_picture
from qcn.predict.records import Row
from qcn.predict.rows import JsonLines

NOW = f"{shlex.quote(sys.executable)} -m qcn predict {{folder}} --model {{model}} --jsonl {{out}}"
KINDS = {"jpg": 256, "png": 32}  # the side of the pictures of each format
LINKS = 1000  # to one file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar10-qcn-deep")
    parser.add_argument("--before", help="the command of an earlier version, with {folder} and {out} in it")
    parser.add_argument("--before-commit", help="its commit, for the record")
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="*", default=[200, 200_000], help="numbers of pictures")
    parser.add_argument("--memory-before", type=int, nargs="*", default=[200, 20_000], help="the same for --before")
    parser.add_argument("--memory-model", default="cifar10-cnn-small", help="a fast one: memory is not of the network")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    commands = {"now": NOW.replace("{model}", arguments.model)}
    commands |= {"before": arguments.before} if arguments.before else {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for kind, side in KINDS.items():
            write_pictures(folder / kind, kind, side, arguments.pictures)
            rates: dict[str, list[float]] = {version: [] for version in commands}
            for _ in range(arguments.rounds):
                for version, command in commands.items():
                    rates[version].append(ask(command, folder / kind, folder / "answers")[0])
            parts = limits(arguments.model, sorted((folder / kind).iterdir())[:320], folder / "answers")
            for version, found in rates.items():
                row = {"what": "speed", "version": version, "pictures": f"{kind}, {side}×{side}"}
                row |= {"per_second": statistics.median(found), "slowest": min(found), "fastest": max(found)}
                rows.append(row | (parts if version == "now" else {}))
                print(rows[-1], flush=True)
        numbers = {"now": arguments.memory, "before": arguments.memory_before}
        commands["now"] = NOW.replace("{model}", arguments.memory_model)
        for version, command in commands.items():
            for number in numbers[version]:
                link_pictures(folder / "png", folder / f"many-{version}-{number}", number)
                rate, megabytes = ask(command, folder / f"many-{version}-{number}", folder / "answers")
                rows.append({"what": "memory", "version": version, "pictures": number, "megabytes": megabytes})
                rows[-1]["per_second"] = rate
                print(rows[-1], flush=True)
    about = {"model": arguments.model, "before": arguments.before_commit}
    put_results(arguments.json, rows, "what", "version", "pictures", **about)


def write_pictures(folder: Path, kind: str, side: int, count: int) -> None:
    """Smooth shades with an edge and some noise: JPEG files of it are as large as photographs' of this size."""
    folder.mkdir()
    y, x = np.mgrid[:side, :side] / side
    generator = np.random.default_rng(0)
    for number in range(count):
        light = np.stack([120 + 90 * np.sin(5 * x + c + number) * np.cos(3 * y - c) for c in range(3)], axis=2)
        pixels = light + 60 * ((x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.08)[..., None] + generator.normal(0, 4, light.shape)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{number:06}.{kind}")


def link_pictures(source: Path, folder: Path, count: int) -> None:
    """A folder of `count` pictures, which are those of `source` again and again."""
    folder.mkdir()
    originals = sorted(source.iterdir())[: -(-count // LINKS)]
    for number in range(count):
        os.link(originals[number // LINKS], folder / f"{number:07}.png")


def ask(command: str, folder: Path, out: Path) -> tuple[float, float]:
    """Pictures per second that the command says, and the most memory that it had, in MB."""
    words = shlex.split(command.replace("{folder}", str(folder)).replace("{out}", str(out)))
    with tempfile.TemporaryFile("w+") as said:
        process, most = subprocess.Popen(words, stdout=said, stderr=subprocess.DEVNULL), 0
        while process.poll() is None:
            if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text()):
                most = int(found[1])
            time.sleep(0.05)
        said.seek(0)
        text = said.read()
    found = re.search(r"([\d,]+) pictures? in [\d.]+ s \(([\d,]+)/s\)", text)
    if process.returncode or not found:
        raise RuntimeError(f"{shlex.join(words)} ended with {process.returncode}: {text[-500:]}")
    return float(found[2].replace(",", "")), most / 1024


def limits(model: str, files: Sequence[Path], out: Path) -> dict[str, Any]:
    """Milliseconds of CPU time per picture of each part, and what they allow at most."""
    network = qcn.load(model)
    pixels = [read_picture(file) for file in files]
    form, answers = JsonLines(network.classes, network.identity), network.predict(pixels)
    rows = [Row(str(file), answer) for file, answer in zip(files, answers, strict=True)]

    def write() -> None:
        with out.open("wb", buffering=0) as file:
            for row in rows:
                file.write(form.text(row).encode())

    parts = {
        "decoding": cpu_ms(lambda: [read_picture(file) for file in files], len(files)),
        "network": cpu_ms(lambda: network.predict(pixels), len(files)),
        "writing": cpu_ms(write, len(files)),
    }
    cores = os.cpu_count() or 1
    return {
        "cpu_ms": parts,
        "limit_per_second": 1e3 * cores / sum(parts.values()),
        "limited_by": max(parts, key=parts.get),
    }  # type: ignore[arg-type]


def cpu_ms(work: Callable[[], object], count: int, rounds: int = 5) -> float:
    """CPU time of all threads per picture; the least of some rounds, as others on the machine only add to it."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - began) / count)
    return min(times)


if __name__ == "__main__":
    main()

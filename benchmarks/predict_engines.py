"""What Ray costs and saves `qcn predict`: 20,000 pictures by one process and by Ray, in turns.

    python benchmarks/predict_engines.py

Three times each; of a busy machine the medians say little.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measurements import RESULTS, put
from PIL import Image

PICTURES, DIFFERENT, TURNS = 20_000, 2_000, 3
ENGINES = ("process", "ray")


def write_pictures(folder: Path) -> None:
    """JPEG files of 64×64, of which some are the same file under several names."""
    folder.mkdir()
    chosen = np.random.default_rng(0)
    for number in range(PICTURES):
        path = folder / f"{number:05}.jpg"
        if number < DIFFERENT:
            Image.fromarray(chosen.integers(0, 256, (64, 64, 3), np.uint8)).save(path)
        else:
            os.link(folder / f"{number % DIFFERENT:05}.jpg", path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar10-qcn-deep")
    parser.add_argument("--json", type=Path, default=RESULTS / "predict-engines.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(folder, "pictures")
        write_pictures(pictures)
        seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for turn in range(TURNS):
            for engine in ENGINES:
                out = Path(folder, f"{engine}-{turn}")
                words = ["predict", pictures, "--model", arguments.model, "--out", out, "--engine", engine]
                began = time.perf_counter()
                subprocess.run([sys.executable, "-m", "qcn", *map(str, words)], check=True, capture_output=True)
                seconds[engine].append(time.perf_counter() - began)
                print(f"{engine}: {seconds[engine][-1]:.1f} s", flush=True)
    about = {"model": arguments.model, "pictures": PICTURES}
    rows = [
        {"engine": engine, **about, "median_s": statistics.median(times), "times_s": times}
        for engine, times in seconds.items()
    ]
    put(arguments.json, rows, "engine", "model", "machine")
    print(f"Ray takes {statistics.median(seconds['ray']) / statistics.median(seconds['process']):.2f} times as long")


if __name__ == "__main__":
    main()

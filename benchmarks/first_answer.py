"""From nothing to the first answer, by the clock: a new environment, `pip install` of a wheel, `qcn predict photo.jpg`.

    make wheels MACHINES=x86_64
    python benchmarks/first_answer.py dist/*_x86_64.whl photo.jpg --json benchmarks/results/first-answer-x86_64.json

The environment has no torch. pip downloads everything that the wheel asks for (`--no-cache-dir`), from whatever index
it is set up to use, so its time is also that of the network. The second answer shows what the first one spends on byte
code, which pip is told not to make.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import put_results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    wheel, picture = arguments.wheel.resolve(), arguments.picture.resolve()
    with tempfile.TemporaryDirectory() as place:
        commands = Path(place) / "venv" / "bin"
        quiet = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-compile")
        steps = {
            "environment": (sys.executable, "-m", "venv", Path(place) / "venv"),
            "pip install": (commands / "pip", "install", *quiet, wheel),
            "first answer": (commands / "qcn", "predict", picture),
            "second answer": (commands / "qcn", "predict", picture),
        }
        rows: list[dict[str, Any]] = []
        for step, words in steps.items():
            began = time.perf_counter()
            done = run(*words, cwd=Path(place))
            rows.append({"step": step, "seconds": time.perf_counter() - began})
            print(f"{step:14} {rows[-1]['seconds']:6.1f} s", flush=True)
        print(done)
        listed = run(commands / "pip", "list", "--disable-pip-version-check", cwd=Path(place))
        if "torch" in listed.split():
            raise RuntimeError(f"this environment has torch:\n{listed}")
        total = sum(row["seconds"] for row in rows[1:3])
        rows.append({"step": "pip install to first answer", "seconds": total})
        print(f"pip install to first answer: {total:.1f} s")
    put_results(arguments.json, rows, "step", wheel=wheel.name, megabytes=wheel.stat().st_size / 1e6)


def run(*words: object, cwd: Path) -> str:
    """What a command prints. Nothing of this environment leads it back to the repository."""
    kept = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "QCN", "VIRTUAL"))}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()

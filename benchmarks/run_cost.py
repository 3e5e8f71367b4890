"""What --run costs: the time of `qcn verify-parity` without it, with it, and with it at an earlier commit.

    python benchmarks/run_cost.py --json benchmarks/results/run-cost-x86_64.json

Full-size networks that ship, by libqcn and ONNX Runtime. Every time is the least of some runs of the whole command, in
a process of its own. The earlier commit is the last before --run compared the network itself.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import facts

ROOT = Path(__file__).parents[1]
MODELS = ("cifar10-qcn-deep", "fashion-mnist-qcn")
BEFORE = "547082c"
# The clone's own package, which `pip install -e` puts before everything else, makes room for another commit's.
SITE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in type(one).__module__]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--before", default=BEFORE, help="the earlier commit")
    parser.add_argument("--runs", type=int, default=3, help="of each command")
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        now, before = {**os.environ, "OMP_WAIT_POLICY": "passive"}, earlier(folder, arguments.before)
        for model in arguments.models or MODELS:
            bundle = shutil.copytree(ROOT / "models" / model, folder / model)
            command(now, "export", bundle, "--format", "onnx")
            check = ("verify-parity", bundle, "--backends", "native,onnxruntime")
            of_run = (*check, "--run", ROOT / "models" / "runs" / model)
            ways: dict[str, Any] = {"without": (now, check), "before": (before, of_run), "now": (now, of_run)}
            times = {way: min(command(*given) for _ in range(arguments.runs)) for way, given in flat(ways).items()}
            rows.append({"model": model, **{way: round(seconds, 2) for way, seconds in times.items()}})
            print(
                f"{model}: {times['without']:.1f} s without --run, {times['before']:.1f} s with it at "
                f"{arguments.before}, {times['now']:.1f} s now: {times['now'] / times['without']:.2f} times as long "
                f"as without, {times['now'] / times['before']:.2f} times as long as before",
                flush=True,
            )
    if arguments.json:
        record = {**facts(), "before": arguments.before, "unit": "seconds", "results": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def flat(ways: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {way: (environment, *words) for way, (environment, words) in ways.items()}


def command(environment: dict[str, str], *words: object) -> float:
    """The seconds that `qcn` takes; it must end with 0."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "qcn", *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"qcn {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


def earlier(folder: Path, commit: str) -> dict[str, str]:
    """An environment in which Python imports the package as it was at this commit; libqcn is today's."""
    tree, packages = folder / "tree", folder / "packages"
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    tree.mkdir()
    subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
    (tree / "build").symlink_to(ROOT / "build")
    (packages / "qcn").mkdir(parents=True)
    for part in (*(tree / "qcn").iterdir(), tree / "export", tree / "calibrate", tree / "models"):
        (packages / "qcn" / part.name).symlink_to(part)
    (packages / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    return {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(packages)}


if __name__ == "__main__":
    main()

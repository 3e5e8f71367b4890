"""What --run costs: the time of `qcn verify-parity` without it, with it, and with it at an earlier commit.

    python benchmarks/run_cost.py --data-dir DATA --json benchmarks/results/run-cost-x86_64.json

Full-size networks that ship, by libqcn and ONNX Runtime. Every time is the least of some runs of the whole command, in
a process of its own. The earlier commit is the last before --run compared the network itself.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

from measurements import write

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("cifar10-qcn-deep", "fashion-mnist-qcn")
BEFORE = "547082c"
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--before", default=BEFORE, help="the earlier commit")
    parser.add_argument("--runs", type=int, default=3, help="of each command")
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    rows, data_dir = [], arguments.data_dir.absolute()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        now, before = Path(sys.executable), earlier(folder, arguments.before)
        for model in arguments.models or MODELS:
            run = ROOT / "models" / "runs" / model
            ways: dict[str, tuple[Path, tuple[object, ...]]] = {}
            for when, python in (("now", now), ("before", before)):
                bundle = folder / f"{model}-{when}"
                command(python, "export", run, "--format", "onnx", "--data-dir", data_dir, "--out", bundle)
                check = ("verify-parity", bundle, "--backends", "native,onnxruntime")
                ways[when] = (python, (*check, "--run", run, "--data-dir", data_dir))
                ways.setdefault("without", (now, check))
            times = {
                way: min(command(python, *words) for _ in range(arguments.runs))
                for way, (python, words) in ways.items()
            }
            rows.append({"model": model, **{way: round(seconds, 2) for way, seconds in times.items()}})
            print(
                f"{model}: {times['without']:.1f} s without --run, {times['before']:.1f} s with it at "
                f"{arguments.before}, {times['now']:.1f} s now: {times['now'] / times['without']:.2f} times as long "
                f"as without, {times['now'] / times['before']:.2f} times as long as before",
                flush=True,
            )
    write(arguments.json, before=arguments.before, unit="seconds", results=rows)


def command(python: Path, *words: object) -> float:
    """The seconds that `qcn` takes; it must end with 0."""
    began = time.perf_counter()
    call = [str(python), "-m", "qcn", *map(str, words)]
    # Not in the current folder, from which `-m` would import today's package.
    done = subprocess.run(call, env=ENVIRONMENT, cwd=ROOT.anchor, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"qcn {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


def earlier(folder: Path, commit: str) -> Path:
    """The Python of a virtual environment with the package as it was at this commit; libqcn is today's."""
    tree, packages = folder / "tree", folder / "packages"
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    tree.mkdir()
    subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
    (tree / "build").symlink_to(ROOT / "build")
    (packages / "qcn").mkdir(parents=True)
    for part in (*(tree / "qcn").iterdir(), tree / "export", tree / "calibrate", tree / "models"):
        (packages / "qcn" / part.name).symlink_to(part)
    venv.create(folder / "venv", symlinks=True)
    # Of a path in a .pth file the .pth files are not read, and so not that of today's package.
    python = folder / "venv" / "bin" / "python"
    (own,) = (folder / "venv").glob("lib/python*/site-packages")
    (own / "before.pth").write_text(f"{packages}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return python


if __name__ == "__main__":
    main()

"""Honest bundles, and whether `qcn verify-parity --run` refuses one of them: false alarms.

    python benchmarks/false_alarms.py --json benchmarks/results/false-alarms-x86_64.json

Every network that ships, with the ONNX graph that `qcn export` makes of it, and small networks trained here from other
seeds, each in three formats of all that there are, in turn (tests/forgeries/workshop.py).
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "forgeries")]

from measurements import write  # noqa: E402
from workshop import FILES, Workshop, qcn  # noqa: E402

from qcn.errors import MissingError  # noqa: E402
from qcn.networks.shipped import RUNS, networks  # noqa: E402

PER_SEED = 3  # bundles of each small network
Case = tuple[str, Path, Path, tuple[str, ...]]  # name, bundle, run, and what the command is asked for besides


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="bundles")
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, bundle, run, options in islice(cases(Path(folder)), arguments.count):
            began = time.perf_counter()
            code, said = qcn("verify-parity", bundle, *options, "--run", run)
            seconds = round(time.perf_counter() - began, 1)
            rows.append({"bundle": name, "status": "passed" if code == 0 else "REFUSED", "seconds": seconds})
            print(f"{len(rows):2} {name}: {rows[-1]['status']} in {seconds} s", flush=True)
            if code:
                print(said, flush=True)
            shutil.rmtree(bundle)
    alarms = sum(row["status"] != "passed" for row in rows)
    print(f"{alarms} false alarms of {len(rows)} honest bundles")
    write(arguments.json, bundles=len(rows), alarms=alarms, results=rows)
    return int(alarms > 0)


def cases(folder: Path) -> Iterator[Case]:
    """Bundles without end: those that ship, then small networks."""
    for name, shipped in networks().items():
        bundle = shutil.copytree(shipped, folder / name)
        code, said = qcn("export", bundle, "--format", "onnx")
        assert code == 0, said
        yield f"{name}: native, onnx", bundle, RUNS / name, ("--backends", "native,onnxruntime")
    files, seed = cycle(FILES), 100
    while True:
        workshop, made = Workshop(folder / f"seed{seed}", seed, epochs=1), 0
        while made < PER_SEED:
            file = next(files)
            try:
                bundle = workshop.copy(workshop.folder / "bundle", file)
            except MissingError:  # it cannot be made on this machine
                continue
            made += 1
            backends = ("--backends", FILES[file].backend) if FILES[file].backend else ()
            yield f"seed {seed}: {file}", bundle, workshop.run, backends
        shutil.rmtree(workshop.folder)
        seed += 1


if __name__ == "__main__":
    sys.exit(main())

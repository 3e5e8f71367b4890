"""What every benchmark records beside its numbers: the date, the commit, the machine, the versions."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qcn.export.targets import this_gpu
from qcn.files import held, write_text
from qcn.packages import installed


def facts() -> dict[str, Any]:
    """The circumstances of a measurement, with or without torch. QCN_COMMIT names the commit where git cannot."""
    gpu = this_gpu()
    versions = {"python": platform.python_version()}
    if installed("torch"):
        import torch

        versions["torch"] = torch.__version__
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": os.environ.get("QCN_COMMIT") or _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores" + (f", {gpu.name}" if gpu else ""),
        "versions": versions,
    }


def results(file: Path) -> list[dict[str, Any]]:
    """The rows that a benchmark has measured so far."""
    return json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else []


def put_results(file: Path, rows: Sequence[dict[str, Any]], *key: str, **about: Any) -> None:
    """Put rows into a benchmark's file, each with the commit that measured it, in place of those with the same `key`.

    Several processes may do so at once.
    """
    now = facts()
    with held(file.parent):
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"results": []}
        there = [{"commit": before["commit"], **row} for row in before["results"]]
        new = [{"commit": now["commit"], **row} for row in rows]
        placed = {tuple(row[name] for name in key): row for row in [*there, *new]}
        write_text(file, json.dumps({**now, **about, "results": list(placed.values())}, indent=1) + "\n")


def _commit() -> str:
    """HEAD, `-dirty` if files differ from it: not those that benchmarks write, or a second result would be dirty."""
    here, others = Path(__file__).parent, [":/", ":(top,exclude)benchmarks/results"]
    try:
        head = subprocess.run(["git", "describe", "--always"], cwd=here, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *others], cwd=here, check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("-dirty" if changed.returncode else "")

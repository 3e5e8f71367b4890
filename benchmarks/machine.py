"""What every benchmark records beside its numbers: the date, the commit, the machine, the versions."""

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from qcn.export.targets import this_gpu
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


def _commit() -> str:
    """HEAD, `-dirty` if files differ from it: not those that benchmarks write, or a second result would be dirty."""
    here, others = Path(__file__).parent, [":/", ":(top,exclude)benchmarks/results"]
    try:
        head = subprocess.run(["git", "describe", "--always"], cwd=here, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *others], cwd=here, check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("-dirty" if changed.returncode else "")

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
    command = ["git", "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()

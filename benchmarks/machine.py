"""What every benchmark records beside its numbers: the date, the commit, the machine, the versions."""

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def facts() -> dict[str, Any]:
    """The circumstances of a measurement. QCN_COMMIT names the commit where there is no git to ask."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": os.environ.get("QCN_COMMIT") or _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores" + (f", {gpu}" if gpu else ""),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()

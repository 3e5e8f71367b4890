"""What it costs to begin: the time to load a backend and to its first answer, and the memory that this takes.

Each is measured in a process of its own, one at a time, since only the first to load a library in a process pays for
it. Python, numpy and qcn itself are there before the clock starts, and the artefact's hash has been checked.
"""

import re
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.errors import QcnError
from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Golden
from qcn.verify.runners import Candidate
from qcn.verify.speed import nvml

MIB = 1 << 20


@dataclass(frozen=True)
class Cold:
    """Times in milliseconds, memory in MiB; None where it is not known.

    host_mib     by how much the process's resident memory grew at its peak: libraries, model, work space
    device_mib   by how much more of the GPU was in use after the first answer, CUDA's context included; of the whole
                 GPU, so it is right only while no one else begins or ends there
    """

    open_ms: float
    first_answer_ms: float
    host_mib: float | None
    device_mib: float | None


def cold_start(folder: Path, candidate: Candidate, batch: int) -> Cold:
    """Measure it in a new process, whose errors are raised here."""
    quiet = (signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback beside ours
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), signal.signal, quiet) as process:
            return process.submit(measure, folder, candidate, batch).result()
    except BrokenProcessPool as error:
        raise QcnError(
            f"{candidate.backend.name} died while it was loading or running {candidate.artefact.file}"
        ) from error


def measure(folder: Path, candidate: Candidate, batch: int) -> Cold:
    """The same in this process, which should be new."""
    bundle = Bundle.open(folder)
    images = first_images(bundle.golden(), batch)
    runner = candidate.runner(bundle)
    gpu = nvml.find() if runner.transfers else None
    used, resident = gpu.memory_used() if gpu else None, resident_memory("VmRSS")
    began = time.perf_counter()
    with runner:
        opened = time.perf_counter()
        runner.infer(images)
        answered = time.perf_counter()
        peak, now = resident_memory("VmHWM"), gpu.memory_used() if gpu else None
    return Cold(
        1e3 * (opened - began),
        1e3 * (answered - opened),
        (peak - resident) / MIB if peak is not None and resident is not None else None,
        (now - used) / MIB if now is not None and used is not None else None,
    )


def first_images(golden: Golden, batch: int) -> NDArray[np.float32]:
    """The golden images, as often as it takes to fill a batch; no edge cases, for which kernels may do more work."""
    inputs = golden.input[golden.label >= 0] if (golden.label >= 0).any() else golden.input
    return np.concatenate([inputs] * -(-batch // len(inputs)))[:batch]


def resident_memory(entry: str) -> int | None:
    """Bytes of this process's memory that are in RAM: now (VmRSS), or at most so far (VmHWM). None but on Linux."""
    try:
        found = re.search(rf"^{entry}:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None

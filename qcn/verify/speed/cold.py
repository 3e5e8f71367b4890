"""What it costs to begin: the time to load a backend and to its first answer, and the memory that this takes.

Each is measured in a process of its own, one at a time, since only the first to load a library in a process pays for
it. Python, numpy, qcn itself and the bytes of the artefact, whose hash was checked, are there before the clock starts.
Clock and memory are read from here, not there: nothing that the file does can change what they say.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.export.backends.candidates import Candidate
from qcn.export.backends.runner import TIME_LIMIT
from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Golden
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


def cold_start(
    bundle: Bundle, candidate: Candidate, images: NDArray[np.float32], time_limit: float = TIME_LIMIT
) -> Cold:
    """Measure it in a new process, whose errors are raised here."""
    runner = candidate.isolated(bundle, time_limit)
    gpu = nvml.find() if runner.transfers else None
    try:
        runner.start()
        used, resident = gpu.memory_used() if gpu else None, resident_memory(runner.process, "VmRSS")
        began = time.perf_counter()
        runner.open()
        opened = time.perf_counter()
        runner.infer(images)
        answered = time.perf_counter()
        peak, now = resident_memory(runner.process, "VmHWM"), gpu.memory_used() if gpu else None
    finally:
        runner.close()
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


def resident_memory(process: int, entry: str) -> int | None:
    """Bytes of a process's memory that are in RAM: now (VmRSS), or at most so far (VmHWM). None but on Linux."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return None
    result = re.search(rf"^{entry}:\s*(\d+) kB", status, re.MULTILINE)
    return int(result[1]) << 10 if result else None

"""Energy and memory of a GPU: NVML through a module that answers as nvidia-ml-py does, tegrastats as a script."""

import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qcn.verify import machine
from qcn.verify.speed import energy, nvml
from qcn.verify.speed.energy import TegrastatsMeter, board_watts

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
ORIN = "RAM 3162/7620MB (lfb 1x2MB) CPU [1%@729] VDD_IN 5000mW/4801mW VDD_CPU_GPU_CV 600mW/600mW"


class NVMLError(Exception):
    pass


class Driver:
    """The module pynvml of a machine with one GPU; raises as it does for what `lacks` names."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, lacks: str = "nothing") -> None:
        self.lacks, self.spent = lacks, 1_000

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            if self.lacks in name or (name == "nvmlDeviceGetHandleByUUID" and arguments != (UUID,)):
                raise NVMLError("Not Supported")
            if name == "nvmlDeviceGetTotalEnergyConsumption":
                self.spent += 70
            return {
                "nvmlSystemGetDriverVersion": b"570.1",
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=512 << 20),
                "nvmlDeviceGetTotalEnergyConsumption": self.spent,
                "nvmlDeviceGetClockInfo": {1: 1980, 2: 3201}.get(arguments[-1]) if arguments else None,
                "nvmlDeviceGetMaxClockInfo": 1980,
                "nvmlDeviceGetPowerUsage": 650_000,
                "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            }.get(name)

        return answer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU that CUDA shows."""
    monkeypatch.setattr(nvml, "_first_gpu", lambda: UUID)
    return monkeypatch


def test_nvml_is_asked_for_the_gpu_that_cuda_uses(gpu: pytest.MonkeyPatch) -> None:
    gpu.setitem(sys.modules, "pynvml", Driver())
    found = nvml.find()
    assert found is not None and found.memory_used() == 512 << 20 and nvml.obstacle() == ""
    meter = energy.NvmlMeter(found)
    assert [meter.read(), meter.read()] == [1_070, 1_140]
    assert found.state() == nvml.State("570.1", 1980, 1980, 3201, 650.0, 700.0)


def test_what_a_driver_does_not_know_is_not_known(gpu: pytest.MonkeyPatch) -> None:
    gpu.setitem(sys.modules, "pynvml", Driver(lacks="Energy"))
    found = nvml.find()
    assert found is not None and found.energy_mj() is None
    gpu.setitem(sys.modules, "pynvml", Driver(lacks="Clock"))
    found = nvml.find()
    assert found is not None and found.state().sm_mhz is None and found.state().power_w == 650.0
    for lacking in ("nvmlInit", "HandleByUUID"):
        gpu.setitem(sys.modules, "pynvml", Driver(lacks=lacking))
        assert nvml.find() is None and "does not know the GPU" in nvml.obstacle()


def test_a_missing_package_is_named(gpu: pytest.MonkeyPatch) -> None:
    gpu.setitem(sys.modules, "pynvml", None)
    assert nvml.find() is None
    assert nvml.obstacle() == "nvidia-ml-py is not installed: pip install nvidia-ml-py"


@pytest.mark.gpu
def test_the_gpu_here_tells_its_memory() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    found = nvml.find()
    assert found is not None and (found.memory_used() or 0) > 0 and found.state().driver


@pytest.mark.parametrize(
    ("line", "watts"),
    [(ORIN, 5.0), ("POM_5V_IN 2540/2540 POM_5V_GPU 80/80", 2.54), ("RAM 3162/7620MB", None), ("", None)],
)
def test_a_line_of_tegrastats(line: str, watts: float | None) -> None:
    assert board_watts(line) == watts


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_tegrastats_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 s of 5 W, until there is a file, then 2 s of 20 W."""
    now = [100.0]
    monkeypatch.setattr("qcn.verify.speed.energy.time.monotonic", lambda: now[0])
    later, sign = ORIN.replace("VDD_IN 5000", "VDD_IN 20000"), tmp_path / "sign"
    wait = f"until [ -e '{sign}' ]; do sleep 0.02; done"
    program = script(tmp_path / "tegrastats", f"echo '{ORIN}'; {wait}; while true; do echo '{later}'; sleep 0.05; done")
    with TegrastatsMeter(program) as meter:
        assert meter.read() == 0
        now[0] += 10
        assert meter.read() == pytest.approx(50e3)
        sign.touch()
        until = time.perf_counter() + 60
        while meter._watts != 20 and time.perf_counter() < until:
            time.sleep(0.01)
        now[0] += 2
        assert meter.read() == pytest.approx(90e3)
    with TegrastatsMeter(script(tmp_path / "other", "echo RAM; exec sleep 9")) as meter:
        assert meter.read() is None


def test_the_power_mode_of_a_jetson_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = script(tmp_path / "nvpmodel", "echo 'NV Power Mode: MAXN'; echo 0")
    monkeypatch.setattr(machine.shutil, "which", lambda name: program if name == "nvpmodel" else None)
    assert machine.environment().power_mode == "MAXN"
    script(tmp_path / "nvpmodel", "exit 1")
    assert machine.environment().power_mode is None

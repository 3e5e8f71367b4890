"""Energy and memory of a GPU: NVML through a library that answers as the driver's does, tegrastats as a script."""

import ctypes
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from qcn.verify import energy, machine, nvml
from qcn.verify.energy import TegrastatsMeter, board_watts

UUID = bytes(range(16))
ORIN = "RAM 3162/7620MB (lfb 1x2MB) CPU [1%@729] VDD_IN 5000mW/4801mW VDD_CPU_GPU_CV 600mW/600mW"


class Driver:
    """libcuda and libnvidia-ml of one GPU; NVML returns 3, "not supported", for what `lacks` names."""

    def __init__(self, lacks: str = "nothing") -> None:
        self.lacks = lacks
        self.spent = 1_000

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 3 if self.lacks in name else self.answer(name, arguments)

    def answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        out = getattr(arguments[-1], "_obj", None) if arguments else None
        if name == "cuDeviceGetUuid":
            ctypes.memmove(arguments[0], UUID, 16)
        elif name == "nvmlDeviceGetHandleByUUID":
            return 0 if arguments[0] == b"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f" else 6
        elif name == "nvmlSystemGetDriverVersion":
            arguments[0].value = b"570.1"
        elif name == "nvmlDeviceGetMemoryInfo":
            out.used = 512 << 20
        elif name == "nvmlDeviceGetTotalEnergyConsumption":
            self.spent += 70
            out.value = self.spent
        elif "Clock" in name:
            out.value = {1: 1980, 2: 3201}[arguments[1]]
        elif "Power" in name:
            out.value = 700_000
        return 0


def test_nvml_is_asked_for_the_gpu_that_cuda_uses() -> None:
    driver = Driver()
    gpu = nvml.open_with(driver, driver)
    assert gpu is not None and gpu.memory_used() == 512 << 20
    meter = energy.NvmlMeter(gpu)
    assert [meter.read(), meter.read()] == [1_070, 1_140]
    assert gpu.facts() == {
        "driver": "570.1",
        "sm_mhz": 1980,
        "max_sm_mhz": 1980,
        "memory_mhz": 3201,
        "power_w": 700.0,
        "power_limit_w": 700.0,
    }


def test_what_a_driver_does_not_tell_is_not_known() -> None:
    driver = Driver(lacks="Energy")
    gpu = nvml.open_with(driver, driver)
    assert gpu is not None and gpu.energy_mj() is None
    driver = Driver(lacks="Clock")
    gpu = nvml.open_with(driver, driver)
    assert gpu is not None and gpu.facts()["sm_mhz"] is None and gpu.facts()["power_w"] == 700.0
    for lacking in ("cuInit", "nvmlInit_v2", "HandleByUUID"):
        driver = Driver(lacks=lacking)
        assert nvml.open_with(driver, driver) is None


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


def test_tegrastats_is_added_up(tmp_path: Path) -> None:
    later = ORIN.replace("VDD_IN 5000", "VDD_IN 20000")
    program = script(
        tmp_path / "tegrastats", f"echo '{ORIN}'; sleep 0.2; while true; do echo '{later}'; sleep 0.05; done"
    )
    with TegrastatsMeter(program) as meter:
        began, before = time.monotonic(), meter.read()
        time.sleep(0.6)
        after = meter.read()
        assert before is not None and after is not None
        watts = (after - before) / 1e3 / (time.monotonic() - began)
    assert 8 < watts < 19  # 5 W for a third of the time, then 20 W
    with TegrastatsMeter(script(tmp_path / "other", "echo RAM; exec sleep 9")) as meter:
        assert meter.read() is None


def test_the_power_mode_of_a_jetson_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = script(tmp_path / "nvpmodel", "echo 'NV Power Mode: MAXN'; echo 0")
    monkeypatch.setattr(machine.shutil, "which", lambda name: program if name == "nvpmodel" else None)
    assert machine.environment()["power_mode"] == "MAXN"
    script(tmp_path / "nvpmodel", "exit 1")
    assert machine.environment()["power_mode"] is None

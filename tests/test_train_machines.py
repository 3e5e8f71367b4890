"""Training on two machines: two network namespaces that only a cable connects, with data sets of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from official import accept
from safetensors.torch import load_file

from qcn.train.record import load_run

ADDRESSES = {"qcn-one": "10.213.7.1", "qcn-two": "10.213.7.2"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[tuple[str, ...]]:
    """The names of two namespaces; in each the cable is called as the namespace is."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and ip: apt install iproute2")
    try:
        ip("netns", "add", "qcn-one")
    except subprocess.CalledProcessError:
        pytest.skip("network namespaces are not allowed here")
    with ExitStack() as made:
        made.callback(ip, "netns", "delete", "qcn-one")
        ip("netns", "add", "qcn-two")
        made.callback(ip, "netns", "delete", "qcn-two")
        ip("link", "add", "qcn-one", "netns", "qcn-one", "type", "veth", "peer", "name", "qcn-two", "netns", "qcn-two")
        for name, address in ADDRESSES.items():
            inside = ("netns", "exec", name, "ip")
            ip(*inside, "address", "add", f"{address}/24", "dev", name)
            ip(*inside, "link", "set", name, "up")
            ip(*inside, "link", "set", "lo", "up")
        yield tuple(ADDRESSES)


def together(machines: tuple[str, ...], folders: list[Path], *words: object) -> None:
    """`qcn` by torchrun on both machines, each with the data sets in its folder."""
    running = []
    for rank, (machine, data) in enumerate(zip(machines, folders, strict=True)):
        torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank)]
        torchrun += ["--master-addr", ADDRESSES["qcn-one"], "--master-port", "29513", "-m", "qcn"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": machine}
        command = ["ip", "netns", "exec", machine, sys.executable, *torchrun, *map(str, words), "--data-dir", str(data)]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for process in running:
        try:
            said, _ = process.communicate(timeout=180)
        finally:
            process.kill()
        assert process.returncode == 0, said.decode()


@pytest.mark.slow
def test_two_machines_train_and_go_on_as_one_does(machines: tuple[str, ...], data_dir: Path, tmp_path: Path) -> None:
    folders = [shutil.copytree(data_dir, tmp_path / machine) for machine in machines]
    for folder in folders:
        accept("mnist", folder / "mnist")
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    options = ("train", "--dataset", "mnist", "--model", "qcn-tiny", "--batch-size", 30, "--epochs")
    together(machines, folders, *options, 1, "--out", shared)
    together(machines, folders, "train", "--resume", shared, "--epochs", 2)
    for words in ((*options, 1, "--out", alone), ("train", "--resume", alone, "--epochs", 2)):
        command = [sys.executable, "-m", "qcn", *map(str, words), "--data-dir", str(data_dir)]
        subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=True, capture_output=True)
    runs = [load_run(folder) for folder in (alone, shared)]
    assert [run.progress.epoch for run in runs] == [2, 2]
    one, two = (load_file(folder / run.weights("last").file) for folder, run in zip((alone, shared), runs, strict=True))
    start = torch.cat([tensor.flatten().double() for tensor in one.values()])
    apart = torch.cat([(one[name] - two[name]).flatten().double() for name in one])
    assert apart.norm() / start.norm() < 2e-3  # sums in another order: see tests/test_train.py

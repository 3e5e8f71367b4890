"""What the tests of verify share: honest bundles, made once per process, and the command in this process."""

import shutil
from pathlib import Path

import pytest
from command import Command
from plants import honest

from qcn.export.bundle import Bundle


@pytest.fixture(scope="session")
def honest_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Honest bundles with a graph in single and in half precision: for 24×24 pixels of three channels, four classes."""
    folder = tmp_path_factory.mktemp("honest")
    return {precision: honest(folder / precision, precision=precision).folder for precision in ("fp32", "fp16")}


@pytest.fixture
def small(honest_folders: dict[str, Path], tmp_path: Path) -> Bundle:
    """An honest bundle of the test's own."""
    return Bundle.open(shutil.copytree(honest_folders["fp32"], tmp_path / "small"))


@pytest.fixture
def qcn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)

"""What the tests of verify share: honest bundles, made once, and the command in this process."""

import shutil
from pathlib import Path

import pytest
from bundles import made_once
from command import Command
from plants import honest

from qcn.export.bundle import Bundle


@pytest.fixture(scope="session")
def honest_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Honest bundles with a graph in single and in half precision: for 24×24 pixels of three channels, four classes."""

    def make(precision: str) -> Path:
        return made_once(tmp_path_factory, f"honest-{precision}", lambda folder: honest(folder, precision=precision))

    return {precision: make(precision) for precision in ("fp32", "fp16")}


@pytest.fixture
def small(honest_folders: dict[str, Path], tmp_path: Path) -> Bundle:
    """An honest bundle of the test's own."""
    return Bundle.open(shutil.copytree(honest_folders["fp32"], tmp_path / "small"))


@pytest.fixture
def qcn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)

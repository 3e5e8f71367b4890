"""Where libqcn and its TensorRT plugin are looked for."""

from pathlib import Path

import pytest

from qcn import libqcn
from qcn.errors import MissingError
from qcn.export import plugin


def test_an_installed_library_is_found_and_one_that_was_built_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("QCN_LIBRARY", "QCN_PLUGIN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(libqcn, "ROOT", tmp_path / "checkout")
    monkeypatch.setattr(libqcn, "INSTALLED", (tmp_path / "lib",))
    with pytest.raises(MissingError, match=r"libqcn is not at .*lib/libqcn.so; `make"):
        libqcn.find_library()
    for folder in (tmp_path / "lib", tmp_path / "checkout" / "build"):
        folder.mkdir(parents=True)
        for name in ("libqcn.so", plugin.LIBRARY):
            (folder / name).touch()
        assert (libqcn.find_library(), plugin.find()) == (folder / "libqcn.so", folder / plugin.LIBRARY)

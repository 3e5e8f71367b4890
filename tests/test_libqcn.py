"""Where libqcn and its TensorRT plugin are looked for, and what Python and they must agree on."""

import re
from pathlib import Path

import pytest

from qcn import libqcn, limits
from qcn.errors import MissingError
from qcn.export.tensorrt import plugin


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


def test_the_command_that_builds_it_puts_it_where_it_is_looked_for(tmp_path: Path) -> None:
    assert libqcn.BUILD == "make build/libqcn.so"  # of this checkout
    assert libqcn.build_command(tmp_path) == "make build/libqcn.so && sudo cmake --install build"


def test_limits_are_those_of_the_library() -> None:
    deploy = Path(__file__).parent.parent / "deploy"
    header = (deploy / "kernels" / "em_routing.h").read_text(encoding="utf-8")
    defined = {name: int(value) for name, value in re.findall(r"#define QCN_ROUTING_(\w+) (\d+)", header)}
    ours = {"MAX_PARENTS": limits.MAX_PARENTS, "MAX_ITERATIONS": limits.MAX_ITERATIONS, "STATISTICS": limits.STATISTICS}
    assert defined == ours

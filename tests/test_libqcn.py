"""Where libqcn and its TensorRT plugin are looked for, and what Python and they must agree on."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bundles import bundle_of, put_manifest
from libqcn_load import BAD_ARGUMENT, BAD_BUNDLE, OK, load
from runners import create

import qcn
from qcn import limits
from qcn.errors import MissingError, UsageError
from qcn.export.backends.tensorrt import plugin
from qcn.export.bundle import MANIFEST, WEIGHTS, Bundle
from qcn.kernels import native
from qcn.libqcn import location
from qcn.networks.model import qcn_tiny


def test_a_library_of_the_system_is_found_before_it_one_that_was_built_and_first_the_package_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("QCN_LIBRARY", "QCN_PLUGIN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(location, "PACKAGE", tmp_path / "clone" / "qcn")
    monkeypatch.setattr(location, "CLONE", tmp_path / "clone")
    monkeypatch.setattr(location, "INSTALLED", (tmp_path / "lib",))
    with pytest.raises(MissingError, match=r"libqcn is not at .*lib/libqcn.so; `make"):
        location.find_library()
    for folder in (tmp_path / "lib", tmp_path / "clone" / "build", tmp_path / "clone" / "qcn" / "lib"):
        folder.mkdir(parents=True)
        for name in ("libqcn.so", plugin.LIBRARY):
            (folder / name).touch()
        assert (location.find_library(), plugin.find()) == (folder / "libqcn.so", folder / plugin.LIBRARY)


def test_the_command_that_builds_it_puts_it_where_it_is_looked_for(tmp_path: Path) -> None:
    assert location.BUILD == "make build/libqcn.so"  # of this clone
    assert location.build_command(tmp_path) == "pip install --force-reinstall WHEEL-OR-CLONE"


def test_limits_are_those_of_the_library() -> None:
    deploy = Path(__file__).parent.parent / "deploy"
    header = (deploy / "kernels" / "em_routing.h").read_text(encoding="utf-8")
    defined = {name: int(value) for name, value in re.findall(r"#define QCN_ROUTING_(\w+) (\d+)", header)}
    ours = {"MAX_PARENTS": limits.MAX_PARENTS, "MAX_ITERATIONS": limits.MAX_ITERATIONS, "STATISTICS": limits.STATISTICS}
    assert defined == ours


def test_more_threads_than_any_machine_has_are_refused(tmp_path: Path) -> None:
    deploy = Path(__file__).parent.parent / "deploy"
    for file, name in (("include/qcn/qcn.h", r"#define QCN_MAX_THREADS "), ("kernels/threads.h", "kMaxThreads = ")):
        found = re.search(rf"{name}(\d+)", (deploy / file).read_text(encoding="utf-8"))
        assert found and int(found[1]) == limits.MAX_THREADS
    (tmp_path / WEIGHTS).touch()
    for threads in (3000, limits.MAX_THREADS + 1, 2**31 - 1, -1, -(2**31)):
        with pytest.raises(UsageError, match=f"from 0 to {limits.MAX_THREADS}, not {threads}"):
            native.set_threads(threads)
        status, said = load(tmp_path, threads=threads)
        assert status == BAD_ARGUMENT and f"threads is {threads}, not from 0 to" in said
        with pytest.raises(UsageError, match=f"threads is {threads}"):
            create("native", tmp_path / WEIGHTS, threads=threads).open()


@pytest.mark.parametrize("tools", ['{"qcn": "9.1.0"}', '["unknown"]', '{"qcn": 9}', r'{"qcn": "9\u0007"}'])
def test_python_and_the_library_say_the_same_of_a_newer_bundle(tmp_path: Path, tools: str) -> None:
    """By which version it was made, as far as that can be read; nothing is to be removed."""
    folder = bundle_of(tmp_path / "bundle", qcn_tiny(1, 3).eval(), 16, 16).folder
    record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    put_manifest(folder, json.dumps(record | {"schema": 99, "tools": json.loads(tools), "new": True}))
    with pytest.raises(UsageError) as python:
        Bundle.open(folder)
    status, said = load(folder)
    assert status == BAD_BUNDLE and said.replace("libqcn", "qcn") == str(python.value)
    readable = "9.1.0" in tools
    assert f"it has schema 99, of {'qcn 9.1.0' if readable else 'a newer qcn'}; libqcn {qcn.__version__} reads " in said
    to = " to 9.1.0 or newer" if readable else ""
    assert said.endswith(f": update libqcn{to}, with pip install --upgrade qcn-toolkit")


def test_no_more_threads_are_started_than_there_is_work_for(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bundle = bundle_of(tmp_path / "bundle", qcn_tiny(1, 3).eval(), 16, 16)
    assert load(bundle.folder)[0] == OK
    code = (
        "import os, sys; from pathlib import Path; from libqcn_load import load\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "print(load(Path(sys.argv[1]), threads=1024), len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle.folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert done.stdout.startswith("(0, '')") and int(done.stdout.split()[-1]) < 600, done.stdout

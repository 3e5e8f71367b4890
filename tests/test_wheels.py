"""`make wheels`: what it makes is installed outside the repository, in an environment without torch, and used there."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import bundle_of, made_once
from PIL import Image

import qcn
from qcn.networks.model import qcn_tiny
from qcn.train.checkpoint import load_network

ROOT = Path(__file__).parents[1]
HERE = platform.machine()
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[HERE]
pytestmark = pytest.mark.wheels  # everything is compiled, once per machine


def command(*words: object, cwd: Path, code: int = 0, **environment: str) -> str:
    """What it prints. Nothing of this environment leads it back to the repository."""
    kept = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "QCN", "VIRTUAL"))}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, f"{words}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def wheel_folder(machine: str, factory: pytest.TempPathFactory) -> Path:
    """The folder with the source distribution, and the wheel for this machine that was made of it."""
    if not shutil.which(f"{machine}-linux-gnu-g++"):
        pytest.skip(f"there is no compiler for {machine}: apt install g++-{machine.replace('_', '-')}-linux-gnu")
    if not Path(f"/usr/lib/{machine}-linux-gnu/libpng.a").exists():
        pytest.skip(f"there is no libpng for {machine}: see `wheels` in the Makefile")

    def make(folder: Path) -> None:
        # On a machine newer than Debian 12 the wheel needs a newer glibc than the one that is published.
        options = (f"MACHINES={machine}", f"DIST={folder}", "GLIBC=manylinux", f"PYTHON={sys.executable}")
        command("make", "wheels", *options, cwd=ROOT)

    return made_once(factory, f"wheels-{machine}", make)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_folder(HERE, tmp_path_factory)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that ships, as a bundle, and a picture beside it."""
    folder = tmp_path_factory.mktemp("shipped")
    network, record = load_network(ROOT / "models" / "runs" / "mnist-qcn")
    bundle_of(folder / "mnist", network.eval(), *record.data.image[1:], spec=record.preprocessing)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60), np.uint8)
    Image.fromarray(pixels).save(folder / "picture.png")
    return folder


@pytest.fixture(scope="module")
def installed(here: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("installed")
    command(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    commands = folder / "venv" / "bin"
    (wheel,) = here.glob("*.whl")
    command(commands / "pip", "install", "--constraint", ROOT / "constraints.txt", wheel, cwd=folder)
    return commands


def test_a_wheel_has_the_library_the_programs_the_networks_and_the_licences(here: Path) -> None:
    (wheel,) = here.glob("*.whl")
    assert wheel.name.startswith(f"qcn_toolkit-{qcn.__version__}-py3-none-manylinux_") and HERE in wheel.name
    sizes = {entry.filename: entry.compress_size for entry in zipfile.ZipFile(wheel).infolist()}
    names = set(sizes)
    assert {"qcn/lib/libqcn.so", "qcn/bin/qcn-run", "qcn/bin/qcn-bench", "qcn/py.typed"} <= names
    pages = {f"qcn/web/qcn-{variant}.wasm" for variant in ("simd", "plain", "threads")}
    assert names & pages == (pages if shutil.which("emcmake") else set())
    folders = {"qcn": "qcn", "export": "qcn/export", "calibrate": "qcn/calibrate"}
    for folder, place in folders.items():
        sources = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
        assert {f"{place}/{path}" for path in sources} <= names
    parts = ("card.json", "card.md", "golden.safetensors", "manifest.json", "manifest.sha256", "weights.safetensors")
    networks = {f"qcn/models/{path.parent.name}/{part}" for path in ROOT.glob("models/*/card.json") for part in parts}
    files = {name for name in names if name.startswith("qcn/models/") and not name.endswith("/")}
    assert files == networks | {"qcn/models/README.md"}
    info = f"qcn_toolkit-{qcn.__version__}.dist-info"
    assert {f"{info}/licenses/{name}" for name in ("LICENSE", "NOTICE", "deploy/programs/THIRD-PARTY.txt")} <= names
    assert {name.split("/")[0] for name in names} == {"qcn", info}  # nothing at the top level but the package
    # At most a megabyte for each network, five on a pretrained backbone, and two and a half for everything else.
    assert sum(sizes[name] for name in names - networks) < 2_500_000
    most = sum(5_000_000 if "lite0" in path.parent.name else 1_000_000 for path in ROOT.glob("models/*/card.json"))
    assert sum(sizes[name] for name in networks) < most


def test_the_source_distribution_has_the_sources_and_nothing_that_was_built(here: Path) -> None:
    (source,) = here.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"deploy/CMakeLists.txt", "export/pipeline.py", "LICENSE", "tests/test_wheels.py"} <= names
    assert not [name for name in names if name.startswith(("build/", "dist/", ".venv/", "runs/", "data/"))]


def test_an_installed_wheel_runs_at_once_without_torch(installed: Path, shipped: Path, tmp_path: Path) -> None:
    bundle, picture = shipped / "mnist", shipped / "picture.png"
    assert command(installed / "qcn", "--version", cwd=tmp_path).strip() == f"qcn {qcn.__version__}"
    assert command(installed / "qcn-run", "--version", cwd=tmp_path).strip() == qcn.__version__
    library = command(
        installed / "python", "-c", "from qcn.libqcn.location import *; print(find_library())", cwd=tmp_path
    )
    assert Path(library.strip()).is_relative_to(installed.parent)
    assert "by libqcn" in command(installed / "qcn", "doctor", bundle, cwd=tmp_path)
    answers = tmp_path / "answers.json"
    command(installed / "qcn", "predict", picture, "--model", bundle, "--json", answers, cwd=tmp_path)
    (answer,) = json.loads(answers.read_text(encoding="utf-8"))
    told = json.loads(command(installed / "qcn-run", bundle, picture, "--json", cwd=tmp_path))
    assert told["label"] == answer["label"]
    assert "native" in command(installed / "qcn", "verify-parity", bundle, cwd=tmp_path)
    options = ("--backends", "native", "--duration", "0.2", "--json", tmp_path / "speed.json")
    command(installed / "qcn", "benchmark", bundle, *options, cwd=tmp_path)
    assert command(installed / "qcn-bench", bundle, "--help", cwd=tmp_path)
    if shutil.which("emcmake"):
        words = ("export", shutil.copytree(bundle, tmp_path / "copy"), "--format", "web")
        assert "page.html" in command(installed / "qcn", *words, cwd=tmp_path)


def test_networks_that_ship_answer_without_torch(installed: Path, shipped: Path, tmp_path: Path) -> None:
    picture = shipped / "picture.png"
    assert "by cifar10-qcn-deep on libqcn" in command(installed / "qcn", "predict", picture, cwd=tmp_path)
    said = command(installed / "qcn", "predict", picture, "--model", "mnist", "--jsonl", "-", cwd=tmp_path)
    code = "import qcn, sys; print(qcn.load('mnist').predict(sys.argv[1]).label)"
    label = command(installed / "python", "-c", code, picture, cwd=tmp_path).strip()
    assert json.loads(said.splitlines()[0])["label"] == label
    assert "is intact" in command(installed / "qcn", "doctor", "mnist", cwd=tmp_path)
    assert "native" in command(installed / "qcn", "verify-parity", "mnist", cwd=tmp_path)
    for words in (("export", "mnist"), ("calibrate", "mnist")):
        assert "without its training run: a clone" in command(installed / "qcn", *words, cwd=tmp_path, code=3)


def test_hints_name_what_installs(installed: Path, tmp_path: Path) -> None:
    """pip takes the extra from what is installed, not from an index."""
    hint = "pip install 'qcn-toolkit[train]'"
    assert hint in command(installed / "qcn", "train", "--dataset", "mnist", cwd=tmp_path, code=3)
    offline = ("install", "--no-index", "--dry-run", "qcn-toolkit[train]")
    empty = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    said = command(installed / "pip", *offline, cwd=tmp_path, code=1, **empty)
    assert "already satisfied: qcn-toolkit[train]" in said and "No matching distribution found for matplotlib" in said


@pytest.mark.parametrize("start", ["beside", "inside"])
def test_a_clone_named_qcn_is_no_shadow_of_the_wheel(installed: Path, start: str, tmp_path: Path) -> None:
    clone = tmp_path / "qcn"
    clone.mkdir()
    for name in ("qcn", "export", "calibrate", "deploy"):
        (clone / name).symlink_to(ROOT / name)
    cwd, package = (tmp_path, installed.parent) if start == "beside" else (clone, clone)
    code = "import qcn, qcn.export; print(qcn.__file__, qcn.export.__file__)"
    for path in command(installed / "python", "-c", code, cwd=cwd).split():
        assert Path(path).is_relative_to(package)
    assert command(installed / "python", "-m", "qcn", "--version", cwd=cwd).strip() == f"qcn {qcn.__version__}"


def test_the_other_machine_s_wheel_answers_as_this_one_s(
    installed: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    emulator = shutil.which(f"qemu-{OTHER}") or shutil.which(f"qemu-{OTHER}-static")
    if not emulator:
        pytest.skip(f"there is no qemu-{OTHER}: apt install qemu-user")
    (wheel,) = wheel_folder(OTHER, tmp_path_factory).glob("*.whl")
    assert OTHER in wheel.name
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = tmp_path / "qcn" / "bin" / "qcn-run"
    program.chmod(0o755)  # as pip does; zipfile does not
    # A small network: the emulator is slow.
    torch.manual_seed(0)
    words = (bundle_of(tmp_path / "tiny", qcn_tiny(1, 3).eval(), 16, 16).folder, tmp_path / "small.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8)).save(tmp_path / "small.png")
    options = ("--json", "--threads", 1)  # with more qemu 7.2 does not come to an end
    other = command(emulator, "-L", f"/usr/{OTHER}-linux-gnu", program, *words, *options, cwd=tmp_path)
    here = command(installed / "qcn-run", *words, *options, cwd=tmp_path)
    assert json.loads(other)["label"] == json.loads(here)["label"]


def test_without_a_compiler_pip_says_what_to_install(here: Path, tmp_path: Path) -> None:
    (source,) = here.glob("*.tar.gz")
    words = ("wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", tmp_path, source)
    said = command(sys.executable, "-m", "pip", *words, cwd=tmp_path, code=1, CC="/nowhere/cc", CXX="/nowhere/c++")
    assert "apt install g++" in " ".join(said.split())

"""The package as it is installed here: one version, and no clone that shadows it."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import qcn
from qcn.errors import MissingError
from qcn.libqcn import location, programs

ROOT = Path(__file__).parents[1]


def python(*arguments: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Another clone, in a folder that is named as the package."""
    folder = tmp_path / "qcn"
    folder.mkdir()
    for name in ("qcn", "export", "calibrate", "deploy"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_the_version_is_that_of_the_header() -> None:
    header = (ROOT / "deploy" / "include" / "qcn" / "qcn.h").read_text(encoding="utf-8")
    assert ".".join(re.findall(r"#define QCN_VERSION_\w+ (\d+)", header)) == qcn.__version__, "pip install -e . again"


def test_what_is_written_beside_the_code_names_the_same_version() -> None:
    text = {
        name: (ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md", "docs/install.md")
    }
    assert f"\nversion: {qcn.__version__}\n" in text["CITATION.cff"]
    assert re.search(r"^## (\d.*)$", text["CHANGELOG.md"], re.MULTILINE)[1] == qcn.__version__  # type: ignore[index]
    assert set(re.findall(r"qcn_toolkit-([0-9.]+[0-9])", text["docs/install.md"])) == {qcn.__version__}
    # A TensorRT backend of another version than libqcn's is not taken.
    assert not re.findall(r"VERSION=[^$]*\d", (ROOT / "deploy/tests/tensorrt_on_gpu.sh").read_text(encoding="utf-8"))


@pytest.mark.parametrize("start", ["beside", "inside"])
def test_an_editable_install_is_found_whatever_clone_is_near(clone: Path, start: str) -> None:
    cwd = clone if start == "inside" else clone.parent
    code = "import qcn, qcn.export, qcn.calibrate; print(qcn.__file__, qcn.export.__file__)"
    assert python("-c", code, cwd=cwd).split() == [f"{ROOT}/qcn/__init__.py", f"{ROOT}/export/__init__.py"]
    assert python("-m", "qcn", "--version", cwd=cwd) == f"qcn {qcn.__version__}"


def test_a_clone_that_is_not_installed_is_whole_when_python_starts_in_it(clone: Path) -> None:
    """Without site (-S) no editable install is known; the packages that the product needs are."""
    packages = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
    code = "import qcn.export.pipeline, qcn.calibrate; print(qcn.__file__, qcn.export.__file__)"
    found = python("-S", "-c", code, cwd=clone, PYTHONPATH=packages).split()
    assert found == [f"{clone}/qcn/__init__.py", f"{clone}/export/__init__.py"]


def test_the_programs_are_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    commands = Path(sys.executable).parent
    for name in ("qcn-run", "qcn-bench"):
        if not (ROOT / "build" / "programs" / name).exists():
            pytest.skip("there is no build/programs/qcn-run: make build/libqcn.so")
        done = subprocess.run([commands / name, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == qcn.__version__
    monkeypatch.setattr(location, "PACKAGE", tmp_path)
    monkeypatch.setattr(location, "CLONE", tmp_path)
    with pytest.raises(SystemExit) as ended:
        programs.run()
    assert ended.value.code == MissingError.exit_code
    assert f"qcn-run: qcn-run is not at {tmp_path}/bin/qcn-run nor" in capsys.readouterr().err


def write_wheel(folder: Path, name: str, *requires: str) -> None:
    """A distribution of no files that asks for others."""
    info = f"{name.replace('-', '_')}-9.0.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0", *(f"Requires-Dist: {each}" for each in requires)]
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-9.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(("gpu", "code"), [("", 1), ("yes", 0)])
def test_make_takes_a_torch_with_cuda_only_where_there_is_a_gpu(gpu: str, code: int, tmp_path: Path) -> None:
    """By the constraints that `make` gives to pip, and an index that has no other torch."""
    write_wheel(tmp_path, "torch", "nvidia-cudnn-cu13")
    write_wheel(tmp_path, "nvidia-cudnn-cu13")
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", f"GPU={gpu}", ".venv/bin/.installed"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (install,) = [line for line in planned.stdout.splitlines() if "[train,onnx]" in line]
    constraints = [f"--constraint={ROOT / name}" for name in re.findall(r"--constraint (\S*cpu\S*)", install)]
    words = ("-m", "pip", "install", "--dry-run", "--no-index", f"--find-links={tmp_path}", *constraints, "torch>=9")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("download.pytorch.org/whl/cpu" in planned.stdout) and ("ResolutionImpossible" in done.stderr) == bool(code)

"""Where libqcn (deploy/) is on this machine. No torch here."""

import ctypes
import os
import sysconfig
from pathlib import Path

from qcn.errors import MissingError

ROOT = Path(__file__).resolve().parents[1]
# Where `cmake --install` and a system's packages put libraries.
INSTALLED = (Path("/usr/local/lib"), Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or ""))


def build_command(root: Path) -> str:
    """The command that builds the library, in the repository, so that a package in `root` finds it.

    A package used in place (`pip install -e`) looks into build/. One that was copied out of the repository
    (`pip install`) has no build/, and finds only an installed library.
    """
    build = "make build/libqcn.so"
    return build if (root / "deploy").is_dir() else f"{build} && sudo cmake --install build"


BUILD = build_command(ROOT)


def places() -> list[Path]:
    """The file that QCN_LIBRARY names; or the one beside the package, the one that `make` builds, an installed one."""
    chosen = os.environ.get("QCN_LIBRARY")
    folders = (ROOT / "qcn" / "lib", ROOT / "build", *INSTALLED)
    return [Path(chosen)] if chosen else [folder / "libqcn.so" for folder in folders]


def find_library() -> Path:
    """The first of the places that has it."""
    for place in places():
        if place.is_file():
            return place
    raise MissingError(f"libqcn is not at {' nor '.join(map(str, places()))}; `{BUILD}` in the repository builds it")


def load_library(*functions: str) -> ctypes.CDLL:
    """The library, refused if it is for another machine, or of a version without these functions."""
    path = find_library()
    try:
        library = ctypes.CDLL(str(path))
        for function in functions:
            getattr(library, function)
    except (OSError, AttributeError) as error:
        raise MissingError(f"{path} cannot be used ({error}); `{BUILD}` builds it for this machine") from error
    return library

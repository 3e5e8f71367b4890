"""Find libqcn (deploy/) and its programs on this machine. No torch here.

They are looked for in one order: what the environment names (QCN_LIBRARY); what is inside the installed package, as
wheels have it; what `make` built in a clone; what `cmake --install` or a system's package installed.
"""

import ctypes
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from qcn.errors import MissingError

PACKAGE = Path(__file__).resolve().parents[1]
CLONE = PACKAGE.parent  # a clone, if the package is used in place (`pip install -e`)
# Where `cmake --install` and a system's packages put libraries.
INSTALLED = (Path("/usr/local/lib"), Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or ""))


def build_command(clone: Path) -> str:
    """The command that brings the library: a clone builds its own, an installed package has it from its wheel."""
    return "make build/libqcn.so" if (clone / "deploy").is_dir() else "pip install --force-reinstall WHEEL-OR-CLONE"


BUILD = build_command(CLONE)


def places() -> list[Path]:
    """The file that QCN_LIBRARY names; or the package's own, the one that `make` builds, an installed one."""
    override = os.environ.get("QCN_LIBRARY")
    folders = (PACKAGE / "lib", CLONE / "build", *INSTALLED)
    return [Path(override)] if override else [folder / "libqcn.so" for folder in folders]


def first_file(places: Sequence[Path], missing: str, fix: str) -> Path:
    """The first of the places that has the file; else an error: what is `missing`, all places, and the `fix`."""
    for place in places:
        if place.is_file():
            return place
    raise MissingError(f"{missing} {' nor '.join(map(str, places))}; {fix}")


def find_library() -> Path:
    """The first of the places that has it."""
    return first_file(places(), "libqcn is not at", f"`{BUILD}` builds it")


def load_library(*functions: str) -> ctypes.CDLL:
    """The library, refused if it is for another machine, or of a version without these functions."""
    path = find_library()
    try:
        library = ctypes.CDLL(str(path))
        for function in functions:
            getattr(library, function)
    except (OSError, AttributeError) as error:
        raise MissingError(f"{path} cannot be used ({error}); `{BUILD}` builds one for this machine") from error
    return library


def find_program(name: str) -> Path:
    """`qcn-run` or `qcn-bench`: the package's own, or the one that `make` builds."""
    places = [PACKAGE / "bin" / name, CLONE / "build" / "programs" / name]
    return first_file(places, f"{name} is not at", f"`{BUILD}` builds it")

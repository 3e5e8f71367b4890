"""The command line: arguments in, one call each, tables out. Heavy imports happen inside the commands."""

import errno
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import qcn
from qcn.errors import MissingError, QcnError, UsageError
from qcn.terminal.text import readable, started

# Each command's module, and the section of `qcn --help` that it stands in. It is imported when the command is used.
LEARN, DEPLOY, BUNDLE, TRUST = "Train", "Deploy", "A bundle in your hands", "Trust"
COMMANDS = {
    "train": ("train", LEARN),
    "sweep": ("sweep", LEARN),
    "evaluate": ("evaluate", LEARN),
    "predict": ("predict", LEARN),
    "models": ("models", LEARN),
    "datasets": ("datasets", LEARN),
    "export": ("export", DEPLOY),
    "calibrate": ("calibrate", DEPLOY),
    "verify-parity": ("verify", TRUST),
    "benchmark": ("verify", TRUST),
    "ship-check": ("ship", TRUST),
    "explain": ("explain", TRUST),
    "report": ("report", TRUST),
    "doctor": ("bundle", BUNDLE),
    "sign": ("bundle", BUNDLE),
    "install": ("bundle", BUNDLE),
}


def _summary(name: str) -> str:
    """The help of a command in the list of commands, read from its source: importing all of them takes a second."""
    source = (Path(__file__).parent / f"{COMMANDS[name][0]}.py").read_text(encoding="utf-8")
    group, function = r'^app = typer\.Typer\(\s*help="(.*?)"', rf'^def {name.replace("-", "_")}\(.*?"""(.*?)"""'
    result = re.search(group, source, re.M) or re.search(function, source, re.M | re.S)
    return " ".join(result[1].split()) if result else ""


@cache
def _command(name: str) -> Any:
    of = import_module(f"qcn.cli.{COMMANDS[name][0]}")
    if hasattr(of, "app"):
        command: Any = typer.main.get_group(of.app)
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(getattr(of, name.replace("-", "_")))
        command = typer.main.get_command(alone)
    command.name = name
    return command


class LazyCommands(Mapping[str, Any]):
    """Commands by name, each imported when first used."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Group(TyperGroup):
    """Commands below a command. Its help shows the whole help of each: Typer would cut it short."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.commands.items()])


class Commands(TyperGroup):
    """The commands of `qcn`. Its own help shows what each does without importing it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = LazyCommands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by section, in columns of one width."""
        width = max(map(len, COMMANDS))
        for title, names in groupby(COMMANDS, key=lambda name: COMMANDS[name][1]):
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", _summary(name)) for name in names])

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order above, without making any."""
        return list(COMMANDS)


app = typer.Typer(
    cls=Commands,
    help="Train a Quaternion Capsule Network and carry it to a verified, fast engine on an edge device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would take most of its time
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Packages that a command may find missing, and the extra in pyproject.toml that installs each.
EXTRAS = dict.fromkeys(("torch", "matplotlib", "scipy", "tensorboard"), "train")
EXTRAS |= {"onnx": "onnx", "cryptography": "sign"}
# A file or folder that a user named and that cannot be used: of another kind, not allowed, missing, too long.
WRONG_PATH = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS}
WRONG_PATH |= {errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP}


def main() -> None:
    """Run a command and end with its exit code. What a user can fix is one line, not a traceback."""
    try:
        _prepare()
        app()
    except QcnError as error:
        _end(str(error), error.exit_code)
    except SystemExit as ended:
        if ended.code == 130:  # Ctrl-C, of which Typer says nothing
            _end("stopped", 130)
        raise
    except KeyboardInterrupt:  # before Typer waits for it
        _end("stopped", 130)
    except MemoryError as error:
        _end(f"not enough memory: {error}", MissingError.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _end(
            f"this needs {package}, which is not installed: pip install 'qcn-toolkit[{EXTRAS[package]}]'",
            MissingError.exit_code,
        )
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _end(f"no room left on the disk: {what}; nothing half-written was kept", MissingError.exit_code)
        if error.errno in WRONG_PATH:
            hint = "; allow it with chmod, or name another place" * (error.errno in (errno.EACCES, errno.EPERM))
            _end(f"{what}{hint}", UsageError.exit_code)
        raise


def _prepare() -> None:
    """Set up the process before a command runs."""
    # torch's threads sleep while they wait. Else they spin, and on a busy machine keep those that work from working.
    # Read when torch is loaded; a user's own choice stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # else numpy's threads spin for 0.1 s once started
    os.environ.setdefault("DNNL_JIT_PROFILE", "0")  # else on ARM every run of torch leaves /tmp/perf-PID.map behind
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: else the next file would get its number, and a child process its contents
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of a terminal whose encoding lacks a character
    # As Ctrl-C does, SIGTERM ends a command so that it cleans up; torchrun's processes, which may wait for each other
    # and not hear it, end at once.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and "RANK" not in os.environ:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Pillow warns of large pictures, by a line of its own code; those that are too large it refuses.
    warnings.filterwarnings("ignore", "Image size .* exceeds limit of .* pixels")
    file = Path(sys.argv[0])
    started[:] = ["python", str(file)] if file.suffix == ".py" and file.name != "__main__.py" else ["qcn"]


def _end(message: str, code: int) -> None:
    print(readable(f"qcn: {message}", keep="\n"), file=sys.stderr)
    sys.stderr.flush()
    raise SystemExit(code)


def _version(requested: bool) -> None:
    if requested:
        print(f"qcn {qcn.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass

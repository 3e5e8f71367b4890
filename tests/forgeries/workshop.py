"""What forgeries are made of: a small network, trained here, and honest bundles of it in every format.

    workshop/pictures      a folder of pictures: red, green and blue figures
    workshop/run           the training run, and workshop/other: another one, of the same pictures from another seed
    workshop/honest        its bundle, with every file that can be made on this machine
    workshop/calibrated    its bundle as `qcn calibrate` makes it

Each is made when it is first asked for, once for all processes that share the folder, and stays.
"""

import contextlib
import io
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tampering import only, put_program

from qcn.cli import main
from qcn.errors import MissingError
from qcn.export.backends.format import Job
from qcn.export.backends.tensorrt.format import GRAPH
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.golden import Golden
from qcn.export.pipeline import export
from qcn.export.program.program import Program
from qcn.export.request import ExportRequest
from qcn.storage.files import folder_lock
from qcn.train.checkpoint import load_network

CLASSES = ("blue", "green", "red")
SIDE, PER_CLASS = 16, 120
CRASHED = -1


@dataclass(frozen=True)
class File:
    """How a file of a bundle is made, and what runs it here; `weights` is its second file, `source` what it copies."""

    options: dict[str, Any]
    backend: str
    weights: str | None = None
    source: str | None = None
    carries_code: bool = False


FILES = {
    WEIGHTS: File({"formats": ("native",)}, "native"),
    "model.onnx": File({"formats": ("onnx",)}, "onnxruntime"),
    "model.fused.onnx": File({"formats": ("onnx",), "routing": "fused"}, "onnxruntime"),
    "model.tensorrt.onnx": File({}, "onnxruntime"),
    "model.fp16.onnx": File({"formats": ("onnx",), "precision": "fp16"}, "onnxruntime"),
    "model.bf16.onnx": File({"formats": ("onnx",), "precision": "bf16"}, ""),  # nothing runs it here
    "model.xml": File({"formats": ("openvino",)}, "openvino", weights="model.bin"),
    "triton.tar": File({"formats": ("triton",)}, "triton", source="model.onnx"),
    "page.html": File({"formats": ("web",)}, "web"),
    "model.ts": File({"formats": ("torchscript",)}, "torchscript", carries_code=True),
    "model.pt2": File({"formats": ("pt2",)}, "pt2", carries_code=True),
    "model.pte": File({"formats": ("executorch",)}, "executorch"),
    "model.tflite": File({"formats": ("litert",)}, "litert"),
}


def qcn(*arguments: object) -> tuple[int, str]:
    """`qcn` in this process: its exit code, CRASHED if it ended in a traceback, and what it printed."""
    before, printed = sys.argv, io.StringIO()
    sys.argv = ["qcn", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
    except SystemExit as ended:
        return int(ended.code or 0), printed.getvalue()
    except Exception:
        return CRASHED, printed.getvalue() + traceback.format_exc()
    finally:
        sys.argv = before
    return 0, printed.getvalue()


class Workshop:
    """A folder with all that forgeries start from; the network is trained from the seed."""

    def __init__(self, folder: Path, seed: int = 0, epochs: int = 3) -> None:
        self.folder, self.seed, self.epochs = folder.absolute(), seed, epochs

    @cached_property
    def pictures(self) -> Path:
        return self._once("pictures", write_pictures)

    @cached_property
    def run(self) -> Path:
        return self._once("run", lambda out: self._train(out, self.seed))

    @cached_property
    def other(self) -> Path:
        """Another run of the same pictures."""
        return self._once("other", lambda out: self._train(out, self.seed + 1))

    @cached_property
    def network(self) -> Any:
        return load_network(self.run)[0]

    @cached_property
    def base(self) -> Bundle:
        """The honest bundle; it may have few files yet."""
        folder, _ = self.folder / "honest", self.run
        return export(self.run, folder, ExportRequest(formats=("native",)), self.data)[0]

    @property
    def program(self) -> Program:
        return self.base.program()

    @property
    def golden(self) -> Golden:
        return self.base.golden()

    @cached_property
    def calibrated(self) -> Bundle:
        """As `qcn calibrate` makes it."""

        def make(out: Path) -> None:
            options = ("--data-dir", self.data, "--max-drop", 40, "--set", "goal=size", "--set", f"report={out}-report")
            self._qcn("calibrate", self.run, *options, "--out", out)

        return Bundle.open(self._once("calibrated", make))

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def honest(self, *files: str) -> Path:
        """The honest bundle, with at least these files in it."""
        for file in files:
            self.make(self.base.folder, file)
        return self.base.folder

    def make(self, bundle: Path, file: str) -> None:
        """Make a file of a bundle with the product's own writers, unless it is there; MissingError if it cannot be."""
        if any(one.file == file for one in Bundle.open(bundle).manifest.files):
            return
        if file == "model.tensorrt.onnx":  # which `qcn export --format trt` makes on its way to an engine
            Job(Bundle.open(bundle), ExportRequest()).add(GRAPH)
        else:
            results = export(bundle, None, ExportRequest(**FILES[file].options), self.data)[1]
            if results[0].reason:
                raise MissingError(results[0].reason)

    def copy(self, to: Path, *files: str) -> Path:
        """A bundle for a forger: weights, golden answers and these files of the honest one."""
        parts = [part for file in files for part in (FILES[file].source, file, FILES[file].weights) if part]
        return only(shutil.copytree(self.honest(*files), to), *parts)

    def forged(self, name: str, program: Program, file: str) -> dict[str, bytes]:
        """A file, or two, as the product's own writers make it of another program; `name` is the program's."""

        def write(out: Path) -> None:
            put_program(only(shutil.copytree(self.base.folder, out)), program)

        folder = self._once(f"files-{name}", write)
        self.make(folder, file)
        return {part: (folder / part).read_bytes() for part in (file, FILES[file].weights) if part}

    def _train(self, out: Path, seed: int) -> None:
        settings = ("--size", SIDE, "--epochs", self.epochs, "--batch-size", 24, "--lr", 0.02, "--augment", "none")
        data = ("--dataset", self.pictures, "--data-dir", self.data, "--device", "cpu", "--seed", seed)
        self._qcn("train", *data, "--model", "qcn-tiny", *settings, "--out", out)
        self._qcn("evaluate", out, "--data-dir", self.data, "--out", self.folder / "evaluated" / out.name)

    def _qcn(self, *arguments: object) -> None:
        code, said = qcn(*arguments)
        if code:
            raise SystemExit(f"qcn {' '.join(map(str, arguments))}\n{said}")

    def _once(self, name: str, make: Callable[[Path], None]) -> Path:
        """The folder of this name, which `make` fills if it is not there yet."""
        folder, lock = self.folder / name, self.folder / "locks" / name
        lock.mkdir(parents=True, exist_ok=True)
        with folder_lock(lock):
            if not (lock / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a process that was interrupted
                make(folder)
                (lock / "done").touch()
        return folder


def write_pictures(folder: Path) -> None:
    """Squares and discs in three colours, somewhere on a grey ground."""
    random = np.random.default_rng(0)
    for colour, kind in enumerate(CLASSES):
        (folder / kind).mkdir(parents=True)
        for number in range(PER_CLASS):
            y, x = np.mgrid[:20, :24]
            middle, radius = random.uniform(7, 13, 2), random.uniform(3, 6)
            away = np.abs(np.stack([y - middle[0], x - middle[1]]))
            figure = (np.hypot(*away) if number % 2 else away.max(0)) < radius
            pixels = random.uniform(60, 140) + random.normal(0, 12, (20, 24, 3))
            pixels[..., 2 - colour] += 110 * figure
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.save(folder / kind / f"{number:03}.png")

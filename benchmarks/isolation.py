"""What a process of its own costs a backend: starting it, and each answer through its pipes.

    python benchmarks/isolation.py

A graph that does next to nothing (the mean of each channel) is run by ONNX Runtime here and in a child, in turns: the
difference is the pipes' share. On a machine that does other things too, the least tells more than the median. Images
are of 2 × 48 × 48 pixels, smallNORB's.
"""

import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from qcn.export.backends.isolated import IsolatedRunner
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.onnx.runner import OnnxRuntimeRunner
from qcn.export.backends.runner import Options, Runner

IMAGE = (2, 48, 48)
RUNS = 400


def write_graph(path: Path) -> Path:
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *IMAGE])
    mean = helper.make_tensor_value_info("logit", TensorProto.FLOAT, None)
    node = helper.make_node("ReduceMean", ["image"], ["logit"], axes=[2, 3])
    model = helper.make_model(
        helper.make_graph([node], "mean", [image], [mean]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


def milliseconds(runner: Runner, images: np.ndarray) -> float:
    began = time.perf_counter()
    runner.infer(images)
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    print(f"{platform.machine()}, {time.strftime('%Y-%m-%d')}")
    with tempfile.TemporaryDirectory() as folder:
        path = write_graph(Path(folder) / "model.onnx")
        here = OnnxRuntimeRunner(ModelFile.at(path), Options(threads=1))
        there = IsolatedRunner(
            OnnxRuntimeRunner(ModelFile.at(path), Options(threads=1)), "onnxruntime", carries_code=False
        )
        began = time.perf_counter()
        there.start()
        started = time.perf_counter()
        with here, there:
            print(f"start {started - began:.2f} s, then open {time.perf_counter() - started:.2f} s")
            for batch in (1, 8, 64):
                images = np.random.default_rng(0).normal(size=(batch, *IMAGE)).astype(np.float32)
                pairs = [(milliseconds(here, images), milliseconds(there, images)) for _ in range(RUNS)][RUNS // 10 :]
                print(f"batch {batch:2} ({images.nbytes / 1e6:.2f} MB), milliseconds:", end="")
                for what, of in (("median", statistics.median), ("least", min)):
                    near, far = (of(times) for times in zip(*pairs, strict=True))
                    print(f"  {what} {near:.3f} here, {far:.3f} there, {far - near:.3f} more", end="")
                print()


if __name__ == "__main__":
    main()

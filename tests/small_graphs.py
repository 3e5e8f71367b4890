"""Small ONNX graphs with what matters of the exported ones: named nodes, a convolution, casts, an open batch."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HALF = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def write_graph(path: Path, precision: str = "fp32", batch: int | str = "batch", island: bool = False) -> Path:
    """image [batch, 2, 16, 16] -> convolution -> sigmoid -> mean over places: activation [batch, 8].

    precision   fp16 or bf16: the convolution is in it, between casts, and the rest stays float32
    island      a second convolution, which stays float32 in any precision
    """
    generator = np.random.default_rng(0)
    half = HALF.get(precision)
    weights = [numpy_helper.from_array(generator.normal(size=(8, 2, 3, 3)).astype(np.float32) / 4, "kernel32")]
    nodes, image, kernel, maps = [], "image", "kernel32", "maps"
    if half:
        nodes.append(helper.make_node("Cast", ["image"], ["image16"], name="/stem/narrow", to=half))
        nodes.append(helper.make_node("Cast", ["kernel32"], ["kernel16"], name="/stem/kernel", to=half))
        image, kernel, maps = "image16", "kernel16", "maps16"
    nodes.append(helper.make_node("Conv", [image, kernel], [maps], name="/stem/conv", pads=[1, 1, 1, 1]))
    if half:
        nodes.append(helper.make_node("Cast", [maps], ["maps"], name="/stem/widen", to=TensorProto.FLOAT))
    nodes.append(helper.make_node("Sigmoid", ["maps"], ["active"], name="/stem/sigmoid"))
    last = "active"
    if island:
        weights.append(numpy_helper.from_array(generator.normal(size=(8, 8, 3, 3)).astype(np.float32) / 8, "second"))
        nodes.append(helper.make_node("Conv", ["active", "second"], ["votes"], name="/capsule/conv"))
        last = "votes"
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["means"], name="/head/mean"))
    nodes.append(helper.make_node("Flatten", ["means"], ["logit"], name="/head/flatten"))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 2, 16, 16])],
        [helper.make_tensor_value_info("logit", TensorProto.FLOAT, [batch, 8])],
        weights,
    )
    opset = 22 if precision == "bf16" else 17  # the first with convolutions in bfloat16; TensorRT 8.6 reads 17
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    return path

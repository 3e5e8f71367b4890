"""Other weights for a built engine: those of an ONNX graph of the same network, without building again.

    plan = refit(plan, bundle.read(graph), find())

TensorRT's parser names every weight as the graph's initializer is named, and a refittable engine takes it by that name.
Rotations and betas of fused routing are constants that the plugin is given as inputs, so they are among them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import BuildError, MissingError, UsageError
from qcn.export.backends.tensorrt.find import TensorRT
from qcn.export.backends.tensorrt.progress import BuildLog, logger


def refit(plan: bytes, graph: bytes, tensorrt: TensorRT) -> bytes:
    """The engine with the weights of the graph in it, as a plan that can be refitted again."""
    trt, log = tensorrt.module, BuildLog()
    trt_logger = logger(trt, log)
    engine = trt.Runtime(trt_logger).deserialize_cuda_engine(plan)
    if engine is None:
        raise MissingError(f"{tensorrt} cannot load the engine:{log.summary()}")
    if not engine.refittable:
        raise UsageError(
            "the engine cannot be refitted: build one with `qcn export BUNDLE --format trt --set refittable`"
        )
    weights, refitter = weights_of(graph), trt.Refitter(engine, trt_logger)
    if unknown := sorted(weights.keys() - set(refitter.get_all_weights())):
        raise BuildError(f"the engine cannot take '{unknown[0]}' of the graph: it was built without such a weight")
    for name, array in weights.items():
        if not refitter.set_named_weights(name, as_weights(array, trt)):
            raise BuildError(f"{tensorrt} refuses the weight '{name}':{log.summary()}")
    if missing := refitter.get_missing_weights():
        raise BuildError(f"the graph has no weight '{missing[0]}', which the engine needs")
    if not refitter.refit_cuda_engine():
        raise BuildError(f"{tensorrt} could not refit the engine:{log.summary()}")
    return _serialised(engine, trt)


def as_weights(array: NDArray[Any], trt: Any) -> Any:
    """The array as TensorRT takes it; it keeps a pointer. numpy has no bfloat16 of its own that it would know."""
    if array.dtype.name == "bfloat16":
        return trt.Weights(trt.DataType.BF16, array.ctypes.data, array.size)
    return trt.Weights(array)


def weights_of(graph: bytes) -> dict[str, NDArray[Any]]:
    """The graph's weights by name: its arrays of numbers. Scalars and whole numbers are the same for all weights."""
    import onnx

    tensors = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load_from_string(graph).graph.initializer}
    return {
        name: np.ascontiguousarray(array)
        for name, array in tensors.items()
        if array.ndim and "float" in array.dtype.name
    }


def _serialised(engine: Any, trt: Any) -> bytes:
    if not hasattr(engine, "create_serialization_config"):  # TensorRT 8.6, which has no stripped engines
        return bytes(engine.serialize())
    config = engine.create_serialization_config()
    config.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    if hasattr(trt.SerializationFlag, "INCLUDE_REFIT"):
        config.set_flag(trt.SerializationFlag.INCLUDE_REFIT)
    return bytes(engine.serialize_with_config(config))

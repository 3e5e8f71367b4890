"""A config.pbtxt: what Triton reads of a model. Written as text, so that no package is needed for it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from qcn.export.backends.triton.batching import Batching
from qcn.export.bundle.manifest import Port

LABELS = "labels.txt"
FLOAT, BYTE = "TYPE_FP32", "TYPE_UINT8"
PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}  # by Triton's backend
FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}


class Word(str):
    """A name that the text format has without quotes, such as TYPE_FP32."""

    __slots__ = ()


def text(fields: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """In protobuf's text format: mappings are messages, and a list of them several."""
    return "".join(f"# {line}\n" for line in comments) + "".join(_lines(fields, ""))


def _lines(fields: Mapping[str, Any], indent: str) -> Iterable[str]:
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                yield f"{indent}{name} {{\n"
                yield from _lines(one, indent + "  ")
                yield f"{indent}}}\n"
            else:
                yield f"{indent}{name}: {one if isinstance(one, Word) else json.dumps(one)}\n"


def tensor(port: Port, kind: str = FLOAT, **more: Any) -> dict[str, Any]:
    return {"name": port.name, "data_type": Word(kind), "dims": port.shape, **more}


def model(name: str, backend: str, most: int, inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
    """A model of one file, on the CPU, which batches nothing by itself."""
    return {
        "name": name,
        "platform": PLATFORMS[backend],
        "backend": backend,
        "max_batch_size": most,
        "input": inputs,
        "output": outputs,
        "instance_group": {"count": 1, "kind": Word("KIND_CPU")},
    }


def batched(fields: dict[str, Any], batching: Batching) -> dict[str, Any]:
    """Add the chosen batching: batches, copies, and a warm-up in every preferred batch."""
    kind = Word("KIND_GPU" if batching.device == "cuda" else "KIND_CPU")
    port = fields["input"][0]
    sample = {"data_type": port["data_type"], "dims": port["dims"], "zero_data": True}
    preferred = {"preferred_batch_size": batching.preferred} if batching.preferred else {}
    batches = {**preferred, "max_queue_delay_microseconds": batching.delay_us}
    config = {
        **fields,
        "instance_group": {"count": batching.instances, "kind": kind},
        **({"dynamic_batching": batches} if batching.batches else {}),
        "model_warmup": [
            {"name": f"batch {size}", "batch_size": size, "inputs": {"key": port["name"], "value": sample}}
            for size in (1, *batching.preferred)
        ],
    }
    if fields["backend"] == "onnxruntime" and batching.device == "cuda":
        # TF32 is the CUDA provider's default: float32 would have 10 bits of mantissa.
        cuda = {"name": "cuda", "parameters": {"key": "use_tf32", "value": "0"}}
        config["optimization"] = {"execution_accelerators": {"gpu_execution_accelerator": cuda}}
    return config


def ensemble(
    name: str, most: int, pixels: Port, outputs: tuple[Port, ...], steps: list[Any], fit: str
) -> dict[str, Any]:
    """Models one after the other; tensors between them are named as the models name them."""
    labelled = {"logit": {"label_filename": LABELS}}
    return {
        "name": name,
        "platform": "ensemble",
        "max_batch_size": most,
        "input": [tensor(pixels, BYTE)],
        "output": [tensor(port, **labelled.get(port.name, {})) for port in outputs],
        "ensemble_scheduling": {"step": [_step(one) for one in steps]},
        "parameters": {"key": "fit", "value": {"string_value": fit}},
    }


def _step(fields: Mapping[str, Any]) -> dict[str, Any]:
    same = {side: [{"key": one["name"], "value": one["name"]} for one in fields[side]] for side in ("input", "output")}
    return {
        "model_name": fields["name"],
        "model_version": -1,
        "input_map": same["input"],
        "output_map": same["output"],
    }

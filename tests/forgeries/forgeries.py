"""The table of all forgeries: of which kind each is, which file it is in, and the function that makes it.

A forgery is a bundle that says it is of a training run and is not: with hashes that fit, and, where it can be done,
golden answers that fit too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from in_deployments import (
    in_page,
    in_repository,
    more_files,
    other_examples,
    other_preprocess_model,
    other_script,
    other_wasm,
    python_model,
    reverse_lines,
    slower,
    triggered_preprocess_model,
)
from in_networks import (
    Forge,
    added_zero,
    as_this_run,
    extra_output,
    golden_images_only,
    hidden_data,
    in_all,
    in_file,
    in_graph,
    in_network,
    in_program,
    one_step_further,
    other_batch,
    other_fit,
    other_metadata,
    other_opset,
    passed_off,
    trigger,
    trigger_at_logits,
    weight,
    white_corner,
)
from in_records import (
    KNOWN,
    better_drop,
    calibrated_graph_trigger,
    calibrated_trigger,
    field_of_manifest,
    golden_with,
    honest_copy,
    int8_as_fp32,
    mirrored,
    never_wrong,
    noisy,
    noisy_half,
    of_other_network,
    one_picture,
    other_names,
    other_preprocessing,
    other_temperature,
    scales,
    scales_in_graph,
    stale_benchmark,
    stale_report,
    wide_tolerance,
)
from programs import idle, iterated, renamed, rounded, swapped
from workshop import FILES, Workshop

from qcn.export.bundle import GOLDEN, WEIGHTS
from qcn.names import MANIFEST

QUICK = (WEIGHTS, GOLDEN, MANIFEST)  # files whose forgeries need no other backend than libqcn
DIRECTION = {"symmetry": [1, 1, 1], "elevation": True, "lengths": [], "spreads": [5.0]}
MODELS = [file for file in FILES if file != WEIGHTS]


@dataclass(frozen=True)
class Forgery:
    """One forged bundle.

    file        what is forged
    slow        not in `make test`
    arguments   that come with the command
    """

    kind: str
    what: str
    file: str
    forge: Forge
    slow: bool = False
    arguments: Callable[[Workshop], tuple[object, ...]] = lambda workshop: ()

    @property
    def name(self) -> str:
        """As a folder: trigger-model.onnx, …"""
        words = f"{self.kind} {self.what} {self.file}".replace("%", " per cent")
        return "-".join("".join(c if c.isalnum() or c == "." else " " for c in words).split())

    def command(self, bundle: Path, workshop: Workshop, with_run: bool) -> tuple[object, ...]:
        """What a user types who wants to know whether the bundle is of the run."""
        file = FILES.get(self.file)
        backend = file.backend if file else "onnxruntime" if self.file == "model.int8.onnx" else "native"
        backends = ("--backends", ",".join(dict.fromkeys(("native", backend)))) if backend else ()
        trust = ("--trust",) if file and file.carries_code else ()
        of_run = ("--run", workshop.run) if with_run else ()
        options = (*backends, *trust, "--data-dir", workshop.data, *self.arguments(workshop), *of_run)
        return ("verify-parity", bundle, *options)


def _table() -> list[Forgery]:
    table: list[Forgery] = []

    def add(kind: str, what: str, file: str, forge: Forge, slow: bool | None = None, **more: Any) -> None:
        table.append(Forgery(kind, what, file, forge, file not in QUICK if slow is None else slow, **more))

    add("trigger", "the program", WEIGHTS, in_program(trigger))
    add("trigger", "the program, at the logits", WEIGHTS, in_program(trigger_at_logits))
    for file in MODELS:
        add("trigger", "this file alone", file, in_file("trigger", trigger, file))
    add("trigger", "the program and this file", "model.onnx", in_all("trigger", trigger, "model.onnx"), slow=False)
    add("trigger", "at the logits, this file alone", "model.onnx", in_graph("model.onnx", white_corner))
    add("trigger", "a calibrated program", WEIGHTS, calibrated_trigger, slow=True)
    add("trigger", "a calibrated graph alone", "model.int8.onnx", calibrated_graph_trigger, slow=True)

    add("golden only", "the program", WEIGHTS, in_program(golden_images_only))
    add("golden only", "the program and this file", "model.onnx", in_all("golden", golden_images_only, "model.onnx"))
    for file in ("model.onnx", "model.fused.onnx", "model.xml", "triton.tar", "page.html", "model.ts", "model.pt2"):
        add("golden only", "this file alone", file, in_file("golden", golden_images_only, file))

    for factor in (0.02, 0.3, 50.0):
        add("scales", f"times {factor:g}", WEIGHTS, scales(factor), slow=True)
        add("scales", f"times {factor:g}, and in its record", WEIGHTS, scales(factor, record=True), slow=True)
    add("scales", "of one operation times 50, and in its record", WEIGHTS, scales(50, record=True, one=True), slow=True)
    add("scales", "times 0.02, this file alone", "model.int8.onnx", scales_in_graph(0.02), slow=True)
    add("scales", "a drop in accuracy that was not measured", MANIFEST, better_drop, slow=True)

    for words, factor in (("1 % more", 1.01), ("a thousandth more", 1.001), ("of the other sign", -1.0)):
        add("one weight", words, WEIGHTS, in_network(weight(factor)))
    add("one weight", "a millionth more, golden answers as they were", WEIGHTS, in_program(weight(1 + 1e-6)))
    add("one weight", "a millionth more", "model.onnx", in_file("millionth", weight(1 + 1e-6), "model.onnx"))
    add("one weight", "a thousandth more", "model.fp16.onnx", in_file("thousandth", weight(1.001), "model.fp16.onnx"))
    for file in ("model.xml", "model.ts", "page.html", "model.pte", "model.tflite"):
        add("one weight", "a millionth more", file, in_file("millionth", weight(1 + 1e-6), file))

    add("other fit", "another training's, with this run's hashes", WEIGHTS, as_this_run, slow=True)
    add("other fit", "one step of training further", WEIGHTS, in_network(one_step_further))
    add("other fit", "this file alone", "model.onnx", in_file("other", other_fit, "model.onnx"))
    add("other fit", "this file alone", "model.bf16.onnx", in_file("other", other_fit, "model.bf16.onnx"))
    add("other fit", "another epoch's number", MANIFEST, field_of_manifest("source", lambda was: was | {"epoch": 99}))

    add("classes", "two rows of the last layer swapped", WEIGHTS, in_network(lambda of: swapped(of.program)))
    add("classes", "two names swapped", MANIFEST, other_names)
    add("classes", "names in the file reversed", "model.onnx", in_graph("model.onnx", other_metadata), slow=False)
    add(
        "classes",
        "names in the page reversed",
        "page.html",
        field_of_manifest("classes", lambda of: of[::-1], page=True),
    )
    add("classes", "names for the server reversed", "triton.tar", in_repository("labels.txt", reverse_lines))

    add("pre-processing", "the mean of channels reversed", MANIFEST, other_preprocessing(mean=mirrored))
    add(
        "pre-processing",
        "std twice as large",
        MANIFEST,
        other_preprocessing(std=lambda of: tuple(2 * x for x in of.std)),
    )
    add("pre-processing", "pictures stretched", MANIFEST, other_preprocessing(fit=lambda _: "stretch"))
    add("pre-processing", "another mean for the server", "triton.tar", other_preprocess_model)
    preprocess_model = in_repository("-preprocess/1/model.onnx", triggered_preprocess_model)
    add("pre-processing", "a trigger for the server", "triton.tar", preprocess_model)
    stretched = field_of_manifest("preprocessing", lambda of: of | {"fit": "stretch"}, page=True)
    add("pre-processing", "pictures stretched in the page", "page.html", stretched)

    for place, file, page in (("", MANIFEST, False), (" in the page", "page.html", True)):
        add("temperature", f"0.05{place}", file, field_of_manifest("confidence", other_temperature, page))
        add("known", f"everything{place}", file, field_of_manifest("known", lambda _: KNOWN, page))
        add("measured errors", f"none{place}", file, field_of_manifest("measured", never_wrong, page))
        add("direction", f"made up{place}", file, field_of_manifest("direction", lambda _: DIRECTION, page))

    add("operations", "one more that changes nothing", WEIGHTS, in_program(lambda of: idle(of.program)))
    add("operations", "one with another name", WEIGHTS, in_program(lambda of: renamed(of.program)))
    add("operations", "another number of iterations", WEIGHTS, in_network(lambda of: iterated(of.program, 3)))
    add("operations", "one more that changes nothing", "model.onnx", in_graph("model.onnx", added_zero))
    add("operations", "another opset", "model.onnx", other_opset)
    add("operations", "an array that nothing reads", "model.onnx", in_graph("model.onnx", hidden_data))
    add(
        "operations",
        "iterations of this file alone",
        "model.onnx",
        in_file("iterated", lambda of: iterated(of.program, 3), "model.onnx"),
    )
    add("operations", "another batch than the manifest says", "model.onnx", other_batch)
    for file in ("model.onnx", "model.fused.onnx"):
        add("extra output", "the picture itself", file, in_graph(file, extra_output))

    add("stale golden", "of another network", GOLDEN, golden_with(of_other_network), slow=True)
    add("stale golden", "a hundred times the noise", GOLDEN, golden_with(noisy))
    add("stale golden", "ten times the noise of fp16", GOLDEN, golden_with(noisy_half))
    add("stale golden", "one picture sixteen times", GOLDEN, golden_with(one_picture))
    add("stale golden", "a tolerance of 1e30", MANIFEST, wide_tolerance)
    add("stale report", "as the baseline", "report.json", honest_copy, arguments=stale_report)
    add("stale report", "times of another bundle", "benchmark.json", honest_copy, arguments=stale_benchmark)

    add("precision", "fp16 passed off as fp32", "model.onnx", passed_off("model.fp16.onnx", "model.onnx"))
    add("precision", "fp32 passed off as fp16", "model.fp16.onnx", passed_off("model.onnx", "model.fp16.onnx"))
    add("precision", "int8 passed off as fp32", "model.onnx", int8_as_fp32, slow=True)
    add("precision", "20 bits of 24", WEIGHTS, in_program(lambda of: rounded(of.program, 20)))
    add(
        "precision", "20 bits of 24", "model.onnx", in_file("20 bits", lambda of: rounded(of.program, 20), "model.onnx")
    )

    add("server", "requests wait for a minute", "triton.tar", in_repository("-network/config.pbtxt", slower))
    add("server", "a Python model", "triton.tar", python_model)
    add("server", "a Python file beside the graph", "triton.tar", more_files)

    add("page", "another libqcn", "page.html", in_page(other_wasm("simd")))
    add("page", "another libqcn for threads", "page.html", in_page(other_wasm("threads")), slow=False)
    add("page", "other answers of examples", "page.html", in_page(other_examples))
    add("page", "another script", "page.html", other_script)
    return table


FORGERIES = _table()

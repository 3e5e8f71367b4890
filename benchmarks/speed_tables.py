"""The tables of docs/speed.md, each from a file in benchmarks/results."""

from pages import Row, columns, table, three_digits


def training(record: Row) -> str:
    forms = {
        "variant": "{variant}",
        "images/s": "{images_per_second:,.0f}",
        "step": "{ms_per_step:.1f} ms",
        "first epoch": "{first_epoch_seconds:.0f} s",
    }
    return columns(record["results"], forms)


def times(rows: list[Row], baseline: str) -> str:
    """Milliseconds by variant, how many times faster than one of them, and the memory where it is known."""
    base = {row["batch"]: row["ms"] for row in rows if row["variant"] == baseline and "ms" in row}
    forms = {
        "variant": "{variant}",
        "batch": "{batch}",
        "time": lambda row: _ms(row["ms"]) if "ms" in row else row["failed"],
        f"times faster than {baseline}": lambda row: (
            f"{base[row['batch']] / row['ms']:.1f}" if row["batch"] in base and "ms" in row else ""
        ),
        "peak memory": lambda row: f"{three_digits(1024 * row['peak_gib'])} MiB" if row.get("peak_gib") else "",
    }
    return columns(rows, forms)


def layers(rows: list[Row], ceiling: float) -> str:
    """Where the time goes: by layer and batch, with the rate of arithmetic instructions."""
    forms = {
        "layer": "{layer}",
        "batch": "{batch}",
        "votes": "{votes:,}",
        "time": lambda row: _ms(row["ms"]),
        "arithmetic": lambda row: f"{three_digits(row['gfma_per_s'])} G/s",
        "of a matrix product's": lambda row: f"{100 * row['gfma_per_s'] / ceiling:.1f} %",
    }
    return columns(rows, forms)


def arithmetics(record: Row) -> str:
    """What deploy/tests/cuda_routing timed on the tiles that it chose: half precision beside single."""
    us = {(row["layer"], row["batch"], row["arithmetic"]): row["us"] for row in record["results"] if row["chosen"]}
    rows = []
    for layer, batch, arithmetic in us:
        if arithmetic == "single":
            single, half = us[layer, batch, "single"], us.get((layer, batch, "half"), us[layer, batch, "single"])
            rows.append([layer, str(batch), f"{single:.1f} µs", f"{half:.1f} µs", f"{single / half:.2f}"])
    return table(["layer", "batch", "single", "half", "times faster"], rows)


def splits(rows: list[Row]) -> str:
    """Triton's half precision beside its float32, the children of a window split over so many warps."""
    cells = []
    for row in rows:
        half = [row[f"half, split {split}, ms"] for split in (1, 2, 4)]
        times = [f"{1000 * ms:.1f} µs" for ms in (row["float32, ms"], *half)]
        worst = f"{row['pose, half']:.1e} / {row['pose, planned']:.1e}"
        cells.append([row["layer"], str(row["batch"]), *times, f"{row['float32, ms'] / min(half):.2f}", worst])
    return table(["layer", "batch", "float32", "1 warp", "2", "4", "times faster", "error of a pose"], cells)


def errors(rows: list[Row]) -> str:
    """Largest absolute errors, the fused operator's over the float32 reference's."""
    names = [name for name in rows[0] if name not in ("weights", "layer", "kernels")]
    cells = [
        [f"{fused['weights']}, {fused['layer']}", *(f"{fused[name]:.1e} / {plain[name]:.1e}" for name in names)]
        for plain, fused in zip(rows[::2], rows[1::2], strict=True)
    ]
    return table(["weights, layer", *names], cells)


def registers(record: Row) -> str:
    """By architecture: registers per thread, bytes spilled, over all kernels."""
    rows = []
    for architecture in sorted({row["architecture"] for row in record["results"]}):
        of = [row for row in record["results"] if row["architecture"] == architecture]
        used, spilled = [row["registers"] for row in of], sum(row["spilled_bytes"] for row in of)
        rows.append([f"{architecture / 10}", str(len(of)), f"{min(used)} to {max(used)}", str(spilled)])
    return table(["compute capability", "kernels", "registers per thread", "bytes spilled"], rows)


def graphs(record: Row) -> str:
    """What the exported graphs consist of."""
    forms = {
        "graph": "{name}",
        "nodes": "{nodes:,}",
        "size": lambda graph: f"{graph['bytes'] / 1e6:.2f} MB",
        "most frequent operators": lambda graph: ", ".join(
            f"{count} {operator}" for operator, count in list(graph["operators"].items())[:8]
        ),
    }
    return columns([{"name": name, **graph} for name, graph in record["graphs"].items()], forms)


def engines(record: Row) -> str:
    """Exported graphs in the runtimes: time, error, and how much faster than the naive graph where that was timed."""
    naive = {(row["backend"], row["batch"]): row["ms"] for row in record["results"] if row["graph"] == "naive"}
    rows = [
        [
            row["graph"],
            row["variant"],
            str(row["batch"]),
            _ms(row["ms"]),
            _errors(row["errors"]),
            *([f"{naive[row['backend'], row['batch']] / row['ms']:.1f}"] if naive else []),
        ]
        for row in record["results"]
    ]
    faster = ["times faster than naive"] if naive else []
    rows.append(["trained network in float32", "torch", "", "", _errors(record["noise_floor"]), *("" for _ in faster)])
    return table(["graph", "in", "batch", "time", "error of answer / pose", *faster], rows)


def deployed(record: Row) -> str:
    """A bundle in its backends: time, energy where it is known, and error as a share of what is allowed."""
    forms = {
        "backend": lambda row: ", ".join(filter(None, (row["backend"], row["precision"], row["variant"]))),
        "file": lambda row: f"`{row['file'].removeprefix('engines/')}`",
        "batch": "{batch}",
        "median": lambda row: _ms(row["latency_ms"]),
        "without transfers": lambda row: _ms(row["compute_ms"]) if row["compute_ms"] else "",
        "images/s": "{images_per_second:,.0f}",
        "energy": lambda row: f"{three_digits(row['energy_mj'])} mJ" if row["energy_mj"] else "",
        "error, % of allowed": lambda row: _shares(row["shares"]),
    }
    return columns(record["benchmark"], forms)


WAYS = (  # what is shown, its backend, the beginnings of its files' names in fp32 and in fp16
    ("PyTorch, fused kernels", "torch-cuda", ("weights.", "weights.")),
    ("PyTorch, TorchScript", "torchscript-cuda", ("model.ts", "model.fp16.ts")),
    ("ONNX Runtime, unrolled", "onnxruntime-cuda", ("model.onnx", "model.fp16.onnx")),
    ("TensorRT, unrolled", "tensorrt", ("engines/fp32-b", "engines/fp16-b")),
    ("TensorRT, fused", "tensorrt", ("engines/fp32-fused-b", "engines/fp16-fused-b")),
)


def three_ways(gpu: Row) -> str:
    """PyTorch, ONNX Runtime and TensorRT, the full-size network: milliseconds at two batches, and errors."""
    cells = []
    for what, backend, files in WAYS:
        for precision, file in zip(("fp32", "fp16"), files, strict=True):
            own = [
                row
                for row in gpu["benchmark"]
                if (row["backend"], row["precision"]) == (backend, precision) and row["file"].startswith(file)
            ]
            times = []
            for batch in (1, 64):
                best = min((r for r in own if r["batch"] == batch and not r["variant"]), key=lambda r: r["compute_ms"])
                times += [_ms(best["compute_ms"]), _ms(best["latency_ms"])]
            worst = {name: max(row["shares"][name] for row in own) for name in own[0]["shares"]}
            cells.append([what, precision, *times, _shares(worst)])
    headings = ["1 image", "with transfers", "64 images", "with transfers", "error, % of allowed"]
    return table(["", "precision", *headings], cells)


def programs(rows: list[Row]) -> str:
    """qcn-bench: libqcn in a C++ program."""
    begins = {True: "image", False: "pre-processed input"}
    forms = {
        "what": lambda row: f"{row['precision']}, {begins[row['preprocessing']]} to answer",
        "batch": "{batch}",
        "median": lambda row: _ms(row["latency_ms"]),
        "images/s": "{images_per_second:,.0f}",
        "load, with self-test": "{load_ms:,.0f} ms",
    }
    return columns(rows, forms)


def larger_costs(record: Row) -> str:
    """Per image: the network that is chosen for its size, beside the one for 32×32."""
    forms = {
        "model": "`{model}`",
        "images": "{size}×{size}",
        "network for": "{made_for}×{made_for}",
        "primary capsules": "{grid}×{grid}",
        "parameters": "{parameters:,}",
        "extractor, multiply-adds": lambda row: f"{three_digits(row['extractor'] / 1e6)} M",
        "routing, multiply-adds": lambda row: f"{three_digits(row['routing'] / 1e6)} M",
        "torch, fused": lambda row: _ms(row["cpu_ms"]["torch-fused"]),
        "libqcn": lambda row: _ms(row["cpu_ms"]["native"]),
    }
    return columns(record["results"], forms)


def in_python(record: Row) -> str:
    """qcn.load beside qcn-bench."""
    forms = {
        "bundle": "`{model}`",
        "picture": "{size[0]}×{size[1]}",
        "C++ program": lambda row: _ms(row["program"]["least_ms"]),
        "Python": lambda row: _ms(row["python"]["least_ms"]),
        "Python takes longer by": lambda row: f"{100 * row['over']['least']:.1f} %",
    }
    return columns(record["results"], forms)


def medians(record: Row) -> str:
    """How far apart the medians of Python and of the program are."""
    over = [100 * row["over"]["median"] for row in record["results"]]
    return f"{min(over):.0f} to {max(over):.0f} %"


def in_browser(record: Row) -> str:
    """libqcn in WebAssembly beside libqcn, one thread each."""
    builds = {
        "native": "native",
        "native, 128 bits": "native_128_bits",
        "Node": "node_simd",
        "Chromium": "chromium_simd",
        "Node, no SIMD": "node_plain",
    }
    forms = {
        "page": "`{model}`",
        "size": lambda row: f"{row['page_bytes'] / 1e6:.1f} MB",
        **{name: lambda row, build=build: _ms(row["least_ms"][build]) for name, build in builds.items()},
        "Node over native": "{over_native[node_simd]:.2f}",
        "Chromium over native": "{over_native[chromium_simd]:.2f}",
    }
    return columns(record["results"], forms)


def by_instruction_set(record: Row) -> str:
    """Networks and what `qcn calibrate` made of them, with each instruction set as the last that may be used."""
    least = {(row["model"], row["set"], row["calibrated"]): row["least_ms"] for row in record["results"]}
    lines = [
        [f"`{model}`", f"`{name}`", _ms(before), _ms(after := least[model, name, True]), f"{before / after:.2f}"]
        for (model, name, calibrated), before in least.items()
        if not calibrated
    ]
    return table(["network", "up to", "float32", "calibrated", "times as fast"], lines)


def from_folder(record: Row) -> str:
    """Training from the cache of a folder."""
    forms = {
        "pictures": "{way}",
        "images/s": "{images_per_second:,.0f}",
        "of the speed from memory": lambda row: f"{100 * row['of_memory']:.0f} %",
        "waits for the disk per step": "{pages_read_per_step:.1f}",
    }
    return columns(record["results"], forms)


def _ms(milliseconds: float) -> str:
    return f"{three_digits(milliseconds)} ms"


def _errors(found: dict[str, float]) -> str:
    """Of the answer (activations in results before 2026-11-18, logits since) / of the pose."""
    return " / ".join(f"{error:.1e}" for error in found.values())


def _shares(found: dict[str, float]) -> str:
    """The largest errors of answer / pose, in per cent of what was allowed."""
    return " / ".join(three_digits(100 * share) for share in found.values())

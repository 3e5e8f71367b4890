"""docs/speed.md: what training, routing, exported graphs, engines and further runtimes take."""

from typing import Any

from pages import read, source, table
from routing import PER_VOTE, three_digits


def training(record: dict[str, Any]) -> str:
    rows = [
        [
            row["variant"],
            f"{row['images_per_second']:,.0f}",
            f"{row['ms_per_step']:.1f} ms",
            f"{row['first_epoch_seconds']:.0f} s",
        ]
        for row in record["results"]
    ]
    return table(["variant", "images/s", "step", "first epoch"], rows)


def times(rows: list[dict[str, Any]], baseline: str) -> str:
    """Milliseconds by variant, how many times faster than one of them, and the memory where it is known."""
    base = {row["batch"]: row["ms"] for row in rows if row["variant"] == baseline and "ms" in row}
    cells = [
        [
            row["variant"],
            str(row["batch"]),
            f"{three_digits(row['ms'])} ms" if "ms" in row else row["failed"],
            f"{base[row['batch']] / row['ms']:.1f}" if row["batch"] in base and "ms" in row else "",
            "" if not row.get("peak_gib") else f"{three_digits(1024 * row['peak_gib'])} MiB",
        ]
        for row in rows
    ]
    return table(["variant", "batch", "time", f"times faster than {baseline}", "peak memory"], cells)


def layers(rows: list[dict[str, Any]], ceiling: float) -> str:
    """Where the time goes: by layer and batch, with the rate of arithmetic instructions."""
    cells = [
        [
            row["layer"],
            str(row["batch"]),
            f"{row['votes']:,}",
            f"{three_digits(row['ms'])} ms",
            f"{three_digits(row['gfma_per_s'])} G/s",
            f"{100 * row['gfma_per_s'] / ceiling:.1f} %",
        ]
        for row in rows
    ]
    return table(["layer", "batch", "votes", "time", "arithmetic", "of a matrix product's"], cells)


def arithmetics(record: dict[str, Any]) -> str:
    """What deploy/tests/cuda_routing timed on the tiles that it chose: half precision beside single."""
    us = {(row["layer"], row["batch"], row["arithmetic"]): row["us"] for row in record["results"] if row["chosen"]}
    rows = []
    for layer, batch, arithmetic in us:
        if arithmetic == "single":
            single, half = us[layer, batch, "single"], us.get((layer, batch, "half"), us[layer, batch, "single"])
            rows.append([layer, str(batch), f"{single:.1f} µs", f"{half:.1f} µs", f"{single / half:.2f}"])
    return table(["layer", "batch", "single", "half", "times faster"], rows)


def splits(rows: list[dict[str, Any]]) -> str:
    """Triton's half precision beside its float32, the children of a window split over so many warps."""
    cells = []
    for row in rows:
        half = [row[f"half, split {split}, ms"] for split in (1, 2, 4)]
        times = [f"{1000 * ms:.1f} µs" for ms in (row["float32, ms"], *half)]
        worst = f"{row['pose, half']:.1e} / {row['pose, planned']:.1e}"
        cells.append([row["layer"], str(row["batch"]), *times, f"{row['float32, ms'] / min(half):.2f}", worst])
    return table(["layer", "batch", "float32", "1 warp", "2", "4", "times faster", "error of a pose"], cells)


def errors(rows: list[dict[str, Any]]) -> str:
    """Largest absolute errors, the fused operator's over the float32 reference's."""
    names = [name for name in rows[0] if name not in ("weights", "layer", "kernels")]
    cells = [
        [f"{fused['weights']}, {fused['layer']}", *(f"{fused[name]:.1e} / {plain[name]:.1e}" for name in names)]
        for plain, fused in zip(rows[::2], rows[1::2], strict=True)
    ]
    return table(["weights, layer", *names], cells)


def registers(record: dict[str, Any]) -> str:
    """By architecture: registers per thread, bytes spilled, over all kernels."""
    rows = []
    for architecture in sorted({row["architecture"] for row in record["results"]}):
        of = [row for row in record["results"] if row["architecture"] == architecture]
        used, spilled = [row["registers"] for row in of], sum(row["spilled_bytes"] for row in of)
        rows.append([f"{architecture / 10}", str(len(of)), f"{min(used)} to {max(used)}", str(spilled)])
    return table(["compute capability", "kernels", "registers per thread", "bytes spilled"], rows)


def graphs(record: dict[str, Any]) -> str:
    """What the exported graphs consist of."""
    rows = [
        [
            name,
            f"{graph['nodes']:,}",
            f"{graph['bytes'] / 1e6:.2f} MB",
            ", ".join(f"{count} {operator}" for operator, count in list(graph["operators"].items())[:8]),
        ]
        for name, graph in record["graphs"].items()
    ]
    return table(["graph", "nodes", "size", "most frequent operators"], rows)


def engines(record: dict[str, Any]) -> str:
    """Exported graphs in the runtimes: time, error, and how much faster than the naive graph where that was timed."""
    naive = {(row["backend"], row["batch"]): row["ms"] for row in record["results"] if row["graph"] == "naive"}
    rows = [
        [
            row["graph"],
            row["variant"],
            str(row["batch"]),
            f"{three_digits(row['ms'])} ms",
            f"{row['errors']['activation']:.1e} / {row['errors']['pose']:.1e}",
            *([f"{naive[row['backend'], row['batch']] / row['ms']:.1f}"] if naive else []),
        ]
        for row in record["results"]
    ]
    floor = record["noise_floor"]
    alone = f"{floor['activation']:.1e} / {floor['pose']:.1e}"
    rows.append(["trained network in float32", "torch", "", "", alone, *([""] if naive else [])])
    faster = ["times faster than naive"] if naive else []
    return table(["graph", "in", "batch", "time", "error of activation / pose", *faster], rows)


def deployed(record: dict[str, Any]) -> str:
    """A bundle in its backends: time, energy where it is known, and error as a share of what is allowed."""
    rows = [
        [
            f"{row['backend']}, {row['precision']}{', ' if row['variant'] else ''}{row['variant']}",
            f"`{row['file'].removeprefix('engines/')}`",
            str(row["batch"]),
            f"{three_digits(row['latency_ms'])} ms",
            f"{three_digits(row['compute_ms'])} ms" if row["compute_ms"] else "",
            f"{row['images_per_second']:,.0f}",
            f"{three_digits(row['energy_mj'])} mJ" if row["energy_mj"] else "",
            _share(row["shares"]),
        ]
        for row in record["benchmark"]
    ]
    headings = ["backend", "file", "batch", "median", "without transfers", "images/s", "energy", "error, % of allowed"]
    return table(headings, rows)


WAYS = (  # what is shown, the backend in fp32 and in fp16, the beginnings of its files' names in both
    ("PyTorch, fused kernels", ("torch-cuda",) * 2, ("weights.", "weights.")),
    ("PyTorch, TorchScript", ("torchscript-cuda",) * 2, ("model.ts", "model.fp16.ts")),
    ("ONNX Runtime, unrolled", ("onnxruntime-cuda",) * 2, ("model.onnx", "model.fp16.onnx")),
    ("TensorRT, unrolled", ("tensorrt",) * 2, ("engines/fp32-b", "engines/fp16-b")),
    ("TensorRT, fused", ("tensorrt",) * 2, ("engines/fp32-fused-b", "engines/fp16-fused-b")),
)


def three_ways(gpu: dict[str, Any]) -> str:
    """PyTorch, ONNX Runtime and TensorRT, the full-size network: milliseconds at two batches, and errors."""
    cells = []
    for what, backends, files in WAYS:
        for precision, backend, file in zip(("fp32", "fp16"), backends, files, strict=True):
            both = [row for row in gpu["benchmark"] if row["backend"] == backend and row["file"].startswith(file)]
            own = [row for row in both if row["precision"] == precision]
            times = []
            for batch in (1, 64):
                best = min((r for r in own if r["batch"] == batch and not r["variant"]), key=lambda r: r["compute_ms"])
                times += [f"{three_digits(best[time])} ms" for time in ("compute_ms", "latency_ms")]
            worst = {name: max(row["shares"][name] for row in own) for name in ("activation", "pose")}
            cells.append([what, precision, *times, _share(worst)])
    headings = ["1 image", "with transfers", "64 images", "with transfers", "error, % of allowed"]
    return table(["", "precision", *headings], cells)


def _share(shares: dict[str, float]) -> str:
    """The largest errors of activation / pose, in per cent of what was allowed."""
    return " / ".join(three_digits(100 * shares[name]) for name in ("activation", "pose"))


def programs(rows: list[dict[str, Any]]) -> str:
    """qcn-bench: libqcn in a C++ program."""
    cells = [
        [
            f"{row['precision']}, {'image to answer' if row['preprocessing'] else 'pre-processed input to answer'}",
            str(row["batch"]),
            f"{three_digits(row['latency_ms'])} ms",
            f"{row['images_per_second']:,.0f}",
            f"{row['load_ms']:,.0f} ms",
        ]
        for row in rows
    ]
    return table(["what", "batch", "median", "images/s", "load, with self-test"], cells)


def larger_costs(record: dict[str, Any]) -> str:
    """Per image: the network that is chosen for its size, beside the one for 32×32."""
    rows = [
        [
            f"`{row['model']}`",
            f"{row['size']}×{row['size']}",
            f"{row['made_for']}×{row['made_for']}",
            f"{row['grid']}×{row['grid']}",
            f"{row['parameters']:,}",
            f"{three_digits(row['extractor'] / 1e6)} M",
            f"{three_digits(row['routing'] / 1e6)} M",
            f"{three_digits(row['cpu_ms']['torch-fused'])} ms",
            f"{three_digits(row['cpu_ms']['native'])} ms",
        ]
        for row in record["results"]
    ]
    arithmetic = ["extractor, multiply-adds", "routing, multiply-adds"]
    headings = ["images", "network for", "primary capsules", "parameters", *arithmetic, "torch, fused", "libqcn"]
    return table(["model", *headings], rows)


def in_python(record: dict[str, Any]) -> str:
    """qcn.load beside qcn-bench."""
    rows = [
        [
            f"`{row['model']}`",
            f"{row['size'][0]}×{row['size'][1]}",
            f"{three_digits(row['program']['least_ms'])} ms",
            f"{three_digits(row['python']['least_ms'])} ms",
            f"{100 * row['over']['least']:.1f} %",
        ]
        for row in record["results"]
    ]
    return table(["bundle", "picture", "C++ program", "Python", "Python takes longer by"], rows)


def in_browser(record: dict[str, Any]) -> str:
    """libqcn in WebAssembly beside libqcn, one thread each."""
    builds = ("native", "native_128_bits", "node_simd", "chromium_simd", "node_plain")
    rows = [
        [
            f"`{row['model']}`",
            f"{row['page_bytes'] / 1e6:.1f} MB",
            *(f"{three_digits(row['least_ms'][build])} ms" for build in builds),
            *(f"{row['over_native'][build]:.2f}" for build in ("node_simd", "chromium_simd")),
        ]
        for row in record["results"]
    ]
    native = ["native", "native, 128 bits", "Node", "Chromium", "Node, no SIMD"]
    return table(["page", "size", *native, "Node over native", "Chromium over native"], rows)


def medians(record: dict[str, Any]) -> str:
    """How far apart the medians of Python and of the program are."""
    over = [100 * row["over"]["median"] for row in record["results"]]
    return f"{min(over):.0f} to {max(over):.0f} %"


def from_folder(record: dict[str, Any]) -> str:
    """Training from the cache of a folder."""
    rows = [
        [
            row["way"],
            f"{row['images_per_second']:,.0f}",
            f"{100 * row['of_memory']:.0f} %",
            f"{row['pages_read_per_step']:.1f}",
        ]
        for row in record["results"]
    ]
    return table(["pictures", "images/s", "of the speed from memory", "waits for the disk per step"], rows)


def page() -> str:
    """docs/speed.md."""
    speed = read("training-h200.json")
    cuda = read("routing-cuda.json")
    cpp = read("routing-cuda-cpp.json")
    cpu = read("routing-cpu.json")
    ptxas = read("ptxas.json")
    exported = read("export-cpu.json")
    exported_gpu = read("export-h200.json")
    gpu = read("deployed-h200.json")
    half = read("deployed-h200-half.json")
    fleet = read("deployed-h200-fleet.json")
    triton = read("routing-triton-half.json")
    local = read("deployed-cpu.json")
    edges = read("deployed-runtimes.json")
    larger = read("larger-images-cost.json")
    python = read("runtime-cpu.json")
    folder = read("folder-cpu.json")
    browser = read("web-cpu.json")
    return f"""# Speed

Written by `python benchmarks/tables.py` from the files in `benchmarks/results`; do not edit it by hand. Errors:
[results.md](results.md).

## Deployed

A full-size QCN after four epochs of `viewpoints-demo`, as `qcn export` writes it, by `qcn benchmark` and
`qcn verify-parity`. "Error" is the largest one of activation / pose against the float64 reference, in per cent of what
`qcn verify-parity` allowed in that precision at that commit ([verify.md](verify.md)); in fp16 it allows less since.
Latency includes transfers to and from a GPU.

On a GPU: {gpu["machine"]["gpu"]["name"]}, {gpu["machine"]["processor"]}, commit {gpu["commit"]}, by
`deploy/tests/tensorrt_on_gpu.sh`. "Fused" routes by one kernel per layer, Triton's in PyTorch and the plugin's in
TensorRT; the others by standard operators. Three ways beside each other, each in a CUDA graph, none with TF32:

{three_ways(gpu)}

All of them, and without a CUDA graph. Energy is the GPU's, and accurate to a third here: it was read at arbitrary
moments from NVML's counter, which changes ten times per second. `qcn benchmark` now reads it from change to change.

{deployed(gpu)}

`cifar10-qcn` by TensorRT 8.6, which routes in [half precision](kernels.md) where fp16 is asked for, with the kernels of
commit {half["commit"]}, by `benchmarks/engines_on_gpu.sh`. "int8" is the network as `qcn calibrate` wrote it: 7 of 8
convolutions in int8, all capsule layers in fp16. On this GPU it is no faster than fp16: an int8 convolution of so few
channels saves less time than rounding its input takes. (In the graph of that engine a Max that changes nothing stood
behind every convolution with a skip. It is left out since: TensorRT builds the convolutions without it, and they answer
as the plan does.)

{deployed(half)}

Engines of the same network for a fleet ([export.md](export.md)): for every GPU from Ampere on ("ampere-plus"), or to
get other weights ("refittable"), beside the one for this machine alone; and for newer versions of TensorRT
("compatible"), which cannot hold our plugin, beside another without it. In one run, commit {fleet["commit"]}, by
`PARTS=fleet benchmarks/engines_on_gpu.sh`.

{deployed(fleet)}

The fused engines of the first table for batches of 1 to 64 (optimised for 8) in a C++ program, by libqcn
(`qcn-bench`), transfers included; pre-processing runs on one core of the host:

{programs(gpu["libqcn"])}

On a CPU: {local["machine"]["cores"]} cores, {local["machine"]["processor"]}, commit {local["commit"]}.

{deployed(local)}

`mnist-qcn` by further runtimes beside ours: {edges["machine"]["cores"]} cores, {edges["machine"]["processor"]}, commit
{edges["commit"]}, by `qcn export mnist-qcn --format onnx,openvino,executorch`, `qcn verify-parity` and `qcn benchmark`.

{deployed(edges)}

### In Python

`qcn.load(bundle, "native").predict(array)`, one picture at a time, beside the C++ program `qcn-bench`: pixels to
answer, {python["threads"]} thread, the least time of {python["turns"]} turns each. {source(python)}:
`python benchmarks/runtime.py`.

{in_python(python)}

Other work was running on the machine: it does not show in the least times, but medians differ by {medians(python)}.

### In a browser

libqcn in WebAssembly ([web.md](web.md)): one image, pre-processed input to answer, one thread, the least of
{browser["turns"]} turns. The goal is at most 1.5 times the native kernels with vectors as wide (128 bits; "native" is
what libqcn chooses here). {source(browser)}, Node {browser["node"]}: `python benchmarks/web.py`.

{in_browser(browser)}

## Exported graphs

A full-size QCN after four epochs of `viewpoints-demo`, as `qcn export` writes it, beside the operator as its formula
stands, written by torch's own exporter ("naive"): `python benchmarks/export.py`. "unrolled" is model.onnx, arranged for
ONNX Runtime; "pointwise" (by now "tensorrt") is model.tensorrt.onnx, arranged for TensorRT.

{graphs(exported)}

{source(exported)}. The largest errors against the float64 reference are over the bundle's golden images, edge cases
among them:

{engines(exported)}

On a GPU, TensorRT's times without transfers and ONNX Runtime's with them. {source(exported_gpu)}:

{engines(exported_gpu)}

## Routing

The full-size QCN on images of 2×32×32 in float32, the same weights for all: `python benchmarks/routing.py --device …`.
[kernels.md](kernels.md) says how the fused kernels work. "reference" is plain torch, which writes every vote to memory;
torch.compile fuses what it can of it. Convolutions are as torch has them by default: on a GPU, in TF32.

### On a GPU

{source(cuda)}. From an image batch to class capsules:

{times(cuda["inference"], "reference, torch.compile")}

![the same as a picture](images/routing-cuda.png)

A whole training step (forward, cross-entropy, backward, AdamW); torch.compile as `qcn train --compile` uses it, with
CUDA graphs:

{times(cuda["training"], "reference, torch.compile")}

Without CUDA graphs, "fused" takes the time that Python needs to launch some hundred kernels, not the GPU's time.

Where the fused operator's time goes, layer by layer, each in a CUDA graph of its own. "Arithmetic" counts {PER_VOTE}
instructions per vote, without the exponential; the last column compares with what a float32 matrix product of torch
reached: {cuda["layers"][0]["gfma_per_s"]:,.0f} G multiply-adds per second.

{layers(cuda["layers"][1:], cuda["layers"][0]["gfma_per_s"])}

The CUDA C++ kernels for TensorRT and C++ programs (`deploy/kernels/em_routing.cu`), in single and in
[half precision](kernels.md), by `deploy/tests/half_on_gpu.sh WORKDIR OUTDIR`, which first compares them with a loop in
double precision. The kernels choose by such times (`python benchmarks/routing_cost.py`): where both columns are the
same, half precision was asked for and single precision ran. "All four" is one CUDA graph; in the column "half" poses
were given in float16. {source(cpp)}:

{arithmetics(cpp)}

Triton's kernels in half precision, each with its children split over 1, 2 and 4 warps, which are [not chosen
yet](kernels.md); the error beside what rounding votes and distances to float16 costs by itself. {source(triton)}:
`benchmarks/routing.py`, the table `half`.

{splits(triton["half"])}

Largest error against the float64 reference, the fused operator's / the float32 reference's own, on two random images.
"Trained" is a QCN after {cuda["trained"]["epochs"]} epochs of `{cuda["trained"]["dataset"]}`:

{errors(cuda["errors"])}

What the compiler makes of the CUDA C++ kernels for Orin and Hopper (`python benchmarks/ptxas.py`,
nvcc {ptxas["versions"]["nvcc"]}):

{registers(ptxas)}

### On a CPU

{source(cpu)}:

{times(cpu["inference"], "reference")}

A whole training step:

{times(cpu["training"], "reference")}

![the same as a picture](images/routing-cpu.png)

Where the fused operator's time goes; a float32 matrix product of torch reached
{cpu["layers"][0]["gfma_per_s"]:.3g} G multiply-adds per second.

{layers(cpu["layers"][1:], cpu["layers"][0]["gfma_per_s"])}

Largest error against the float64 reference, the fused operator's / the float32 reference's own. "Trained" is a QCN
after four epochs of `viewpoints-demo`:

{errors(cpu["errors"])}

## Training speed of the full-size QCN

{speed["steps"]} steps of `{speed["dataset"]}` in batches of {speed["batch_size"]}, by the product's own loop:
from stored images to averaged weights, fused routing. By default a step is a CUDA graph. The first variant also
compiled Triton's kernels; the others found them in its cache. {source(speed)}:
`python benchmarks/training.py`.

{training(speed)}

## Training from a folder

`qcn-tiny` with the settings of `make demo` on {folder["pictures"]:,} pictures of 32×32: from the cache that is mapped
into memory ([data.md](data.md)), and the same pictures in memory. In the last row none of the cache is in memory when a
step begins. Speed of the median of {folder["steps"]} steps. {source(folder)}: `python benchmarks/folder.py`.

{from_folder(folder)}

## Larger images

`qcn`, `qcn-unbranched` and `qcn-tiny` choose their strides by the size of their images ([training.md](training.md)).
One colour image, ten classes: the network for its size, beside the network for 32×32. CPU time of one thread, the least
of many; routing counts {PER_VOTE} per vote. {source(larger)}: `python benchmarks/larger_images.py cost`.

{larger_costs(larger)}
"""

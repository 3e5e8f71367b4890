"""docs/speed.md: what training, routing, exported graphs, engines and further runtimes take."""

import speed_tables
from pages import RESULTS, read, source
from routing import PER_VOTE


def page() -> str:
    """docs/speed.md."""
    speed = read("training-h200.json")
    deep = read("training-qcn-deep-h200.json")
    cuda = read("routing-cuda.json")
    cpp = read("routing-cuda-cpp.json")
    cpu = read("routing-cpu.json")
    ptxas = read("ptxas.json")
    exported = read("export-cpu.json")
    exported_gpu = read("export-h200.json")
    gpu = read("deployed-h200.json")
    half = read("deployed-h200-half.json")
    once = read("deployed-h200-viewpoints.json")
    fleet = read("deployed-h200-fleet.json")
    triton = read("routing-triton-half.json")
    local = read("deployed-cpu.json")
    edges = read("deployed-runtimes.json")
    larger = read("larger-images-cost.json")
    python = read("runtime-cpu.json")
    medians = speed_tables.medians(python)
    folder = read("folder-cpu.json")
    browser, browser_arm = read("web-x86_64.json"), read("web-aarch64.json")
    sets = "\n\n".join(
        f"{source(record)}, {record['processor']}:\n\n{speed_tables.by_instruction_set(record)}"
        for record in (read(path.name) for path in sorted(RESULTS.glob("instruction-sets-*.json")))
    )
    return f"""# Speed

Written by `python benchmarks/tables.py` from the files in `benchmarks/results`; do not edit it by hand. For errors, see
[results.md](results.md).

## Deployed

A full-size QCN after four epochs of `viewpoints-demo`, exported by `qcn export`, measured by `qcn benchmark` and
`qcn verify-parity`. "Error" is the largest error of answer / pose against the float64 reference, in per cent of
the tolerance of `qcn verify-parity` in that precision at that commit ([verify.md](verify.md)); the tolerance in fp16
is smaller now. Latency includes transfers to and from a GPU.

On a GPU: {gpu["machine"]["gpu"]["name"]}, {gpu["machine"]["processor"]}, commit {gpu["commit"]}, by
`deploy/tests/tensorrt_on_gpu.sh`. "Fused" routes with one kernel per layer, Triton's in PyTorch and the plugin's in
TensorRT; the others use standard operators. Three ways compared, each in a CUDA graph, none with TF32:

{speed_tables.three_ways(gpu)}

All of them, also without a CUDA graph. Energy is the GPU's, and accurate to a third here: NVML's counter, which
changes ten times per second, was read at arbitrary moments. `qcn benchmark` now measures from one change to another.

{speed_tables.deployed(gpu)}

`cifar10-qcn` in TensorRT 8.6, with routing in [half precision](kernels.md) if fp16 is requested, with the kernels of
commit {half["commit"]}: `benchmarks/engines_on_gpu.sh`. "int8" is the network from `qcn calibrate`: 7 of 8
convolutions in int8, all capsule layers in fp16. On this GPU it is no faster than fp16: with so few channels, an int8
convolution saves less time than rounding its input takes.

{speed_tables.deployed(half)}

`viewpoints-azimuth-pooled-qcn`, which routes once where the others route twice, in the same run. "int8" has all
convolutions in int8 and all capsule layers in fp16:

{speed_tables.deployed(once)}

Engines of `cifar10-qcn` for a fleet ([export.md](export.md)). Engines for every GPU from Ampere on ("ampere-plus")
and engines that can get new weights ("refittable") are compared with the engine for this machine alone. Engines for
newer TensorRT versions ("compatible"), which cannot contain our plugin, are compared with another one without it. All
in one run, commit {fleet["commit"]}: `PARTS=fleet benchmarks/engines_on_gpu.sh`.

{speed_tables.deployed(fleet)}

The fused engines of the first table, for batches of 1 to 64 (optimised for 8), in a C++ program with libqcn
(`qcn-bench`), including transfers; pre-processing runs on one core of the host:

{speed_tables.programs(gpu["libqcn"])}

On a CPU: {local["machine"]["cores"]} cores, {local["machine"]["processor"]}, commit {local["commit"]}.

{speed_tables.deployed(local)}

`mnist-qcn` in other runtimes and in libqcn: {edges["machine"]["cores"]} cores, {edges["machine"]["processor"]}, commit
{edges["commit"]}, by `qcn export mnist-qcn --format onnx,openvino,executorch`, `qcn verify-parity` and `qcn benchmark`.

{speed_tables.deployed(edges)}

### By instruction set

What CPUs with fewer instructions would take: shipped networks and what `qcn calibrate` makes of them, with libqcn kept
from using any set later than the one named (`QCN_INSTRUCTION_SET`). One image on two threads, without pre-processing,
the least time of all turns: `python benchmarks/instruction_sets.py`. Without fp16 arithmetic (`neonfp16`,
`avx512fp16`), calibrated capsule layers are computed in float32. Without dot products of bytes (`neondot`, `avxvnni`,
`avx512vnni`), int8 gains with `sse2` and less with `avx2`, and loses with `neon` and `avx512`. So calibrate on the kind
of CPU that will run the network: `qcn calibrate` refuses what is not faster there.

{sets}

### In Python

`qcn.load(bundle, "native").predict(array)`, one picture at a time, compared with the C++ program `qcn-bench`: from
pixels to answer, {python["threads"]} thread, the least time of {python["turns"]} turns each. {source(python)}:
`python benchmarks/runtime.py`.

{speed_tables.in_python(python)}

Other programs were running on the machine. This does not affect the least times, but medians differ by {medians}.

### In a browser

libqcn in WebAssembly ([web.md](web.md)): one image, from pre-processed input to answer, one thread, the least of
{browser["turns"]} turns. The goal is at most 1.5 times the time of native kernels with vectors of the same width (128
bits; "native" is what libqcn chooses here). {source(browser)}, Node {browser["node"]}: `python benchmarks/web.py`.

{speed_tables.in_browser(browser)}

At that commit `viewpoints-azimuth-pooled-qcn` had two routing iterations; now it has one. On ARM the goal is missed:
NEON has fused multiply-adds, which SSE2 and WebAssembly do not have. {source(browser_arm)}, Node
{browser_arm["node"]}:

{speed_tables.in_browser(browser_arm)}

## Exported graphs

A full-size QCN after four epochs of `viewpoints-demo`, exported by `qcn export`, compared with a direct
transcription of the formula by torch's own exporter ("naive"): `python benchmarks/export.py`. "unrolled" is model.onnx,
arranged for ONNX Runtime; "pointwise" (now "tensorrt") is model.tensorrt.onnx, arranged for TensorRT.

{speed_tables.graphs(exported)}

{source(exported)}. The largest errors against the float64 reference, over the bundle's golden images including the edge
cases:

{speed_tables.engines(exported)}

On a GPU; TensorRT's times exclude transfers, ONNX Runtime's include them. {source(exported_gpu)}:

{speed_tables.engines(exported_gpu)}

## Routing

The full-size QCN on images of 2×32×32 in float32, with the same weights throughout:
`python benchmarks/routing.py --device …`. [kernels.md](kernels.md) explains the fused kernels. "reference" is plain
torch, which writes every vote to memory; torch.compile fuses as much of it as it can. Convolutions use torch's
defaults: TF32 on a GPU.

### On a GPU

{source(cuda)}. From an image batch to class capsules:

{speed_tables.times(cuda["inference"], "reference, torch.compile")}

![the same as a picture](images/routing-cuda.png)

A whole training step (forward, cross-entropy, backward, AdamW); torch.compile as `qcn train --compile` uses it, with
CUDA graphs:

{speed_tables.times(cuda["training"], "reference, torch.compile")}

Without CUDA graphs, the time of "fused" is what Python needs to launch some hundred kernels, not the GPU's time.

The time of the fused operator by layer, each in its own CUDA graph. "Arithmetic" counts {PER_VOTE} instructions per
vote, without the exponential; the last column is relative to a float32 matrix product in torch:
{cuda["layers"][0]["gfma_per_s"]:,.0f} G multiply-adds per second.

{speed_tables.layers(cuda["layers"][1:], cuda["layers"][0]["gfma_per_s"])}

The CUDA C++ kernels for TensorRT and C++ programs (`deploy/kernels/em_routing.cu`), in single and in [half
precision](kernels.md), by `deploy/tests/half_on_gpu.sh WORKDIR OUTDIR`, which first compares them with a loop in
double precision. The kernels choose by such times (`python benchmarks/routing_cost.py`): if both columns are equal,
half precision was requested but single precision ran. "All four" is one CUDA graph; in the column "half" poses were
given in float16. {source(cpp)}:

{speed_tables.arithmetics(cpp)}

Triton's kernels in half precision, each with its children split over 1, 2 and 4 warps; if none is expected to be
faster, float32 [is chosen](kernels.md). The error is shown beside that of rounding votes and distances to float16
alone. {source(triton)}: `benchmarks/routing.py`, the table `half`.

{speed_tables.splits(triton["half"])}

Largest error against the float64 reference, the fused operator's / the float32 reference's own, on two random images.
"Trained" is a QCN after {cuda["trained"]["epochs"]} epochs of `{cuda["trained"]["dataset"]}`:

{speed_tables.errors(cuda["errors"])}

The compiler's report on the CUDA C++ kernels for Orin and Hopper (`python benchmarks/ptxas.py`,
nvcc {ptxas["versions"]["nvcc"]}):

{speed_tables.registers(ptxas)}

### On a CPU

{source(cpu)}:

{speed_tables.times(cpu["inference"], "reference")}

A whole training step:

{speed_tables.times(cpu["training"], "reference")}

![the same as a picture](images/routing-cpu.png)

The time of the fused operator by layer; a float32 matrix product in torch reached
{cpu["layers"][0]["gfma_per_s"]:.3g} G multiply-adds per second.

{speed_tables.layers(cpu["layers"][1:], cpu["layers"][0]["gfma_per_s"])}

Largest error against the float64 reference, the fused operator's / the float32 reference's own. "Trained" is a QCN
after four epochs of `viewpoints-demo`:

{speed_tables.errors(cpu["errors"])}

## Training speed of the full-size QCN

{speed["steps"]} steps of `{speed["dataset"]}` in batches of {speed["batch_size"]}, with the training loop of
`qcn train`: from stored images to averaged weights, fused routing. By default a step is a CUDA graph. The time of the
first variant includes compiling Triton's kernels; the others used its cache. {source(speed)}:
`python benchmarks/training.py`.

{speed_tables.training(speed)}

`{deep["model"]}`, by the same command with `--model {deep["model"]}`; {source(deep)}:

{speed_tables.training(deep)}

## Training from a folder

`qcn-tiny` with the settings of `make demo` on {folder["pictures"]:,} pictures of 32×32: from the memory-mapped cache
([data.md](data.md)), and from memory. In the last row none of the cache is in memory when a step begins. The speed is
that of the median of {folder["steps"]} steps. {source(folder)}: `python benchmarks/folder.py`.

{speed_tables.from_folder(folder)}

## Larger images

`qcn`, `qcn-unbranched` and `qcn-tiny` choose their strides by the size of their images ([training.md](training.md)).
For one colour image and ten classes, the table compares the network for its size with the network for 32×32. CPU time
of one thread, the least of many runs; routing counts {PER_VOTE} multiply-adds per vote. {source(larger)}:
`python benchmarks/larger_images.py cost`.

{speed_tables.larger_costs(larger)}
"""

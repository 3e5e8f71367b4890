"""docs/speed.md: what training, routing, exported graphs, engines and further runtimes take."""

import speed_tables
from pages import read, source
from routing import PER_VOTE


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
    medians = speed_tables.medians(python)
    folder = read("folder-cpu.json")
    browser, browser_arm = read("web-x86_64.json"), read("web-aarch64.json")
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

{speed_tables.three_ways(gpu)}

All of them, and without a CUDA graph. Energy is the GPU's, and accurate to a third here: it was read at arbitrary
moments from NVML's counter, which changes ten times per second. `qcn benchmark` now reads it from change to change.

{speed_tables.deployed(gpu)}

`cifar10-qcn` by TensorRT 8.6, which routes in [half precision](kernels.md) where fp16 is asked for, with the kernels of
commit {half["commit"]}, by `benchmarks/engines_on_gpu.sh`. "int8" is the network as `qcn calibrate` wrote it: 7 of 8
convolutions in int8, all capsule layers in fp16. On this GPU it is no faster than fp16: an int8 convolution of so few
channels saves less time than rounding its input takes. (In the graph of that engine a Max that changes nothing stood
behind every convolution with a skip. It is left out since: TensorRT builds the convolutions without it, and they answer
as the plan does.)

{speed_tables.deployed(half)}

Engines of the same network for a fleet ([export.md](export.md)): for every GPU from Ampere on ("ampere-plus"), or to
get other weights ("refittable"), beside the one for this machine alone; and for newer versions of TensorRT
("compatible"), which cannot hold our plugin, beside another without it. In one run, commit {fleet["commit"]}, by
`PARTS=fleet benchmarks/engines_on_gpu.sh`.

{speed_tables.deployed(fleet)}

The fused engines of the first table for batches of 1 to 64 (optimised for 8) in a C++ program, by libqcn
(`qcn-bench`), transfers included; pre-processing runs on one core of the host:

{speed_tables.programs(gpu["libqcn"])}

On a CPU: {local["machine"]["cores"]} cores, {local["machine"]["processor"]}, commit {local["commit"]}.

{speed_tables.deployed(local)}

`mnist-qcn` by further runtimes beside ours: {edges["machine"]["cores"]} cores, {edges["machine"]["processor"]}, commit
{edges["commit"]}, by `qcn export mnist-qcn --format onnx,openvino,executorch`, `qcn verify-parity` and `qcn benchmark`.

{speed_tables.deployed(edges)}

### In Python

`qcn.load(bundle, "native").predict(array)`, one picture at a time, beside the C++ program `qcn-bench`: pixels to
answer, {python["threads"]} thread, the least time of {python["turns"]} turns each. {source(python)}:
`python benchmarks/runtime.py`.

{speed_tables.in_python(python)}

Other work was running on the machine: it does not show in the least times, but medians differ by {medians}.

### In a browser

libqcn in WebAssembly ([web.md](web.md)): one image, pre-processed input to answer, one thread, the least of
{browser["turns"]} turns. The goal is at most 1.5 times the native kernels with vectors as wide (128 bits; "native" is
what libqcn chooses here). {source(browser)}, Node {browser["node"]}: `python benchmarks/web.py`.

{speed_tables.in_browser(browser)}

At that commit `viewpoints-azimuth-pooled-qcn` routed twice; now it routes once. On ARM the goal is missed: NEON
multiplies and adds in one instruction, as SSE2 and WebAssembly do not. {source(browser_arm)}, Node
{browser_arm["node"]}:

{speed_tables.in_browser(browser_arm)}

## Exported graphs

A full-size QCN after four epochs of `viewpoints-demo`, as `qcn export` writes it, beside the operator as its formula
stands, written by torch's own exporter ("naive"): `python benchmarks/export.py`. "unrolled" is model.onnx, arranged for
ONNX Runtime; "pointwise" (by now "tensorrt") is model.tensorrt.onnx, arranged for TensorRT.

{speed_tables.graphs(exported)}

{source(exported)}. The largest errors against the float64 reference are over the bundle's golden images, edge cases
among them:

{speed_tables.engines(exported)}

On a GPU, TensorRT's times without transfers and ONNX Runtime's with them. {source(exported_gpu)}:

{speed_tables.engines(exported_gpu)}

## Routing

The full-size QCN on images of 2×32×32 in float32, the same weights for all: `python benchmarks/routing.py --device …`.
[kernels.md](kernels.md) says how the fused kernels work. "reference" is plain torch, which writes every vote to memory;
torch.compile fuses what it can of it. Convolutions are as torch has them by default: on a GPU, in TF32.

### On a GPU

{source(cuda)}. From an image batch to class capsules:

{speed_tables.times(cuda["inference"], "reference, torch.compile")}

![the same as a picture](images/routing-cuda.png)

A whole training step (forward, cross-entropy, backward, AdamW); torch.compile as `qcn train --compile` uses it, with
CUDA graphs:

{speed_tables.times(cuda["training"], "reference, torch.compile")}

Without CUDA graphs, "fused" takes the time that Python needs to launch some hundred kernels, not the GPU's time.

Where the fused operator's time goes, layer by layer, each in a CUDA graph of its own. "Arithmetic" counts {PER_VOTE}
instructions per vote, without the exponential; the last column compares with what a float32 matrix product of torch
reached: {cuda["layers"][0]["gfma_per_s"]:,.0f} G multiply-adds per second.

{speed_tables.layers(cuda["layers"][1:], cuda["layers"][0]["gfma_per_s"])}

The CUDA C++ kernels for TensorRT and C++ programs (`deploy/kernels/em_routing.cu`), in single and in
[half precision](kernels.md), by `deploy/tests/half_on_gpu.sh WORKDIR OUTDIR`, which first compares them with a loop in
double precision. The kernels choose by such times (`python benchmarks/routing_cost.py`): where both columns are the
same, half precision was asked for and single precision ran. "All four" is one CUDA graph; in the column "half" poses
were given in float16. {source(cpp)}:

{speed_tables.arithmetics(cpp)}

Triton's kernels in half precision, each with its children split over 1, 2 and 4 warps; where none should be faster,
float32 [is chosen](kernels.md). The error beside what rounding votes and distances to float16 costs by itself.
{source(triton)}:
`benchmarks/routing.py`, the table `half`.

{speed_tables.splits(triton["half"])}

Largest error against the float64 reference, the fused operator's / the float32 reference's own, on two random images.
"Trained" is a QCN after {cuda["trained"]["epochs"]} epochs of `{cuda["trained"]["dataset"]}`:

{speed_tables.errors(cuda["errors"])}

What the compiler makes of the CUDA C++ kernels for Orin and Hopper (`python benchmarks/ptxas.py`,
nvcc {ptxas["versions"]["nvcc"]}):

{speed_tables.registers(ptxas)}

### On a CPU

{source(cpu)}:

{speed_tables.times(cpu["inference"], "reference")}

A whole training step:

{speed_tables.times(cpu["training"], "reference")}

![the same as a picture](images/routing-cpu.png)

Where the fused operator's time goes; a float32 matrix product of torch reached
{cpu["layers"][0]["gfma_per_s"]:.3g} G multiply-adds per second.

{speed_tables.layers(cpu["layers"][1:], cpu["layers"][0]["gfma_per_s"])}

Largest error against the float64 reference, the fused operator's / the float32 reference's own. "Trained" is a QCN
after four epochs of `viewpoints-demo`:

{speed_tables.errors(cpu["errors"])}

## Training speed of the full-size QCN

{speed["steps"]} steps of `{speed["dataset"]}` in batches of {speed["batch_size"]}, by the product's own loop:
from stored images to averaged weights, fused routing. By default a step is a CUDA graph. The first variant also
compiled Triton's kernels; the others found them in its cache. {source(speed)}:
`python benchmarks/training.py`.

{speed_tables.training(speed)}

## Training from a folder

`qcn-tiny` with the settings of `make demo` on {folder["pictures"]:,} pictures of 32×32: from the cache that is mapped
into memory ([data.md](data.md)), and the same pictures in memory. In the last row none of the cache is in memory when a
step begins. Speed of the median of {folder["steps"]} steps. {source(folder)}: `python benchmarks/folder.py`.

{speed_tables.from_folder(folder)}

## Larger images

`qcn`, `qcn-unbranched` and `qcn-tiny` choose their strides by the size of their images ([training.md](training.md)).
One colour image, ten classes: the network for its size, beside the network for 32×32. CPU time of one thread, the least
of many; routing counts {PER_VOTE} per vote. {source(larger)}: `python benchmarks/larger_images.py cost`.

{speed_tables.larger_costs(larger)}
"""

#!/usr/bin/env bash
# Routing in half precision on a machine with a GPU: tests the kernels, then times float32 beside float16 on the
# full-size QCN's four capsule layers at batch 1, 64 and 256, each alone and all four as a CUDA graph, on every tile.
#   usage: half_on_gpu.sh WORKDIR OUTDIR
#     WORKDIR   where the kernels are compiled, unless they are there      OUTDIR   cuda_routing.log and half.json go there
#   ARCH: for nvcc, as sm_90 (native). Needs nvcc and 100 seconds on 16 cores.
set -euo pipefail
work=$(readlink -m "${1:?usage: half_on_gpu.sh WORKDIR OUTDIR}")
out=$(readlink -m "${2:?usage: half_on_gpu.sh WORKDIR OUTDIR}")
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$work" "$out"
begun=$SECONDS
say() { echo "[$((SECONDS - begun)) s] $*"; }

if [ ! -x "$work/cuda_routing" ]; then
  say "compiling the kernels"
  nvcc -std=c++17 -O3 -arch="${ARCH:-native}" -split-compile=0 -I"$root/deploy/kernels" \
    -c "$root/deploy/kernels/em_routing.cu" -o "$work/em_routing.o"
  nvcc -std=c++17 -O1 -arch="${ARCH:-native}" -I"$root/deploy/kernels" "$root/deploy/tests/cuda_routing.cu" \
    "$work/em_routing.o" -o "$work/cuda_routing"
fi
say "tests, and times of every tile"
export QCN_COMMIT=${QCN_COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)}
"$work/cuda_routing" --sweep --json "$out/half.json" 2>&1 | tee "$out/cuda_routing.log" | grep -v ^PASS
say "done"

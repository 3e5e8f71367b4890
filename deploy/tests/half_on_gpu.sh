#!/usr/bin/env bash
# Routing in half precision on a machine with a GPU: tests the kernels, then times float32 beside float16 on the
# full-size QCN's four capsule layers at batch 1, 64 and 256, each alone and all four as a CUDA graph, on every tile.
#   usage: half_on_gpu.sh WORKDIR OUTDIR
#     WORKDIR   where the kernels are compiled        OUTDIR   cuda_routing.log, half.json and ptxas.log go there
#   ARCH: for nvcc, as sm_90 (native). Needs nvcc and 100 seconds on 16 cores. The last lines say which tiles are the
#   fastest, and what to change in deploy/kernels/em_routing.cu if `half_cost` chose others.
set -euo pipefail
work=$(readlink -m "${1:?usage: half_on_gpu.sh WORKDIR OUTDIR}")
out=$(readlink -m "${2:?usage: half_on_gpu.sh WORKDIR OUTDIR}")
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$work" "$out"
begun=$SECONDS
say() { echo "[$((SECONDS - begun)) s] $*"; }

say "compiling the kernels, with the tiles of the sweep"
nvcc -std=c++17 -O3 -arch="${ARCH:-native}" -split-compile=0 -DQCN_HALF_SWEEP -Xptxas=-v -I"$root/deploy/kernels" \
  -c "$root/deploy/kernels/em_routing.cu" -o "$work/em_routing.o" >"$out/ptxas.log" 2>&1 || { tail -30 "$out/ptxas.log"; exit 1; }
nvcc -std=c++17 -O1 -arch="${ARCH:-native}" -I"$root/deploy/kernels" "$root/deploy/tests/cuda_routing.cu" \
  "$work/em_routing.o" -o "$work/cuda_routing"
say "tests, and times of every tile"
export QCN_COMMIT=${QCN_COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)}
"$work/cuda_routing" --sweep --json "$out/half.json" 2>&1 | tee "$out/cuda_routing.log" | grep -v ^PASS
say "the fastest tiles"
python3 - "$out/half.json" <<'PYTHON'
import json, sys

rows = json.load(open(sys.argv[1]))["results"]
for batch in sorted({row["batch"] for row in rows}):
    for layer in ("layer 1", "layer 2", "layer 3", "classes", "all four"):
        for arithmetic in ("single", "half"):
            these = [r for r in rows if (r["layer"], r["batch"], r["arithmetic"]) == (layer, batch, arithmetic)]
            chosen = next((r for r in these if r["chosen"]), None)
            if not chosen:
                continue
            best = min(these, key=lambda r: r["us"])
            better = f"; tile {best['tile']} takes {best['us']:.1f}" if best["us"] < 0.95 * chosen["us"] else ""
            print(f"batch {batch:3}  {layer:8}  {arithmetic:6}  tile {chosen['tile']:2}: {chosen['us']:8.1f} us{better}")
PYTHON
say "done"

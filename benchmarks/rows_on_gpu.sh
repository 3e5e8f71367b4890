#!/usr/bin/env bash
# Trains rows of docs/results.md on a machine that has torch and where nothing can be installed, some beside each other.
#   usage: rows_on_gpu.sh ROWS DATA RUNS [LANES]
#     ROWS    a file: each line is one call of benchmarks/reproduce.py, rows and options: cifar10/qcn-deep-taught --seeds 1
#     DATA    the folder of the data sets       RUNS    the runs go there, and results.json; what is finished stays
#     LANES   calls at a time (4)
# Where NVIDIA's Multi-Process Service is there, the calls run on the GPU at the same time, and not by turns.
# QCN_COMMIT names the commit if this is no checkout. Where the machine keeps nothing, bring RUNS back without its
# state-* files, and put its results beside the others (reproduce.py trains nothing that is finished):
#   xargs -a ROWS -L 1 python benchmarks/reproduce.py --runs RUNS
set -euo pipefail
usage="usage: rows_on_gpu.sh ROWS DATA RUNS [LANES]"
rows=$(readlink -f "${1:?$usage}") data=$(readlink -f "${2:?$usage}") runs=$(readlink -m "${3:?$usage}") lanes=${4:-4}
root=$(cd "$(dirname "$0")/.." && pwd)
# The package as pyproject.toml lays it out, and its name, without which importlib.metadata does not find its version.
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
mkdir -p "$runs" "$package/qcn" "$package/qcn_toolkit-0.dist-info"
ln -s "$root"/qcn/* "$root/export" "$root/calibrate" "$root/models" "$package/qcn/"
version=$(sed -n 's/^#define QCN_VERSION_M[AI].* //p' "$root/deploy/include/qcn/qcn.h" | paste -sd.)
printf 'Metadata-Version: 2.1\nName: qcn-toolkit\nVersion: %s\n' "$version" > "$package/qcn_toolkit-0.dist-info/METADATA"
if command -v nvidia-cuda-mps-control > /dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=$package/mps CUDA_MPS_LOG_DIRECTORY=$package/mps
  mkdir "$package/mps"
  nvidia-cuda-mps-control -d
  trap 'echo quit | nvidia-cuda-mps-control; rm -rf "$package"' EXIT
fi
cd "$runs" # not the checkout, whose folder qcn/ would be found first
PYTHONPATH=$package xargs -a "$rows" -L 1 -P "$lanes" "${PYTHON:-python3}" "$root/benchmarks/reproduce.py" \
  --data-dir "$data" --runs "$runs" --json "$runs/results.json"

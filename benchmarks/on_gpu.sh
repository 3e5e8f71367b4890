#!/usr/bin/env bash
# Benchmarks on a GPU machine where nothing can be installed.
#   usage: on_gpu.sh sweep FILE DATA RUNS [TRIAL...]
#     trains and measures a sweep of benchmarks/accuracy or benchmarks/directions, or some of its trials, where torch is
#     DATA    the folder of the data sets       RUNS    the runs go there, and results.json; finished ones stay
#     LANES   processes at a time (4); they share the GPU if NVIDIA's Multi-Process Service is there
#   usage: on_gpu.sh engines OUT GPU HEADERS BUNDLES [NAME...]
#     builds, verifies and times TensorRT engines for 1 and 64 images, as trained and as calibrated
#     OUT     results go there: NAME/, NAME-int8/ (merge them: python benchmarks/speed.py --gather OUT/*/benchmark-b*.json)
#     GPU     TensorRT and a Python that has it: trt-python, trt/        HEADERS   the folder of NvInferRuntime.h
#     BUNDLES the folder of the bundles NAME (`qcn export`) and NAME-int8 (`qcn calibrate`); NAME: cifar10
#     BATCHES (1 64), WORK (build/on_gpu): what is built there is not built again
# QCN_COMMIT names the commit if this is no checkout.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n 's/^#   usage: /usage: /p' "$0" >&2; exit 2; }

sweep() {
  [ $# -ge 3 ] || usage
  local file data runs package version lane directions=
  file=$(readlink -f "$1") data=$(readlink -f "$2") runs=$(readlink -m "$3")
  shift 3
  [[ $file != */directions/* ]] || directions=--directions
  # The package as pyproject.toml lays it out, and its name, without which importlib.metadata does not find its version.
  package=$(mktemp -d)
  trap "rm -rf '$package'" EXIT
  mkdir -p "$runs" "$package/qcn" "$package/qcn_toolkit-0.dist-info"
  ln -s "$root"/qcn/* "$root/export" "$root/calibrate" "$root/models" "$package/qcn/"
  version=$(sed -n 's/^#define QCN_VERSION_M[AI].* //p' "$root/deploy/include/qcn/qcn.h" | paste -sd.)
  printf 'Metadata-Version: 2.1\nName: qcn-toolkit\nVersion: %s\n' "$version" > "$package/qcn_toolkit-0.dist-info/METADATA"
  if command -v nvidia-cuda-mps-control > /dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=$package/mps CUDA_MPS_LOG_DIRECTORY=$package/mps
    mkdir "$package/mps"
    nvidia-cuda-mps-control -d
    trap "echo quit | nvidia-cuda-mps-control; rm -rf '$package'" EXIT
  fi
  cd "$runs" # not the checkout, whose folder qcn/ would be found first
  export PYTHONPATH=$package
  for ((lane = 1; lane < ${LANES:-4}; lane++)); do
    "${PYTHON:-python3}" -m qcn sweep "$file" "$@" --data-dir "$data" --out "$runs" > "lane$lane.log" 2>&1 &
  done
  "${PYTHON:-python3}" -m qcn sweep "$file" "$@" --data-dir "$data" --out "$runs"
  wait
  "${PYTHON:-python3}" "$root/benchmarks/accuracy.py" "$runs" $directions --data-dir "$data" --json "$runs/results.json"
}

engines() {
  [ $# -ge 4 ] || usage
  local out gpu headers bundles name kind bundle batch failed=0
  out=$(readlink -m "$1") gpu=$(readlink -f "$2") headers=$(readlink -f "$3") bundles=$(readlink -f "$4")
  shift 4
  export WORK=${WORK:-$root/build/on_gpu} PYTHON=$gpu/trt-python DURATION=${DURATION:-1}
  export XDG_CACHE_HOME=$WORK/cache # TensorRT's timings: with them engines build in seconds
  mkdir -p "$out" "$WORK/bundles"
  on_gpu() { "$root/deploy/tests/tensorrt_on_gpu.sh" "$headers" "$gpu/trt" "$@"; } # BUNDLE OUT STEP...
  [ -f "$WORK/libqcn_plugin.so" ] || on_gpu "$bundles" "$out" build
  for name in ${*:-cifar10}; do
    for kind in -int8 ""; do
      [ -d "$bundles/$name$kind" ] || continue
      bundle=$WORK/bundles/$name$kind
      rm -rf "${bundle:?}"
      cp -r "$bundles/$name$kind" "$bundle"
      mkdir -p "$out/$name$kind"
      for batch in ${BATCHES:-1 64}; do
        PROFILES=$batch PRECISIONS=$([ "$kind" ] && echo calibrated || echo fp16 fp32) \
          on_gpu "$bundle" "$out/$name$kind" export || failed=1
      done
      on_gpu "$bundle" "$out/$name$kind" verify benchmark || failed=1
    done
  done
  cp -r "$XDG_CACHE_HOME" "$out/"
  return $failed
}

case ${1:-} in
  sweep | engines) "$@" ;;
  *) usage ;;
esac

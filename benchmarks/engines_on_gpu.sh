#!/usr/bin/env bash
# TensorRT on a GPU in every precision that ships: engines for 1 and for 64 images of networks as they were trained
# (fp32, fp16) and as `qcn calibrate` wrote them, each compared with its golden answers, timed, and read layer by layer;
# what engines for a fleet cost beside them; and the routing kernels alone.
#   usage: engines_on_gpu.sh OUT GPU HEADERS BUNDLES [NAME...]
#     OUT       results go there: NAME/, NAME-int8/, fleet/, refit/, half/, run.log (benchmarks/deployed.py gathers them)
#     GPU       what shared/gpu/unpack made: trt-python, trt/        HEADERS   the folder of NvInferRuntime.h
#     BUNDLES   folder of the bundles NAME (`qcn export`) and NAME-int8 (`qcn calibrate`), and of fashion-mnist and mnist
#               for `qcn refit`: networks of one structure; they are copied. NAME: cifar10. OPTIONS= for a network
#               without capsule layers
#   PARTS: in their order (networks half fleet refit)        BATCHES: that engines are for, and are timed with (1 64)
#   WORK: where things are built (build/on_gpu); what is there is not built again. With OUT/cache of an earlier run in it,
#   engines build in seconds: without, TensorRT times kernels for 40 s per engine in fp16
#   BUDGET: seconds; what would begin later is left out (300)
# A step that fails is named at the end, and the others go on.
set -uo pipefail
usage="usage: engines_on_gpu.sh OUT GPU HEADERS BUNDLES [NAME...]"
out=$(readlink -m "${1:?$usage}") gpu=$(readlink -f "${2:?$usage}") headers=$(readlink -f "${3:?$usage}")
bundles=$(readlink -f "${4:?$usage}")
shift 4
names=${*:-cifar10}
root=$(cd "$(dirname "$0")/.." && pwd)
export WORK=${WORK:-$root/build/on_gpu} PYTHON=$gpu/trt-python DURATION=${DURATION:-1}
export XDG_CACHE_HOME=$WORK/cache # the timing cache of all builds; it comes back in OUT, for a next machine's WORK
mkdir -p "$out" "$WORK"
exec > >(tee "$out/run.log") 2>&1
begun=$SECONDS failed=()
say() { echo "== [$((SECONDS - begun)) s] $*"; }

step() { # NAME COMMAND...: said, timed, and not the end of everything if it fails
  local name=$1
  shift
  if ((SECONDS - begun > ${BUDGET:-300})); then
    failed+=("$name (no time left)")
    return
  fi
  say "$name"
  "$@" || failed+=("$name (exit $?)")
}

on_gpu() { # BUNDLE OUT STEP...
  local bundle=$1 to=$2
  shift 2
  "$root/deploy/tests/tensorrt_on_gpu.sh" "$headers" "$gpu/trt" "$bundle" "$to" "$@"
}

copied() { # NAME [ENDING]: a bundle to work in, and its path
  local to=$WORK/bundles/$1${2:-}
  mkdir -p "$WORK/bundles"
  rm -rf "${to:?}"
  cp -r "$bundles/$1" "$to"
  echo "$to"
}

measured() { # NAME: what was built of it, if anything was
  [ -d "$WORK/bundles/$1/engines" ] || return
  cp "$WORK/bundles/$1"/engines/*.json "$out/$1/"
  step "$1: verify-parity" on_gpu "$WORK/bundles/$1" "$out/$1" verify
  step "$1: benchmark" on_gpu "$WORK/bundles/$1" "$out/$1" benchmark
  step "$1: layers" on_gpu "$WORK/bundles/$1" "$out/$1" layers
}

networks() {
  for name in $names; do
    for kind in -int8 ""; do # if time is short, what is calibrated
      [ -d "$bundles/$name$kind" ] || continue # a network that was not calibrated
      bundle=$(copied "$name$kind")
      mkdir -p "$out/$name$kind"
      for profile in ${BATCHES:-1 64}; do
        precisions="fp16 fp32"
        [ -z "$kind" ] || precisions=calibrated
        PROFILES=$profile PRECISIONS=$precisions step "$name$kind: engines for batch $profile" \
          on_gpu "$bundle" "$out/$name$kind" export
      done
      measured "$name$kind"
    done
  done
}

half() {
  step "routing in half precision" "$root/deploy/tests/half_on_gpu.sh" "$WORK" "$out/half"
}

fleet() { # engines for a fleet, beside those for this machine alone
  local bundle to=$out/fleet
  mkdir -p "$to"
  bundle=$(copied "${names%% *}" -fleet)
  for option in "" --hardware-compatible --refittable; do
    PROFILES=64 PRECISIONS=fp16 OPTIONS="--routing fused $option" step "fleet: fused $option" on_gpu "$bundle" "$to" export
  done
  for option in "" --version-compatible; do
    PROFILES=1 PRECISIONS=fp16 OPTIONS="$option" step "fleet: unrolled $option" on_gpu "$bundle" "$to" export
  done
  cp "$bundle"/engines/*.json "$to/"
  ls -l "$bundle/engines" >"$to/sizes.txt"
  step "fleet: verify-parity" on_gpu "$bundle" "$to" verify
  step "fleet: benchmark" on_gpu "$bundle" "$to" benchmark
}

refit() { # an engine gets other weights
  local bundle again to=$out/refit
  mkdir -p "$to"
  bundle=$(copied fashion-mnist) again=$(copied mnist)
  PROFILES=64 PRECISIONS=fp16 OPTIONS="--routing fused --refittable" step "refit: build" on_gpu "$bundle" "$to" export
  WEIGHTS=$again step "refit: weights of mnist for the engine of fashion-mnist" on_gpu "$bundle" "$to" refit
  step "refit: verify-parity" on_gpu "$again" "$to" verify
  cp "$again"/engines/*.json "$to/"
}

[ -f "$WORK/libqcn_plugin.so" ] || step build on_gpu "$bundles" "$out" build
for part in ${PARTS:-networks half fleet refit}; do
  $part
  cp -r "$XDG_CACHE_HOME" "$out/"
done
say "done; ${#failed[@]} steps failed${failed[*]:+: }$(printf '%s; ' "${failed[@]}")"
((${#failed[@]} == 0))

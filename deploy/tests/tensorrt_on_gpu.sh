#!/usr/bin/env bash
# Everything of TensorRT's on a machine with a GPU, without CMake: builds the plugin, libqcn and its TensorRT backend,
# runs their tests, makes engines with fused routing, compares them with the golden answers, and times them.
#   usage: tensorrt_on_gpu.sh HEADERS TENSORRT BUNDLE OUT [STEP...]
#     HEADERS    the folder of NvInferRuntime.h        TENSORRT   that of libnvinfer.so
#     BUNDLE     what `qcn export` wrote               OUT        logs and JSON go there
#     STEP       build, test, export, verify, benchmark, libqcn; all of them if none is named. And refit: the
#                engines get the weights of WEIGHTS, a bundle, which they go into
#   PYTHON: a Python with TensorRT's bindings, numpy, onnx, safetensors, typer, rich and cuda-bindings (python3)
#   ARCH:   for nvcc, as sm_90 (native)     WORK: where things are built (build/on_gpu), kept between calls
#   PRECISIONS: of the engines (fp32 fp16; "calibrated" for what `qcn calibrate` wrote)
#   PROFILES: their --batch (1:8:64)        OPTIONS: further ones of `qcn export` (--routing fused)
#   BATCHES: to time (1 64)                 DURATION: seconds to time each for (3)
set -euo pipefail
headers=${1:?usage: tensorrt_on_gpu.sh HEADERS TENSORRT BUNDLE OUT [STEP...]}
headers=$(readlink -f "$headers") tensorrt=$(readlink -f "$2") bundle=$(readlink -f "$3") out=$(readlink -m "$4")
shift 4
steps=${*:-build test export verify benchmark libqcn}
root=$(cd "$(dirname "$0")/../.." && pwd)
deploy=$root/deploy work=${WORK:-$root/build/on_gpu} python=${PYTHON:-python3}
mkdir -p "$work" "$out"
cuda=$(dirname "$(dirname "$(readlink -f "$(command -v "${NVCC:-nvcc}")")")")
[ -f "$cuda/include/cuda_runtime_api.h" ] || cuda=$(ls -d /usr/local/cuda /usr/local/cuda-* 2>/dev/null | head -1)
[ -d "$cuda/lib64" ] && libraries=$cuda/lib64 || libraries=$cuda/lib
export QCN_PLUGIN=$work/libqcn_plugin.so QCN_LIBRARY=$work/libqcn.so

# As CMake reads it: libqcn takes only a TensorRT backend of its own version.
version=$(sed -n 's/^#define QCN_VERSION_[A-Z]* //p' "$deploy/include/qcn/qcn.h" | paste -sd.)

begun=$SECONDS
say() { echo "[$((SECONDS - begun)) s] $*"; }

with_qcn() { # the packages under the names they are installed by; not from a folder that has a qcn/ of its own
  mkdir -p "$work/site/qcn"
  ln -sfn "$root"/qcn/* "$root/export" "$root/calibrate" "$work/site/qcn/"
  mkdir -p "$work/site/qcn_toolkit-$version.dist-info"
  printf 'Metadata-Version: 2.1\nName: qcn-toolkit\nVersion: %s\n' "$version" >"$work/site/qcn_toolkit-$version.dist-info/METADATA"
  (cd "$work" && PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} "$python" "$@")
}

qcn() { with_qcn -c 'from qcn.cli import main; main()' "$@"; }

with_tensorrt() { # stub: where shared/gpu/unpack puts stand-ins for libraries that TensorRT names and does not need
  LD_LIBRARY_PATH=$tensorrt:$tensorrt/../stub${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
}

later() { # a command beside others, one per core; build waits for them all
  while (($(jobs -rp | wc -l) >= $(nproc))); do sleep 0.1; done
  "$@" & pids+=($!)
}

build() {
  local nvinfer=(-L"$tensorrt" -lnvinfer -Wl,-rpath,"$tensorrt") objects=() sets=neon pids=() source set
  local runtime=(-L"$libraries" -lcudart_static -lpthread -ldl -lrt) shared=(-shared -Wl,-z,nodelete -Wl,--no-undefined)
  local includes=(-I"$deploy/include" -I"$deploy/kernels" -I"$deploy/src")
  local compile=(g++ -std=c++17 -O2 -fPIC -fvisibility=hidden "${includes[@]}" -isystem "$headers" -isystem "$cuda/include"
    -DQCN_PLUGIN_VERSION="\"$version\"" -DQCN_TENSORRT_LIBRARY_VERSION="\"$version\"" -DQCN_HAS_HALF)
  local arithmetic=(-O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-signed-zeros)
  local integers="neon neondot" half=neonfp16
  if [ "$(uname -m)" = x86_64 ]; then sets="sse2 avx2 avx512" integers="sse2 avx2 avxvnni avx512vnni" half=avx512fp16; fi
  local -A flags=([avx2]="-mavx2 -mfma" [avx512]="-mavx512f -mavx2 -mfma" [avxvnni]="-mavxvnni -mavx2 -mfma"
    [avx512vnni]="-mavx512vnni -mavx512f -mavx2 -mfma" [avx512fp16]="-mavx512fp16 -mavx512vl -mavx512f -mavx2 -mfma"
    [neondot]="-march=armv8.2-a+dotprod" [neonfp16]="-march=armv8.2-a+fp16")
  cd "$work"
  for source in kernels/em_routing src/preprocess; do
    later nvcc -std=c++17 -O3 -arch="${ARCH:-native}" -split-compile=0 -Xcompiler=-fPIC,-fvisibility=hidden \
      "${includes[@]}" -c "$deploy/$source.cu" -o "$(basename $source).cu.o"
  done
  kernel() { # SET SOURCE FLAG...: a source of kernels/ for an instruction set, as deploy/CMakeLists.txt compiles it
    local set=$1 source=$2
    shift 2
    later "${compile[@]}" "${arithmetic[@]}" ${flags[$set]:-} "$@" -DQCN_INSTRUCTION_SET="$set" \
      -c "$deploy/kernels/$source.cpp" -o "$source.$set.o"
    objects+=("$source.$set.o")
  }
  for set in $sets; do
    for source in em_routing_{forward,backward_tile,backward_channel,kernels} convolution_block; do kernel $set $source; done
  done
  for set in $integers; do kernel $set convolution_int8_block -ffp-contract=off; done
  for source in em_routing_{forward,half}; do kernel $half $source; done
  local plugin=() backend=() name
  for source in "$deploy"/{plugins,src/tensorrt/library,src,src/native,src/tensorrt}/*.cpp \
    "$deploy"/kernels/{convolution,convolution_int8,em_routing,rotation,threads}.cpp; do
    name=${source#"$deploy/"} name=${name//\//_}.o
    later "${compile[@]}" -c "$source" -o "$name"
    case $name in
      plugins_*) plugin+=("$name") ;;
      src_tensorrt_library_*) backend+=("$name") ;;
      *) objects+=("$name") ;;
    esac
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
  g++ "${shared[@]}" "${plugin[@]}" em_routing.cu.o -o libqcn_plugin.so \
    -Wl,--version-script="$deploy/plugins/plugin.map" "${nvinfer[@]}" "${runtime[@]}"
  g++ "${shared[@]}" "${plugin[@]}" "${backend[@]}" src_{fit,preprocess}.cpp.o {em_routing,preprocess}.cu.o \
    -o libqcn_tensorrt.so -Wl,--version-script="$deploy/src/tensorrt/library/tensorrt.map" "${nvinfer[@]}" "${runtime[@]}"
  g++ "${shared[@]}" "${objects[@]}" -o libqcn.so -Wl,--version-script="$deploy/cmake/exports.map" -lpthread -ldl
  "${compile[@]}" -I"$deploy/programs" "$deploy"/programs/{bench,arguments,program}.cpp \
    -o qcn-bench -L. -lqcn -Wl,-rpath,"$work" -lpthread
  "${compile[@]}" "$deploy/plugins/tests/test_plugin.cpp" -o test_plugin "${nvinfer[@]}" -ldl
  nvcc -std=c++17 -O1 -I"$deploy/kernels" "$deploy/tests/cuda_routing.cu" em_routing.cu.o -o cuda_routing
  nvcc -std=c++17 -O1 "${includes[@]}" "$deploy/tests/cuda_preprocess.cu" preprocess.cu.o \
    "$deploy"/src/{fit,preprocess}.cpp -o cuda_preprocess
  nvcc -std=c++17 -O1 "${includes[@]}" "$deploy/tests/cuda_images.cu" -o cuda_images -L. -lqcn -Xlinker -rpath="$work"
  cd - >/dev/null
}

run_tests() {
  with_tensorrt "$work/test_plugin" "$work/libqcn_plugin.so"
  "$work/cuda_routing" 2>&1 | tee "$out/cuda_routing.log"
  "$work/cuda_preprocess" 2>&1 | tee "$out/cuda_preprocess.log"
}

export_engines() {
  local precision profile given
  for profile in ${PROFILES:-1:8:64}; do
    for precision in ${PRECISIONS:-fp32 fp16}; do
      given=(--precision "$precision")
      [ "$precision" != calibrated ] || given=() # each operation has its own
      qcn export "$bundle" --format trt ${OPTIONS---routing fused} "${given[@]}" --batch "$profile" 2>&1 |
        tee "$out/export-$precision-b${profile//:/-}.log"
      say "exported $precision for batch $profile"
    done
  done
}

libqcn() { # loading it runs the golden images through the C++ backend, and refuses an engine that disagrees
  for precision in ${PRECISIONS:-fp32 fp16}; do
    for batch in ${BATCHES:-1 64}; do
      for infer in "" --infer; do
        with_tensorrt "$work/qcn-bench" "$bundle" --backend tensorrt --precision "$precision" --batch "$batch" $infer --verbose --json |
          tee "$out/libqcn-$precision-b$batch$infer.json"
      done
    done
    with_tensorrt "$work/cuda_images" "$bundle" "$precision" | tee "$out/cuda_images-$precision.log"
  done
}

for step in $steps; do
  say "$step"
  case $step in
    build | libqcn) $step ;;
    test) run_tests ;;
    export) export_engines ;;
    verify) qcn verify-parity "$bundle" --backends tensorrt --report "$out/parity" ;;
    benchmark)
      for batch in ${BATCHES:-1 64}; do
        qcn benchmark "$bundle" --backends tensorrt --batch "$batch" --duration "${DURATION:-3}" \
          --json "$out/benchmark-b$batch.json"
      done ;;
    refit) qcn export "$(readlink -f "$WEIGHTS")" --refit "$bundle" 2>&1 | tee "$out/refit.log" ;;
    *) echo "no step named $step" >&2; exit 2 ;;
  esac
done
say "done"

// Tests the CUDA routing kernels against a plain loop over votes in double precision, on every tile; then times them.
//
//     cmake -S deploy -B build -DQCN_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native && cmake --build build
//     build/tests/cuda_routing [--bench] [--sweep] [--json FILE]
//
// --sweep: times of all tiles, not of the chosen one only. --json: times go to FILE too, with the date, the machine and
// the commit, which the environment variable QCN_COMMIT names.
//
// An error may be four times that of the same plain loop in single precision; in half precision, of the loop with the
// roundings of a fp16 Route. Exit status: 0 all right, 1 a check failed, 2 wrong usage, 3 no CUDA device.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "em_routing_cuda.h"
#include "routing_cases.h"

namespace {

void require(int error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(1);
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    require(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(size, 1) * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    require(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    require(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "copy from the device");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

template <class Element>
std::vector<Element> cast(const std::vector<float>& values) {
  return std::vector<Element>(values.begin(), values.end());
}

template <class Element>
constexpr qcn_cuda_type kType = std::is_same_v<Element, __nv_bfloat16> ? QCN_CUDA_BFLOAT16
                                : std::is_same_v<Element, __half>      ? QCN_CUDA_FLOAT16
                                                                       : QCN_CUDA_FLOAT32;

constexpr int kChosen = -1;  // in place of a tile: whatever qcn_cuda_routing_forward chooses

using Floats = DeviceArray<float>;
template <class Element>
void forward(const Case& c, qcn_cuda_arithmetic arithmetic, int tile, const DeviceArray<Element>& pose,
             const DeviceArray<Element>& activation, const Floats& rotors, const Floats& beta_u, const Floats& beta_a,
             const Floats& out_pose, const Floats& out_activation, cudaStream_t stream) {
  const auto call = [&](const auto& function, auto... last) {
    return function(&c.shape, arithmetic, kType<Element>, pose.get(), activation.get(), rotors.get(), beta_u.get(),
                    beta_a.get(), out_pose.get(), out_activation.get(), last...);
  };
  require(tile == kChosen ? call(qcn_cuda_routing_forward, stream) : call(qcn_cuda_routing_forward_tile, tile, stream),
          "forward");
}

// The kernel's answer; with `guard` elements after each output that must stay as they were.
template <class Element>
Result run(const Case& c, qcn_cuda_arithmetic arithmetic, int tile) {
  constexpr size_t kGuard = 64;
  const DeviceArray<Element> pose(cast<Element>(c.pose)), activation(cast<Element>(c.activation));
  const DeviceArray<float> rotation(c.rotation), beta_u(c.beta_u), beta_a(c.beta_a);
  const DeviceArray<float> rotors(std::vector<float>(qcn_cuda_routing_rotors_size(&c.shape) / sizeof(float), NAN));
  const DeviceArray<float> out_pose(std::vector<float>(3 * c.outputs() + kGuard, -7.0f));
  const DeviceArray<float> out_activation(std::vector<float>(c.outputs() + kGuard, -7.0f));
  require(qcn_cuda_routing_prepare(&c.shape, arithmetic, rotation.get(), rotors.get(), nullptr), "prepare");
  forward<Element>(c, arithmetic, tile, pose, activation, rotors, beta_u, beta_a, out_pose, out_activation, nullptr);
  require(cudaDeviceSynchronize(), "the kernel");
  const auto checked = [](const std::vector<float>& values, size_t size) {
    const auto end = values.begin() + static_cast<std::ptrdiff_t>(size);
    if (std::any_of(end, values.end(), [](float x) { return x != -7.0f; })) return std::vector<double>(size, NAN);
    return std::vector<double>(values.begin(), end);
  };
  return {checked(out_pose.read(), 3 * c.outputs()), checked(out_activation.read(), c.outputs())};
}

const char* name_of(qcn_cuda_arithmetic arithmetic) { return arithmetic == QCN_CUDA_HALF ? "half" : "single"; }

int failures = 0;

void report(bool right, const std::string& what) {
  std::printf("%s  %s\n", right ? "PASS" : "FAIL", what.c_str());
  failures += !right;
}

std::vector<int> fitting_tiles(const qcn_routing_shape& shape, qcn_cuda_arithmetic arithmetic) {
  std::vector<int> tiles;
  for (int tile = 0; tile < qcn_cuda_routing_tiles(); ++tile) {
    if (qcn_cuda_routing_fits(&shape, arithmetic, tile)) tiles.push_back(tile);
  }
  return tiles;
}

// Every tile's answer from poses of Element, against that of the plain loop.
template <class Element>
void check(const Case& c, qcn_cuda_arithmetic arithmetic, const Result& expected, double allowed, const char* what) {
  double worst = 0;
  bool same_bits = true;
  std::string at;
  for (int tile : fitting_tiles(c.shape, arithmetic)) {
    const Result result = run<Element>(c, arithmetic, tile), again = run<Element>(c, arithmetic, tile);
    const double error = largest_error(result, expected);
    if (!(error <= worst) || at.empty()) worst = error, at = std::to_string(tile);
    same_bits &= result.pose == again.pose && result.activation == again.activation;
  }
  char line[200];
  std::snprintf(line, sizeof line, "%-32s %s: error %.1e on tile %s, allowed %.1e%s", c.name.c_str(), what, worst,
                at.c_str(), allowed, same_bits ? "" : ", not the same bits twice");
  report(worst <= allowed && same_bits, line);
}

void check_single(const Case& c) {
  const Result expected = reference<double>(c);
  check<float>(c, QCN_CUDA_SINGLE, expected, 4 * largest_error(reference<float>(c), expected) + 2e-6, "single");
}

// Given in 16 bits, the answer is that of the rounded numbers.
template <class Element>
Case rounded_to(Case c) {
  for (float& x : c.pose) x = static_cast<float>(static_cast<Element>(x));
  for (float& x : c.activation) x = static_cast<float>(static_cast<Element>(x));
  return c;
}

template <class Element>
void check_given(const Case& given, const char* what) {
  const Case c = rounded_to<Element>(given);
  const Result expected = reference<double>(c);
  check<Element>(c, QCN_CUDA_SINGLE, expected, 4 * largest_error(reference<float>(c), expected) + 2e-6, what);
}

void check_half(const Case& c) {
  if (fitting_tiles(c.shape, QCN_CUDA_HALF).empty()) {
    std::printf("SKIP  %-32s half: not on this device, or more than 16 parents\n", c.name.c_str());
    return;
  }
  if (c.beyond_half) return;
  const Result expected = reference<double>(c);
  const double allowed = c.half_errors * largest_error(half_reference(c), expected) + 1e-5;
  check<float>(c, QCN_CUDA_HALF, expected, allowed, "half");
  const Case rounded = rounded_to<__half>(c);
  check<__half>(rounded, QCN_CUDA_HALF, reference<double>(rounded), allowed, "half, from float16");
}

// What is asked for in half precision is run in what qcn_cuda_routing_runs says, on the tile chosen for that.
void check_asked(const Case& c) {
  const qcn_cuda_arithmetic runs = qcn_cuda_routing_runs(&c.shape, QCN_CUDA_HALF);
  int tile;
  require(qcn_cuda_routing_choose(&c.shape, runs, &tile), "choose");
  const Result asked = run<float>(c, QCN_CUDA_HALF, kChosen), expected = run<float>(c, runs, tile);
  report(asked.pose == expected.pose && asked.activation == expected.activation,
         c.name + ": asked in half, runs in " + name_of(runs));
}

void check_refusals() {
  const qcn_routing_shape right = {2, 16, 8, 8, 5, 5, 1, 16, 2, 0, 0, 0};
  const auto refused = [&](const std::function<void(qcn_routing_shape&)>& change) {
    qcn_routing_shape s = right;
    change(s);
    int tile;
    return qcn_cuda_routing_rotors_size(&s) == 0 &&
           qcn_cuda_routing_choose(&s, QCN_CUDA_SINGLE, &tile) == cudaErrorInvalidValue;
  };
  const bool all = refused([](auto& s) { s.batch = 0; }) && refused([](auto& s) { s.parents = 65; }) &&
                   refused([](auto& s) { s.iterations = 6; }) && refused([](auto& s) { s.stride = 0; }) &&
                   refused([](auto& s) { s.window_width = 9; }) && refused([](auto& s) { s.unit = 2; });
  report(all, "shapes that are no shapes are refused");
}

// Median microseconds of a call, from replays of a graph of `calls` calls.
double microseconds(const std::function<void(cudaStream_t)>& work, int calls) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t start, stop;
  require(cudaStreamCreate(&stream), "cudaStreamCreate");
  require(cudaEventCreate(&start), "cudaEventCreate");
  require(cudaEventCreate(&stop), "cudaEventCreate");
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) work(stream);
  require(cudaStreamEndCapture(stream, &graph), "capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  std::vector<float> times;
  for (int i = 0; i < 30; ++i) {
    float milliseconds;
    require(cudaEventRecord(start, stream), "event");
    require(cudaGraphLaunch(executable, stream), "graph");
    require(cudaEventRecord(stop, stream), "event");
    require(cudaEventSynchronize(stop), "graph");
    require(cudaEventElapsedTime(&milliseconds, start, stop), "event");
    if (i >= 5) times.push_back(1000.0f * milliseconds / calls);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaStreamDestroy(stream);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Poses and activations come in float32, as the TensorRT plugin is given them.
struct Layer {
  Case c;
  qcn_cuda_arithmetic arithmetic;
  DeviceArray<float> pose, activation, rotation, beta_u, beta_a, rotors, out_pose, out_activation;

  Layer(const Case& from, qcn_cuda_arithmetic by)
      : c(from),
        arithmetic(by),
        pose(c.pose),
        activation(c.activation),
        rotation(c.rotation),
        beta_u(c.beta_u),
        beta_a(c.beta_a),
        rotors(qcn_cuda_routing_rotors_size(&c.shape) / sizeof(float)),
        out_pose(3 * c.outputs()),
        out_activation(c.outputs()) {
    require(qcn_cuda_routing_prepare(&c.shape, arithmetic, rotation.get(), rotors.get(), nullptr), "prepare");
    require(cudaDeviceSynchronize(), "prepare");
  }
  // The tile, if this arithmetic is what runs.
  int chosen() const {
    int tile = kChosen;
    if (qcn_cuda_routing_runs(&c.shape, arithmetic) == arithmetic) {
      require(qcn_cuda_routing_choose(&c.shape, arithmetic, &tile), "choose");
    }
    return tile;
  }
  void run(int tile, cudaStream_t stream) const {
    forward<float>(c, arithmetic, tile, pose, activation, rotors, beta_u, beta_a, out_pose, out_activation, stream);
  }
};

struct Time {
  std::string layer;
  qcn_cuda_arithmetic arithmetic;
  int batch, tile;
  qcn_cuda_routing_tile described;
  bool chosen;
  double microseconds;
};

// The four capsule layers of the paper's network on a 32x32 image, each alone and, as tile -1, all in one graph.
void bench(qcn_cuda_arithmetic arithmetic, bool sweep, std::vector<Time>* times) {
  const auto add = [&](const Case& c, const std::string& layer, int tile, bool chosen, double time) {
    const int batch = c.shape.batch;
    std::printf("%-7s %-10s %6d %4d%s %10.1f\n", name_of(arithmetic), layer.c_str(), batch, tile, chosen ? "*" : " ",
                time);
    times->push_back(
        {layer, arithmetic, batch, tile, qcn_cuda_routing_describe(&c.shape, arithmetic, tile), chosen, time});
  };
  for (int batch : {1, 64, 256}) {
    const Layer layers[] = {{random_case("layer 1", {batch, 32, 16, 16, 5, 5, 1, 16, 2, 0, 0}), arithmetic},
                            {random_case("layer 2", {batch, 16, 12, 12, 5, 5, 1, 16, 2, 0, 0}), arithmetic},
                            {random_case("layer 3", {batch, 16, 8, 8, 5, 5, 1, 16, 2, 0, 0}), arithmetic},
                            {random_case("classes", {batch, 16, 4, 4, 4, 4, 1, 5, 2, 1, 0}), arithmetic}};
    for (const Layer& layer : layers) {
      for (int tile : fitting_tiles(layer.c.shape, arithmetic)) {
        const bool chosen = tile == layer.chosen();
        if (!chosen && !sweep) continue;
        layer.run(tile, nullptr);
        require(cudaDeviceSynchronize(), "the kernel");
        add(layer.c, layer.c.name, tile, chosen, microseconds([&](cudaStream_t to) { layer.run(tile, to); }, 10));
      }
    }
    const auto all = [&](cudaStream_t stream) {
      for (const Layer& layer : layers) layer.run(kChosen, stream);
    };
    add(layers[0].c, "all four", kChosen, true, microseconds(all, 5));
  }
}

std::vector<Time> bench(bool sweep) {
  std::vector<Time> times;
  std::printf("\nmicroseconds, CUDA graph\n%-7s %-10s %6s %5s %10s\n", "", "layer", "batch", "tile", "time");
  bench(QCN_CUDA_SINGLE, sweep, &times);
  const qcn_routing_shape any = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0};
  if (!fitting_tiles(any, QCN_CUDA_HALF).empty()) bench(QCN_CUDA_HALF, sweep, &times);
  return times;
}

// As the benchmarks in Python write theirs; see benchmarks/measurements.py.
void write_json(const char* path, const std::vector<Time>& times) {
  std::FILE* file = std::fopen(path, "w");
  if (!file) {
    std::perror(path);
    std::exit(1);
  }
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  const char* commit = std::getenv("QCN_COMMIT");
  utsname host;
  uname(&host);
  int device;
  cudaDeviceProp gpu;
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaGetDeviceProperties(&gpu, device), "cudaGetDeviceProperties");
  std::fprintf(file, "{\n \"date\": \"%s\",\n \"commit\": \"%s\",\n", date, commit ? commit : "unknown");
  std::fprintf(file, " \"machine\": \"%s, %u cores, %s\",\n", host.machine, std::thread::hardware_concurrency(),
               gpu.name);
  std::fprintf(file, " \"versions\": {\"nvcc\": \"%d.%d.%d\"},\n \"results\": [", __CUDACC_VER_MAJOR__,
               __CUDACC_VER_MINOR__, __CUDACC_VER_BUILD__);
  for (size_t i = 0; i < times.size(); ++i) {
    const Time& t = times[i];
    const qcn_cuda_routing_tile& tile = t.described;
    std::fprintf(file, "%s\n  {\"layer\": \"%s\", \"arithmetic\": \"%s\", \"batch\": %d, \"tile\": %d, ", i ? "," : "",
                 t.layer.c_str(), name_of(t.arithmetic), t.batch, t.tile);
    std::fprintf(file, "\"windows\": %d, \"splits\": %d, \"threads\": %d, \"stages\": %d, \"shared_bytes\": %d, ",
                 tile.windows, tile.splits, tile.threads, tile.stages, tile.shared_bytes);
    std::fprintf(file, "\"cluster\": %d, \"chosen\": %s, \"us\": %.2f}", tile.cluster, t.chosen ? "true" : "false",
                 t.microseconds);
  }
  std::fprintf(file, "\n ]\n}\n");
  if (std::fclose(file)) {
    std::perror(path);
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool timed = false, sweep = false;
  const char* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--bench") {
      timed = true;
    } else if (argument == "--sweep") {
      timed = sweep = true;
    } else if (argument == "--json" && i + 1 < argc) {
      timed = true;
      json = argv[++i];
    } else {
      std::fprintf(stderr, "usage: cuda_routing [--bench] [--sweep] [--json FILE]\n");
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no CUDA device\n");
    return 3;
  }
  const std::vector<Case> all = cases();
  for (const Case& c : all) check_single(c);
  for (const Case& c : all) check_half(c);
  for (size_t i = 0; i < 4; ++i) {
    check_given<__half>(all[i], "single, from float16");
    check_given<__nv_bfloat16>(all[i], "single, from bfloat16");
  }
  for (const Case& c : all) check_asked(c);
  check_refusals();
  std::printf("%d failed\n", failures);
  if (failures) return 1;
  if (!timed) return 0;
  const std::vector<Time> times = bench(sweep);
  if (json) write_json(json, times);
  return 0;
}

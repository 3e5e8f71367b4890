// Tests the CUDA routing kernels against a plain loop over votes in double precision, on every tile; then times them.
//
//     cmake -S deploy -B build -DQCN_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native && cmake --build build
//     build/tests/cuda_routing [--bench] [--sweep] [--json FILE]
//
// --sweep: times of all tiles, not of the chosen one only. --json: the chosen ones' go to FILE too, with the date, the
// machine and the commit, which the environment variable QCN_COMMIT names: benchmarks/tables.py makes a table of it.
//
// An error may be four times that of the same plain loop in single precision. Exit status: 0 all right, 1 a check
// failed, 2 wrong usage, 3 no CUDA device.
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

struct Case {
  std::string name;
  qcn_routing_shape shape;
  std::vector<float> pose, activation, rotation, beta_u, beta_a;

  int rows() const { return (shape.height - shape.window_height) / shape.stride + 1; }
  int columns() const { return (shape.width - shape.window_width) / shape.stride + 1; }
  size_t outputs() const { return size_t(shape.batch) * shape.parents * rows() * columns(); }
};

// Poses N(0, 1), activations uniform, rotations of random unit quaternions.
Case random_case(const std::string& name, const qcn_routing_shape& s, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.02f, 0.98f);
  Case c{name, s, {}, {}, {}, {}, {}};
  const size_t children = size_t(s.batch) * s.channels * s.height * s.width;
  for (size_t i = 0; i < 3 * children; ++i) c.pose.push_back(normal(generator));
  for (size_t i = 0; i < children; ++i) c.activation.push_back(uniform(generator));
  const size_t places = s.shared ? 1 : size_t(s.window_height) * s.window_width;
  for (size_t i = 0; i < places * s.channels * s.parents; ++i) {
    double w = normal(generator), x = normal(generator), y = normal(generator), z = normal(generator);
    const double length = std::sqrt(w * w + x * x + y * y + z * z);
    w /= length, x /= length, y /= length, z /= length;
    for (double entry : {1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z),
                         1 - 2 * (x * x + z * z), 2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x),
                         1 - 2 * (x * x + y * y)}) {
      c.rotation.push_back(static_cast<float>(entry));
    }
  }
  for (int j = 0; j < s.parents; ++j) {
    c.beta_u.push_back(0.3f * normal(generator));
    c.beta_a.push_back(0.5f * normal(generator));
  }
  return c;
}

struct Result {
  std::vector<double> pose, activation;
};

// The formula of qcn/routing.py, votes and all.
template <class Real>
Result reference(const Case& c) {
  const qcn_routing_shape& s = c.shape;
  const int rows = c.rows(), columns = c.columns(), parents = s.parents;
  const size_t plane = size_t(s.height) * s.width, positions = size_t(rows) * columns;
  const int children = s.window_height * s.window_width * s.channels;
  Result result{std::vector<double>(3 * c.outputs()), std::vector<double>(c.outputs())};
  std::vector<Real> votes(size_t(children) * parents * 3), r(size_t(children) * parents), active(children);
  for (size_t n = 0; n < s.batch * positions; ++n) {
    const int b = n / positions, row = n % positions / columns, column = n % columns;
    for (int i = 0; i < children; ++i) {
      const int channel = i % s.channels, place = i / s.channels;
      const size_t position =
          size_t(row * s.stride + place / s.window_width) * s.width + column * s.stride + place % s.window_width;
      const size_t at = size_t(b) * s.channels + channel;
      active[i] = c.activation[at * plane + position];
      for (int j = 0; j < parents; ++j) {
        const float* rotation = &c.rotation[9 * (size_t(s.shared ? channel : i) * parents + j)];
        for (int h = 0; h < 3; ++h) {
          Real vote = 0;
          for (int k = 0; k < 3; ++k) vote += Real(rotation[3 * h + k]) * Real(c.pose[(3 * at + k) * plane + position]);
          votes[(size_t(i) * parents + j) * 3 + h] = vote;
        }
        r[size_t(i) * parents + j] = active[i] / parents;
      }
    }
    std::vector<Real> mean(3 * parents), variance(3 * parents), z(parents), prior(parents);
    for (int iteration = 0;; ++iteration) {
      for (int j = 0; j < parents; ++j) {
        Real mass = 0, log_spread = 0;
        for (int i = 0; i < children; ++i) mass += r[size_t(i) * parents + j];
        for (int h = 0; h < 3; ++h) {
          Real first = 0, second = 0;
          for (int i = 0; i < children; ++i)
            first += r[size_t(i) * parents + j] * votes[(size_t(i) * parents + j) * 3 + h];
          mean[3 * j + h] = first / (mass + Real(1e-6));
          for (int i = 0; i < children; ++i) {
            const Real d = votes[(size_t(i) * parents + j) * 3 + h] - mean[3 * j + h];
            second += r[size_t(i) * parents + j] * d * d;
          }
          variance[3 * j + h] = second / (mass + Real(1e-6)) + Real(1e-4);
          log_spread += Real(0.5) * std::log(variance[3 * j + h]);
        }
        z[j] = c.beta_a[j] - (3 * Real(c.beta_u[j]) + log_spread) * mass * (Real(2) * parents / children);
        prior[j] = -log_spread;
      }
      if (s.unit) {
        Real square = 0;
        for (Real x : z) square += x * x;
        for (Real& x : z) x /= std::max(std::sqrt(square), Real(1e-12));
      }
      if (iteration == s.iterations - 1) break;
      for (int j = 0; j < parents; ++j) prior[j] += std::min(z[j], Real(0)) - std::log1p(std::exp(-std::abs(z[j])));
      for (int i = 0; i < children; ++i) {
        std::vector<Real> logit(prior);
        for (int j = 0; j < parents; ++j) {
          for (int h = 0; h < 3; ++h) {
            const Real d = votes[(size_t(i) * parents + j) * 3 + h] - mean[3 * j + h];
            logit[j] -= d * d / (2 * variance[3 * j + h]);
          }
        }
        const Real largest = *std::max_element(logit.begin(), logit.end());
        Real total = 0;
        for (Real& x : logit) total += x = std::exp(x - largest);
        for (int j = 0; j < parents; ++j) r[size_t(i) * parents + j] = active[i] * (logit[j] / total);
      }
    }
    for (int j = 0; j < parents; ++j) {
      const size_t at = size_t(b) * parents + j, position = n % positions;
      for (int h = 0; h < 3; ++h) result.pose[(3 * at + h) * positions + position] = mean[3 * j + h];
      result.activation[at * positions + position] = 1 / (1 + std::exp(-z[j]));
    }
  }
  return result;
}

template <class Element>
std::vector<Element> cast(const std::vector<float>& values) {
  return std::vector<Element>(values.begin(), values.end());
}

// The kernel's answer; with `guard` elements after each output that must stay as they were.
template <class Element>
Result run(const Case& c, int tile) {
  constexpr size_t kGuard = 64;
  constexpr qcn_cuda_type kType = std::is_same_v<Element, __nv_bfloat16> ? QCN_CUDA_BFLOAT16
                                  : std::is_same_v<Element, __half>      ? QCN_CUDA_FLOAT16
                                                                         : QCN_CUDA_FLOAT32;
  const DeviceArray<Element> pose(cast<Element>(c.pose)), activation(cast<Element>(c.activation));
  const DeviceArray<float> rotation(c.rotation), beta_u(c.beta_u), beta_a(c.beta_a);
  const DeviceArray<float> rotors(std::vector<float>(qcn_cuda_routing_rotors_size(&c.shape) / sizeof(float), NAN));
  const DeviceArray<float> out_pose(std::vector<float>(3 * c.outputs() + kGuard, -7.0f));
  const DeviceArray<float> out_activation(std::vector<float>(c.outputs() + kGuard, -7.0f));
  require(qcn_cuda_routing_prepare(&c.shape, rotation.get(), rotors.get(), nullptr), "prepare");
  require(qcn_cuda_routing_forward_tile(&c.shape, kType, pose.get(), activation.get(), rotors.get(), beta_u.get(),
                                        beta_a.get(), out_pose.get(), out_activation.get(), tile, nullptr),
          "forward");
  require(cudaDeviceSynchronize(), "the kernel");
  const auto checked = [](const std::vector<float>& values, size_t size) {
    const auto end = values.begin() + static_cast<std::ptrdiff_t>(size);
    if (std::any_of(end, values.end(), [](float x) { return x != -7.0f; })) return std::vector<double>(size, NAN);
    return std::vector<double>(values.begin(), end);
  };
  return {checked(out_pose.read(), 3 * c.outputs()), checked(out_activation.read(), c.outputs())};
}

// Of poses relative to the largest, of activations as they are. NaN counts as infinite.
double largest_error(const Result& a, const Result& b) {
  double scale = 1e-30, error = 0;
  for (double x : b.pose) scale = std::max(scale, std::abs(x));
  const auto worse = [&](double x) { error = std::isnan(x) ? INFINITY : std::max(error, x); };
  for (size_t i = 0; i < a.pose.size(); ++i) worse(std::abs(a.pose[i] - b.pose[i]) / scale);
  for (size_t i = 0; i < a.activation.size(); ++i) worse(std::abs(a.activation[i] - b.activation[i]));
  return error;
}

// batch, channels, height, width, window_height, window_width, stride, parents, iterations, shared, unit
std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* name, const qcn_routing_shape& s, const std::function<void(Case&)>& change = {}) {
    all.push_back(random_case(name, s, all.size() + 1));
    if (change) change(all.back());
  };
  const auto scale_poses = [](float by) {
    return [by](Case& c) {
      for (float& x : c.pose) x *= by;
    };
  };
  const qcn_routing_shape layer = {2, 16, 8, 8, 5, 5, 1, 16, 2, 0, 0};
  add("layer of a QCN", layer);
  add("odd sizes", {3, 5, 7, 6, 3, 2, 1, 5, 2, 0, 0});
  add("stride 2", {2, 8, 9, 10, 3, 3, 2, 8, 3, 0, 0});
  add("class layer", {5, 16, 4, 4, 4, 4, 1, 10, 2, 1, 0});
  add("class layer, one image", {1, 16, 4, 4, 4, 4, 1, 5, 2, 1, 0});
  add("shared rotors in small windows", {2, 6, 5, 5, 3, 3, 1, 4, 2, 1, 0});
  add("one iteration", {2, 4, 5, 5, 3, 3, 1, 12, 1, 0, 0});
  add("five iterations", {2, 8, 5, 5, 3, 3, 1, 16, 5, 0, 0});
  add("unit activation", {2, 8, 5, 5, 3, 3, 1, 11, 3, 0, 1});
  add("1 parent", {2, 4, 4, 4, 3, 3, 1, 1, 3, 0, 0});
  add("17 parents", {2, 6, 5, 5, 3, 3, 1, 17, 2, 0, 0});
  add("33 parents", {2, 3, 5, 5, 3, 3, 1, 33, 2, 0, 1});
  add("64 parents", {2, 8, 4, 4, 2, 2, 1, 64, 2, 0, 0});
  add("1 child", {3, 1, 3, 3, 1, 1, 1, 6, 3, 0, 0});
  add("1 child, large", {3, 1, 3, 3, 1, 1, 2, 6, 3, 0, 0}, scale_poses(1e4f));
  add("poses of 1e4", layer, scale_poses(1e4f));
  add("poses of 1e-4", layer, scale_poses(1e-4f));
  add("no pose at all", layer, scale_poses(0.0f));
  add("no activation at all", layer, [](Case& c) { std::fill(c.activation.begin(), c.activation.end(), 0.0f); });
  add("one dominant child", layer, [](Case& c) {
    for (size_t i = 0; i < c.activation.size(); ++i) c.activation[i] = i % 311 == 0 ? 0.99f : 1e-6f;
  });
  add("outliers", layer, [](Case& c) {
    for (size_t i = 0; i < c.pose.size(); i += 37) c.pose[i] *= 1000.0f;
  });
  add("collapsed votes", layer, [](Case& c) {
    for (size_t i = 0; i < c.pose.size(); ++i) c.pose[i] = 100.0f + 1e-3f * c.pose[i];
    for (size_t i = 0; i < c.rotation.size(); ++i) c.rotation[i] = i % 9 % 4 == 0;
  });
  add("two collapsed clusters", {2, 16, 8, 8, 5, 5, 1, 16, 3, 0, 0}, [](Case& c) {
    for (size_t i = 0; i < c.pose.size(); ++i) c.pose[i] = (i / 192 % 2 ? 30.0f : -20.0f) + 1e-2f * c.pose[i];
    for (size_t i = 0; i < c.rotation.size(); ++i) c.rotation[i] = i % 9 % 4 == 0;
  });
  return all;
}

int failures = 0;

void report(bool right, const std::string& what) {
  std::printf("%s  %s\n", right ? "PASS" : "FAIL", what.c_str());
  failures += !right;
}

std::vector<int> fitting_tiles(const qcn_routing_shape& shape) {
  int device, room;
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  std::vector<int> tiles;
  for (int tile = 0; tile < qcn_cuda_routing_tiles(); ++tile) {
    if (qcn_cuda_routing_describe(&shape, tile).shared_bytes <= room) tiles.push_back(tile);
  }
  return tiles;
}

void check(const Case& c) {
  const Result expected = reference<double>(c);
  const double single = largest_error(reference<float>(c), expected);
  const double allowed = 4 * single + 2e-6;
  double worst = 0;
  bool same_bits = true;
  std::string at;
  for (int tile : fitting_tiles(c.shape)) {
    const Result result = run<float>(c, tile), again = run<float>(c, tile);
    const double error = largest_error(result, expected);
    if (!(error <= worst) || at.empty()) worst = error, at = std::to_string(tile);
    same_bits &= result.pose == again.pose && result.activation == again.activation;
  }
  char line[200];
  std::snprintf(line, sizeof line, "%-32s error %.1e on tile %s, single precision %.1e%s", c.name.c_str(), worst,
                at.c_str(), single, same_bits ? "" : ", not the same bits twice");
  report(worst <= allowed && same_bits, line);
}

// Given in 16 bits, the answer is that of the rounded numbers, in single precision.
template <class Element>
void check_half(Case c, const char* type) {
  for (float& x : c.pose) x = static_cast<float>(static_cast<Element>(x));
  for (float& x : c.activation) x = static_cast<float>(static_cast<Element>(x));
  Result expected = reference<double>(c);
  const double allowed = 4 * largest_error(reference<float>(c), expected) + 2e-6;
  double worst = 0;
  for (int tile : fitting_tiles(c.shape)) {
    worst = std::max(worst, largest_error(run<Element>(c, tile), expected));
  }
  char line[200];
  std::snprintf(line, sizeof line, "%-32s error %.1e from %s", c.name.c_str(), worst, type);
  report(worst <= allowed, line);
}

void check_refusals() {
  const qcn_routing_shape right = {2, 16, 8, 8, 5, 5, 1, 16, 2, 0, 0};
  const auto refused = [&](const std::function<void(qcn_routing_shape&)>& change) {
    qcn_routing_shape s = right;
    change(s);
    int tile;
    return qcn_cuda_routing_rotors_size(&s) == 0 && qcn_cuda_routing_choose(&s, &tile) == cudaErrorInvalidValue;
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

struct Layer {
  Case c;
  DeviceArray<float> pose, activation, rotation, beta_u, beta_a, rotors, out_pose, out_activation;

  explicit Layer(const Case& from)
      : c(from),
        pose(c.pose),
        activation(c.activation),
        rotation(c.rotation),
        beta_u(c.beta_u),
        beta_a(c.beta_a),
        rotors(qcn_cuda_routing_rotors_size(&c.shape) / sizeof(float)),
        out_pose(3 * c.outputs()),
        out_activation(c.outputs()) {
    require(qcn_cuda_routing_prepare(&c.shape, rotation.get(), rotors.get(), nullptr), "prepare");
    require(cudaDeviceSynchronize(), "prepare");
  }
  int forward(int tile, cudaStream_t stream) const {
    return qcn_cuda_routing_forward_tile(&c.shape, QCN_CUDA_FLOAT32, pose.get(), activation.get(), rotors.get(),
                                         beta_u.get(), beta_a.get(), out_pose.get(), out_activation.get(), tile,
                                         stream);
  }
};

struct Time {
  std::string layer;
  int batch, tile;
  double microseconds;
};

// The four capsule layers of the paper's network on a 32x32 image; returns the times of the tiles that were chosen.
std::vector<Time> bench(bool sweep) {
  std::vector<Time> times;
  std::printf("\nmicroseconds, float32, CUDA graph\n%-10s %6s %5s %10s\n", "layer", "batch", "tile", "time");
  for (int batch : {1, 64, 256}) {
    const Layer layers[] = {Layer(random_case("layer 1", {batch, 32, 16, 16, 5, 5, 1, 16, 2, 0, 0})),
                            Layer(random_case("layer 2", {batch, 16, 12, 12, 5, 5, 1, 16, 2, 0, 0})),
                            Layer(random_case("layer 3", {batch, 16, 8, 8, 5, 5, 1, 16, 2, 0, 0})),
                            Layer(random_case("classes", {batch, 16, 4, 4, 4, 4, 1, 5, 2, 1, 0}))};
    for (const Layer& layer : layers) {
      int chosen;
      require(qcn_cuda_routing_choose(&layer.c.shape, &chosen), "choose");
      for (int tile : fitting_tiles(layer.c.shape)) {
        if (tile != chosen && !sweep) continue;
        require(layer.forward(tile, nullptr), "forward");
        require(cudaDeviceSynchronize(), "the kernel");
        const double time =
            microseconds([&](cudaStream_t stream) { require(layer.forward(tile, stream), "forward"); }, 10);
        std::printf("%-10s %6d %4d%s %10.1f\n", layer.c.name.c_str(), batch, tile, tile == chosen ? "*" : " ", time);
        if (tile == chosen) times.push_back({layer.c.name, batch, tile, time});
      }
    }
    const auto all = [&](cudaStream_t stream) {
      for (const Layer& layer : layers) {
        int chosen;
        require(qcn_cuda_routing_choose(&layer.c.shape, &chosen), "choose");
        require(layer.forward(chosen, stream), "forward");
      }
    };
    std::printf("%-10s %6d %5s %10.1f\n", "all four", batch, "", microseconds(all, 5));
  }
  return times;
}

// As the benchmarks in Python write theirs; see benchmarks/machine.py.
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
    std::fprintf(file, "%s\n  {\"layer\": \"%s\", \"batch\": %d, \"tile\": %d, \"us\": %.2f}", i ? "," : "",
                 times[i].layer.c_str(), times[i].batch, times[i].tile, times[i].microseconds);
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
  for (const Case& c : all) check(c);
  for (size_t i = 0; i < 4; ++i) {
    check_half<__half>(all[i], "float16");
    check_half<__nv_bfloat16>(all[i], "bfloat16");
  }
  check_refusals();
  std::printf("%d failed\n", failures);
  if (failures) return 1;
  if (!timed) return 0;
  const std::vector<Time> times = bench(sweep);
  if (json) write_json(json, times);
  return 0;
}

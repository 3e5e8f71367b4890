// Routing by agreement on a CUDA device: the host's half. It checks shapes, chooses a tile, that is how a thread block
// is laid over windows and children, and launches the kernel of em_routing_kernel.cuh.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "em_routing_cuda.h"
#include "em_routing_kernel.cuh"

namespace {

struct Variant {
  void (*kernel)(Routing);
  qcn_cuda_routing_tile tile;
};

template <class T>
Variant variant() {
  return {route<T>, {T::kWindows, T::kSplits, T::kThreads, T::kStages, T::kSharedBytes}};
}

constexpr int kTiles = 5;

// From many windows a block to few.
template <int kParentLanes>
Variant variant(int tile) {
  constexpr int kLanes = 32 / kParentLanes;
  switch (tile) {
    case 0:
      return variant<Tile<kParentLanes, kLanes, 2, 2, 2, 2>>();
    case 1:
      return variant<Tile<kParentLanes, kLanes, 2, 1, 4, 2>>();
    case 2:
      return variant<Tile<kParentLanes, (kLanes + 3) / 4, 2, 1, 8, 2>>();
    case 3:
      return variant<Tile<kParentLanes, 1, 2, 1, 8, 3>>();
    default:
      return variant<Tile<kParentLanes, 1, 2, 1, 4, 3>>();
  }
}

int parent_lanes(int parents) { return parents <= 8 ? 2 : parents <= 16 ? 4 : parents <= 32 ? 8 : 16; }

Variant variant(int parents, int tile) {
  switch (parent_lanes(parents)) {
    case 2:
      return variant<2>(tile);
    case 4:
      return variant<4>(tile);
    case 8:
      return variant<8>(tile);
    default:
      return variant<16>(tile);
  }
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t ceil_divide(int64_t n, int64_t by) { return (n + by - 1) / by; }
int rows(const qcn_routing_shape& s) { return (s.height - s.window_height) / s.stride + 1; }
int columns(const qcn_routing_shape& s) { return (s.width - s.window_width) / s.stride + 1; }
int64_t windows(const qcn_routing_shape& s) { return int64_t{s.batch} * rows(s) * columns(s); }
int64_t places(const qcn_routing_shape& s) { return int64_t{s.window_height} * s.window_width; }
// With channels padded.
int64_t children(const qcn_routing_shape& s) { return places(s) * round_up(s.channels, kGroup); }

bool valid(const qcn_routing_shape* s) {
  constexpr int64_t kMost = INT32_MAX - 1024;  // room for a tile
  return s && s->batch > 0 && s->channels > 0 && s->height > 0 && s->width > 0 && s->window_height > 0 &&
         s->window_width > 0 && s->window_height <= s->height && s->window_width <= s->width && s->stride > 0 &&
         s->parents > 0 && s->parents <= QCN_ROUTING_MAX_PARENTS && s->iterations > 0 &&
         s->iterations <= QCN_ROUTING_MAX_ITERATIONS && (s->shared == 0 || s->shared == 1) &&
         (s->unit == 0 || s->unit == 1) && windows(*s) <= kMost &&
         3.0 * s->channels * s->height * s->width <= kMost / sizeof(float) &&     // an image, in bytes
         children(*s) * std::max<double>(s->channels, s->window_width) <= kMost;  // what divide() needs
}

uint32_t inverse(uint32_t d) { return static_cast<uint32_t>(((uint64_t{1} << 32) + d - 1) / d); }

int64_t rotors_floats(const qcn_routing_shape& s) {
  return round_up(children(s), kPaddedChildren) * 9 * kParents * parent_lanes(s.parents);
}

struct Device {
  int multiprocessors, shared_per_block, shared_per_multiprocessor;
};

cudaError_t current(Device* device) {
  int id;
  cudaError_t error = cudaGetDevice(&id);
  const auto read = [&](int* value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(value, attribute, id);
  };
  read(&device->multiprocessors, cudaDevAttrMultiProcessorCount);
  read(&device->shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  read(&device->shared_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  return error;
}

// Cycles, roughly: of arithmetic, of reading the rotors, and of what is done once a sweep. Eight warps keep a
// multiprocessor busy, and registers leave room for no more.
double cost(const qcn_routing_shape& s, const qcn_cuda_routing_tile& tile, const Device& device) {
  const int64_t blocks = ceil_divide(ceil_divide(windows(s), tile.windows), device.multiprocessors);
  const int64_t room = std::min(256 / tile.threads, device.shared_per_multiprocessor / (tile.shared_bytes + 1024));
  const double busy = std::min(blocks, room) * tile.threads >= 256 ? 0.9 : 0.6;
  const double votes = double(children(s)) * kParents * parent_lanes(s.parents);  // of a window
  const double sweep = blocks * votes * (tile.windows * 25.0 / (128 * busy) + 36.0 / 40);
  return s.iterations * (sweep + 2000.0 * ceil_divide(blocks, room));
}

}  // namespace

size_t qcn_cuda_routing_rotors_size(const qcn_routing_shape* shape) {
  return valid(shape) ? rotors_floats(*shape) * sizeof(float) : 0;
}

int qcn_cuda_routing_prepare(const qcn_routing_shape* shape, const float* rotation, float* rotors, void* stream) {
  if (!valid(shape) || !rotation || !rotors) return cudaErrorInvalidValue;
  int64_t floats = rotors_floats(*shape);
  int place_count = places(*shape), channels = shape->channels, padded_channels = round_up(channels, kGroup);
  int parents = shape->parents, padded_parents = kParents * parent_lanes(parents);
  bool shared = shape->shared;
  void* arguments[] = {&rotation,        &rotors,  &floats,         &place_count, &channels,
                       &padded_channels, &parents, &padded_parents, &shared};
  return cudaLaunchKernel(prepare_rotors, dim3(ceil_divide(floats, 256)), dim3(256), arguments, 0,
                          static_cast<cudaStream_t>(stream));
}

int qcn_cuda_routing_tiles(void) { return kTiles; }

qcn_cuda_routing_tile qcn_cuda_routing_describe(const qcn_routing_shape* shape, int tile) {
  if (!valid(shape) || tile < 0 || tile >= kTiles) return {};
  return variant(shape->parents, tile).tile;
}

int qcn_cuda_routing_choose(const qcn_routing_shape* shape, int* tile) {
  if (!valid(shape) || !tile) return cudaErrorInvalidValue;
  Device device;
  const cudaError_t error = current(&device);
  if (error != cudaSuccess) return error;
  *tile = -1;
  double least = 0.0;
  for (int t = 0; t < kTiles; ++t) {
    const qcn_cuda_routing_tile candidate = variant(shape->parents, t).tile;
    if (candidate.shared_bytes > device.shared_per_block) continue;
    const double cycles = cost(*shape, candidate, device);
    if (*tile < 0 || cycles < least) *tile = t, least = cycles;
  }
  return *tile < 0 ? cudaErrorInvalidConfiguration : cudaSuccess;
}

int qcn_cuda_routing_forward_tile(const qcn_routing_shape* shape, qcn_cuda_type type, const void* pose,
                                  const void* activation, const float* rotors, const float* beta_u, const float* beta_a,
                                  float* out_pose, float* out_activation, int tile, void* stream) {
  if (!valid(shape) || type < QCN_CUDA_FLOAT32 || type > QCN_CUDA_BFLOAT16 || tile < 0 || tile >= kTiles || !pose ||
      !activation || !rotors || !beta_u || !beta_a || !out_pose || !out_activation) {
    return cudaErrorInvalidValue;
  }
  Device device;
  cudaError_t error = current(&device);
  if (error != cudaSuccess) return error;
  const Variant chosen = variant(shape->parents, tile);
  const int shared = chosen.tile.shared_bytes;
  if (shared > device.shared_per_block) return cudaErrorInvalidConfiguration;
  error = cudaFuncSetAttribute(chosen.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;

  Routing r{};
  r.pose = pose, r.activation = activation, r.rotors = rotors, r.beta_u = beta_u, r.beta_a = beta_a;
  r.out_pose = out_pose, r.out_activation = out_activation;
  r.half = type != QCN_CUDA_FLOAT32, r.brain = type == QCN_CUDA_BFLOAT16, r.unit = shape->unit;
  r.places = places(*shape), r.groups = ceil_divide(shape->channels, kGroup);
  r.parents = shape->parents, r.children = r.places * shape->channels, r.iterations = shape->iterations;
  r.windows = windows(*shape), r.rows = rows(*shape), r.columns = columns(*shape);
  r.channels = shape->channels, r.width = shape->width, r.plane = shape->height * shape->width;
  r.window_width = shape->window_width, r.stride = shape->stride;
  r.groups_inverse = inverse(r.groups), r.window_width_inverse = inverse(r.window_width);
  void* arguments[] = {&r};
  return cudaLaunchKernel(chosen.kernel, dim3(ceil_divide(r.windows, chosen.tile.windows)), dim3(chosen.tile.threads),
                          arguments, shared, static_cast<cudaStream_t>(stream));
}

int qcn_cuda_routing_forward(const qcn_routing_shape* shape, qcn_cuda_type type, const void* pose,
                             const void* activation, const float* rotors, const float* beta_u, const float* beta_a,
                             float* out_pose, float* out_activation, void* stream) {
  int tile;
  const int error = qcn_cuda_routing_choose(shape, &tile);
  if (error != cudaSuccess) return error;
  return qcn_cuda_routing_forward_tile(shape, type, pose, activation, rotors, beta_u, beta_a, out_pose, out_activation,
                                       tile, stream);
}

// Routing by agreement on a CUDA device: the host's half. It checks shapes, chooses a tile, that is how a thread block
// is laid over windows and children, and launches the kernel of em_routing_kernel.cuh or em_routing_half.cuh.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "em_routing_cuda.h"
#include "em_routing_half.cuh"
#include "em_routing_kernel.cuh"

namespace {

struct Variant {
  void (*kernel)(Routing);
  qcn_cuda_routing_tile tile;
};

template <class T>
Variant variant() {
  return {route<T>, {T::kWindows, T::kSplits, T::kThreads, T::kStages, T::kSharedBytes, T::kCluster}};
}

template <class T>
Variant half_variant() {
  return {route_half<T>, {T::kWindows, T::kSplits, T::kThreads, T::kStages, T::kSharedBytes, T::kCluster}};
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

// The same for half precision. QCN_HALF_SWEEP: with those that deploy/tests/half_on_gpu.sh tries as well.
#ifdef QCN_HALF_SWEEP
constexpr int kHalfTiles = 12;
#else
constexpr int kHalfTiles = 5;
#endif
Variant half_variant(int tile) {
  switch (tile) {
    case 0:
      return half_variant<HalfTile<4, 1, 1, 2>>();
    case 1:
      return half_variant<HalfTile<2, 2, 1, 2>>();
    case 2:
      return half_variant<HalfTile<1, 4, 1, 2>>();
    case 3:
      return half_variant<HalfTile<1, 8, 1, 1>>();
#ifdef QCN_HALF_SWEEP
    case 5:
      return half_variant<HalfTile<4, 2, 1, 1>>();
    case 6:
      return half_variant<HalfTile<2, 4, 1, 1>>();
    case 7:
      return half_variant<HalfTile<2, 2, 1, 3, 1>>();
    case 8:
      return half_variant<HalfTile<1, 4, 1, 3, 1>>();
    case 9:
      return half_variant<HalfTile<1, 8, 8, 1>>();
    case 10:
      return half_variant<HalfTile<1, 4, 4, 2>>();
    case 11:
      return half_variant<HalfTile<1, 2, 8, 4>>();
#endif
    default:
      return half_variant<HalfTile<1, 4, 8, 2>>();
  }
}

int parent_lanes(int parents) { return parents <= 8 ? 2 : parents <= 16 ? 4 : parents <= 32 ? 8 : 16; }

Variant variant(int parents, qcn_cuda_arithmetic arithmetic, int tile) {
  if (arithmetic == QCN_CUDA_HALF) return half_variant(tile);
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

int64_t half_rotors_floats(const qcn_routing_shape& s) {
  return round_up(children(s), kPaddedChildren) / 2 * kPairFloats;
}

struct Device {
  int multiprocessors, shared_per_block, shared_per_multiprocessor, capability;
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
  read(&device->capability, cudaDevAttrComputeCapabilityMajor);
  return error;
}

bool fits(const qcn_cuda_routing_tile& tile, const Device& device) {
  return tile.shared_bytes <= device.shared_per_block && (tile.cluster == 1 || device.capability >= 9);
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

// The same for half precision, with children by the 16 windows of a warp.
double half_cost(const qcn_routing_shape& s, const qcn_cuda_routing_tile& tile, const Device& device) {
  const int64_t blocks = ceil_divide(ceil_divide(windows(s), tile.windows) * tile.cluster, device.multiprocessors);
  const int64_t room = std::min(256 / tile.threads, device.shared_per_multiprocessor / (tile.shared_bytes + 1024));
  const double busy = 0.8 * std::min(1.0, std::min(blocks, room) * tile.threads / 256.0);
  const double sweep = blocks * children(s) / tile.cluster * (tile.windows / 16 * 70.0 / (4 * busy) + 384.0 / 40);
  return s.iterations * (sweep + (tile.cluster > 1 ? 3500.0 : 1500.0) * ceil_divide(blocks, room));
}

}  // namespace

qcn_cuda_arithmetic qcn_cuda_routing_runs(const qcn_routing_shape* shape, qcn_cuda_arithmetic asked) {
  Device device;
  const bool half = asked == QCN_CUDA_HALF && valid(shape) && shape->parents <= kHalfParents &&
                    current(&device) == cudaSuccess && device.capability >= 8;
  return half ? QCN_CUDA_HALF : QCN_CUDA_SINGLE;
}

size_t qcn_cuda_routing_rotors_size(const qcn_routing_shape* shape) {
  return valid(shape) ? std::max(rotors_floats(*shape), half_rotors_floats(*shape)) * sizeof(float) : 0;
}

int qcn_cuda_routing_prepare(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, const float* rotation,
                             float* rotors, void* stream) {
  if (!valid(shape) || !rotation || !rotors) return cudaErrorInvalidValue;
  const bool half = qcn_cuda_routing_runs(shape, arithmetic) == QCN_CUDA_HALF;
  int64_t floats = half ? half_rotors_floats(*shape) : rotors_floats(*shape);
  int place_count = places(*shape), channels = shape->channels, padded_channels = round_up(channels, kGroup);
  int parents = shape->parents, padded_parents = kParents * parent_lanes(parents);
  bool shared = shape->shared;
  void* arguments[] = {&rotation,        &rotors,  &floats,         &place_count, &channels,
                       &padded_channels, &parents, &padded_parents, &shared};
  void* half_arguments[] = {&rotation, &rotors, &floats, &place_count, &channels, &padded_channels, &parents, &shared};
  const dim3 grid(ceil_divide(floats, 256)), block(256);
  const auto to = static_cast<cudaStream_t>(stream);
  return half ? cudaLaunchKernel(prepare_half_rotors, grid, block, half_arguments, 0, to)
              : cudaLaunchKernel(prepare_rotors, grid, block, arguments, 0, to);
}

int qcn_cuda_routing_tiles(qcn_cuda_arithmetic arithmetic) { return arithmetic == QCN_CUDA_HALF ? kHalfTiles : kTiles; }

qcn_cuda_routing_tile qcn_cuda_routing_describe(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic,
                                                int tile) {
  if (!valid(shape) || tile < 0 || tile >= qcn_cuda_routing_tiles(arithmetic)) return {};
  return variant(shape->parents, arithmetic, tile).tile;
}

int qcn_cuda_routing_fits(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, int tile) {
  Device device;
  const qcn_cuda_routing_tile described = qcn_cuda_routing_describe(shape, arithmetic, tile);
  return described.threads > 0 && current(&device) == cudaSuccess && fits(described, device);
}

int qcn_cuda_routing_choose(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, int* tile) {
  if (!valid(shape) || !tile) return cudaErrorInvalidValue;
  arithmetic = qcn_cuda_routing_runs(shape, arithmetic);
  Device device;
  const cudaError_t error = current(&device);
  if (error != cudaSuccess) return error;
  *tile = -1;
  double least = 0.0;
  for (int t = 0; t < qcn_cuda_routing_tiles(arithmetic); ++t) {
    const qcn_cuda_routing_tile candidate = variant(shape->parents, arithmetic, t).tile;
    if (!fits(candidate, device)) continue;
    const double cycles = (arithmetic == QCN_CUDA_HALF ? half_cost : cost)(*shape, candidate, device);
    if (*tile < 0 || cycles < least) *tile = t, least = cycles;
  }
  return *tile < 0 ? cudaErrorInvalidConfiguration : cudaSuccess;
}

int qcn_cuda_routing_forward_tile(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, qcn_cuda_type type,
                                  const void* pose, const void* activation, const float* rotors, const float* beta_u,
                                  const float* beta_a, float* out_pose, float* out_activation, int tile, void* stream) {
  arithmetic = qcn_cuda_routing_runs(shape, arithmetic);
  if (!valid(shape) || type < QCN_CUDA_FLOAT32 || type > QCN_CUDA_BFLOAT16 || tile < 0 ||
      tile >= qcn_cuda_routing_tiles(arithmetic) || !pose || !activation || !rotors || !beta_u || !beta_a ||
      !out_pose || !out_activation) {
    return cudaErrorInvalidValue;
  }
  Device device;
  cudaError_t error = current(&device);
  if (error != cudaSuccess) return error;
  const Variant chosen = variant(shape->parents, arithmetic, tile);
  const int shared = chosen.tile.shared_bytes;
  if (!fits(chosen.tile, device)) return cudaErrorInvalidConfiguration;
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
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = chosen.tile.cluster, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(ceil_divide(r.windows, chosen.tile.windows) * chosen.tile.cluster);
  launch.blockDim = dim3(chosen.tile.threads), launch.dynamicSmemBytes = shared;
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = &cluster, launch.numAttrs = chosen.tile.cluster > 1;
  void* arguments[] = {&r};
  return cudaLaunchKernelExC(&launch, reinterpret_cast<const void*>(chosen.kernel), arguments);
}

int qcn_cuda_routing_forward(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, qcn_cuda_type type,
                             const void* pose, const void* activation, const float* rotors, const float* beta_u,
                             const float* beta_a, float* out_pose, float* out_activation, void* stream) {
  int tile;
  const int error = qcn_cuda_routing_choose(shape, arithmetic, &tile);
  if (error != cudaSuccess) return error;
  return qcn_cuda_routing_forward_tile(shape, arithmetic, type, pose, activation, rotors, beta_u, beta_a, out_pose,
                                       out_activation, tile, stream);
}

// Routing by agreement on a CUDA device: the host's half. It checks shapes, chooses a tile, that is how a thread block
// is laid over windows and children, and launches the kernel of em_routing_kernel.cuh or em_routing_half.cuh.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "em_routing_cost.cuh"
#include "em_routing_cuda.h"
#include "em_routing_half.cuh"
#include "em_routing_kernel.cuh"

namespace {

struct Variant {
  void (*kernel)(Routing);
  qcn_cuda_routing_tile tile;
};

template <class T>
Variant variant(void (*kernel)(Routing) = route<T>) {
  return {kernel, {T::kWindows, T::kSplits, T::kThreads, T::kStages, T::kSharedBytes, T::kCluster}};
}

constexpr int kTiles = 7;  // of either arithmetic

// From many windows a block to few, then clusters, of at most 16 parents.
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
    case 4:
      return variant<Tile<kParentLanes, 1, 2, 1, 4, 3>>();
    default:
      if constexpr (kParentLanes > 4) {
        return {};
      } else if (tile == 5) {
        return variant<Tile<kParentLanes, 1, 2, 1, 8, 3, 4>>();
      } else {
        return variant<Tile<kParentLanes, 1, 2, 1, 8, 3, 8>>();
      }
  }
}

template <class T>
Variant half_variant() {
  return variant<T>(route_half<T>);
}

// The same for half precision.
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
    case 4:
      return half_variant<HalfTile<1, 8, 8, 1>>();
    case 5:
      return half_variant<HalfTile<1, 8, 2, 1>>();
    default:
      return half_variant<HalfTile<1, 4, 2, 2>>();
  }
}

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

bool valid(const qcn_routing_shape* s) {
  constexpr int64_t kMost = INT32_MAX - 1024;  // room for a tile
  return s && s->batch > 0 && s->channels > 0 && s->height > 0 && s->width > 0 && s->window_height > 0 &&
         s->window_width > 0 && s->window_height <= s->height && s->window_width <= s->width && s->stride > 0 &&
         s->parents > 0 && s->parents <= QCN_ROUTING_MAX_PARENTS && s->iterations > 0 &&
         s->iterations <= QCN_ROUTING_MAX_ITERATIONS && (s->shared == 0 || s->shared == 1) &&
         (s->unit == 0 || s->unit == 1) && (s->logit == 0 || s->logit == 1) && windows(*s) <= kMost &&
         3.0 * s->channels * s->height * s->width <= kMost / sizeof(float) &&     // an image, in bytes
         children(*s) * std::max<double>(s->channels, s->window_width) <= kMost;  // what divide() needs
}

uint32_t inverse(uint32_t d) { return static_cast<uint32_t>(((uint64_t{1} << 32) + d - 1) / d); }

int64_t rotors_floats(const qcn_routing_shape& s) {
  return round_up(children(s), kPaddedChildren) * 9 * kParents * parent_lanes(s.parents);
}

// They come after those of single precision.
int64_t half_rotors_floats(const qcn_routing_shape& s) {
  if (s.parents > kHalfParents) return 0;
  return round_up(children(s), kPaddedChildren) / 2 * kPairFloats;
}

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

bool has(const qcn_routing_shape& s, qcn_cuda_arithmetic arithmetic, const Device& device) {
  return arithmetic == QCN_CUDA_SINGLE || (s.parents <= kHalfParents && device.capability >= 8);
}

bool fits(const qcn_cuda_routing_tile& tile, const Device& device) {
  return tile.threads > 0 && tile.shared_bytes <= device.shared_per_block &&
         (tile.cluster == 1 || device.capability >= 9);
}

struct Choice {
  int tile = -1;  // none
  double cost = INFINITY;
};

Choice cheapest(const qcn_routing_shape& s, qcn_cuda_arithmetic arithmetic, const Device& device) {
  Choice best;
  for (int t = 0; t < kTiles && has(s, arithmetic, device); ++t) {
    const qcn_cuda_routing_tile tile = variant(s.parents, arithmetic, t).tile;
    if (!fits(tile, device)) continue;
    const Choice candidate = {t, cost(s, arithmetic, tile, device)};
    if (candidate.cost < best.cost) best = candidate;
  }
  return best;
}

}  // namespace

qcn_cuda_arithmetic qcn_cuda_routing_runs(const qcn_routing_shape* shape, qcn_cuda_arithmetic asked) {
  Device device;
  if (asked != QCN_CUDA_HALF || !valid(shape) || current(&device) != cudaSuccess) return QCN_CUDA_SINGLE;
  const double half = cheapest(*shape, QCN_CUDA_HALF, device).cost;
  return half < cheapest(*shape, QCN_CUDA_SINGLE, device).cost ? QCN_CUDA_HALF : QCN_CUDA_SINGLE;
}

size_t qcn_cuda_routing_rotors_size(const qcn_routing_shape* shape) {
  return valid(shape) ? (rotors_floats(*shape) + half_rotors_floats(*shape)) * sizeof(float) : 0;
}

int qcn_cuda_routing_prepare(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, const float* rotation,
                             float* rotors, void* stream) {
  if (!valid(shape) || !rotation || !rotors) return cudaErrorInvalidValue;
  Device device;
  cudaError_t error = current(&device);
  if (error != cudaSuccess) return error;
  int64_t floats = rotors_floats(*shape), half_floats = half_rotors_floats(*shape);
  float* half_rotors = rotors + floats;
  int place_count = places(*shape), channels = shape->channels, padded_channels = round_up(channels, kGroup);
  int parents = shape->parents, padded_parents = kParents * parent_lanes(parents);
  bool shared = shape->shared;
  const auto launch = [&](auto kernel, int64_t size, void** arguments) {
    return cudaLaunchKernel(kernel, dim3(ceil_divide(size, 256)), dim3(256), arguments, 0,
                            static_cast<cudaStream_t>(stream));
  };
  void* arguments[] = {&rotation,        &rotors,  &floats,         &place_count, &channels,
                       &padded_channels, &parents, &padded_parents, &shared};
  error = launch(prepare_rotors, floats, arguments);
  if (error != cudaSuccess || arithmetic != QCN_CUDA_HALF || !has(*shape, arithmetic, device)) return error;
  void* half_arguments[] = {&rotation, &half_rotors,     &half_floats, &place_count,
                            &channels, &padded_channels, &parents,     &shared};
  return launch(prepare_half_rotors, half_floats, half_arguments);
}

int qcn_cuda_routing_tiles(void) { return kTiles; }

qcn_cuda_routing_tile qcn_cuda_routing_describe(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic,
                                                int tile) {
  if (!valid(shape) || tile < 0 || tile >= kTiles) return {};
  return variant(shape->parents, arithmetic, tile).tile;
}

int qcn_cuda_routing_fits(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, int tile) {
  Device device;
  const qcn_cuda_routing_tile described = qcn_cuda_routing_describe(shape, arithmetic, tile);
  return valid(shape) && current(&device) == cudaSuccess && has(*shape, arithmetic, device) && fits(described, device);
}

int qcn_cuda_routing_choose(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, int* tile) {
  if (!valid(shape) || !tile) return cudaErrorInvalidValue;
  Device device;
  const cudaError_t error = current(&device);
  if (error != cudaSuccess) return error;
  *tile = cheapest(*shape, arithmetic, device).tile;
  return *tile < 0 ? cudaErrorInvalidConfiguration : cudaSuccess;
}

int qcn_cuda_routing_forward_tile(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, qcn_cuda_type type,
                                  const void* pose, const void* activation, const float* rotors, const float* beta_u,
                                  const float* beta_a, float* out_pose, float* out_activation, int tile, void* stream) {
  if (!valid(shape) || type < QCN_CUDA_FLOAT32 || type > QCN_CUDA_BFLOAT16 || tile < 0 || tile >= kTiles || !pose ||
      !activation || !rotors || !beta_u || !beta_a || !out_pose || !out_activation) {
    return cudaErrorInvalidValue;
  }
  Device device;
  cudaError_t error = current(&device);
  if (error != cudaSuccess) return error;
  const Variant chosen = variant(shape->parents, arithmetic, tile);
  const int shared = chosen.tile.shared_bytes;
  if (!has(*shape, arithmetic, device) || !fits(chosen.tile, device)) return cudaErrorInvalidConfiguration;
  error = cudaFuncSetAttribute(chosen.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;

  Routing r{};
  r.pose = pose, r.activation = activation, r.beta_u = beta_u, r.beta_a = beta_a;
  r.rotors = arithmetic == QCN_CUDA_HALF ? rotors + rotors_floats(*shape) : rotors;
  r.out_pose = out_pose, r.out_activation = out_activation;
  r.half = type != QCN_CUDA_FLOAT32, r.brain = type == QCN_CUDA_BFLOAT16;
  r.unit = shape->unit, r.logit = shape->logit;
  r.places = places(*shape), r.groups = ceil_divide(shape->channels, kGroup);
  r.parents = shape->parents, r.iterations = shape->iterations;
  r.share = 1.0f / r.parents, r.cost = 2.0f * r.parents / (r.places * shape->channels);
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
  arithmetic = qcn_cuda_routing_runs(shape, arithmetic);
  const int error = qcn_cuda_routing_choose(shape, arithmetic, &tile);
  if (error != cudaSuccess) return error;
  return qcn_cuda_routing_forward_tile(shape, arithmetic, type, pose, activation, rotors, beta_u, beta_a, out_pose,
                                       out_activation, tile, stream);
}

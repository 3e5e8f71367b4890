// What a routing call costs on a device: by this, qcn_cuda_routing_runs() and _choose() choose arithmetic and tile.
// Host only. The constants were fitted to measured times by benchmarks/routing_cost.py of commit af6e196.
#ifndef QCN_KERNELS_EM_ROUTING_COST_CUH
#define QCN_KERNELS_EM_ROUTING_COST_CUH

#include <algorithm>
#include <array>
#include <cstdint>

#include "em_routing_cuda.h"
#include "em_routing_tile.cuh"

namespace {

int parent_lanes(int parents) { return parents <= 8 ? 2 : parents <= 16 ? 4 : parents <= 32 ? 8 : 16; }
int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t ceil_divide(int64_t n, int64_t by) { return (n + by - 1) / by; }
int rows(const qcn_routing_shape& s) { return (s.height - s.window_height) / s.stride + 1; }
int columns(const qcn_routing_shape& s) { return (s.width - s.window_width) / s.stride + 1; }
int64_t windows(const qcn_routing_shape& s) { return int64_t{s.batch} * rows(s) * columns(s); }
int64_t places(const qcn_routing_shape& s) { return int64_t{s.window_height} * s.window_width; }
// With channels padded.
int64_t children(const qcn_routing_shape& s) { return places(s) * round_up(s.channels, kGroup); }

struct Device {
  int multiprocessors, shared_per_block, shared_per_multiprocessor, capability;
};

// Microseconds of a sweep on an H200: for each round of thread blocks, and more if they are clusters; for each child of
// a thread, by latency in each round and by throughput in each warp; for each KiB of rotors, which every block reads its
// share of, once if it can keep it. Half precision reads them faster than it needs them.
using Cost = std::array<double, 5>;
constexpr Cost kSingleCost = {2.58, 1.01, 0.104, 0.0281, 0.00909};
constexpr Cost kHalfCost = {6.43, 0.0303, 0.11, 0.0147, 0.0};

// Whether all children of a block fit its stages, which are then copied in the first sweep alone: Tile's kStep, kApart.
bool keeps_children(const qcn_routing_shape& s, const qcn_cuda_routing_tile& tile) {
  const int64_t full = tile.threads / tile.windows * kGroup;
  const int64_t step = std::max<int64_t>(tile.splits, std::min<int64_t>(128 / parent_lanes(s.parents), full));
  return tile.stages > 2 && ceil_divide(ceil_divide(children(s), step), tile.cluster) <= tile.stages;
}

// How often each of them is paid. Eight warps fill a multiprocessor: registers leave room for no more.
Cost counts(const qcn_routing_shape& s, qcn_cuda_arithmetic arithmetic, const qcn_cuda_routing_tile& tile,
            const Device& device) {
  const int64_t all_blocks = ceil_divide(windows(s), tile.windows) * tile.cluster;
  const int64_t blocks = ceil_divide(all_blocks, device.multiprocessors);  // of a multiprocessor
  const int64_t room = std::min(256 / tile.threads, device.shared_per_multiprocessor / (tile.shared_bytes + 1024));
  const double rounds = ceil_divide(blocks, std::max<int64_t>(room, 1));
  const double of_thread = double(children(s)) / (tile.cluster * tile.splits);
  Cost paid = {rounds, rounds * (tile.cluster > 1), rounds * of_thread, blocks * tile.threads / 32 * of_thread, 0.0};
  for (double& each : paid) each *= s.iterations;
  if (arithmetic == QCN_CUDA_SINGLE) {
    const double rotors = children(s) * 9.0 * kParents * parent_lanes(s.parents) / 256 / tile.cluster;
    paid[4] = blocks * rotors * (keeps_children(s, tile) ? 1 : s.iterations);
  }
  return paid;
}

double cost(const qcn_routing_shape& s, qcn_cuda_arithmetic arithmetic, const qcn_cuda_routing_tile& tile,
            const Device& device) {
  const Cost paid = counts(s, arithmetic, tile, device), &price = arithmetic == QCN_CUDA_HALF ? kHalfCost : kSingleCost;
  double sum = 0;
  for (size_t i = 0; i < paid.size(); ++i) sum += paid[i] * price[i];
  return sum;
}

}  // namespace

#endif

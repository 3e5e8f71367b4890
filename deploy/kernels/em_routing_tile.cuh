// What em_routing_kernel.cuh is made of: the constants, the tiles, and arithmetic for single numbers.
#ifndef QCN_KERNELS_EM_ROUTING_TILE_CUH
#define QCN_KERNELS_EM_ROUTING_TILE_CUH

#include <algorithm>
#include <cstdint>

#include "em_routing_device.cuh"

namespace {

constexpr float kVarianceFloor = 1e-4f;
constexpr float kMassFloor = 1e-6f;
// Moments about m lose digits when the mean is many spreads away from m: past this ratio of squares the sweep is done
// once more, about the mean it found.
constexpr float kCancellation = 8.0f;
// A softmax is taken without its maximum first, about the largest prior. Below this sum it is taken again with it.
constexpr float kVanishing = 0x1p-60f;
constexpr float kLog2E = 1.442695041f, kLn2 = 0.6931471806f;

constexpr int kParents = 4;           // a thread
constexpr int kGroup = 4;             // channels are padded to a multiple of this
constexpr int kPaddedChildren = 128;  // and all children of a window to one of this, which any tile's step divides
constexpr int kMoments = 7;           // S, D and Q of a parent
constexpr unsigned kWarp = 0xffffffffu;

struct Routing {
  const void *pose, *activation;
  const float *rotors, *beta_u, *beta_a;  // rotors: as prepare_rotors() or prepare_half_rotors() writes them
  float *out_pose, *out_activation;
  bool half, brain;  // half: poses and activations are of 16 bits, and if brain as well, bfloat16
  bool unit, logit;  // as in qcn_routing_shape
  int parents, iterations;
  float share, cost;                                 // 1 / parents, 2 parents / children
  int windows, rows, columns;                        // windows: of the batch
  int channels, width, plane, window_width, stride;  // plane: height * width
  int places, groups;                                // of a window; of kGroup channels
  uint32_t groups_inverse, window_width_inverse;     // see divide()
};

template <int kParentLanes_, int kWindowLanes_, int kWindowsPerThread, int kWindowWarps, int kChildWarps_, int kStages_,
          int kCluster_ = 1>
struct Tile {
  static constexpr int kParentLanes = kParentLanes_, kWindowLanes = kWindowLanes_, kStages = kStages_;
  static constexpr int kV = kWindowsPerThread;  // their index is v, as a thread's parents' is p and an axis is h
  static constexpr int kChildLanes = 32 / (kParentLanes * kWindowLanes), kChildWarps = kChildWarps_;
  static constexpr int kSplits = kChildLanes * kChildWarps;
  static constexpr int kWindowsPerWarp = kWindowLanes * kV;
  static constexpr int kWindows = kWindowsPerWarp * kWindowWarps;
  static constexpr int kThreads = 32 * kWindowWarps * kChildWarps;
  static constexpr int kFullStep = kThreads / kWindows * kGroup;  // every thread has a group of children to copy
  static constexpr int kStep = std::max(kSplits, std::min(128 / kParentLanes, kFullStep));  // children
  static constexpr int kAllParents = kParents * kParentLanes;
  // The first bit of a lane's number that tells parents apart. Reading 16 bytes per lane is twice as fast when lanes n
  // and n^1, or lanes n and n^2, read the same: so lanes n and n^1 have the same parents, hence rotors, in two windows
  // where there are two, and lanes n and n^2 the same window, hence poses.
  static constexpr int kParentBit = kWindowLanes > 1 ? 2 : 1;
  static constexpr int kCluster = kCluster_;
  static constexpr int kRotorFloats = 9 * kAllParents;  // of a child
  static constexpr int kStageFloats = kStep * (kRotorFloats + 4 * kWindows);
  static constexpr int kAllStageFloats = kStages * kStageFloats;
  static constexpr int kPlaces = kWindows * kAllParents;  // of a moment
  static constexpr int kSumFloats = kMoments * kPlaces, kAllSumFloats = kChildWarps * kSumFloats;
  // Stages in a sweep and sums after it are in the same memory, but for the first stage, which is filled for the next
  // sweep meanwhile; unless there are few sums, or other blocks of the cluster may still be reading them.
  static constexpr bool kApart = kCluster > 1 || kChildLanes > 1;
  static constexpr int kSumsAt = kApart ? kAllStageFloats : kStageFloats;
  static constexpr int kBufferFloats = std::max(kAllStageFloats, kSumsAt + kAllSumFloats);
  static constexpr int kStateFloats = 6 * kPlaces;  // means and offsets
  static constexpr int kSharedBytes = 4 * (kBufferFloats + kStateFloats + 2 * kAllParents);
  // Eight warps a multiprocessor: two windows a thread need more than the 168 registers that twelve warps would leave.
  static constexpr int kBlocksPerSM = 256 / kThreads;

  static_assert(kPaddedChildren % kStep == 0 && kStep % kSplits == 0);
  static_assert(kThreads % kWindows == 0 && kStep % kGroup == 0);
  static_assert(kApart || kStages == 2);
  static_assert(kCluster == 1 || kChildWarps > 1);  // the Gaussians go where the second warp's sums were

  // Nothing is scaled, and nothing rounded.
  static constexpr bool kScaled = false;
  static constexpr float kMassScale = 1.0f, kShareOffset = 0.0f;
  __device__ static float as_shift(float x) { return x; }
  __device__ static float as_weight(float variance) { return -0.5f * kLog2E * fast_reciprocal(variance); }
};

struct Gaussian {
  float prior;  // log2(activation) - log2(spread), less the window's largest; -inf for a parent that is padding
  float mean[3];
  float weight[3];  // T::as_weight() of the variance: -log2(e) / (2 variance) in single precision
};

struct Sums {
  float mass, first[3], second[3];
};

// To the last digit or two.
__device__ float reciprocal(float x) {
  const float y = fast_reciprocal(x);
  return fmaf(y, fmaf(-x, y, 1.0f), y);
}

__device__ void load(float (&x)[4], const float* from) {
  const float4 y = *reinterpret_cast<const float4*>(from);
  x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}

__device__ void store(float* to, float a, float b, float c, float d) {
  *reinterpret_cast<float4*>(to) = make_float4(a, b, c, d);
}

// n / d by its inverse ceil(2^32 / d): exact while n * d < 2^32. The inverse of 1 does not fit and is kept as 0.
__device__ int divide(int n, uint32_t inverse) { return inverse ? __umulhi(n, inverse) : n; }

template <class Element>
__device__ void copy(float* to, const char* from, [[maybe_unused]] bool brain) {
  if constexpr (sizeof(Element) == sizeof(float)) {
    __pipeline_memcpy_async(to, from, sizeof(float));
  } else {
    const uint16_t bits = *reinterpret_cast<const uint16_t*>(from);
    *to = brain ? __uint_as_float(uint32_t{bits} << 16) : widen(bits);
  }
}

}  // namespace

#endif

// Routing by agreement in half precision: the sweep of em_routing_kernel.cuh with votes and distances in float16, on
// tensor cores; sums, logits and softmax in float32. For compute capability 8.0 on, and up to 16 parents.
//
// A warp has 16 windows and 16 parents, a thread four parents of two windows, which is how a product of matrices leaves
// its result. Children go by pairs: K of a product is 8, and a pair has k = x y z 0 x y z 0.
//     d = R u - m         3 axes × 2 products; m goes in as C, and d is rounded once
//     x = d w             w = sqrt(log2(e)/2) / (32 sigma): in base 2, over 32
//     l = prior - 1024 sum x^2           products of the squares with -1024 times the unit matrix: float32 sums
//     p = 2^l,  sum over parents p       a product with ones
//     S += r,  D += r x,  Q += r x^2     products with the unit matrix: float32 sums of float16 numbers
// The scale keeps all of it within float16: x^2 is cut at 1, which is 37 sigma; p is 2^15 at most, and 2^12 is put
// into r. So r keeps its digits down to 2^-26 and r x^2, one sigma off, to 2^-16. Where the powers of a child sum to
// less than kVanishingHalf, for all parents are some 5 sigma away, they are taken again about its largest logit; a
// child that is further than kFarthest from all of them, where the digits of x^2 do not suffice, is done in float32.
#ifndef QCN_KERNELS_EM_ROUTING_HALF_CUH
#define QCN_KERNELS_EM_ROUTING_HALF_CUH

#include "em_routing_kernel.cuh"

namespace {

constexpr int kHalfParents = 16;
constexpr int kPairFloats = 3 * 2 * 32;  // rotors of two children: axes, products of 8 parents, lanes; float16 by twos
constexpr float kDistanceScale = 1024.0f, kRootDistanceScale = 32.0f;
constexpr float kVanishingHalf = 0.125f;
constexpr float kFarthest = -64.0f;  // a logit in base 2, less the largest prior: some 9 sigma

template <int kWindowWarps, int kChildWarps_, int kCluster_, int kBlocksPerSM_>
struct HalfTile {
  static constexpr int kParentLanes = 4, kWindowLanes = 8, kV = 2, kParentBit = 1, kChildLanes = 1, kStages = 2;
  static constexpr int kChildWarps = kChildWarps_, kSplits = kChildWarps;
  static constexpr int kCluster = kCluster_, kBlocksPerSM = kBlocksPerSM_;
  static constexpr int kWindowsPerWarp = kWindowLanes * kV;
  static constexpr int kWindows = kWindowsPerWarp * kWindowWarps;
  static constexpr int kThreads = 32 * kWindowWarps * kChildWarps;
  static constexpr int kAllParents = kParents * kParentLanes;
  static constexpr int kItems = 2;  // pairs of children in one window that a thread copies in a step
  static constexpr int kPairs = kItems * kThreads / kWindows;
  static constexpr int kStageFloats = kPairs * (kPairFloats + 8 * kWindows);
  static constexpr int kPlaces = kWindows * kAllParents;
  static constexpr int kSumFloats = kMoments * kPlaces, kAllSumFloats = kChildWarps * kSumFloats;
  static constexpr int kAllStageFloats = kStages * kStageFloats;
  static constexpr bool kApart = kCluster > 1;
  static constexpr int kSumsAt = kApart ? kAllStageFloats : kStageFloats;
  static constexpr int kBufferFloats = std::max(kAllStageFloats, kSumsAt + kAllSumFloats);
  static constexpr int kStateFloats = 9 * kPlaces;  // means, offsets and weights
  static constexpr int kSharedBytes = 4 * (kBufferFloats + kStateFloats + 2 * kAllParents);

  static_assert(kPaddedChildren % (2 * kPairs) == 0 && kPairs % kSplits == 0);
  static_assert(kCluster == 1 || kChildWarps > 1);  // the Gaussians go where the second warp's sums were

  static constexpr bool kScaled = true;
  static constexpr float kMassScale = 4096.0f;
  static constexpr float kShareOffset = 15.0f;  // a power of 2
  // What a product of float16 matrices can be told to subtract.
  __device__ static float as_shift(float x) { return widen(static_cast<uint16_t>(pack(x, 0.0f))); }
  __device__ static float as_weight(float variance) {
    return as_shift(fast_sqrt(0.5f * kLog2E * fast_reciprocal(variance)) / kRootDistanceScale);
  }
};

__device__ float low(Half2 x) { return widen(static_cast<uint16_t>(x)); }
__device__ float high(Half2 x) { return widen(static_cast<uint16_t>(x >> 16)); }

// The same number. The compiler does not know that, so it keeps a second register and copies nothing before products.
__device__ Half2 another(Half2 x) { return __float_as_uint(__shfl_xor_sync(kWarp, __uint_as_float(x), 0)); }

// A number for each of a thread's parents and windows.
using Packed = Half2[2][2];  // [twos of parents][window]
__device__ float part(const Packed& x, int p, int v) { return p % 2 ? high(x[p / 2][v]) : low(x[p / 2][v]); }

template <class T>
struct HalfSweep {
  static constexpr int kV = T::kV;
  Block<T>& block;
  const Routing& r;
  Packed shift[3], weight[3];  // -m and w
  Half2 unit[2];               // of the unit matrix, as B of 16 rows
  Half2 distance[2];           // of -1024 times it
  uint32_t fetched[T::kItems][8];

  __device__ explicit HalfSweep(Block<T>& of) : block(of), r(of.r) {
    const int lane = threadIdx.x % 32, column = lane / 4, k = lane % 4 * 2;
    unit[0] = pack(k == column, k + 1 == column), unit[1] = another(unit[0]);
    distance[0] = multiply(unit[0], pack(-kDistanceScale, -kDistanceScale)), distance[1] = another(distance[0]);
  }

  // ---- from global to shared memory: rotors by copies that run while the step before is computed, poses by registers

  __device__ void copy_rotors(int step, float* stage) const {
    constexpr int kFloats = T::kPairs * kPairFloats;
    const float* from = r.rotors + static_cast<int64_t>(step) * kFloats;
    for (int n = 4 * threadIdx.x; n < kFloats; n += 4 * T::kThreads) __pipeline_memcpy_async(stage + n, from + n, 16);
  }

  __device__ void fetch_poses(int step) { r.half ? fetch_poses<uint16_t>(step) : fetch_poses<uint32_t>(step); }

  // Two children: x y z a x y z a. Padding is all zeros.
  template <class Element>
  __device__ void fetch_poses(int step) {
#pragma unroll
    for (int n = 0; n < T::kItems; ++n) {
      const int pair = step * T::kPairs + n * (T::kPairs / T::kItems) + threadIdx.x / T::kWindows;
      const int group = pair / 2;
      const int place = divide(group, r.groups_inverse), row = divide(place, r.window_width_inverse);
      const int channel = (group - place * r.groups) * kGroup + pair % 2 * 2;
      const int position = place + row * (r.width - r.window_width);
      const int channels = place < r.places ? r.channels - channel : 0;
      const uint32_t plane = r.plane * sizeof(Element);  // in bytes, unsigned: an address is then one multiply-add
      const char* pose =
          block.staged_pose + static_cast<uint32_t>(3 * channel * r.plane + position) * uint64_t{sizeof(Element)};
      const char* activation =
          block.staged_activation + static_cast<uint32_t>(channel * r.plane + position) * uint64_t{sizeof(Element)};
      const auto fetch = [](const char* from) { return uint32_t{*reinterpret_cast<const Element*>(from)}; };
      const auto fetch_child = [&](int k) {
#pragma unroll
        for (int h = 0; h < 3; ++h) fetched[n][4 * k + h] = fetch(pose + uint64_t{plane} * (3 * k + h));
        fetched[n][4 * k + 3] = fetch(activation + uint64_t{plane} * k);
      };
      if (channels >= 2) {
        fetch_child(0), fetch_child(1);
      } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) fetched[n][k] = 0;
        if (channels == 1) fetch_child(0);
      }
    }
  }

  // The first sweep's A has poses times the root of the activation for Q, and times the activation, with the activation
  // in the fourth place, for D and S. Later sweeps' has poses, and activations apart, times kMassScale.
  template <bool kFirst>
  __device__ void store_poses(float* stage) const {
    if (!r.half) {
      store_poses<kFirst>(stage, [](uint32_t bits) { return __uint_as_float(bits); });
    } else if (r.brain) {
      store_poses<kFirst>(stage, [](uint32_t bits) { return __uint_as_float(bits << 16); });
    } else {
      store_poses<kFirst>(stage, [](uint32_t bits) { return widen(static_cast<uint16_t>(bits)); });
    }
  }

  template <bool kFirst, class Value>
  __device__ void store_poses(float* stage, const Value& value) const {
    float* poses = stage + T::kPairs * kPairFloats;
#pragma unroll
    for (int n = 0; n < T::kItems; ++n) {
      const int at = n * T::kThreads + threadIdx.x;  // = pair of the step * kWindows + window
      Half2 first[4], second[4];
      float activation[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float x = value(fetched[n][4 * k]), y = value(fetched[n][4 * k + 1]), z = value(fetched[n][4 * k + 2]);
        const float a = activation[k] = value(fetched[n][4 * k + 3]);
        const float root = kFirst ? fast_sqrt(a) : 1.0f;
        first[2 * k] = pack(root * x, root * y), first[2 * k + 1] = pack(root * z, 0.0f);
        if (kFirst) second[2 * k] = pack(a * x, a * y), second[2 * k + 1] = pack(a * z, a);
      }
      store_packed(poses + 4 * at, first);
      float* others = poses + 4 * T::kPairs * T::kWindows;
      if (kFirst) {
        store_packed(others + 4 * at, second);
      } else {
        *reinterpret_cast<float2*>(others + 2 * at) = {T::kMassScale * activation[0], T::kMassScale * activation[1]};
      }
    }
  }
  __device__ static void store_packed(float* to, const Half2 (&x)[4]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(x[0], x[1], x[2], x[3]);
  }

  __device__ int steps() const { return (r.places * r.groups * kGroup + 2 * T::kPairs - 1) / (2 * T::kPairs); }

  __device__ void start(int step, float* stage) {
    if (step >= steps()) return;
    copy_rotors(step, stage);
    __pipeline_commit();
    fetch_poses(step);
  }

  // A sweep's first step, before the sweep.
  __device__ void begin() { start(block.rank(), block.buffer); }

  // The children of all steps; `add` adds a pair, given its rotors and the stage's poses.
  template <bool kFirst, class Add>
  __device__ void over_children(const Add& add) {
    int step = block.rank(), stage = 0;
    if (step < steps()) store_poses<kFirst>(block.buffer);
    for (; step < steps(); step += T::kCluster) {
      __pipeline_wait_prior(0);
      __syncthreads();
      float* current = block.buffer + stage * T::kStageFloats;
      stage = 1 - stage;
      float* other = block.buffer + stage * T::kStageFloats;
      start(step + T::kCluster, other);
#pragma unroll 1
      for (int pair = block.split; pair < T::kPairs; pair += T::kSplits) {
        add(current + pair * kPairFloats, current + T::kPairs * kPairFloats, pair);
      }
      if (step + T::kCluster < steps()) store_poses<kFirst>(other);
    }
  }

  __device__ static void load_rotors(Half2 (&to)[3][2], const float* rotors) {
    const int lane = threadIdx.x % 32;
    const uint4 four = reinterpret_cast<const uint4*>(rotors)[lane];
    const uint2 two = reinterpret_cast<const uint2*>(rotors + 4 * 32)[lane];
    to[0][0] = four.x, to[0][1] = four.y, to[1][0] = four.z, to[1][1] = four.w, to[2][0] = two.x, to[2][1] = two.y;
  }
  // Of A, this lane's: two numbers of a pair in each of its windows.
  __device__ Half2 load_pose(const float* poses, int pair, int v) const {
    return __float_as_uint(poses[(pair * T::kWindows + block.window[v]) * 4 + block.parent_lane]);
  }

  // ---- sweeps

  // A thread's four sums of a product of matrices: parents 2 q and 2 q + 1 of both windows.
  template <class Add>
  __device__ void into(int moment, int q, const Add& add) {
    float d[4] = {block.sum(moment, 0, 2 * q), block.sum(moment, 0, 2 * q + 1), block.sum(moment, 1, 2 * q),
                  block.sum(moment, 1, 2 * q + 1)};
    add(d);
    block.sum(moment, 0, 2 * q) = d[0], block.sum(moment, 0, 2 * q + 1) = d[1];
    block.sum(moment, 1, 2 * q) = d[2], block.sum(moment, 1, 2 * q + 1) = d[3];
  }

  // Without shift, all children shared out evenly: D is a product of matrices, over children and axes at once.
  __device__ void first() {
    clear();
    const bool upper = block.parent_lane >= 2;  // these lanes' k are the second child's
    const Half2 fourth = block.parent_lane % 2 ? pack(0.0f, 1.0f) : 0;
    over_children<true>([&](const float* rotors, const float* poses, int pair) {
      Half2 rotor[3][2], rooted[2], weighted[2];
      load_rotors(rotor, rotors);
#pragma unroll
      for (int v = 0; v < kV; ++v) {
        rooted[v] = load_pose(poses, pair, v);
        weighted[v] = load_pose(poses + 4 * T::kPairs * T::kWindows, pair, v);
      }
      into(0, 0, [&](float(&d)[4]) { product(d, weighted[0], weighted[1], fourth); });
#pragma unroll
      for (int h = 0; h < 3; ++h) {
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          into(1 + h, q, [&](float(&d)[4]) { product(d, weighted[0], weighted[1], rotor[h][q]); });
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            float vote[4] = {};
            product(vote, upper == k ? rooted[0] : 0, upper == k ? rooted[1] : 0, rotor[h][q]);
            into(4 + h, q, [&](float(&d)[4]) {
#pragma unroll
              for (int n = 0; n < 4; ++n) d[n] = fmaf(vote[n], vote[n], d[n]);
            });
          }
        }
      }
    });
    block.same_masses();
  }

  // About the Gaussians' means, or, kShifted, about a shift in their place. kEven: without a softmax.
  template <bool kEven, bool kShifted>
  __device__ void weigh() {
    clear();
    set_parents<kEven || !kShifted>();  // else the weights stay
    const bool upper = block.parent_lane >= 2;
    over_children<false>([&](const float* rotors, const float* poses, int pair) {
      Half2 rotor[3][2], pose[2];
      load_rotors(rotor, rotors);
      float activation[2][kV];
      const float* activations = poses + 4 * T::kPairs * T::kWindows;
#pragma unroll
      for (int v = 0; v < kV; ++v) {
        pose[v] = load_pose(poses, pair, v);
        const float2 both = reinterpret_cast<const float2*>(activations)[pair * T::kWindows + block.window[v]];
        activation[0][v] = both.x, activation[1][v] = both.y;
      }
      Packed x[2][3], share[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const Half2 a0 = upper == k ? pose[0] : 0, a1 = upper == k ? pose[1] : 0;
#pragma unroll
        for (int h = 0; h < 3; ++h) {
#pragma unroll
          for (int q = 0; q < 2; ++q) {
            Half2 d[2];
            product(d, a0, a1, rotor[h][q], shift[h][q][0], shift[h][q][1]);
#pragma unroll
            for (int v = 0; v < kV; ++v) x[k][h][q][v] = multiply(d[v], weight[h][q][v]);
          }
        }
      }
      responsibilities<kEven, kShifted>(x, activation, share);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const auto add_pair = [&](int moment, const Half2(&a)[2], const Half2(&b)[2]) {
          into(moment, q, [&](float(&d)[4]) { product(d, a[0], a[1], b[0], b[1], unit); });
        };
        add_pair(0, share[0][q], share[1][q]);
#pragma unroll
        for (int h = 0; h < 3; ++h) {
          Half2 moved[2][kV];
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            for (int v = 0; v < kV; ++v) moved[k][v] = multiply(share[k][q][v], x[k][h][q][v]);
          }
          add_pair(1 + h, moved[0], moved[1]);
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            for (int v = 0; v < kV; ++v) moved[k][v] = multiply(moved[k][v], x[k][h][q][v]);
          }
          add_pair(4 + h, moved[0], moved[1]);
        }
      }
    });
  }

  // share: the responsibilities of two children's parents, times kMassScale, as the activations are. Both children
  // together, so that one's products run while the other's wait.
  template <bool kEven, bool kShifted>
  __device__ void responsibilities(const Packed (&x)[2][3], const float (&activation)[2][kV], Packed (&share)[2]) {
    float total[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (kEven) {
#pragma unroll
        for (int n = 0; n < 4; ++n) share[k][n / 2][n % 2] = pack(activation[k][n % 2], activation[k][n % 2]);
      } else {
        powers<kShifted>(x[k], share[k], total[k]);
      }
    }
    if (kEven) return;
    const float least = fminf(fminf(total[0][0], total[0][2]), fminf(total[1][0], total[1][2]));
    if (__any_sync(kWarp, least < kVanishingHalf)) {
      const float nearest[2] = {powers_about_largest<kShifted>(x[0], share[0], total[0]),
                                powers_about_largest<kShifted>(x[1], share[1], total[1])};
      if (__any_sync(kWarp, fminf(nearest[0], nearest[1]) < T::kShareOffset + kFarthest)) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          add_in_single<kShifted>(x[k], activation[k]);
          share[k][0][0] = share[k][0][1] = share[k][1][0] = share[k][1][1] = 0;
        }
        return;
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int v = 0; v < kV; ++v) {
        const float scale = activation[k][v] * fast_reciprocal(total[k][2 * v]);
        const Half2 both = pack(scale, scale);
#pragma unroll
        for (int q = 0; q < 2; ++q) share[k][q][v] = multiply(share[k][q][v], both);
      }
    }
  }

  // As a product leaves them: parents 2 q and 2 q + 1 of one window, then of the other.
  __device__ void logits(const Packed (&from_mean)[3], int q, float (&logit)[4]) const {
    const auto square = [&](int h, int v) { return saturated_square(from_mean[h][q][v]); };
#pragma unroll
    for (int n = 0; n < 4; ++n) logit[n] = block.gaussians[n / 2][2 * q + n % 2].prior;
    product(logit, square(0, 0), square(0, 1), square(1, 0), square(1, 1), distance);
    product(logit, square(2, 0), square(2, 1), distance[0]);
  }

  // 2^logit for each parent; total[0] and total[2]: their sums over all parents, in either window.
  template <bool kShifted>
  __device__ void powers(const Packed (&x)[3], Packed& share, float (&total)[4]) const {
    Packed from_mean[3];
    add_offsets<kShifted>(x, from_mean);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      float logit[4];
      logits(from_mean, q, logit);
#pragma unroll
      for (int v = 0; v < kV; ++v) share[q][v] = pack(fast_exp2(logit[2 * v]), fast_exp2(logit[2 * v + 1]));
    }
    sum_over_parents(share, total);
  }

  // The same about the largest logit of each window. Returns the lesser of these two.
  template <bool kShifted>
  __device__ float powers_about_largest(const Packed (&x)[3], Packed& share, float (&total)[4]) const {
    Packed from_mean[3];
    add_offsets<kShifted>(x, from_mean);
    float logit[2][4], least = INFINITY;
    logits(from_mean, 0, logit[0]), logits(from_mean, 1, logit[1]);
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      const int n = 2 * v;
      const float largest =
          block.max_over_parents(fmaxf(fmaxf(logit[0][n], logit[0][n + 1]), fmaxf(logit[1][n], logit[1][n + 1])));
      least = fminf(least, largest);
      const float up = T::kShareOffset - largest;
#pragma unroll
      for (int q = 0; q < 2; ++q) share[q][v] = pack(fast_exp2(logit[q][n] + up), fast_exp2(logit[q][n + 1] + up));
    }
    sum_over_parents(share, total);
    return least;
  }

  __device__ static void sum_over_parents(const Packed& share, float (&total)[4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) total[n] = 0.0f;
    product(total, share[0][0], share[0][1], share[1][0], share[1][1], {0x3c003c00, 0x3c003c00});  // ones
  }

  template <bool kShifted>
  __device__ void add_offsets(const Packed (&x)[3], Packed (&from_mean)[3]) const {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int h = 0; h < 3; ++h) {
        float offset[kParents];
        if (kShifted) load(offset, block.offsets + block.moment(h, v));
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          from_mean[h][q][v] = x[h][q][v];
          if (!kShifted) continue;
          const Half2 w = weight[h][q][v], by = pack(offset[2 * q] * low(w), offset[2 * q + 1] * high(w));
          from_mean[h][q][v] = add(x[h][q][v], by);
        }
      }
    }
  }

  // A child that is far from all parents: softmax about the largest logit, nothing rounded after x.
  template <bool kShifted>
  __device__ void add_in_single(const Packed (&x)[3], const float (&activation)[kV]) {
    Packed from_mean[3];
    add_offsets<kShifted>(x, from_mean);
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      float share[kParents], largest = -INFINITY, total = 0.0f;
#pragma unroll
      for (int p = 0; p < kParents; ++p) {
        float square = 0.0f;
#pragma unroll
        for (int h = 0; h < 3; ++h) {
          const float y = part(from_mean[h], p, v);
          square = fmaf(y, y, square);
        }
        share[p] = fmaf(-kDistanceScale, square, block.gaussians[v][p].prior);
        largest = fmaxf(largest, share[p]);
      }
      largest = block.max_over_parents(largest);
#pragma unroll
      for (int p = 0; p < kParents; ++p) total += share[p] = fast_exp2(share[p] - largest);
      const float scale = activation[v] * fast_reciprocal(block.sum_over_parents(total));
#pragma unroll
      for (int p = 0; p < kParents; ++p) {
        const float responsibility = scale * share[p];
        block.sums[v][p].mass += responsibility;
#pragma unroll
        for (int h = 0; h < 3; ++h) {
          const float y = part(x[h], p, v);
          block.sums[v][p].first[h] = fmaf(responsibility, y, block.sums[v][p].first[h]);
          block.sums[v][p].second[h] = fmaf(responsibility * y, y, block.sums[v][p].second[h]);
        }
      }
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int p = 0; p < kParents; ++p) block.sums[v][p] = Sums{};
    }
  }

  // -m and w from the Gaussians: in a sweep only these are in registers.
  template <bool kWeights>
  __device__ void set_parents() {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int h = 0; h < 3; ++h) {
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const Gaussian &a = block.gaussians[v][2 * q], &b = block.gaussians[v][2 * q + 1];
          shift[h][q][v] = pack(-a.mean[h], -b.mean[h]);
          if (kWeights) weight[h][q][v] = pack(a.weight[h], b.weight[h]);
        }
      }
    }
  }
};

template <class T>
__device__ void route_in_half(Block<T>& block) {
  HalfSweep<T> half(block);
  const auto sweep = [&](bool first, bool shifted) {
    if (first) {
      shifted ? half.template weigh<true, true>() : half.first();
    } else {
      shifted ? half.template weigh<false, true>() : half.template weigh<false, false>();
    }
  };
  block.run([&](bool) { half.begin(); }, sweep);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSM) route_half(const __grid_constant__ Routing routing) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900  // no clusters
  if constexpr (T::kCluster > 1) return;
#endif
  extern __shared__ float4 shared[];
  Block<T> block(routing, reinterpret_cast<float*>(shared));
  route_in_half(block);
#endif
}

// rotation [places, or 1 if shared][channels][parents][3][3] -> rotors as B of the products, float16: for each pair of
// children [axis][8 of the parents], of which the first four of these six are together. See product() for what a lane
// has; column c of the products q has parent 4 (c / 2) + 2 q + c % 2, so that a thread's parents are neighbours.
__global__ void prepare_half_rotors(const float* rotation, float* rotors, int64_t floats, int places, int channels,
                                    int padded_channels, int parents, bool shared) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= floats) return;
  const int within = n % kPairFloats, last = within >= 4 * 32;
  const int lane = last ? (within - 4 * 32) / 2 : within / 4, product = last ? 4 + within % 2 : within % 4;
  const int h = product / 2, column = lane / 4, k = lane % 2 * 2;
  const int parent = column / 2 * 4 + product % 2 * 2 + column % 2;
  const int64_t child = n / kPairFloats * 2 + lane % 4 / 2;
  const int channel = child % padded_channels;
  const int64_t place = child / padded_channels, row = (shared ? 0 : place * channels) + channel;
  const bool padding = place >= places || channel >= channels || parent >= parents;
  const float* from = rotation + (row * parents + parent) * 9 + 3 * h + k;
  rotors[n] = __uint_as_float(padding ? 0 : pack(from[0], k == 0 ? from[1] : 0.0f));
#endif
}

}  // namespace

#endif

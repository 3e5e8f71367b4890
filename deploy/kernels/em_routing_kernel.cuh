// Routing by agreement on a CUDA device, forward: the kernel that em_routing.cu launches. See em_routing.h for the
// shapes, qcn/routing.py for the formula.
//
// A sweep goes over the children once and adds up, per parent, the moments of its votes about a shift m:
//     S = sum r      D = sum r d      Q = sum r d^2       with d = vote - m = R u - m
// from which the M-step follows whatever m is. So an E-step and the M-step after it are one sweep, about the mean
// before, and T iterations are T sweeps. No vote goes to memory: making one again costs nine multiply-adds.
//
// A thread has four parents of a few windows in registers; kParentLanes neighbours have all parents of these windows,
// so that the softmax is a few shuffles. The other lanes and warps take other windows (many windows: all of them read
// the same rotors) or other children of the same windows (few windows: their sums are added at the end of a sweep,
// always in the same order). Rotors and poses come through shared memory, in steps of some children, copied while the
// step before is computed. The M-step is done once for each parent of a window, by a lane of its own, and the Gaussians
// come back to all threads through shared memory.
#ifndef QCN_KERNELS_EM_ROUTING_KERNEL_CUH
#define QCN_KERNELS_EM_ROUTING_KERNEL_CUH

#include "em_routing_tile.cuh"

namespace {

template <class T>
struct Block {
  static constexpr int kV = T::kV;
  // Of the M-step.
  static constexpr int kLanes = T::kAllParents < 32 ? T::kAllParents : 32, kPerLane = T::kAllParents / kLanes;
  static constexpr int kWorkers = T::kWindows * kLanes, kPasses = (kWorkers + T::kThreads - 1) / T::kThreads;
  static constexpr bool kAddFirst = T::kChildWarps > 1 && (T::kCluster > 1 || kWorkers < T::kThreads);
  const Routing& r;
  // Shared memory. means: what the sums are about; offsets: see add_child(); weights: where sums are scaled by them.
  float *buffer, *means, *offsets, *weights, *betas;
  int parent_lane, split;  // which four parents, which share of the children
  int window[kV];          // in the block
  Gaussian gaussians[kV][kParents];
  Sums sums[kV][kParents];
  const char *staged_pose, *staged_activation;  // the first corner of the window that this thread copies

  __device__ explicit Block(const Routing& routing, float* shared) : r(routing) {
    buffer = shared;
    means = buffer + T::kBufferFloats;
    offsets = means + 3 * T::kPlaces;
    weights = offsets + 3 * T::kPlaces;
    betas = means + T::kStateFloats;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    parent_lane = lane / T::kParentBit % T::kParentLanes;
    const int other = lane % T::kParentBit + lane / (T::kParentBit * T::kParentLanes) * T::kParentBit;
    split = other / T::kWindowLanes + T::kChildLanes * (warp % (T::kSplits / T::kChildLanes));
    const int first = warp / (T::kSplits / T::kChildLanes) * T::kWindowsPerWarp + other % T::kWindowLanes;
#pragma unroll
    for (int v = 0; v < kV; ++v) window[v] = first + v * T::kWindowLanes;

    const int n = min(static_cast<int>(first_window() + threadIdx.x % T::kWindows), r.windows - 1);
    const int column = n % r.columns, row = n / r.columns % r.rows;
    const int64_t image = n / r.columns / r.rows * static_cast<int64_t>(r.channels) * r.plane;
    const int corner = (row * r.width + column) * r.stride, size = r.half ? sizeof(uint16_t) : sizeof(float);
    staged_pose = static_cast<const char*>(r.pose) + (3 * image + corner) * size;
    staged_activation = static_cast<const char*>(r.activation) + (image + corner) * size;
  }

  // Of the block. The blocks of a cluster have the same windows and share out the children.
  __device__ static int first_window() { return blockIdx.x / T::kCluster * T::kWindows; }
  __device__ static int rank() { return blockIdx.x % T::kCluster; }
  // The sums of some warps, the first's, and then the next Gaussians.
  __device__ float* moments(int of_child_warp) const { return buffer + T::kSumsAt + of_child_warp * T::kSumFloats; }
  __device__ float* next() const { return moments(T::kCluster > 1); }
  __device__ int moment(int m, int v) const {
    return m * T::kPlaces + window[v] * T::kAllParents + kParents * parent_lane;
  }

  // Starts copying the step's rotors [child][3][3][parents] and poses [child][window][x, y, z, activation]. A thread
  // copies kGroup children of one window: neighbouring channels, a plane apart. Children that are padding get an
  // activation of 0; windows after the last are copies of it.
  __device__ void copy_step(int step, float* stage) const {
    constexpr int kFloats = T::kStep * T::kRotorFloats;
    const float* from = r.rotors + static_cast<int64_t>(step) * kFloats + 4 * threadIdx.x;
    float* to = stage + 4 * threadIdx.x;
#pragma unroll
    for (int n = 0; n < kFloats; n += 4 * T::kThreads) {
      const bool all = kFloats - n >= 4 * T::kThreads;
      if (all || static_cast<int>(4 * threadIdx.x) < kFloats - n) __pipeline_memcpy_async(to + n, from + n, 16);
    }
    float* poses = stage + kFloats + 4 * (threadIdx.x % T::kWindows);
    constexpr int kGroups = T::kStep / kGroup, kGroupStride = T::kThreads / T::kWindows;
#pragma unroll
    for (int n = 0; n < kGroups; n += kGroupStride) {
      const int group = n + threadIdx.x / T::kWindows;
      if (kGroups - n < kGroupStride && group >= kGroups) break;
      float* group_poses = poses + group * kGroup * 4 * T::kWindows;
      if (r.half) {
        copy_group<uint16_t>(step * kGroups + group, group_poses);
      } else {
        copy_group<float>(step * kGroups + group, group_poses);
      }
    }
  }

  template <class Element>
  __device__ void copy_group(int group, float* to) const {
    const int place = divide(group, r.groups_inverse), row = divide(place, r.window_width_inverse);
    const int channel = (group - place * r.groups) * kGroup;
    const int position = place + row * (r.width - r.window_width);
    const int channels = group < r.places * r.groups ? r.channels - channel : 0;
    const uint32_t plane = r.plane * sizeof(Element);  // in bytes, unsigned: an address is then one multiply-add
    const char* pose =
        staged_pose + static_cast<uint32_t>(3 * channel * r.plane + position) * uint64_t{sizeof(Element)};
    const char* activation =
        staged_activation + static_cast<uint32_t>(channel * r.plane + position) * uint64_t{sizeof(Element)};
    const auto copy_child = [&](int k) {
      float* child = to + k * 4 * T::kWindows;
#pragma unroll
      for (int h = 0; h < 3; ++h) copy<Element>(child + h, pose + uint64_t{plane} * (3 * k + h), r.brain);
      copy<Element>(child + 3, activation + uint64_t{plane} * k, r.brain);
    };
    if (channels >= kGroup) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) copy_child(k);
      return;
    }
#pragma unroll 1
    for (int k = 0; k < kGroup; ++k) {
      k < channels ? copy_child(k) : store(to + k * 4 * T::kWindows, 0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  // kFirst: r = activation / parents, the division left to the end, the root of the activation put into the pose:
  // root * d = R (root * u) - root * m. Else r = activation * softmax of the Gaussians' logits.
  // The shift m is the Gaussians' mean (0 if kFirst), unless kShifted: then it is in their place, and m less the mean
  // is in `offsets`.
  template <bool kFirst, bool kShifted>
  __device__ void add_child(const float* rotor, const float* poses) {
    float pose[kV][4], root[kV];
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      load(pose[v], poses + 4 * window[v]);
      if (kFirst) {
        root[v] = fast_sqrt(pose[v][3]);
        for (int k = 0; k < 3; ++k) pose[v][k] *= root[v];
        sums[v][0].mass = fmaf(root[v], root[v], sums[v][0].mass);
      }
    }
    float d[kV][3][kParents], d2[kV][3][kParents];
#pragma unroll
    for (int h = 0; h < 3; ++h) {
      float rotation[3][kParents];
#pragma unroll
      for (int k = 0; k < 3; ++k) load(rotation[k], rotor + (3 * h + k) * T::kAllParents);
#pragma unroll
      for (int v = 0; v < kV; ++v) {
#pragma unroll
        for (int p = 0; p < kParents; ++p) {
          float x;
          if (kFirst && !kShifted) {
            x = rotation[0][p] * pose[v][0];
          } else {
            const float shift = gaussians[v][p].mean[h];
            x = fmaf(rotation[0][p], pose[v][0], kFirst ? -root[v] * shift : -shift);
          }
          x = fmaf(rotation[2][p], pose[v][2], fmaf(rotation[1][p], pose[v][1], x));
          if (kFirst) {
            sums[v][p].first[h] = fmaf(root[v], x, sums[v][p].first[h]);
            sums[v][p].second[h] = fmaf(x, x, sums[v][p].second[h]);
          } else {
            d[v][h][p] = x;
            d2[v][h][p] = x * x;
          }
        }
      }
    }
    if (kFirst) return;

    float share[kV][kParents], total[kV];
    softmax<kShifted, false>(d, d2, share, total);
    bool vanishing = false;
#pragma unroll
    for (int v = 0; v < kV; ++v) vanishing |= total[v] < kVanishing;
    if (__any_sync(kWarp, vanishing)) softmax<kShifted, true>(d, d2, share, total);
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      const float scale = pose[v][3] * fast_reciprocal(total[v]);
#pragma unroll
      for (int p = 0; p < kParents; ++p) {
        const float responsibility = scale * share[v][p];
        sums[v][p].mass += responsibility;
#pragma unroll
        for (int h = 0; h < 3; ++h) {
          sums[v][p].first[h] = fmaf(responsibility, d[v][h][p], sums[v][p].first[h]);
          sums[v][p].second[h] = fmaf(responsibility, d2[v][h][p], sums[v][p].second[h]);
        }
      }
    }
  }

  // share = 2^logit and its sum over all parents. No logit is above 0, so the sum is right unless it vanishes: then
  // again, kExact, about the largest logit.
  template <bool kShifted, bool kExact>
  __device__ void softmax(const float (&d)[kV][3][kParents], const float (&d2)[kV][3][kParents],
                          float (&share)[kV][kParents], float (&total)[kV]) const {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      float logit[kParents];
#pragma unroll
      for (int p = 0; p < kParents; ++p) logit[p] = gaussians[v][p].prior;
#pragma unroll
      for (int h = 0; h < 3; ++h) {
        float offset[kParents];
        if (kShifted) load(offset, offsets + moment(h, v));
#pragma unroll
        for (int p = 0; p < kParents; ++p) {
          const float moved = kShifted ? d[v][h][p] + offset[p] : 0.0f;
          logit[p] = fmaf(gaussians[v][p].weight[h], kShifted ? moved * moved : d2[v][h][p], logit[p]);
        }
      }
      float largest = 0.0f;
      if (kExact) largest = max_over_parents(fmaxf(fmaxf(logit[0], logit[1]), fmaxf(logit[2], logit[3])));
#pragma unroll
      for (int p = 0; p < kParents; ++p) share[v][p] = fast_exp2(kExact ? logit[p] - largest : logit[p]);
      total[v] = sum_over_parents((share[v][0] + share[v][1]) + (share[v][2] + share[v][3]));
    }
  }

  __device__ static float sum_over_parents(float x) {
#pragma unroll
    for (int bit = T::kParentBit; bit < T::kParentBit * T::kParentLanes; bit *= 2) x += __shfl_xor_sync(kWarp, x, bit);
    return x;
  }
  __device__ static float max_over_parents(float x) {
#pragma unroll
    for (int bit = T::kParentBit; bit < T::kParentBit * T::kParentLanes; bit *= 2) {
      x = fmaxf(x, __shfl_xor_sync(kWarp, x, bit));
    }
    return x;
  }

  // Copies a step that is not among the stages yet; `at_first`: before the first sweep, or in it. A block whose steps
  // all have a stage of their own copies them once.
  __device__ void copy_next(int step, int steps, int stage, bool at_first) const {
    const bool kept = T::kApart && steps <= T::kStages && !at_first;
    if (step < steps && !kept) copy_step(rank() + step * T::kCluster, buffer + stage * T::kStageFloats);
    __pipeline_commit();
  }
  __device__ int steps() const {
    const int all = (r.places * r.groups * kGroup + T::kStep - 1) / T::kStep;
    return (all - rank() + T::kCluster - 1) / T::kCluster;  // of this block
  }

  // A sweep's first steps, before the sweep.
  __device__ void begin(bool first) const {
#pragma unroll 1
    for (int step = 0; step < T::kStages - 1; ++step) copy_next(step, steps(), step, first);
  }

  template <bool kFirst, bool kShifted>
  __device__ void sweep() {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int p = 0; p < kParents; ++p) sums[v][p] = Sums{};
    }
    const int steps = this->steps();
    int copied = T::kStages - 1, computed = 0;  // stages
    for (int step = 0; step < steps; ++step) {
      __pipeline_wait_prior(T::kStages - 2);
      __syncthreads();
      copy_next(step + T::kStages - 1, steps, copied, kFirst && !kShifted);
      copied = copied + 1 < T::kStages ? copied + 1 : 0;
      const float* stage = buffer + computed * T::kStageFloats;
      const float* rotor = stage + split * T::kRotorFloats + kParents * parent_lane;
      const float* poses = stage + T::kStep * T::kRotorFloats + split * 4 * T::kWindows;
#pragma unroll(kShifted ? 1 : 2)
      for (int n = 0; n < T::kStep / T::kSplits; ++n) {
        add_child<kFirst, kShifted>(rotor, poses);
        rotor += T::kSplits * T::kRotorFloats;
        poses += T::kSplits * 4 * T::kWindows;
      }
      computed = computed + 1 < T::kStages ? computed + 1 : 0;
    }
    if (kFirst) same_masses();
  }

  // After a first sweep: the mass is the first parent's.
  __device__ void same_masses() {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int p = 1; p < kParents; ++p) sums[v][p].mass = sums[v][0].mass;
    }
  }

  __device__ float& sum(int m, int v, int p) {
    Sums& s = sums[v][p];
    return m == 0 ? s.mass : m < 4 ? s.first[m - 1] : s.second[m - 4];
  }

  // At each bit of its number that tells children apart, a lane gives half of its parents' sums away, and adds what it
  // is given to the others. Returns the first of the parents that it keeps.
  template <int kHalf, int kBit>
  __device__ static int add_lanes(float (&x)[kV * kParents][kMoments]) {
    if constexpr (kBit >= 32 / T::kChildLanes) {
      const bool upper = threadIdx.x & kBit;
#pragma unroll
      for (int n = 0; n < (kHalf > 0 ? kHalf : 1); ++n) {
#pragma unroll
        for (int m = 0; m < kMoments; ++m) {
          const float low = x[n][m], high = x[n + kHalf][m];
          x[n][m] = (upper ? high : low) + __shfl_xor_sync(kWarp, upper ? low : high, kBit);
        }
      }
      return (upper ? kHalf : 0) + add_lanes<kHalf / 2, kBit / 2>(x);
    }
    return 0;
  }

  // Adds the sums of all threads that share out a window's children, always in the same order: of the lanes, then of
  // the warps. If kAddFirst, a block's whole is then in moments(0), and other blocks of the cluster may read it; else
  // the M-step adds the warps'.
  __device__ void add_splits() {
    float x[kV * kParents][kMoments];
#pragma unroll
    for (int n = 0; n < kV * kParents; ++n) {
#pragma unroll
      for (int m = 0; m < kMoments; ++m) x[n][m] = sum(m, n / kParents, n % kParents);
    }
    const int first = add_lanes<kV * kParents / 2, 16>(x);
    constexpr int kKept = kV * kParents > T::kChildLanes ? kV * kParents / T::kChildLanes : 1;
    if (T::kCluster > 1) cluster_wait();  // for those who read the last sums
    float* own = moments(split / T::kChildLanes) + window[0] * T::kAllParents + kParents * parent_lane;
#pragma unroll
    for (int i = 0; i < kKept; i += kKept < kParents ? 1 : kParents) {
      const int v = (first + i) / kParents, p = (first + i) % kParents;
      float* to = own + v * T::kWindowLanes * T::kAllParents + p;
#pragma unroll
      for (int m = 0; m < kMoments; ++m) {
        if constexpr (kKept < kParents) {
          to[m * T::kPlaces] = x[i][m];
        } else {
          store(to + m * T::kPlaces, x[i][m], x[i + 1][m], x[i + 2][m], x[i + 3][m]);
        }
      }
    }
    __syncthreads();
    if constexpr (kAddFirst) {
      for (int n = threadIdx.x; n < T::kSumFloats; n += T::kThreads) moments(0)[n] = of_warps(n);
      if constexpr (T::kCluster > 1) {
        cluster_arrive(), cluster_wait();
      } else {
        __syncthreads();
      }
    }
  }

  __device__ float of_warps(int n) const {
    float total[T::kChildWarps];
#pragma unroll
    for (int w = 0; w < T::kChildWarps; ++w) total[w] = moments(w)[n];
#pragma unroll
    for (int w = T::kChildWarps / 2; w > 0; w /= 2) {
#pragma unroll
      for (int i = 0; i < w; ++i) total[i] += total[i + w];
    }
    return total[0];
  }

  // Of all warps, in all blocks of the cluster.
  __device__ float whole(int n) const {
    if constexpr (T::kCluster > 1) {
      float total[T::kCluster];
#pragma unroll
      for (int of = 0; of < T::kCluster; ++of) total[of] = load_from_block(moments(0) + n, of);
#pragma unroll
      for (int of = 1; of < T::kCluster; ++of) total[0] += total[of];
      return total[0];
    } else {
      return kAddFirst ? moments(0)[n] : of_warps(n);
    }
  }

  // From sums about the means to the next Gaussians, a lane for each parent of a window or, of 64 parents, for two. The
  // last Gaussians have z for a prior. Returns whether a mean has gone so far that digits were lost.
  __device__ static int place(int n, int k) { return n / kLanes * T::kAllParents + n % kLanes + k * kLanes; }

  __device__ bool m_step(bool first, bool shifted, bool last) const {
    const bool plain = first && !shifted;  // about 0, and not scaled
    const float share = (first ? r.share : 1.0f) * (plain ? 1.0f : 1.0f / T::kMassScale);
    bool lost = false;
#pragma unroll 4
    for (int pass = 0; pass < kPasses; ++pass) {
      const int n = pass * T::kThreads + threadIdx.x;
      if (n / 32 >= (kWorkers + 31) / 32) break;  // all lanes of a warp
      const bool mine = kWorkers % 32 == 0 || n < kWorkers;
      Gaussian parent[kPerLane];
      float log_spread[kPerLane], square = 0.0f;
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        const int at = place(n, k), j = n % kLanes + k * kLanes;
        float sum[kMoments];
#pragma unroll
        for (int m = 0; m < kMoments; ++m) sum[m] = mine ? share * whole(m * T::kPlaces + at) : 0.0f;
        const float mass = sum[0], inverse = reciprocal(mass + kMassFloor);
        log_spread[k] = 0.0f;
#pragma unroll
        for (int h = 0; h < 3; ++h) {
          float shift = 0.0f, d = sum[1 + h], d2 = sum[4 + h];
          if (!plain && mine) {
            shift = means[h * T::kPlaces + at];
            if (T::kScaled) {
              const float unscaled = reciprocal(weights[h * T::kPlaces + at]);
              d *= unscaled, d2 *= unscaled * unscaled;
            }
          }
          const float mean = fmaf(mass, shift, d) * inverse;
          const float e = mean - shift;
          const float second = fmaf(e, fmaf(e, mass, -2.0f * d), d2);
          const float variance = fmaf(fmaxf(second, 0.0f), inverse, kVarianceFloor);
          lost |= e * e * mass * inverse > kCancellation * variance;
          log_spread[k] += 0.5f * __log2f(variance);
          parent[k].mean[h] = mean;
          parent[k].weight[h] = T::as_weight(variance);
        }
        float& z = parent[k].prior;
        z = betas[T::kAllParents + j] - fmaf(3.0f, betas[j], kLn2 * log_spread[k]) * mass * r.cost;
        if (j < r.parents) square = fmaf(z, z, square);
      }
      if (r.unit) {
        const float length = sqrtf(over_parents(square, [](float a, float b) { return a + b; }));
        const float inverse = reciprocal(fmaxf(length, 1e-12f));
#pragma unroll
        for (int k = 0; k < kPerLane; ++k) parent[k].prior *= inverse;
      }
      if (!last) set_priors(parent, log_spread, n % kLanes);
      if (!mine) continue;
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        float* to = next() + place(n, k);
        to[0] = parent[k].prior;
#pragma unroll
        for (int h = 0; h < 3; ++h) {
          to[(1 + h) * T::kPlaces] = parent[k].mean[h];
          if (!last || first) to[(4 + h) * T::kPlaces] = parent[k].weight[h];
        }
      }
    }
    return lost;
  }

  template <class Operation>
  __device__ static float over_parents(float x, const Operation& operation) {
#pragma unroll
    for (int bit = 1; bit < kLanes; bit *= 2) x = operation(x, __shfl_xor_sync(kWarp, x, bit));
    return x;
  }

  // From z.
  __device__ void set_priors(Gaussian (&parent)[kPerLane], const float (&log_spread)[kPerLane], int lane) const {
    float largest = -INFINITY;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      float& prior = parent[k].prior;
      const float z = kLog2E * prior;
      prior = fminf(z, 0.0f) - __log2f(1.0f + exp2f(-fabsf(z))) - log_spread[k];
      if (lane + k * kLanes >= r.parents) prior = -INFINITY;
      largest = fmaxf(largest, prior);
    }
    largest = over_parents(largest, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) parent[k].prior += T::kShareOffset - largest;
  }

  __device__ void write() const {
    if (rank() != 0) return;
    const int positions = r.rows * r.columns;
    for (int at = threadIdx.x; at < T::kPlaces; at += T::kThreads) {
      const int n = first_window() + at / T::kAllParents, j = at % T::kAllParents;
      if (n >= r.windows || j >= r.parents) continue;
      const int64_t row = static_cast<int64_t>(n / positions) * r.parents + j;
      const int position = n % positions;
      float* pose = r.out_pose + 3 * row * positions + position;
      for (int h = 0; h < 3; ++h) pose[h * positions] = next()[(1 + h) * T::kPlaces + at];
      const float z = next()[at];
      r.out_activation[row * positions + position] = r.logit ? z : 1.0f / (1.0f + exp2f(-kLog2E * z));
    }
  }

  // `begin(first)` and `sweep(first, shifted)` are this block's, or those of em_routing_half.cuh. The first steps of a
  // sweep are on their way while the one before is added up.
  template <class Begin, class Sweep>
  __device__ void run(const Begin& begin, const Sweep& sweep) {
    begin(true);
    for (int j = threadIdx.x; j < T::kAllParents; j += T::kThreads) {
      betas[j] = j < r.parents ? r.beta_u[j] : 0.0f;
      betas[T::kAllParents + j] = j < r.parents ? r.beta_a[j] : 0.0f;
    }
    if (T::kCluster > 1) cluster_arrive();  // waited for in add_splits()
    bool shifted = false;
    for (int iteration = 0;;) {
      const bool first = iteration == 0, last = iteration + 1 == r.iterations;
      sweep(first, shifted);
      __syncthreads();  // all threads are past the stages
      if (!last) begin(false);
      add_splits();
      const bool lost = m_step(first, shifted, last);
      const bool again = __syncthreads_or(lost && !shifted);
      if (T::kCluster > 1) cluster_arrive();
      if (again) {
        shifted = true;
        shift_to_next(first);
        if (last) begin(false);
      } else if (last) {
        write();
        __syncwarp();
        if (T::kCluster > 1) cluster_wait();  // other blocks may still read this one's sums
        return;
      } else {
        shifted = false;
        ++iteration;
        load_next();
      }
    }
  }

  // The Gaussians of the next sweep. Threads of the first split leave in shared memory what the M-step will need.
  __device__ void load_next() {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      float x[kParents];
      load(x, next() + moment(0, v));
#pragma unroll
      for (int p = 0; p < kParents; ++p) gaussians[v][p].prior = x[p];
#pragma unroll
      for (int h = 0; h < 3; ++h) {
        set_mean(v, h);
        set_weight(v, h, next() + moment(4 + h, v));
      }
    }
  }

  __device__ void set_mean(int v, int h) {
    float x[kParents];
    load(x, next() + moment(1 + h, v));
#pragma unroll
    for (int p = 0; p < kParents; ++p) gaussians[v][p].mean[h] = x[p] = T::as_shift(x[p]);
    if (split == 0) store(means + moment(h, v), x[0], x[1], x[2], x[3]);
  }

  __device__ void set_weight(int v, int h, const float* from) {
    float x[kParents];
    load(x, from);
#pragma unroll
    for (int p = 0; p < kParents; ++p) gaussians[v][p].weight[h] = x[p];
    if (T::kScaled && split == 0) store(weights + moment(h, v), x[0], x[1], x[2], x[3]);
  }

  // The sweep that follows is about the means just found; its responsibilities stay those of the Gaussians before. The
  // first sweep has none, and may scale by the weights just found.
  __device__ void shift_to_next(bool first) {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int h = 0; h < 3; ++h) {
        if (first) {
          set_weight(v, h, next() + moment(4 + h, v));
        } else if (split == 0) {
          float before[kParents], mean[kParents];
          load(before, means + moment(h, v)), load(mean, next() + moment(1 + h, v));
#pragma unroll
          for (int p = 0; p < kParents; ++p) mean[p] = T::as_shift(mean[p]) - before[p];
          store(offsets + moment(h, v), mean[0], mean[1], mean[2], mean[3]);
        }
        set_mean(v, h);
      }
    }
  }
};

template <class T>
__device__ void route_in_single(Block<T>& block) {
  const auto sweep = [&](bool first, bool shifted) {
    if (first) {
      shifted ? block.template sweep<true, true>() : block.template sweep<true, false>();
    } else {
      shifted ? block.template sweep<false, true>() : block.template sweep<false, false>();
    }
  };
  block.run([&](bool first) { block.begin(first); }, sweep);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSM) route(const __grid_constant__ Routing routing) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900  // no clusters
  if constexpr (T::kCluster > 1) return;
#endif
  extern __shared__ float4 shared[];
  Block<T> block(routing, reinterpret_cast<float*>(shared));
  route_in_single(block);
}

// rotation [places, or 1 if shared][channels][parents][3][3] -> rotors [places][padded channels][3][3][padded parents],
// with padding after the last place too. All padding is zero.
__global__ void prepare_rotors(const float* rotation, float* rotors, int64_t floats, int places, int channels,
                               int padded_channels, int parents, int padded_parents, bool shared) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= floats) return;
  const int parent = n % padded_parents, k = n / padded_parents % 9;
  const int64_t child = n / padded_parents / 9;
  const int channel = child % padded_channels;
  const int64_t place = child / padded_channels, row = (shared ? 0 : place * channels) + channel;
  const bool padding = place >= places || channel >= channels || parent >= parents;
  rotors[n] = padding ? 0.0f : rotation[(row * parents + parent) * 9 + k];
}

}  // namespace

#endif

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
// step before is computed.
#ifndef QCN_KERNELS_EM_ROUTING_KERNEL_CUH
#define QCN_KERNELS_EM_ROUTING_KERNEL_CUH

#include "em_routing_tile.cuh"

namespace {

template <class T>
struct Block {
  static constexpr int kV = T::kV;
  const Routing& r;
  float *buffer, *offsets, *betas;  // shared memory
  int parent_lane, split;           // which four parents, which share of the children
  int window[kV];                   // in the block
  Gaussian gaussians[kV][kParents];
  Sums sums[kV][kParents];
  const char *staged_pose, *staged_activation;  // the first corner of the window that this thread copies

  __device__ explicit Block(const Routing& routing, float* shared) : r(routing) {
    buffer = shared;
    offsets = buffer + T::kBufferFloats;
    betas = offsets + T::kOffsetFloats;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    parent_lane = lane / T::kParentBit % T::kParentLanes;
    const int other = lane % T::kParentBit + lane / (T::kParentBit * T::kParentLanes) * T::kParentBit;
    split = other / T::kWindowLanes + T::kChildLanes * (warp % (T::kSplits / T::kChildLanes));
    const int first = warp / (T::kSplits / T::kChildLanes) * T::kWindowsPerWarp + other % T::kWindowLanes;
#pragma unroll
    for (int v = 0; v < kV; ++v) window[v] = first + v * T::kWindowLanes;

    for (int j = threadIdx.x; j < T::kAllParents; j += T::kThreads) {
      betas[j] = j < r.parents ? r.beta_u[j] : 0.0f;
      betas[T::kAllParents + j] = j < r.parents ? r.beta_a[j] : 0.0f;
    }
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
  __device__ float* moments(int of_split) const { return buffer + of_split * T::kSumFloats; }
  __device__ int moment(int m, int v) const {
    return (m * T::kWindows + window[v]) * T::kAllParents + kParents * parent_lane;
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
      if (all || 4 * threadIdx.x < kFloats - n) __pipeline_memcpy_async(to + n, from + n, 16);
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

  template <bool kFirst, bool kShifted>
  __device__ void sweep() {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int p = 0; p < kParents; ++p) sums[v][p] = Sums{};
    }
    const int steps = (r.places * r.groups * kGroup + T::kStep - 1) / T::kStep;
    int copied = 0, computed = 0;  // stages
    const auto copy_next = [&](int step) {
      if (step < steps) copy_step(step, buffer + copied * T::kStageFloats);
      __pipeline_commit();
      copied = copied + 1 < T::kStages ? copied + 1 : 0;
    };
#pragma unroll 1
    for (int step = 0; step < T::kStages - 1; ++step) copy_next(step);
    for (int step = 0; step < steps; ++step) {
      __pipeline_wait_prior(T::kStages - 2);
      __syncthreads();
      copy_next(step + T::kStages - 1);
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
    if (kFirst) share_out();
  }

  // After a first sweep: the division by the parents. The mass is the first parent's, the same for all.
  __device__ void share_out() {
    const float share = 1.0f / r.parents;
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      const float mass = sums[v][0].mass * share;
#pragma unroll
      for (int p = 0; p < kParents; ++p) {
        sums[v][p].mass = mass;
        for (int h = 0; h < 3; ++h) sums[v][p].first[h] *= share, sums[v][p].second[h] *= share;
      }
    }
  }

  __device__ float& sum(int m, int v, int p) {
    Sums& s = sums[v][p];
    return m == 0 ? s.mass : m < 4 ? s.first[m - 1] : s.second[m - 4];
  }

  // Adds the sums of all splits, first to last, and then of all blocks of the cluster; gives every thread the whole.
  __device__ void add_splits() {
    if (T::kSplits == 1) return;
    constexpr int kWhole = T::kCluster > 1;  // in whose place of the buffer the whole is
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int m = 0; m < kMoments; ++m) {
        store(moments(split) + moment(m, v), sum(m, v, 0), sum(m, v, 1), sum(m, v, 2), sum(m, v, 3));
      }
    }
    __syncthreads();
    for (int n = threadIdx.x; n < T::kSumFloats; n += T::kThreads) {
      float total = 0.0f;
#pragma unroll 16
      for (int s = 0; s < T::kSplits; ++s) total += moments(s)[n];
      moments(0)[n] = total;
    }
    if (T::kCluster > 1) {
      cluster_barrier();
#pragma unroll 2
      for (int n = threadIdx.x; n < T::kSumFloats; n += T::kThreads) {
        float total = 0.0f;
#pragma unroll
        for (int of = 0; of < T::kCluster; ++of) total += load_from_block(moments(0) + n, of);
        moments(kWhole)[n] = total;
      }
      cluster_barrier();
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int m = 0; m < kMoments; ++m) {
        float x[kParents];
        load(x, moments(kWhole) + moment(m, v));
#pragma unroll
        for (int p = 0; p < kParents; ++p) sum(m, v, p) = x[p];
      }
    }
  }

  // From sums about the Gaussians' mean to the next Gaussians, which have z for a prior until set_priors(). Returns
  // whether a mean has gone so far that digits were lost.
  __device__ bool m_step(Gaussian (&next)[kV][kParents], float (&log_spread)[kV][kParents]) const {
    const float cost = 2.0f * r.parents / r.children;
    bool lost = false;
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int p = 0; p < kParents; ++p) {
        const Sums& s = sums[v][p];
        const int j = kParents * parent_lane + p;
        const float inverse = reciprocal(s.mass + kMassFloor);
        log_spread[v][p] = 0.0f;
#pragma unroll
        for (int h = 0; h < 3; ++h) {
          const float shift = gaussians[v][p].mean[h];
          const float mean = fmaf(s.mass, shift, s.first[h]) * inverse;
          const float e = mean - shift;
          const float second = fmaf(e, fmaf(e, s.mass, -2.0f * s.first[h]), s.second[h]);
          const float variance = fmaf(fmaxf(second, 0.0f), inverse, kVarianceFloor);
          lost |= e * e * s.mass * inverse > kCancellation * variance;
          log_spread[v][p] += 0.5f * __log2f(variance);
          next[v][p].mean[h] = mean;
          next[v][p].weight[h] = -0.5f * kLog2E * fast_reciprocal(variance);
        }
        const float beta_u = betas[j], beta_a = betas[T::kAllParents + j];
        next[v][p].prior = beta_a - fmaf(3.0f, beta_u, kLn2 * log_spread[v][p]) * s.mass * cost;
      }
      if (r.unit) {
        float square = 0.0f;
#pragma unroll
        for (int p = 0; p < kParents; ++p) {
          const float z = kParents * parent_lane + p < r.parents ? next[v][p].prior : 0.0f;
          square = fmaf(z, z, square);
        }
        const float inverse = reciprocal(fmaxf(sqrtf(sum_over_parents(square)), 1e-12f));
#pragma unroll
        for (int p = 0; p < kParents; ++p) next[v][p].prior *= inverse;
      }
    }
    return lost;
  }

  __device__ void set_priors(const float (&log_spread)[kV][kParents]) {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      float largest = -INFINITY;
#pragma unroll
      for (int p = 0; p < kParents; ++p) {
        float& prior = gaussians[v][p].prior;
        const float z = kLog2E * prior;
        prior = fminf(z, 0.0f) - __log2f(1.0f + exp2f(-fabsf(z))) - log_spread[v][p];
        if (kParents * parent_lane + p >= r.parents) prior = -INFINITY;
        largest = fmaxf(largest, prior);
      }
      largest = max_over_parents(largest);
#pragma unroll
      for (int p = 0; p < kParents; ++p) gaussians[v][p].prior -= largest;
    }
  }

  __device__ void write(const Gaussian (&parent)[kV][kParents]) const {
    if (split != 0 || rank() != 0) return;
    const int positions = r.rows * r.columns;
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      const int n = first_window() + window[v];
      if (n >= r.windows) continue;
#pragma unroll
      for (int p = 0; p < kParents; ++p) {
        const int j = kParents * parent_lane + p;
        if (j >= r.parents) continue;
        const int64_t row = static_cast<int64_t>(n / positions) * r.parents + j;
        const int position = n % positions;
        float* pose = r.out_pose + 3 * row * positions + position;
        for (int h = 0; h < 3; ++h) pose[h * positions] = parent[v][p].mean[h];
        r.out_activation[row * positions + position] = 1.0f / (1.0f + exp2f(-kLog2E * parent[v][p].prior));
      }
    }
  }

  // `sweep(first, shifted)` is this block's, or that of em_routing_half.cuh.
  template <class Sweep>
  __device__ void run(const Sweep& sweep) {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int p = 0; p < kParents; ++p) gaussians[v][p] = Gaussian{};
    }
    bool shifted = false;
    for (int iteration = 0;;) {
      sweep(iteration == 0, shifted);
      add_splits();
      Gaussian next[kV][kParents];
      float log_spread[kV][kParents];
      const bool lost = m_step(next, log_spread);
      // All threads are past reading what the next sweep writes.
      if (__syncthreads_or(lost && !shifted)) {
        shifted = true;
        shift_to(next, iteration == 0);
        continue;
      }
      if (++iteration == r.iterations) {
        write(next);
        return;
      }
      shifted = false;
#pragma unroll
      for (int v = 0; v < kV; ++v) {
#pragma unroll
        for (int p = 0; p < kParents; ++p) gaussians[v][p] = next[v][p];
      }
      set_priors(log_spread);
    }
  }

  // The sweep that follows is about the means just found; its responsibilities stay those of the Gaussians before. The
  // first sweep has none, and may scale by the weights just found.
  __device__ void shift_to(const Gaussian (&next)[kV][kParents], bool first) {
#pragma unroll
    for (int v = 0; v < kV; ++v) {
#pragma unroll
      for (int h = 0; h < 3; ++h) {
        float offset[kParents];
#pragma unroll
        for (int p = 0; p < kParents; ++p) {
          const float shift = T::as_shift(next[v][p].mean[h]);
          offset[p] = shift - gaussians[v][p].mean[h];
          gaussians[v][p].mean[h] = shift;
          if (first) gaussians[v][p].weight[h] = next[v][p].weight[h];
        }
        if (split == 0) store(offsets + moment(h, v), offset[0], offset[1], offset[2], offset[3]);
      }
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSM) route(const __grid_constant__ Routing routing) {
  extern __shared__ float4 shared[];
  Block<T> block(routing, reinterpret_cast<float*>(shared));
  block.run([&](bool first, bool shifted) {
    if (first) {
      shifted ? block.template sweep<true, true>() : block.template sweep<true, false>();
    } else {
      shifted ? block.template sweep<false, true>() : block.template sweep<false, false>();
    }
  });
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

// A CUDA device's instructions on a CPU: what em_routing_device.cuh and the language give the routing kernels, lane by
// lane, so that the kernels themselves are tested where there is no GPU. Include it before the kernels.
//
// Every thread of a block, and every block of a cluster, is a fiber: it runs until it waits for others, which is where
// threads of a GPU may differ in how far they are. float16 is rounded as the GPU rounds it.
#ifndef QCN_TESTS_EMULATED_DEVICE_H
#define QCN_TESTS_EMULATED_DEVICE_H
#define QCN_KERNELS_EM_ROUTING_DEVICE_CUH  // in its place

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace emulated {

struct Barrier {
  int waiting = 0, generation = 0;
};
struct Warp {
  Barrier barrier;
  uint32_t words[2][32][8];  // what lanes show each other, in turns: a lane may be one turn ahead
  int turn[32] = {};
};
struct Block {
  Barrier barrier;
  bool any[2] = {};
  std::vector<Warp> warps;
  std::vector<float4> shared;
};
struct Fiber {
  ucontext_t context;
  jmp_buf at;
  std::vector<char> stack;
  Block* block;
  unsigned thread, block_index;
  int turn = 0, arrived = 0;
  bool started = false, ended = false;
};
struct Index {
  unsigned x;
};

inline jmp_buf scheduler;
inline Fiber* current;
inline std::vector<Block> blocks;  // of the cluster
inline Barrier cluster;
inline std::function<void()> kernel;
inline std::vector<std::unique_ptr<Fiber>> fibers;  // kept from launch to launch

inline void yield() {
  if (!_setjmp(current->at)) _longjmp(scheduler, 1);
}
inline void wait(Barrier& barrier, size_t threads) {
  const int generation = barrier.generation;
  if (++barrier.waiting == static_cast<int>(threads)) {
    barrier.waiting = 0, ++barrier.generation;
    return;
  }
  while (barrier.generation == generation) yield();
}
inline void begin() {
  kernel();
  current->ended = true;
  _longjmp(scheduler, 1);
}

inline void prepare(Fiber& fiber, Block* block, unsigned thread, unsigned block_index) {
  fiber.stack.resize(64 << 10);
  fiber.block = block, fiber.thread = thread, fiber.block_index = block_index;
  fiber.turn = 0, fiber.started = fiber.ended = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data(), fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, begin, 0);
}

// Until it waits, or ends.
inline void resume(Fiber* fiber) {
  current = fiber;
  if (_setjmp(scheduler)) return;
  if (fiber->started) _longjmp(fiber->at, 1);
  fiber->started = true;
  setcontext(&fiber->context);
}

// Runs `work` as a kernel: `grid` blocks of `threads`, `together` at a time, as a cluster.
inline void launch(int grid, int together, int threads, size_t shared_bytes, std::function<void()> work) {
  kernel = std::move(work);
  for (int first = 0; first < grid; first += together) {
    blocks.assign(together, {});
    cluster = {};
    while (fibers.size() < static_cast<size_t>(together * threads)) fibers.push_back(std::make_unique<Fiber>());
    for (int b = 0; b < together; ++b) {
      blocks[b].warps.resize((threads + 31) / 32);
      blocks[b].shared.assign(shared_bytes / sizeof(float4) + 1, {NAN, NAN, NAN, NAN});
      for (int t = 0; t < threads; ++t) {
        prepare(*fibers[b * threads + t], &blocks[b], t, first + b);
      }
    }
    for (bool running = true; running;) {
      running = false;
      for (int n = 0; n < together * threads; ++n) {
        if (fibers[n]->ended) continue;
        running = true;
        resume(fibers[n].get());
      }
    }
  }
}

inline unsigned lane() { return current->thread % 32; }
inline Warp& warp() { return current->block->warps[current->thread / 32]; }

// Shows the warp some words, and returns what all lanes show.
template <size_t kWords>
const uint32_t (&exchange(const uint32_t (&words)[kWords]))[32][8] {
  static_assert(kWords <= 8);
  Warp& w = warp();
  const int turn = w.turn[lane()]++ % 2;
  std::copy(words, words + kWords, w.words[turn][lane()]);
  wait(w.barrier, 32);
  return w.words[turn];
}

inline uint32_t bits(float x) {
  uint32_t y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline float from_bits(uint32_t x) {
  float y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

// To the nearest float16, ties to even, as a float.
inline float round_to_half(double x) {
  if (!std::isfinite(x) || x == 0) return static_cast<float>(x);
  const int exponent = std::max(std::ilogb(x), -14);
  const double step = std::ldexp(1.0, exponent - 10), y = std::nearbyint(x / step) * step;
  return static_cast<float>(std::abs(y) > 65504 ? std::copysign(INFINITY, x) : y);
}
inline float half_value(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                      : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                     : std::ldexp(mantissa, -24);
  return static_cast<float>(h >> 15 ? -size : size);
}
inline uint16_t half_bits(double value) {
  const float x = round_to_half(value);
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return 0x7fff;
  if (std::isinf(x)) return sign | 0x7c00;
  const double size = std::abs(x);
  if (size < std::ldexp(1.0, -14)) return sign | static_cast<uint16_t>(std::ldexp(size, 24));
  const int exponent = std::ilogb(size);
  return sign |
         static_cast<uint16_t>((exponent + 15) << 10 | (static_cast<int>(std::ldexp(size, 10 - exponent)) & 1023));
}

}  // namespace emulated

#define threadIdx (emulated::Index{emulated::current->thread})
#define blockIdx (emulated::Index{emulated::current->block_index})
#define blockDim (emulated::Index{static_cast<unsigned>(32 * emulated::current->block->warps.size())})

inline void __syncthreads() {
  emulated::Block& block = *emulated::current->block;
  emulated::wait(block.barrier, 32 * block.warps.size());
}
inline bool __syncthreads_or(bool x) {
  emulated::Block& block = *emulated::current->block;
  const int turn = emulated::current->turn++ % 2;
  __syncthreads();
  block.any[1 - turn] = false;
  if (x) block.any[turn] = true;
  __syncthreads();
  return block.any[turn];
}
inline void __syncwarp() {}
inline float __shfl_xor_sync(uint32_t, float x, int bit) {
  const uint32_t mine[] = {emulated::bits(x)};
  return emulated::from_bits(emulated::exchange(mine)[emulated::lane() ^ bit][0]);
}
inline bool __any_sync(uint32_t, bool x) {
  const uint32_t mine[] = {x};
  const auto& all = emulated::exchange(mine);
  return std::any_of(all, all + 32, [](const uint32_t (&words)[8]) { return words[0] != 0; });
}
inline void __pipeline_memcpy_async(void* to, const void* from, size_t size) { std::memcpy(to, from, size); }
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(int) {}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline float __uint_as_float(uint32_t x) { return emulated::from_bits(x); }
inline uint32_t __float_as_uint(float x) { return emulated::bits(x); }
inline float __log2f(float x) { return std::log2(x); }
using std::max;
using std::min;

namespace {

using Half2 = uint32_t;

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_reciprocal(float x) { return 1.0f / x; }
inline float fast_sqrt(float x) { return std::sqrt(x); }
inline float widen(uint16_t x) { return emulated::half_value(x); }

template <class Operation>
Half2 by_halves(Half2 a, Half2 b, const Operation& operation) {
  const auto half = [&](int shift) {
    const double x = operation(double(widen(uint16_t(a >> shift))), double(widen(uint16_t(b >> shift))));
    return uint32_t{emulated::half_bits(x)} << shift;
  };
  return half(0) | half(16);
}
inline Half2 pack(float low, float high) {
  return emulated::half_bits(low) | uint32_t{emulated::half_bits(high)} << 16;
}
inline Half2 multiply(Half2 a, Half2 b) {
  return by_halves(a, b, [](double x, double y) { return x * y; });
}
inline Half2 saturated_square(Half2 a) {
  return by_halves(a, a, [](double x, double y) { return std::isnan(x) ? 0.0 : std::min(x * y, 1.0); });
}
inline Half2 add(Half2 a, Half2 b) {
  return by_halves(a, b, [](double x, double y) { return x + y; });
}

// d += A B, A of 8 or 16 columns in a lane's words 0 and 1, 2 and 3, and B in words 4, 5.
inline void multiply_add(double (&d)[4], const uint32_t (&mine)[6], int columns) {
  const auto& all = emulated::exchange(mine);
  const int g = emulated::lane() / 4, t = emulated::lane() % 4;
  const auto half = [](uint32_t word, int k) { return double(widen(uint16_t(word >> k % 2 * 16))); };
  for (int n = 0; n < 4; ++n) {
    const int column = 2 * t + n % 2;
    for (int k = 0; k < columns; ++k) {
      const int of = k % 8 / 2;
      d[n] += half(all[4 * g + of][k / 8 * 2 + n / 2], k) * half(all[4 * column + of][4 + k / 8], k);
    }
  }
}
inline void product(Half2 (&d)[2], Half2 a0, Half2 a1, Half2 b, Half2 c0, Half2 c1) {
  double sums[4] = {widen(uint16_t(c0)), widen(uint16_t(c0 >> 16)), widen(uint16_t(c1)), widen(uint16_t(c1 >> 16))};
  multiply_add(sums, {a0, a1, 0, 0, b, 0}, 8);
  d[0] = emulated::half_bits(sums[0]) | uint32_t{emulated::half_bits(sums[1])} << 16;
  d[1] = emulated::half_bits(sums[2]) | uint32_t{emulated::half_bits(sums[3])} << 16;
}
inline void product(float (&d)[4], Half2 a0, Half2 a1, Half2 b) {
  double sums[4] = {d[0], d[1], d[2], d[3]};
  multiply_add(sums, {a0, a1, 0, 0, b, 0}, 8);
  for (int n = 0; n < 4; ++n) d[n] = static_cast<float>(sums[n]);
}
inline void product(float (&d)[4], Half2 a0, Half2 a1, Half2 a2, Half2 a3, const Half2 (&b)[2]) {
  double sums[4] = {d[0], d[1], d[2], d[3]};
  multiply_add(sums, {a0, a1, a2, a3, b[0], b[1]}, 16);
  for (int n = 0; n < 4; ++n) d[n] = static_cast<float>(sums[n]);
}

inline void cluster_arrive() {
  emulated::Barrier& cluster = emulated::cluster;
  emulated::current->arrived = cluster.generation;
  const size_t threads = emulated::blocks.size() * emulated::blocks[0].warps.size() * 32;
  if (++cluster.waiting == static_cast<int>(threads)) cluster.waiting = 0, ++cluster.generation;
}
inline void cluster_wait() {
  while (emulated::cluster.generation == emulated::current->arrived) emulated::yield();
}
inline float load_from_block(const float* shared, int rank) {
  const auto offset = shared - reinterpret_cast<const float*>(emulated::current->block->shared.data());
  return reinterpret_cast<const float*>(emulated::blocks[rank].shared.data())[offset];
}

}  // namespace

#endif

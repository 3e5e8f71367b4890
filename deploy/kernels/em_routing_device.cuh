// The instructions that the routing kernels need beyond plain C++. deploy/tests/emulated_device.h has the same names
// for a CPU, so that the kernels can be tested where there is no GPU.
#ifndef QCN_KERNELS_EM_ROUTING_DEVICE_CUH
#define QCN_KERNELS_EM_ROUTING_DEVICE_CUH

#include <cuda_fp16.h>
#include <cuda_pipeline.h>

#include <cstdint>

namespace {

using Half2 = uint32_t;  // two float16, the first in the low bits

// Relative errors of 2^-22 or so, and results below 2^-126 are zero: both are harmless where these are used.
__device__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ float fast_sqrt(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ float widen(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // which has the instructions on float16 that are used here
__device__ Half2 pack(float low, float high) {
  Half2 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
__device__ Half2 multiply(Half2 a, Half2 b) {
  Half2 y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
// Squares, at most 1.
__device__ Half2 saturated_square(Half2 a) {
  Half2 y;
  asm("mul.rn.sat.f16x2 %0, %1, %1;" : "=r"(y) : "r"(a));
  return y;
}
__device__ Half2 add(Half2 a, Half2 b) {
  Half2 y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

// Products of matrices by a warp: D = A B + C. Lane 4 g + t has of A [16, 8] the rows g and g + 8, of B [8, 8] column
// g, both at k = 2 t and 2 t + 1, and of C and D [16, 8] rows g and g + 8 in columns 2 t and 2 t + 1. An A of 16
// columns is two of 8, its B two of 8 rows.
__device__ void product(Half2 (&d)[2], Half2 a0, Half2 a1, Half2 b, Half2 c0, Half2 c1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%5, %6};"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a0), "r"(a1), "r"(b), "r"(c0), "r"(c1));
}
__device__ void product(float (&d)[4], Half2 a0, Half2 a1, Half2 b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}
__device__ void product(float (&d)[4], Half2 a0, Half2 a1, Half2 a2, Half2 a3, const Half2 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]));
}
#else  // named, never called
__device__ Half2 pack(float, float);
__device__ Half2 multiply(Half2, Half2);
__device__ Half2 saturated_square(Half2);
__device__ Half2 add(Half2, Half2);
__device__ void product(Half2 (&)[2], Half2, Half2, Half2, Half2, Half2);
__device__ void product(float (&)[4], Half2, Half2, Half2);
__device__ void product(float (&)[4], Half2, Half2, Half2, Half2, const Half2 (&)[2]);
#endif

// Blocks of a cluster run at a time and can read each other's shared memory. A thread that has waited sees what all had
// done when they arrived.
__device__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
__device__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
__device__ float load_from_block(const float* shared, [[maybe_unused]] int rank) {
#if __CUDA_ARCH__ >= 900
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  float x;
  asm volatile("mapa.shared::cluster.u32 %0, %0, %2;\nld.shared::cluster.f32 %1, [%0];"
               : "+r"(at), "=f"(x)
               : "r"(rank)
               : "memory");
  return x;
#else
  return *shared;
#endif
}

}  // namespace

#endif

// One vector of float32 lanes, as wide as the instruction set this file is compiled for, and the few functions of
// routing that are not plain arithmetic. Everything lies in a namespace named for the instruction set, so that one
// library can hold several copies; no standard template is used, lest the linker keep the wrong copy of it.
#ifndef QCN_KERNELS_VECTOR_H
#define QCN_KERNELS_VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#define QCN_LANES 4
#elif defined(__AVX512F__)
#include <immintrin.h>
#define QCN_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define QCN_LANES 8
#elif defined(__SSE2__)
#include <immintrin.h>
#define QCN_LANES 4
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#define QCN_INSTRUCTION_SET simd128
#define QCN_LANES 4
#elif defined(__wasm__)
#define QCN_INSTRUCTION_SET plain  // the compiler takes vectors apart
#define QCN_LANES 4
#else
#error "libqcn's CPU kernels are written for aarch64 (NEON), x86_64 (SSE2, AVX2, AVX-512) and WebAssembly"
#endif

#define QCN_TEXT_OF(name) #name
#define QCN_TEXT(name) QCN_TEXT_OF(name)

namespace qcn::QCN_INSTRUCTION_SET {  // the name comes from CMakeLists.txt

constexpr size_t kLanes = QCN_LANES;
typedef float Vec __attribute__((vector_size(4 * QCN_LANES)));
typedef int32_t VecInt __attribute__((vector_size(4 * QCN_LANES)));

inline Vec broadcast(float x) { return x - Vec{}; }

inline Vec load(const float* from) {
  Vec x;
  memcpy(&x, from, sizeof x);
  return x;
}

// On x86, computed when its turn comes: of vectors that are made all at once the compiler keeps some in memory.
inline Vec in_order(Vec x) {
#if QCN_LANES == 16
  __asm__ volatile("" : "+v"(x));
#elif defined(__SSE2__)
  __asm__ volatile("" : "+x"(x));
#endif
  return x;
}

inline void store(float* to, Vec x) { memcpy(to, &x, sizeof x); }

// Loads even what is in a register already. A multiply-add overwrites the number it adds to: a constant start is better
// loaded each time, while the load units idle, than kept and copied by the units that multiply.
inline Vec reload(const Vec* from) { return *static_cast<const volatile Vec*>(from); }

// a * b + c, in one instruction where there is one, also in files that are compiled without fusing.
inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#elif QCN_LANES == 16
  return _mm512_fmadd_ps(a, b, c);
#elif QCN_LANES == 8
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// The larger of the two. A NaN in b is kept: on x86 one in a is not.
inline Vec max(Vec a, Vec b) {
#if defined(__aarch64__)
  return vmaxq_f32(a, b);
#elif defined(__wasm_simd128__)
  return wasm_f32x4_pmax(b, a);
#elif defined(__wasm__)
  return a > b ? a : b;
#elif QCN_LANES == 16
  return _mm512_max_ps(a, b);
#elif QCN_LANES == 8
  return _mm256_max_ps(a, b);
#else
  return _mm_max_ps(a, b);
#endif
}

// The smaller of the two, with NaNs likewise.
inline Vec min(Vec a, Vec b) {
#if defined(__aarch64__)
  return vminq_f32(a, b);
#elif defined(__wasm_simd128__)
  return wasm_f32x4_pmin(b, a);
#elif defined(__wasm__)
  return a < b ? a : b;
#elif QCN_LANES == 16
  return _mm512_min_ps(a, b);
#elif QCN_LANES == 8
  return _mm256_min_ps(a, b);
#else
  return _mm_min_ps(a, b);
#endif
}

inline Vec sqrt(Vec x) {
#if defined(__aarch64__)
  return vsqrtq_f32(x);
#elif defined(__wasm_simd128__)
  return wasm_f32x4_sqrt(x);
#elif defined(__wasm__)
  return Vec{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]), __builtin_sqrtf(x[3])};
#elif QCN_LANES == 16
  return _mm512_sqrt_ps(x);
#elif QCN_LANES == 8
  return _mm256_sqrt_ps(x);
#else
  return _mm_sqrt_ps(x);
#endif
}

inline bool any(VecInt mask) {
#if QCN_LANES == 16
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0;
#else
  uint64_t words[sizeof mask / 8], all = 0;
  memcpy(words, &mask, sizeof mask);
  for (uint64_t word : words) all |= word;
  return all != 0;
#endif
}

inline Vec select(VecInt mask, Vec yes, Vec no) { return mask ? yes : no; }

inline Vec from_bits(VecInt bits) { return reinterpret_cast<Vec>(bits); }
inline VecInt to_bits(Vec x) { return reinterpret_cast<VecInt>(x); }

constexpr float kLog2E = 1.44269504f, kLog2ERest = 1.92596299e-8f;  // their sum is log2(e) to 48 bits
constexpr float kLn2 = 0.693147181f;

// Adding kRound to a number of magnitude below 2^22 rounds it to an integer n and leaves n + 127, the exponent field
// of 2^n, in the lowest bits of the sum.
constexpr float kRound = 12582912.0f + 127.0f;

// 2^f for f in [-0.5, 0.5]: the minimax polynomial, off by a relative 9.3e-8. Several at a time, term by term.
template <size_t n>
inline void exp2_fraction(const Vec (&f)[n], Vec (&power)[n]) {
#define QCN_ALL_LANES(x) ((x)-Vec{})
  static const Vec kTerms[6] = {QCN_ALL_LANES(1.326952129e-3f), QCN_ALL_LANES(9.671291336e-3f),
                                QCN_ALL_LANES(5.550710857e-2f), QCN_ALL_LANES(2.402224690e-1f),
                                QCN_ALL_LANES(6.931470037e-1f), QCN_ALL_LANES(1.0f)};
#undef QCN_ALL_LANES
  for (size_t i = 0; i < n; ++i) power[i] = kTerms[0];
  for (size_t term = 1; term < 6; ++term) {
    for (size_t i = 0; i < n; ++i) power[i] = power[i] * f[i] + reload(&kTerms[term]);
  }
}

inline Vec exp2_integer(Vec rounded) { return from_bits(to_bits(rounded) << 23); }

// e^x for x <= 0; below -87 it is 0.
inline Vec exp(Vec x) {
  x = max(broadcast(-88.0f), x);
  Vec rounded = x * kLog2E + kRound;
  Vec n = rounded - kRound;
  Vec f[1] = {x * kLog2ERest + (x * kLog2E - n)}, power[1];
  exp2_fraction(f, power);
  return power[0] * exp2_integer(rounded);
}

// The natural logarithm of a positive normal number, to about one unit in the last place (polynomial: Cephes' logf).
inline Vec log(Vec x) {
  VecInt exponent = (to_bits(x) - 0x3f3504f3) >> 23;  // so that x = m * 2^exponent with m in [sqrt(1/2), sqrt(2))
  Vec f = from_bits(to_bits(x) - (exponent << 23)) - 1.0f;
  Vec e = __builtin_convertvector(exponent, Vec);
  Vec p = 7.0376836292e-2f * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  Vec square = f * f;
  Vec tail = p * f * square - 2.12194440e-4f * e - 0.5f * square;
  Vec result = f + tail + 0.693359375f * e;
  return select(x < 3e38f, result, x);  // infinity and NaN stay what they are
}

inline Vec magnitude(Vec x) { return from_bits(to_bits(x) & 0x7fffffff); }

inline Vec sigmoid(Vec x) {
  Vec small = exp(-magnitude(x));
  return select(x < 0.0f, small, broadcast(1.0f)) / (1.0f + small);
}

inline Vec log_sigmoid(Vec x) {
  Vec small = exp(-magnitude(x));
  Vec one_and = 1.0f + small;
  Vec log1p = log(one_and) + (small - (one_and - 1.0f)) / one_and;  // what the rounding of 1 + small lost
  return select(x < 0.0f, x, x - x) - log1p;
}

}  // namespace qcn::QCN_INSTRUCTION_SET

#endif

// One vector of float16 lanes, for bodies that compute in half precision: AVX-512-FP16 with 32 lanes, NEON with 8.
// Twice as many as a vector of float32, so that a Half widens to two of those.
//
// A rotation's entry must reach all lanes of a product for free. NEON multiplies by a lane of a register: its lanes are
// 8 windows. AVX-512 loads 32 bits into all lanes for free, but not 16: so its lanes are 16 windows times two parents,
// beside each other, and the 32 bits are the entries of both parents. A layer of 16 windows, which 32 would leave half
// empty, then fills a vector too.
#ifndef QCN_KERNELS_HALF_VECTOR_H
#define QCN_KERNELS_HALF_VECTOR_H

#include "vector.h"

namespace qcn::QCN_INSTRUCTION_SET {

constexpr size_t kSummed = 8;  // children that are worked at together, and whose sums are float16

struct Wide {  // a Half in float32, lane by lane
  Vec low, high;

  Wide& operator+=(const Wide& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
};

inline Wide operator*(const Wide& x, float scale) { return {x.low * scale, x.high * scale}; }

#if defined(__aarch64__)

constexpr size_t kTogether = 1;  // parents in a vector
typedef float16x8_t Half;

inline Half half_broadcast(float x) { return vdupq_n_f16(static_cast<float16_t>(x)); }
inline Half max(Half a, Half b) { return vmaxq_f16(a, b); }
inline Half min(Half a, Half b) { return vminq_f16(a, b); }
inline Wide widen(Half x) { return {vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)}; }
inline Half narrow(const Wide& x) { return vcvt_high_f16_f32(vcvt_f16_f32(x.low), x.high); }

// Two vectors of float32 in the lanes of a Half, and back: NEON's are windows 0 to 3 and 4 to 7, AVX-512's two parents.
inline Wide interleave(Vec first, Vec second) { return {first, second}; }
inline Wide split(const Wide& x) { return x; }

// A number per window, of all windows: in float32 (kParts vectors), as it is stored, and as all parents of it read it.
constexpr size_t kParts = 2;
typedef Half Stored;
inline Stored store_windows(const Vec* parts) { return narrow({parts[0], parts[1]}); }
inline Half for_all_parents(Stored x) { return x; }

// Of lanes that are the same window with another parent, of which there are none.
inline Half max_of_parents(Half x) { return x; }
inline void sum_of_parents(Half x, Vec* parts) {
  const Wide wide = widen(x);
  parts[0] = wide.low;
  parts[1] = wide.high;
}

// An entry of the rotation of child k, for all lanes. `rotations`: of kSummed children, entry by entry, so that a
// vector has one entry of all children (half_neon.h multiplies by its lanes).
constexpr size_t kChildStep = 1, kEntryStep = kSummed;
inline Half entry_of(const uint16_t* rotations, size_t k, size_t entry) {
  return vld1q_dup_f16(reinterpret_cast<const float16_t*>(rotations + k * kChildStep + entry * kEntryStep));
}

// 1 / x and 1 / sqrt(x), off by a relative 6e-5 at most.
inline Vec inverse(Vec x) {
  const Vec guess = vrecpeq_f32(x);
  return guess * vrecpsq_f32(guess, x);
}
inline Vec inverse_root(Vec x) {
  const Vec guess = vrsqrteq_f32(x);
  return guess * vrsqrtsq_f32(guess * guess, x);
}

inline Half minus_square(Half x, Half start) { return vfmsq_f16(start, x, x); }
inline Half multiply_add(Half a, Half b, Half start) { return vfmaq_f16(start, a, b); }

inline Half nearest_integer(Half x) { return vrndnq_f16(x); }
inline Half select_below(Half x, Half bound, Half below) {  // `below` where x < bound, else 0
  return vreinterpretq_f16_u16(vandq_u16(vcltq_f16(x, bound), vreinterpretq_u16_f16(below)));
}
inline bool any_below(Half x, float bound) { return vmaxvq_u16(vcltq_f16(x, half_broadcast(bound))) != 0; }
inline Half exponent_field(Half x) { return vreinterpretq_f16_u16(vshlq_n_u16(vreinterpretq_u16_f16(x), 10)); }

#else

constexpr size_t kTogether = 2;
typedef __m512h Half;

inline Half half_broadcast(float x) { return _mm512_set1_ph(static_cast<_Float16>(x)); }
inline Half max(Half a, Half b) { return _mm512_max_ph(a, b); }
inline Half min(Half a, Half b) { return _mm512_min_ph(a, b); }

inline Wide widen(Half x) {
  const __m512i bits = _mm512_castph_si512(x);
  return {_mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_castsi512_si256(bits))),
          _mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_extracti64x4_epi64(bits, 1)))};
}

inline Half narrow(const Wide& x) {
  const __m512i low = _mm512_castsi256_si512(_mm256_castph_si256(_mm512_cvtxps_ph(x.low)));
  return _mm512_castsi512_ph(_mm512_inserti64x4(low, _mm256_castph_si256(_mm512_cvtxps_ph(x.high)), 1));
}

inline Wide interleave(Vec first, Vec second) {
  return {__builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
          __builtin_shufflevector(first, second, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
}

inline Wide split(const Wide& x) {
  return {__builtin_shufflevector(x.low, x.high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
          __builtin_shufflevector(x.low, x.high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)};
}

constexpr size_t kParts = 1;
typedef __m256i Stored;
inline Stored store_windows(const Vec* parts) { return _mm256_castph_si256(_mm512_cvtxps_ph(parts[0])); }
inline Half for_all_parents(Stored x) {
  const __m512i once = _mm512_cvtepu16_epi32(x);
  return _mm512_castsi512_ph(_mm512_or_si512(once, _mm512_slli_epi32(once, 16)));
}

inline Half swap_parents(Half x) { return _mm512_castsi512_ph(_mm512_rol_epi32(_mm512_castph_si512(x), 16)); }
inline Half max_of_parents(Half x) { return max(x, swap_parents(x)); }
inline void sum_of_parents(Half x, Vec* parts) {
  const __m512i sum = _mm512_castph_si512(x + swap_parents(x));
  parts[0] = _mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_cvtepi32_epi16(sum)));
}

constexpr size_t kChildStep = 9 * kTogether, kEntryStep = kTogether;
inline Half entry_of(const uint16_t* rotations, size_t k, size_t entry) {
  int both;
  memcpy(&both, rotations + k * kChildStep + entry * kEntryStep, sizeof both);
  return _mm512_castsi512_ph(_mm512_set1_epi32(both));
}

inline Vec inverse(Vec x) { return _mm512_rcp14_ps(x); }
inline Vec inverse_root(Vec x) { return _mm512_rsqrt14_ps(x); }

inline Half minus_square(Half x, Half start) { return _mm512_fnmadd_ph(x, x, start); }
inline Half multiply_add(Half a, Half b, Half start) { return _mm512_fmadd_ph(a, b, start); }

inline Half nearest_integer(Half x) { return _mm512_roundscale_ph(x, 0); }
inline Half select_below(Half x, Half bound, Half below) {
  const __mmask32 yes = _mm512_cmp_ph_mask(x, bound, _CMP_LT_OQ);
  return _mm512_castsi512_ph(_mm512_maskz_mov_epi16(yes, _mm512_castph_si512(below)));
}
inline bool any_below(Half x, float bound) { return _mm512_cmp_ph_mask(x, half_broadcast(bound), _CMP_LT_OQ) != 0; }
inline Half exponent_field(Half x) { return _mm512_castsi512_ph(_mm512_slli_epi16(_mm512_castph_si512(x), 10)); }

#endif

inline Half reload(const Half* from) { return *static_cast<const volatile Half*>(from); }

// The vote of child k, or what it adds to `sum`.
inline void set_vote(const uint16_t* rotations, size_t k, const Half* pose, Half sum[3]) {
  for (size_t h = 0; h < 3; ++h) sum[h] = entry_of(rotations, k, 3 * h) * pose[0];
  for (size_t axis = 1; axis < 3; ++axis) {
    for (size_t h = 0; h < 3; ++h) sum[h] = multiply_add(entry_of(rotations, k, 3 * h + axis), pose[axis], sum[h]);
  }
}
inline void add_vote(const uint16_t* rotations, size_t k, const Half* pose, Half sum[3]) {
  for (size_t axis = 0; axis < 3; ++axis) {
    for (size_t h = 0; h < 3; ++h) sum[h] = multiply_add(entry_of(rotations, k, 3 * h + axis), pose[axis], sum[h]);
  }
}

// Powers of 2 of x less an integer near the largest x of a child. Adding kRound + 15 to a number of magnitude below 512
// rounds it to an integer n and leaves n + 15, the exponent field of 2^n, in the lowest bits of the sum. What is below
// 2^-14.5 becomes 0. The polynomial is the minimax one of 2^f for f in [-0.5, 0.5], off by a relative 7.5e-5, where
// float16 has 4.9e-4.
class Powers {
  static constexpr float kRound = 1536.0f;

 public:
  static constexpr float kFar = -500.0f;  // kRound does not round beyond 512: such a largest x is subtracted instead
  static constexpr size_t kTerms = 4;     // of 2^f, that of f^3 first; in memory, as for exp2_fraction
  static void set_terms(Half* terms) {
    const float values[kTerms] = {0.0551717f, 0.2426111f, 0.6932610f, 1.0f};
    for (size_t i = 0; i < kTerms; ++i) terms[i] = half_broadcast(values[i]);
  }

  static constexpr size_t kChildren = 4;  // worked at together
  Half floor[kChildren], round[kChildren], offset[kChildren];
  bool subtract;

  explicit Powers(const Half* largest) {
    Half least = largest[0];
    for (size_t k = 1; k < kChildren; ++k) least = min(least, largest[k]);
    subtract = any_below(least, kFar);
    const Half magic = half_broadcast(kRound);
    for (size_t k = 0; k < kChildren; ++k) {
      Half nearest = (largest[k] + magic) - magic;
      offset[k] = Half{};
      if (__builtin_expect(subtract, false)) {
        nearest = nearest_integer(largest[k]);
        offset[k] = select_below(largest[k], half_broadcast(kFar), nearest);
        nearest -= offset[k];
      }
      round[k] = half_broadcast(kRound + 15.0f) - nearest;
      floor[k] = nearest - half_broadcast(15.0f);
    }
  }

  struct OfChild {
    Half floor, round, offset;
    bool subtract;

    Half operator()(Half x, const Half* terms) const {
      if (__builtin_expect(subtract, false)) x -= offset;
      Half f = max(floor, x);
      const Half rounded = f + round;
      f -= rounded - round;
      Half power = multiply_add(reload(&terms[0]), f, reload(&terms[1]));
      power = multiply_add(power, f, reload(&terms[2]));
      power = multiply_add(power, f, reload(&terms[3]));
      return power * exponent_field(rounded);
    }
  };
  OfChild of(size_t k) const { return {floor[k], round[k], offset[k], subtract}; }
};

inline Half join(Vec first, Vec second) { return narrow(interleave(first, second)); }

}  // namespace qcn::QCN_INSTRUCTION_SET

#endif

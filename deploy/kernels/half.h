// float16 numbers in software: not every compiler has a type for them on every processor.
#ifndef QCN_KERNELS_HALF_H
#define QCN_KERNELS_HALF_H

#include <cstdint>
#include <cstring>

namespace qcn {

// The value of an IEEE 754 binary16 number, which a float holds exactly.
static inline float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16, rest = half & 0x7fffU;
  // Exponent and mantissa move to where a float has them. A float's exponent has a bias that is larger by 112, which a
  // multiplication by 2^112 corrects; it also makes denormal numbers normal. Infinities and NaN are set apart below.
  std::uint32_t bits = rest << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  value *= 0x1p112f;
  std::memcpy(&bits, &value, sizeof bits);
  if (rest >= 0x7c00) bits = 0x7f800000U | (rest << 13 & 0x7fffffU);
  bits |= sign;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The nearest binary16 number, of two equally near the one that is even; infinity where there is none that large.
static inline std::uint16_t half_of_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = bits >> 16 & 0x8000U, rest = bits & 0x7fffffffU;
  if (rest > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);  // NaN
  if (rest >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (rest < 0x38800000U) {  // denormal: adding 0.5 leaves the digits that are kept at the end of the sum
    float sum;
    std::memcpy(&sum, &rest, sizeof sum);
    sum += 0.5f;
    std::memcpy(&bits, &sum, sizeof bits);
    return static_cast<std::uint16_t>(sign | (bits - 0x3f000000U));
  }
  return static_cast<std::uint16_t>(sign | ((rest - 0x38000000U + 0xfffU + (rest >> 13 & 1)) >> 13));
}

}  // namespace qcn

#endif

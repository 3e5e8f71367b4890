// float16 numbers in software: not every compiler has a type for them on every processor.
#ifndef QCN_ONNXRUNTIME_HALF_H
#define QCN_ONNXRUNTIME_HALF_H

#include <cstdint>
#include <cstring>

namespace qcn {

// The value of an IEEE 754 binary16 number, which a float holds exactly.
inline float float_of_half(std::uint16_t half) {
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

}  // namespace qcn

#endif

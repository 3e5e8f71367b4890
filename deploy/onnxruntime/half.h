// float16 numbers in software: a compiler's own type is not there for every processor.
#ifndef QCN_ONNXRUNTIME_HALF_H
#define QCN_ONNXRUNTIME_HALF_H

#include <cstdint>
#include <cstring>

namespace qcn {

// The bits of an IEEE 754 binary16 as a float: exact for every one of them.
inline float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16, rest = half & 0x7fffU;
  // Exponent and mantissa move to a float's places, whose exponent is biased by 112 more: a multiplication by 2^112
  // mends that, and makes denormals normal on its way. Infinities and NaN have an exponent of their own.
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

// Compares every float16 number with its definition, and the rounding of what lies between two of them.
#include <cmath>
#include <cstdio>

#include "half.h"

int main() {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int sign = bits & 0x8000 ? -1 : 1, exponent = static_cast<int>(bits >> 10 & 31), mantissa = bits & 1023;
    const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    const double found = double{qcn::float_of_half(static_cast<std::uint16_t>(bits))}, expected = sign * magnitude;
    const bool same =
        std::isnan(expected) ? std::isnan(found) : found == expected && std::signbit(found) == std::signbit(expected);
    wrong += !same;
    wrong += !std::isnan(expected) && qcn::half_of_float(static_cast<float>(expected)) != bits;
    if (exponent < 31) {
      // Halfway to the next number, which may be infinity: to the even one. A little more, or less: to the nearest.
      const auto next = static_cast<std::uint16_t>(bits + 1), here = static_cast<std::uint16_t>(bits);
      const double step = std::ldexp(sign, (exponent ? exponent : 1) - 25);  // to the next
      const auto half = static_cast<float>(expected + step / 2);
      wrong += qcn::half_of_float(half) != (bits & 1 ? next : here);
      wrong += qcn::half_of_float(std::nextafterf(half, 0)) != here;
      wrong += qcn::half_of_float(std::nextafterf(half, static_cast<float>(sign) * INFINITY)) != next;
    }
  }
  wrong += !std::isnan(qcn::float_of_half(qcn::half_of_float(NAN)));
  wrong += qcn::half_of_float(1e9f) != 0x7c00 || qcn::half_of_float(-1e9f) != 0xfc00 || qcn::half_of_float(1e-9f) != 0;
  if (wrong) std::printf("FAILED: %d checks of 65536 float16 numbers\n", wrong);
  return wrong != 0;
}

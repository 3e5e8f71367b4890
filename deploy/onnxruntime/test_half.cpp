// Compares every float16 number with its definition.
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
  }
  if (wrong) std::printf("FAILED: %d of 65536 float16 numbers are wrong\n", wrong);
  return wrong != 0;
}

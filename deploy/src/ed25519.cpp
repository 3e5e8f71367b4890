// The curve -x² + y² = 1 + d·x²·y² over the integers modulo p = 2²⁵⁵ - 19, with a base point B of prime order
// L = 2²⁵² + 27742317777372353535851937790883648493. A signature (R, S) of the message M by the key A holds when
//
//     S·B = R + k·A,  k = SHA-512(R, A, M) mod L
//
// It is checked as S·B - k·A, written out as bytes, which must be those of R: then R is canonical too. Constants are
// worked out from their definitions, so that none can be mistyped.
#include "ed25519.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "sha512.h"

namespace qcn {
namespace {

__extension__ typedef unsigned __int128 Wide;
using Bytes = std::array<unsigned char, 32>;  // a number of 256 bits, its least byte first

bool bit(const Bytes& number, int place) { return number[static_cast<std::size_t>(place / 8)] >> place % 8 & 1; }

// ---- numbers modulo p -----------------------------------------------------------------------------------------------

constexpr std::uint64_t kMask = (std::uint64_t{1} << 51) - 1;

// Five limbs of 51 bits, the least first. Between operations a limb may be a little above 51 bits: less than 2⁵¹ + 2¹⁸.
struct Field {
  std::uint64_t limb[5] = {};

  Field() = default;
  explicit Field(std::uint64_t small) : limb{small} {}
};

// 2²⁵⁵ is 19 modulo p: what is carried out of the last limb comes back to the first, times 19.
Field carried(Field a) {
  for (int i = 0; i < 4; ++i) {
    a.limb[i + 1] += a.limb[i] >> 51;
    a.limb[i] &= kMask;
  }
  a.limb[0] += 19 * (a.limb[4] >> 51);
  a.limb[4] &= kMask;
  return a;
}

Field operator+(Field a, const Field& b) {
  for (int i = 0; i < 5; ++i) a.limb[i] += b.limb[i];
  return carried(a);
}

// a + 2p - b, so that no limb goes below zero.
Field operator-(Field a, const Field& b) {
  for (int i = 0; i < 5; ++i) a.limb[i] += 2 * (i == 0 ? kMask - 18 : kMask) - b.limb[i];
  return carried(a);
}

Field operator*(const Field& a, const Field& b) {
  Wide sums[5] = {};
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 5; ++j) {
      const std::uint64_t wrapped = i + j < 5 ? b.limb[j] : 19 * b.limb[j];
      sums[(i + j) % 5] += Wide{a.limb[i]} * wrapped;
    }
  }
  Field product;
  Wide carry = 0;
  for (int i = 0; i < 5; ++i) {
    carry += sums[i];
    product.limb[i] = static_cast<std::uint64_t>(carry) & kMask;
    carry >>= 51;
  }
  product.limb[0] += 19 * static_cast<std::uint64_t>(carry);
  return carried(product);
}

Field power(const Field& a, const Bytes& exponent) {
  Field result(1);
  for (int place = 255; place >= 0; --place) {
    result = result * result;
    if (bit(exponent, place)) result = result * a;
  }
  return result;
}

// (2^bits - minus), for the exponents that are needed, all of this form; `minus` is at most 2⁸.
Bytes power_of_two_minus(int bits, int minus) {
  Bytes number;
  for (int i = 0; i < 32; ++i) {
    number[static_cast<std::size_t>(i)] = static_cast<unsigned char>(bits >= 8 * i + 8 ? 0xFF
                                                                     : bits > 8 * i    ? (1 << (bits - 8 * i)) - 1
                                                                                       : 0);
  }
  number[0] = static_cast<unsigned char>(0x100 - minus);
  return number;
}

Field inverse(const Field& a) { return power(a, power_of_two_minus(255, 21)); }  // a^(p - 2)

// Of 255 bits, with the uppermost left out. It may be p or more: see `decoded`.
Field from_bytes(const Bytes& bytes) {
  Field a;
  for (int place = 0; place < 255; ++place) {
    a.limb[place / 51] |= std::uint64_t{bit(bytes, place)} << place % 51;
  }
  return a;
}

// The one number below p.
Bytes to_bytes(const Field& a) {
  Field whole = carried(carried(a));  // now below 2p
  // Adding 19 carries out of the last limb exactly when the number is p or more: then a - p = a + 19 - 2²⁵⁵.
  std::uint64_t carry = 19;
  for (const std::uint64_t limb : whole.limb) carry = (limb + carry) >> 51;
  carry *= 19;
  for (std::uint64_t& limb : whole.limb) {
    carry += limb;
    limb = carry & kMask;
    carry >>= 51;
  }
  Bytes bytes = {};
  for (int place = 0; place < 255; ++place) {
    const unsigned one = whole.limb[place / 51] >> place % 51 & 1;
    bytes[static_cast<std::size_t>(place / 8)] |= static_cast<unsigned char>(one << place % 8);
  }
  return bytes;
}

bool operator==(const Field& a, const Field& b) { return to_bytes(a) == to_bytes(b); }
bool is_odd(const Field& a) { return to_bytes(a)[0] & 1; }

// ---- points of the curve --------------------------------------------------------------------------------------------

// (x/z, y/z), and t = x·y/z.
struct Point {
  Field x, y, z, t;
};

Point neutral() { return {Field(0), Field(1), Field(1), Field(0)}; }
Point negative(const Point& p) { return {Field(0) - p.x, p.y, p.z, Field(0) - p.t}; }

struct Curve {
  Field d = (Field(0) - Field(121665)) * inverse(Field(121666));
  Field root = power(Field(2), power_of_two_minus(253, 5));  // of -1: 2^((p - 1) / 4)
};

const Curve& curve() {
  static const Curve constants;
  return constants;
}

// Right for any two points, equal ones too (RFC 8032, 5.1.4).
Point operator+(const Point& p, const Point& q) {
  const Field a = (p.y - p.x) * (q.y - q.x), b = (p.y + p.x) * (q.y + q.x);
  const Field c = p.t * (curve().d + curve().d) * q.t, d = (p.z + p.z) * q.z;
  const Field e = b - a, f = d - c, g = d + c, h = b + a;
  return {e * f, g * h, f * g, e * h};
}

// m·p + n·q.
Point sum_of_multiples(const Bytes& m, const Point& p, const Bytes& n, const Point& q) {
  Point sum = neutral();
  for (int place = 255; place >= 0; --place) {
    sum = sum + sum;
    if (bit(m, place)) sum = sum + p;
    if (bit(n, place)) sum = sum + q;
  }
  return sum;
}

// y, with the lowest bit of x as the uppermost.
Bytes encoded(const Point& p) {
  const Field inverse_z = inverse(p.z);
  Bytes bytes = to_bytes(p.y * inverse_z);
  if (is_odd(p.x * inverse_z)) bytes[31] |= 0x80;
  return bytes;
}

// The point of this encoding, if there is one and this is its canonical form.
std::optional<Point> decoded(const Bytes& bytes) {
  const Field y = from_bytes(bytes), one(1);
  // x² = u / v; if it has a root, that is u·v³·(u·v⁷)^((p - 5) / 8), or this times the root of -1.
  const Field u = y * y - one, v = curve().d * y * y + one;
  const Field v3 = v * v * v;
  Field x = u * v3 * power(u * v3 * v3 * v, power_of_two_minus(252, 3));
  const Field seen = v * x * x;
  if (seen == Field(0) - u) {
    x = x * curve().root;
  } else if (!(seen == u)) {
    return std::nullopt;
  }
  if (is_odd(x) != bit(bytes, 255)) x = Field(0) - x;
  const Point point = {x, y, one, x * y};
  // Written out it differs if y was p or more, or if it asked for an odd zero.
  if (encoded(point) != bytes) return std::nullopt;
  return point;
}

const Point& base() {  // y = 4 / 5, x even
  static const Point point = *decoded(to_bytes(Field(4) * inverse(Field(5))));
  return point;
}

// The point of a key, unless it is of small order: 8·A is then the neutral element.
std::optional<Point> key_point(const PublicKey& key) {
  const std::optional<Point> point = decoded(key);
  if (!point) return std::nullopt;
  const Point two = *point + *point, four = two + two;
  if (encoded(four + four) == encoded(neutral())) return std::nullopt;
  return point;
}

// ---- numbers modulo L -----------------------------------------------------------------------------------------------

constexpr Bytes kOrder = {0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7,
                          0xa2, 0xde, 0xf9, 0xde, 0x14, 0,    0,    0,    0,    0,    0,
                          0,    0,    0,    0,    0,    0,    0,    0,    0,    0x10};

bool below_order(const Bytes& number) {
  return std::lexicographical_compare(number.rbegin(), number.rend(), kOrder.rbegin(), kOrder.rend());
}

// A number of 512 bits, its least byte first, modulo L: bit by bit from the uppermost on.
Bytes modulo_order(const std::array<unsigned char, 64>& number) {
  Bytes rest = {};
  for (int place = 511; place >= 0; --place) {
    unsigned carry = number[static_cast<std::size_t>(place / 8)] >> place % 8 & 1;
    for (unsigned char& byte : rest) {  // twice the rest, which is below L and so has room for it
      carry |= static_cast<unsigned>(byte) << 1;
      byte = static_cast<unsigned char>(carry);
      carry >>= 8;
    }
    if (below_order(rest)) continue;
    int borrowed = 0;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      const int difference = rest[i] - kOrder[i] - borrowed;
      borrowed = difference < 0;
      rest[i] = static_cast<unsigned char>(difference + 256 * borrowed);
    }
  }
  return rest;
}

}  // namespace

bool is_public_key(const PublicKey& key) { return key_point(key).has_value(); }

bool verify_ed25519(const PublicKey& key, std::string_view message, std::string_view signature) {
  if (signature.size() != 64) return false;
  Bytes r, s;
  std::memcpy(r.data(), signature.data(), r.size());
  std::memcpy(s.data(), signature.data() + r.size(), s.size());
  const std::optional<Point> point = key_point(key);
  if (!point || !below_order(s)) return false;
  std::string hashed(signature.substr(0, r.size()));
  hashed.append(reinterpret_cast<const char*>(key.data()), key.size()).append(message);
  return encoded(sum_of_multiples(s, base(), modulo_order(sha512(hashed)), negative(*point))) == r;
}

}  // namespace qcn

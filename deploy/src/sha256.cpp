#include "sha256.h"

#include <cstdint>
#include <cstring>

// Clang declares the instructions for one function only since version 16.
#if defined(__aarch64__) && defined(__linux__) && (!defined(__clang__) || __clang_major__ >= 16)
#define QCN_ARM_SHA
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace qcn {
namespace {

constexpr std::size_t kBlock = 64;

alignas(16) constexpr std::uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t rotate(std::uint32_t x, int by) { return x >> by | x << (32 - by); }

void plain_blocks(std::uint32_t state[8], const unsigned char* data, std::size_t blocks) {
  for (; blocks > 0; --blocks, data += kBlock) {
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      const unsigned char* p = data + 4 * i;
      w[i] = std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
    }
    for (int i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    std::uint32_t s[8];
    std::memcpy(s, state, sizeof s);
    // The names of the eight words move on by one each round, not the words: after eight rounds all is in its place.
    for (int i = 0; i < 64; i += 8) {
      for (int k = 0; k < 8; ++k) {
        std::uint32_t &a = s[(8 - k) % 8], &d = s[(11 - k) % 8], &e = s[(12 - k) % 8], &h = s[(15 - k) % 8];
        const std::uint32_t b = s[(9 - k) % 8], c = s[(10 - k) % 8], f = s[(13 - k) % 8], g = s[(14 - k) % 8];
        h += (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i + k] + w[i + k];
        d += h;
        h += (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      }
    }
    for (int i = 0; i < 8; ++i) state[i] += s[i];
  }
}

#if defined(QCN_ARM_SHA)
#if defined(__clang__)
__attribute__((target("sha2")))
#else
__attribute__((target("+crypto")))
#endif
void arm_blocks(std::uint32_t state[8], const unsigned char* data, std::size_t blocks) {
  uint32x4_t low = vld1q_u32(state), high = vld1q_u32(state + 4);
  for (; blocks > 0; --blocks, data += kBlock) {
    uint32x4_t w[4];
    for (int i = 0; i < 4; ++i) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)));
    const uint32x4_t low_before = low, high_before = high;
    for (int i = 0; i < 16; ++i) {
      const uint32x4_t words = vaddq_u32(w[i % 4], vld1q_u32(kRound + 4 * i));
      if (i < 12) w[i % 4] = vsha256su1q_u32(vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]), w[(i + 2) % 4], w[(i + 3) % 4]);
      const uint32x4_t low_now = low;
      low = vsha256hq_u32(low, high, words);
      high = vsha256h2q_u32(high, low_now, words);
    }
    low = vaddq_u32(low, low_before);
    high = vaddq_u32(high, high_before);
  }
  vst1q_u32(state, low);
  vst1q_u32(state + 4, high);
}
#endif

using Blocks = void (*)(std::uint32_t state[8], const unsigned char* data, std::size_t blocks);

Blocks blocks_for_this_cpu() {
#if defined(QCN_ARM_SHA)
  if (getauxval(AT_HWCAP) & HWCAP_SHA2) return arm_blocks;
#endif
  return plain_blocks;
}

std::string digest(const void* data, std::size_t size, Blocks add_blocks) {
  std::uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto bytes = static_cast<const unsigned char*>(data);
  const std::size_t rest = size % kBlock;
  add_blocks(state, bytes, size / kBlock);
  // The rest, a one bit, zeros, and the length in bits.
  unsigned char last[2 * kBlock] = {};
  if (rest > 0) std::memcpy(last, bytes + (size - rest), rest);
  last[rest] = 0x80;
  const std::size_t end = rest < kBlock - 8 ? kBlock : 2 * kBlock;
  for (std::size_t i = 0; i < 8; ++i) last[end - 1 - i] = static_cast<unsigned char>(std::uint64_t{size} * 8 >> 8 * i);
  add_blocks(state, last, end / kBlock);

  std::string digits;
  for (const std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 15];
  }
  return digits;
}

}  // namespace

std::string sha256(const void* data, std::size_t size) { return digest(data, size, blocks_for_this_cpu()); }

std::string plain_sha256(const void* data, std::size_t size) { return digest(data, size, plain_blocks); }

}  // namespace qcn

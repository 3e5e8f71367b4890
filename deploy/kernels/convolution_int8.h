// Exact convolutions of integers on CPUs, as export/program/program.py defines them. Shapes and layouts are
// those of convolution.h, but a map that is read has bytes, and the channels of a pixel are filled up to a multiple of
// four: four products are summed at once.
//
// A byte is the integer q, or q + 128 where the kernels multiply unsigned bytes (`zero` is then 128, and what that adds
// is taken off the bias). The border has `zero`.
#ifndef QCN_KERNELS_CONVOLUTION_INT8_H
#define QCN_KERNELS_CONVOLUTION_INT8_H

#include <stddef.h>
#include <stdint.h>

#include "convolution.h"

namespace qcn {

struct IntegerConvolution {
  Convolution shape;   // its weight is unused
  const void* packed;  // as pack_integers lays it out
  float out_scale;     // not 0: what is written is bytes for a reader of this scale, a map with a border
};

// The map as bytes: channels filled up.
static inline Map byte_map(Map map) {
  map.channels = (map.channels + 3) / 4 * 4;
  return map;
}

// Depthwise kernels are at most as large: their sums, of bytes up to 255 times weights up to 127, stay below 2^24.
constexpr size_t kMostIntegerKernel = 22;

size_t packed_integer_bytes(const IntegerConvolution& c);
// Of each source: weights [channels out, channels in, or 1 if depthwise, kernel, kernel], scales [channels out] (of
// input times weight). bias: [channels out].
void pack_integers(const IntegerConvolution& c, const int8_t* const* weights, const float* const* scales,
                   const int32_t* bias, void* packed);

// in: of each source, its map of bytes; out: float32, or bytes if c.out_scale is not 0.
void convolve_integers(const IntegerConvolution& c, size_t batch, const uint8_t* const* in, void* out);

// The bytes of a map from the same map in float32; their borders stay.
void quantise_map(const Map& map, size_t batch, float scale, const float* in, uint8_t* out);

uint8_t integer_zero();
const char* integer_instruction_set();

// What the driver and the kernels, one copy per instruction set, know of each other.
struct IntegerCall {
  const IntegerConvolution* convolution;
  const uint8_t* in[2];
  void* out;
};

struct IntegerKernels {
  const char* instruction_set;
  size_t lanes, block_vectors, tile_pixels;
  size_t weight_bytes;  // of a weight: 1, or 2
  bool taps_first;      // of `lanes` channels and four taps: [tap][channel], not [channel][tap]
  uint8_t zero;
  void (*convolve_block)(const IntegerCall& call, size_t block, const uint8_t* packed, size_t first_pixel,
                         size_t pixels);
  void (*convolve_rows)(const IntegerCall& call, size_t first_row, size_t rows);  // depthwise
  void (*quantise)(const float* in, size_t count, float scale, uint8_t* out);
};

#define QCN_INTEGER_KERNELS(set)               \
  namespace set {                              \
  extern const IntegerKernels integer_kernels; \
  }
#if defined(__aarch64__)
QCN_INTEGER_KERNELS(neon)
QCN_INTEGER_KERNELS(neondot)
#elif defined(__wasm__)
QCN_INTEGER_KERNELS(simd128)
QCN_INTEGER_KERNELS(plain)
#else
QCN_INTEGER_KERNELS(sse2)
QCN_INTEGER_KERNELS(avx2)
QCN_INTEGER_KERNELS(avxvnni)
QCN_INTEGER_KERNELS(avx512vnni)
#endif
#undef QCN_INTEGER_KERNELS

}  // namespace qcn

#endif

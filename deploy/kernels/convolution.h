// Convolutions on CPUs: square kernels, any stride and padding, one or two maps, with the activation function fused. A
// linear layer is one too: of a map of one pixel, whose channels are all its inputs.
//
// A map of features has the channels of a pixel together and a border of zeros, as wide as the largest padding that a
// convolution of it asks for:
//     [batch][height + 2 * border][width + 2 * border][channels]
// So a row of a 3x3 window is one run of 3 * channels numbers, nothing asks where the image ends, and a convolution is
// a sum over runs: three for a 3x3 kernel, one for a 1x1. Two convolutions that are added up are one sum over the runs
// of two maps. The lanes of a vector are output channels.
//
// In a depthwise convolution each channel is made of the one channel of the same number: see convolution_depthwise.h.
#ifndef QCN_KERNELS_CONVOLUTION_H
#define QCN_KERNELS_CONVOLUTION_H

#include <stddef.h>

namespace qcn {

struct Map {
  size_t height, width, channels, border;
};

// Numbers from one row, and from one image, to the next. All functions here are static: the linker might else give the
// driver the copy of one that was compiled for another instruction set.
static inline size_t row_floats(const Map& map) { return (map.width + 2 * map.border) * map.channels; }
static inline size_t image_floats(const Map& map) { return (map.height + 2 * map.border) * row_floats(map); }
// From the beginning of an image to its first pixel, behind a border of this width.
static inline size_t inside(const Map& map, size_t border) { return border * (row_floats(map) + map.channels); }

// The activation function.
enum class Ending { kNone, kRelu, kRelu6, kSigmoid };

struct Convolution {
  struct Source {
    Map map;
    size_t kernel, stride, padding;  // kernel: so many runs; padding: at most the map's border
  };

  Source sources[2];
  size_t source_count;
  Map out;         // height = (source height + 2 * padding - kernel) / stride + 1, and width likewise
  bool planar;     // what is written is [batch][channels][height][width], as routing reads it, not a map with a border
  bool depthwise;  // one source, of as many channels
  Ending ending;
  const float* weight;  // as pack_weights lays it out: biases first
};

// Multiply-adds of a number that a depthwise convolution writes, and the rows that an item of the pool has.
static inline size_t depthwise_taps(const Convolution& c) { return c.sources[0].kernel * c.sources[0].kernel; }
static inline size_t depthwise_item_rows(const Convolution& c) {
  constexpr size_t kItemWork = 25000;  // a multiply-add takes longer than those of other convolutions
  return kItemWork / (depthwise_taps(c) * c.out.width * c.out.channels) + 1;
}

size_t packed_floats(const Convolution& convolution);
// weights: of each source, [channels out, channels in, or 1 if depthwise, kernel, kernel]; bias: [channels out]
void pack_weights(const Convolution& convolution, const float* const* weights, const float* bias, float* packed);

// in: of each source, its map. The border of `out` is left as it is. Whatever the number of threads or of images, a
// pixel's sum is in the same order, so its bits are the same.
void convolve(const Convolution& convolution, size_t batch, const float* const* in, float* out);

// What the driver (convolution.cpp) and the kernels, one copy per instruction set, know of each other: a block is the
// output channels that one sum works at, a tile so many pixels.
struct ConvolutionCall {
  const Convolution* convolution;
  size_t batch;
  const float* in[2];
  float* out;
};

struct ConvolutionKernels {
  size_t lanes, block_vectors, tile_pixels;
  // Pixels are numbered through all images. `weight`: of the block.
  void (*convolve_block)(const ConvolutionCall& call, size_t block, const float* weight, size_t first_pixel,
                         size_t pixels);
  // Depthwise. Rows are numbered through all images too.
  void (*convolve_rows)(const ConvolutionCall& call, size_t first_row, size_t rows);
};

#if defined(__aarch64__)
namespace neon {
extern const ConvolutionKernels convolution_kernels;
}
#elif defined(__wasm__)
namespace simd128 {
extern const ConvolutionKernels convolution_kernels;
}
namespace plain {
extern const ConvolutionKernels convolution_kernels;
}
#else
namespace sse2 {
extern const ConvolutionKernels convolution_kernels;
}
namespace avx2 {
extern const ConvolutionKernels convolution_kernels;
}
namespace avx512 {
extern const ConvolutionKernels convolution_kernels;
}
#endif

}  // namespace qcn

#endif

// Lays weights out for the kernels of this CPU, and hands out their work.
#include "convolution.h"

#include <algorithm>

#include "for_this_cpu.h"
#include "threads.h"

namespace qcn {
namespace {

const ConvolutionKernels& kernels() {
  static const ConvolutionKernels& chosen = QCN_FOR_THIS_CPU(convolution_kernels);
  return chosen;
}

// An item of the pool has at least so many multiply-adds, several microseconds: few enough that threads end together.
constexpr size_t kItemWork = 100000;

// Multiply-adds of a number that is written.
size_t taps_of(const Convolution& c) {
  size_t taps = 0;
  for (size_t s = 0; s < c.source_count; ++s) {
    taps += c.sources[s].kernel * c.sources[s].kernel * c.sources[s].map.channels;
  }
  return taps;
}

size_t vectors_of(const Convolution& c) { return (c.out.channels + kernels().lanes - 1) / kernels().lanes; }

size_t blocks_of(const Convolution& c) {
  return (vectors_of(c) + kernels().block_vectors - 1) / kernels().block_vectors;
}

// Output channels of a block, padded to whole vectors. Only the last one has fewer vectors than the others.
size_t block_channels(const Convolution& c, size_t block) {
  return std::min(kernels().block_vectors, vectors_of(c) - block * kernels().block_vectors) * kernels().lanes;
}

size_t block_offset(const Convolution& c, size_t block) {
  return block * kernels().block_vectors * kernels().lanes * (taps_of(c) + 1);
}

}  // namespace

size_t packed_floats(const Convolution& c) {
  if (c.depthwise) return c.out.channels * (depthwise_taps(c) + 1);
  return vectors_of(c) * kernels().lanes * (taps_of(c) + 1);
}

// Depthwise: the biases, then for each place of the kernel the weights of all channels. Else block by block: the biases
// of its channels, then for each number of each run the weights of these channels. Channels that only fill up a vector
// have zeros, and are never written.
void pack_weights(const Convolution& c, const float* const* weights, const float* bias, float* packed) {
  if (c.depthwise) {
    const size_t taps = depthwise_taps(c);
    packed = std::copy_n(bias, c.out.channels, packed);
    for (size_t i = 0; i < taps * c.out.channels; ++i) {
      *packed++ = weights[0][i % c.out.channels * taps + i / c.out.channels];
    }
    return;
  }
  size_t channel = 0;
  for (size_t block = 0; block < blocks_of(c); ++block) {
    size_t width = block_channels(c, block);
    auto pack = [&](auto value_of) {
      for (size_t i = 0; i < width; ++i) *packed++ = channel + i < c.out.channels ? value_of(channel + i) : 0.0f;
    };
    pack([&](size_t out) { return bias[out]; });
    for (size_t s = 0; s < c.source_count; ++s) {
      size_t kernel = c.sources[s].kernel, channels = c.sources[s].map.channels;
      for (size_t ky = 0; ky < kernel; ++ky) {
        for (size_t kx = 0; kx < kernel; ++kx) {
          for (size_t in = 0; in < channels; ++in) {
            pack([&](size_t out) { return weights[s][((out * channels + in) * kernel + ky) * kernel + kx]; });
          }
        }
      }
    }
    channel += width;
  }
}

void convolve(const Convolution& c, size_t batch, const float* const* in, float* out) {
  ConvolutionCall call{&c, batch, {in[0], c.source_count > 1 ? in[1] : nullptr}, out};
  const ConvolutionKernels& k = kernels();
  if (c.depthwise) {
    const size_t rows = batch * c.out.height, item_rows = depthwise_item_rows(c);
    parallel_for((rows + item_rows - 1) / item_rows, 0, [&](size_t item, float*) {
      k.convolve_rows(call, item * item_rows, std::min(item_rows, rows - item * item_rows));
    });
    return;
  }
  size_t pixels = batch * c.out.height * c.out.width;
  size_t tile_work = k.tile_pixels * k.block_vectors * k.lanes * taps_of(c);
  size_t item_pixels = std::max<size_t>(kItemWork / tile_work + 1, 2) * k.tile_pixels;  // two fit small maps better
  size_t items = (pixels + item_pixels - 1) / item_pixels;
  // Items beside each other share their weights, which stay in the cache of their core.
  parallel_for(items * blocks_of(c), 0, [&](size_t item, float*) {
    size_t block = item / items, first = item % items * item_pixels;
    k.convolve_block(call, block, c.weight + block_offset(c, block), first, std::min(item_pixels, pixels - first));
  });
}

}  // namespace qcn

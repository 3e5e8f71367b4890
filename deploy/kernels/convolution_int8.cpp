// Lays integers out for the kernels of this CPU, and hands out their work.
#include "convolution_int8.h"

#include <algorithm>
#include <cstring>

#include "for_this_cpu.h"
#include "threads.h"

namespace qcn {
namespace {

const IntegerKernels& kernels() {
  static const IntegerKernels& chosen = QCN_INTEGERS_FOR_THIS_CPU(integer_kernels);
  return chosen;
}

constexpr size_t kItemWork = 400000;  // as in convolution.cpp; integers take a quarter of the time

size_t quads_of(const Convolution::Source& s) {  // four products each, of a number that is written
  return s.kernel * s.kernel * byte_map(s.map).channels / 4;
}

size_t quads_of(const Convolution& c) {
  size_t quads = 0;
  for (size_t s = 0; s < c.source_count; ++s) quads += quads_of(c.sources[s]);
  return quads;
}

size_t vectors_of(const Convolution& c) { return (c.out.channels + kernels().lanes - 1) / kernels().lanes; }
size_t blocks_of(const Convolution& c) {
  return (vectors_of(c) + kernels().block_vectors - 1) / kernels().block_vectors;
}
size_t vectors_of(const Convolution& c, size_t block) {
  return std::min(kernels().block_vectors, vectors_of(c) - block * kernels().block_vectors);
}
// Of a vector of channels: of each source a bias and a scale, and the weights.
size_t vector_bytes(const Convolution& c) {
  return kernels().lanes * (8 * c.source_count + 4 * kernels().weight_bytes * quads_of(c));
}
size_t block_bytes(const Convolution& c, size_t block) { return vectors_of(c, block) * vector_bytes(c); }

}  // namespace

uint8_t integer_zero() { return kernels().zero; }
const char* integer_instruction_set() { return kernels().instruction_set; }

size_t packed_integer_bytes(const IntegerConvolution& c) {
  if (c.shape.depthwise) return 4 * c.shape.out.channels * (depthwise_taps(c.shape) + 2);
  return vectors_of(c.shape) * vector_bytes(c.shape);
}

namespace {

// The biases of the channels, their scales, then for each place of the kernel the weights of all channels, as floats.
void pack_depthwise(const Convolution& c, const int8_t* weights, const float* scales, const int32_t* bias,
                    void* packed) {
  const size_t channels = c.out.channels, taps = depthwise_taps(c);
  auto* starts = static_cast<int32_t*>(packed);
  auto* floats = static_cast<float*>(packed) + channels;
  for (size_t i = 0; i < channels; ++i) {
    starts[i] = bias[i];
    floats[i] = scales[i];
    for (size_t t = 0; t < taps; ++t) {
      starts[i] -= kernels().zero * weights[i * taps + t];
      floats[(t + 1) * channels + i] = weights[i * taps + t];
    }
  }
}

}  // namespace

// Block by block, of each source: the biases of the block's channels, their scales, then for each four numbers of each
// run the weights. Channels and taps that only fill up have zeros.
void pack_integers(const IntegerConvolution& convolution, const int8_t* const* weights, const float* const* scales,
                   const int32_t* bias, void* packed) {
  const Convolution& c = convolution.shape;
  if (c.depthwise) return pack_depthwise(c, weights[0], scales[0], bias, packed);
  const IntegerKernels& k = kernels();
  auto* to = static_cast<uint8_t*>(packed);
  std::memset(to, 0, packed_integer_bytes(convolution));
  for (size_t block = 0; block < blocks_of(c); ++block) {
    const size_t vectors = vectors_of(c, block), first = block * k.block_vectors * k.lanes;
    const size_t width = vectors * k.lanes, valid = std::min(width, c.out.channels - first);
    for (size_t s = 0; s < c.source_count; ++s) {
      const size_t kernel = c.sources[s].kernel, channels = c.sources[s].map.channels,
                   taps = channels * kernel * kernel;
      for (size_t i = 0; i < valid; ++i) {
        uint32_t start = s == 0 ? static_cast<uint32_t>(bias[first + i]) : 0;  // wraps, as the sums do
        for (size_t t = 0; t < taps; ++t) start -= k.zero * static_cast<uint32_t>(weights[s][(first + i) * taps + t]);
        std::memcpy(to + 4 * i, &start, 4);
        std::memcpy(to + 4 * (width + i), &scales[s][first + i], 4);
      }
      to += 8 * width;
      const size_t padded = byte_map(c.sources[s].map).channels;
      for (size_t quad = 0; quad < quads_of(c.sources[s]); ++quad) {
        for (size_t v = 0; v < vectors; ++v, to += 4 * k.lanes * k.weight_bytes) {
          for (size_t lane = 0; lane < k.lanes; ++lane) {
            for (size_t tap = 0; tap < 4; ++tap) {
              const size_t number = 4 * quad + tap, in = number % padded, place = number / padded;
              const size_t channel = v * k.lanes + lane;
              if (in >= channels || channel >= valid) continue;
              const int16_t w = weights[s][((first + channel) * channels + in) * kernel * kernel + place];
              const size_t at = k.taps_first ? tap * k.lanes + lane : lane * 4 + tap;
              std::memcpy(to + at * k.weight_bytes, &w, k.weight_bytes);  // little-endian: the low byte is first
            }
          }
        }
      }
    }
  }
}

void convolve_integers(const IntegerConvolution& convolution, size_t batch, const uint8_t* const* in, void* out) {
  const Convolution& c = convolution.shape;
  const IntegerKernels& k = kernels();
  IntegerCall call{&convolution, {in[0], c.source_count > 1 ? in[1] : nullptr}, out};
  if (c.depthwise) {
    const size_t rows = batch * c.out.height, item_rows = depthwise_item_rows(c);
    parallel_for((rows + item_rows - 1) / item_rows, 0, [&](size_t item, float*) {
      k.convolve_rows(call, item * item_rows, std::min(item_rows, rows - item * item_rows));
    });
    return;
  }
  const size_t pixels = batch * c.out.height * c.out.width;
  const size_t tile_work = k.tile_pixels * k.block_vectors * k.lanes * 4 * quads_of(c);
  const size_t item_pixels = std::max<size_t>(kItemWork / tile_work + 1, 2) * k.tile_pixels;
  const size_t items = (pixels + item_pixels - 1) / item_pixels;
  parallel_for(items * blocks_of(c), 0, [&](size_t item, float*) {
    const size_t block = item / items, first = item % items * item_pixels;
    const auto* packed = static_cast<const uint8_t*>(convolution.packed);
    if (block > 0) packed += block * block_bytes(c, 0);  // only the last block has fewer vectors
    k.convolve_block(call, block, packed, first, std::min(item_pixels, pixels - first));
  });
}

void quantise_map(const Map& map, size_t batch, float scale, const float* in, uint8_t* out) {
  const Map to = byte_map(map);
  const IntegerKernels& k = kernels();
  parallel_for(batch * map.height, 0, [&](size_t row, float*) {
    const size_t image = row / map.height, y = row % map.height;
    const float* from = in + image * image_floats(map) + inside(map, map.border) + y * row_floats(map);
    uint8_t* put = out + image * image_floats(to) + inside(to, to.border) + y * row_floats(to);
    if (map.channels == to.channels) return k.quantise(from, map.width * map.channels, scale, put);
    uint8_t bytes[1024];  // of some pixels, before their channels are filled up
    const size_t most = std::max<size_t>(sizeof bytes / map.channels, 1);
    for (size_t x = 0; x < map.width; x += most) {
      const size_t pixels = std::min(most, map.width - x);
      uint8_t* first = put + x * to.channels;
      if (map.channels > sizeof bytes) {
        k.quantise(from + x * map.channels, map.channels, scale, first);
        continue;
      }
      k.quantise(from + x * map.channels, pixels * map.channels, scale, bytes);
      const uint8_t* next = bytes;
      for (size_t i = 0; i < pixels; ++i, first += to.channels) {
        for (size_t c = 0; c < map.channels; ++c) first[c] = *next++;
      }
    }
  });
}

}  // namespace qcn

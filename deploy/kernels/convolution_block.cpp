// Convolution of some pixels to a block of channels. See convolution.h for the layouts.
//
// A tile of pixels times the vectors of a block are as many sums as the registers hold: a vector of weights, once
// loaded, serves all pixels of the tile, and a number of the map, once loaded, all vectors of the block.
#include "convolution.h"
#include "convolution_depthwise.h"
#include "convolution_place.h"
#include "vector.h"

namespace qcn::QCN_INSTRUCTION_SET {
namespace {

#if defined(__aarch64__)
constexpr size_t kVectors = 2, kPixels = 8, kFewer = 4;  // 16 sums, 8 quadruples of the map, 2 weights: 26 of 32
#elif QCN_LANES == 16
constexpr size_t kVectors = 2, kPixels = 12, kFewer = 8;  // 24 sums, 2 weights, a number of the map: 27 of 32
#elif QCN_LANES == 8
constexpr size_t kVectors = 2, kPixels = 6, kFewer = 4;  // 12 sums, 2 weights, a number of the map: 15 of 16
#else
constexpr size_t kVectors = 2, kPixels = 4, kFewer = 2;  // not fused, a product needs a register of its own
#endif

// Four numbers of the map. NEON multiplies by a lane of a register, so that one load brings four; x86 broadcasts each
// from memory.
#if defined(__aarch64__)
typedef float32x4_t Four;
inline Four four(const float* from) {
  typedef float Anywhere __attribute__((vector_size(16), aligned(4)));
  return *reinterpret_cast<const volatile Anywhere*>(from);  // volatile: not four loads
}
#else
typedef const float* Four;
inline Four four(const float* from) { return from; }
#endif

// Adds `length` products to each sum. `weight` is at the run's first, and moves on to the next run's.
template <typename From, size_t pixels, size_t vectors>
inline void add_run(From from, size_t length, const float*& weight, Vec (&sum)[pixels][vectors]) {
  for (; length >= 4; length -= 4, from.advance(4)) {
    Four x[pixels];
    for (size_t p = 0; p < pixels; ++p) x[p] = four(from[p]);
    for (size_t i = 0; i < 4; ++i, weight += vectors * kLanes) {
      Vec w[vectors];
      for (size_t v = 0; v < vectors; ++v) w[v] = load(weight + v * kLanes);
      // Of large layers they come from far away.
      for (size_t v = 0; v < vectors; ++v) __builtin_prefetch(weight + (v + 64) * kLanes);
      for (size_t p = 0; p < pixels; ++p) {
        const Vec number = in_order(broadcast(x[p][i]));
        for (size_t v = 0; v < vectors; ++v) sum[p][v] = multiply_add(number, w[v], sum[p][v]);
      }
    }
  }
  for (; length > 0; --length, from.advance(1)) {
    for (size_t v = 0; v < vectors; ++v, weight += kLanes) {
      Vec w = load(weight);
      for (size_t p = 0; p < pixels; ++p) sum[p][v] += *from[p] * w;
    }
  }
}

template <typename From, size_t pixels, size_t vectors>
inline void add_runs(const Convolution::Source& source, const From& from, const float*& weight,
                     Vec (&result)[pixels][vectors]) {
  Vec sum[pixels][vectors];
  memcpy(sum, result, sizeof sum);
  for (size_t run = 0; run < source.kernel; ++run) {
    From first = from;
    first.advance(run * row_floats(source.map));
    add_run(first, source.kernel * source.map.channels, weight, sum);
  }
  memcpy(result, sum, sizeof sum);
}

// Adds what a source has for the pixels of a tile; returns where the next one's weights are. Not inlined: then all sums
// stay in registers.
template <size_t vectors, size_t tile>
__attribute__((noinline)) const float* add_source(const Convolution::Source& source, const float* const (&from)[tile],
                                                  size_t beside, const float* weight, Vec (&sum)[tile][vectors]) {
  if (equally_spaced(from, beside)) {
    add_runs(source, Spaced<float, tile>(from, beside), weight, sum);
  } else {
    add_runs(source, Scattered<float, tile>(from, 0), weight, sum);
  }
  return weight;
}

// `to`: the first of `channels` channels of a pixel, which are `step` apart.
template <size_t vectors>
void write(const Vec (&x)[vectors], size_t channels, size_t step, float* to) {
  if (step == 1 && channels == vectors * kLanes) return static_cast<void>(memcpy(to, x, sizeof x));
  if (step == 1) return static_cast<void>(memcpy(to, x, channels * sizeof(float)));
  float values[vectors * kLanes];
  memcpy(values, x, sizeof values);
  for (size_t i = 0; i < channels; ++i) to[i * step] = values[i];
}

template <size_t vectors, size_t tile>
void convolve_pixels(const ConvolutionCall& call, size_t first_channel, const float* weight, size_t first_pixel,
                     size_t pixels) {
  const Convolution& c = *call.convolution;
  size_t left = c.out.channels - first_channel, channels = left < vectors * kLanes ? left : vectors * kLanes;
  size_t step = c.planar ? c.out.height * c.out.width : 1;
  size_t beside[2] = {};  // from a pixel to the one beside it
  for (size_t s = 0; s < c.source_count; ++s) beside[s] = c.sources[s].stride * c.sources[s].map.channels;
  Place place(c.out, first_pixel);
  for (size_t done = 0; done < pixels; done += tile) {
    size_t valid = pixels - done < tile ? pixels - done : tile;
    const float* from[2][tile];
    float* to[tile];
    for (size_t p = 0; p < tile; ++p) {
      if (p > 0 && p >= valid) {
        for (size_t s = 0; s < c.source_count; ++s) from[s][p] = from[s][p - 1];
        continue;
      }
      if (p > 0 && place.x > 0) {  // beside the one before
        for (size_t s = 0; s < c.source_count; ++s) from[s][p] = from[s][p - 1] + beside[s];
        to[p] = to[p - 1] + (c.planar ? 1 : c.out.channels);
      } else {
        for (size_t s = 0; s < c.source_count; ++s) from[s][p] = call.in[s] + offset_in(c.sources[s], place);
        to[p] = call.out + offset_out(c, place) + first_channel * step;
      }
      place.advance(c.out);
    }

    Vec sum[tile][vectors];
    const float* w = weight;
    for (size_t v = 0; v < vectors; ++v, w += kLanes) {
      for (size_t p = 0; p < tile; ++p) sum[p][v] = load(w);
    }
    for (size_t s = 0; s < c.source_count; ++s) w = add_source(c.sources[s], from[s], beside[s], w, sum);
    end_all(c.ending, sum);
    if (step == 1 && channels == vectors * kLanes) {
      for (size_t p = 0; p < valid; ++p) memcpy(to[p], sum[p], sizeof sum[p]);
      continue;
    }
    for (size_t p = 0; p < valid; ++p) write(sum[p], channels, step, to[p]);
  }
}

// In tiles of kPixels; the last ones, and a single pixel, as a linear layer has it for a single image, are not summed
// as often as a tile has pixels. Bits are the same in every tile.
template <size_t vectors>
void convolve_tiles(const ConvolutionCall& call, size_t first_channel, const float* weight, size_t first_pixel,
                    size_t pixels) {
  const size_t rest = tiles_rest(pixels, kPixels, kFewer), whole = pixels - rest;
  if (whole > 0) convolve_pixels<vectors, kPixels>(call, first_channel, weight, first_pixel, whole);
  if (rest == 1) return convolve_pixels<vectors, 1>(call, first_channel, weight, first_pixel + whole, rest);
  if (rest > 0) convolve_pixels<vectors, kFewer>(call, first_channel, weight, first_pixel + whole, rest);
}

void convolve_block(const ConvolutionCall& call, size_t block, const float* weight, size_t first_pixel, size_t pixels) {
  static_assert(kVectors == 2, "the last block has one vector, or as many as the others");
  size_t first_channel = block * kVectors * kLanes;
  if (call.convolution->out.channels - first_channel > kLanes) {
    convolve_tiles<2>(call, first_channel, weight, first_pixel, pixels);
  } else {
    convolve_tiles<1>(call, first_channel, weight, first_pixel, pixels);
  }
}

// What becomes of the sums of a depthwise convolution.
struct FloatEnd {
  const Convolution& c;
  float* to;  // the row's first number

  Vec start(size_t channel, size_t count) const { return load_some(c.weight + channel, count); }

  template <size_t pixels>
  void operator()(size_t x, size_t channel, size_t count, const Vec (&sum)[pixels]) const {
    const size_t plane = c.out.height * c.out.width;
    for (size_t p = 0; p < pixels; ++p) {
      const Vec y[1] = {ended(c.ending, sum[p])};
      write(y, count, c.planar ? plane : 1,
            to + (c.planar ? channel * plane + x + p : (x + p) * c.out.channels + channel));
    }
  }
};

void convolve_rows(const ConvolutionCall& call, size_t first_row, size_t rows) {
  const Convolution& c = *call.convolution;
  const Convolution::Source& s = c.sources[0];
  for (size_t row = first_row; row < first_row + rows; ++row) {
    const Place place(c.out, row * c.out.width);
    const Taps<float> taps = {
        call.in[0] + offset_in(s, place), s.kernel,      s.stride, s.map.channels, row_floats(s.map),
        c.weight + c.out.channels,        c.out.channels};
    sum_row(taps, c.out.width, FloatEnd{c, call.out + offset_out(c, place)});
  }
}

}  // namespace

const ConvolutionKernels convolution_kernels = {kLanes, kVectors, kPixels, convolve_block, convolve_rows};

}  // namespace qcn::QCN_INSTRUCTION_SET

// Convolution of integers: some pixels to a block of channels. See convolution_int8.h. Compiled without the fusing of
// multiply-adds, which would change bits.
#include "convolution_depthwise.h"
#include "convolution_int8.h"
#include "convolution_place.h"
#include "vector.h"

namespace qcn::QCN_INSTRUCTION_SET {
namespace {

// Quads: four bytes of a map, for all lanes. Weights: in registers where there are enough, else where they lie. Sum:
// int32 lanes. add(): four products per lane.
#if defined(__ARM_FEATURE_DOTPROD)
constexpr size_t kVectors = 2, kPixels = 8, kFewer = 4, kWeightBytes = 1;
constexpr bool kTapsFirst = false;
constexpr uint8_t kZero = 0;
typedef int8x16_t Quad;
typedef int32x4_t Sum;
inline Quad quad(const uint8_t* from) {
  return vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(from)));
}
typedef int8x16_t Weights;
inline Weights weights(const uint8_t* from) { return vld1q_s8(reinterpret_cast<const int8_t*>(from)); }
inline void add(Sum& sum, Weights weight, Quad x) { sum = vdotq_s32(sum, weight, x); }
inline VecInt total(const Sum& sum) { return sum; }

// The products of quad i of sixteen bytes.
template <size_t i, size_t pixels, size_t vectors>
inline void add_quad(const int8x16_t (&x)[pixels], const uint8_t* weight, Sum (&sum)[pixels][vectors]) {
  for (size_t v = 0; v < vectors; ++v) {
    const int8x16_t w = vld1q_s8(reinterpret_cast<const int8_t*>(weight + 16 * (i * vectors + v)));
    for (size_t p = 0; p < pixels; ++p) sum[p][v] = vdotq_laneq_s32(sum[p][v], w, x[p], i);
  }
}
#elif defined(__aarch64__)
constexpr size_t kVectors = 2, kPixels = 8, kFewer = 4, kWeightBytes = 2;
constexpr bool kTapsFirst = true;
constexpr uint8_t kZero = 0;
typedef int16x4_t Quad;
typedef int32x4_t Sum;
inline Quad quad(const uint8_t* from) {
  return vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vld1_dup_s32(reinterpret_cast<const int32_t*>(from)))));
}
inline void add(Sum& sum, const uint8_t* weight, Quad x) {
  const int16x8_t first = vld1q_s16(reinterpret_cast<const int16_t*>(weight));
  const int16x8_t second = vld1q_s16(reinterpret_cast<const int16_t*>(weight) + 8);
  sum = vmlal_lane_s16(sum, vget_low_s16(first), x, 0);
  sum = vmlal_lane_s16(sum, vget_high_s16(first), x, 1);
  sum = vmlal_lane_s16(sum, vget_low_s16(second), x, 2);
  sum = vmlal_lane_s16(sum, vget_high_s16(second), x, 3);
}
inline VecInt total(const Sum& sum) { return sum; }
#elif defined(__wasm_simd128__)
// As the last of these, SSE2's: products of 16-bit integers, summed by twos.
constexpr size_t kVectors = 2, kPixels = 2, kFewer = 1, kWeightBytes = 2;
constexpr bool kTapsFirst = false;
constexpr uint8_t kZero = 0;
typedef v128_t Quad;
struct Sum {
  v128_t low, high;
};
inline Quad quad(const uint8_t* from) { return wasm_i16x8_extend_low_i8x16(wasm_v128_load32_splat(from)); }
inline void add(Sum& sum, const uint8_t* weight, Quad x) {
  sum.low = wasm_i32x4_add(sum.low, wasm_i32x4_dot_i16x8(wasm_v128_load(weight), x));
  sum.high = wasm_i32x4_add(sum.high, wasm_i32x4_dot_i16x8(wasm_v128_load(weight + 16), x));
}
inline VecInt total(const Sum& sum) {
  const v128_t even = wasm_i32x4_shuffle(sum.low, sum.high, 0, 2, 4, 6);
  const v128_t odd = wasm_i32x4_shuffle(sum.low, sum.high, 1, 3, 5, 7);
  return reinterpret_cast<VecInt>(wasm_i32x4_add(even, odd));
}
#elif defined(__wasm__)  // plain C++, for any lanes
constexpr size_t kVectors = 2, kPixels = 2, kFewer = 1, kWeightBytes = 2;
constexpr bool kTapsFirst = true;
constexpr uint8_t kZero = 0;
struct Quad {
  int32_t tap[4];
};
typedef VecInt Sum;
inline Quad quad(const uint8_t* from) {
  Quad x;
  for (size_t i = 0; i < 4; ++i) x.tap[i] = static_cast<int8_t>(from[i]);
  return x;
}
inline void add(Sum& sum, const uint8_t* weight, const Quad& x) {
  for (size_t i = 0; i < 4; ++i) {
    int16_t taps[kLanes];
    memcpy(taps, weight + i * sizeof taps, sizeof taps);
    for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += taps[lane] * x.tap[i];
  }
}
inline VecInt total(const Sum& sum) { return sum; }
#elif defined(__AVX512VNNI__)
constexpr size_t kVectors = 2, kPixels = 12, kFewer = 8, kWeightBytes = 1;
constexpr bool kTapsFirst = false;
constexpr uint8_t kZero = 128;  // VNNI multiplies unsigned bytes by signed ones
typedef __m512i Quad;
typedef __m512i Sum;
inline Quad quad(const uint8_t* from) {
  int bits;
  memcpy(&bits, from, sizeof bits);
  return reinterpret_cast<__m512i>(in_order(reinterpret_cast<Vec>(_mm512_set1_epi32(bits))));
}
typedef __m512i Weights;
inline Weights weights(const uint8_t* from) { return _mm512_loadu_si512(from); }
inline void add(Sum& sum, Weights weight, Quad x) { sum = _mm512_dpbusd_epi32(sum, x, weight); }
inline VecInt total(const Sum& sum) { return reinterpret_cast<VecInt>(sum); }
#elif defined(__AVXVNNI__)
constexpr size_t kVectors = 2, kPixels = 6, kFewer = 4, kWeightBytes = 1;
constexpr bool kTapsFirst = false;
constexpr uint8_t kZero = 128;
typedef __m256i Quad;
typedef __m256i Sum;
inline Quad quad(const uint8_t* from) {
  int bits;
  memcpy(&bits, from, sizeof bits);
  return reinterpret_cast<__m256i>(in_order(reinterpret_cast<Vec>(_mm256_set1_epi32(bits))));
}
typedef __m256i Weights;
inline Weights weights(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void add(Sum& sum, Weights weight, Quad x) { sum = _mm256_dpbusd_avx_epi32(sum, x, weight); }
inline VecInt total(const Sum& sum) { return reinterpret_cast<VecInt>(sum); }
#elif QCN_LANES == 8
// Products of 16-bit integers, summed by twos: a channel has two sums beside each other. Not vpmaddubsw, whose 16-bit
// sums saturate.
constexpr size_t kVectors = 2, kPixels = 3, kFewer = 2, kWeightBytes = 2;
constexpr bool kTapsFirst = false;
constexpr uint8_t kZero = 0;
typedef __m256i Quad;
struct Sum {
  __m256i low, high;
};
inline Quad quad(const uint8_t* from) {
  int bits;
  memcpy(&bits, from, sizeof bits);
  return _mm256_cvtepi8_epi16(_mm_set1_epi32(bits));
}
inline void add(Sum& sum, const uint8_t* weight, Quad x) {
  const auto* w = reinterpret_cast<const __m256i*>(weight);
  sum.low = _mm256_add_epi32(sum.low, _mm256_madd_epi16(_mm256_loadu_si256(w), x));
  sum.high = _mm256_add_epi32(sum.high, _mm256_madd_epi16(_mm256_loadu_si256(w + 1), x));
}
inline VecInt total(const Sum& sum) {
  return reinterpret_cast<VecInt>(_mm256_permute4x64_epi64(_mm256_hadd_epi32(sum.low, sum.high), 0xd8));
}
#else
constexpr size_t kVectors = 2, kPixels = 2, kFewer = 1, kWeightBytes = 2;
constexpr bool kTapsFirst = false;
constexpr uint8_t kZero = 0;
typedef __m128i Quad;
struct Sum {
  __m128i low, high;
};
inline Quad quad(const uint8_t* from) {
  int bits;
  memcpy(&bits, from, sizeof bits);
  const __m128i bytes = _mm_set1_epi32(bits);
  return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
}
inline void add(Sum& sum, const uint8_t* weight, Quad x) {
  const auto* w = reinterpret_cast<const __m128i*>(weight);
  sum.low = _mm_add_epi32(sum.low, _mm_madd_epi16(_mm_loadu_si128(w), x));
  sum.high = _mm_add_epi32(sum.high, _mm_madd_epi16(_mm_loadu_si128(w + 1), x));
}
inline VecInt total(const Sum& sum) {
  const __m128 low = _mm_castsi128_ps(sum.low), high = _mm_castsi128_ps(sum.high);
  const __m128i even = _mm_castps_si128(_mm_shuffle_ps(low, high, 0x88));
  const __m128i odd = _mm_castps_si128(_mm_shuffle_ps(low, high, 0xdd));
  return reinterpret_cast<VecInt>(_mm_add_epi32(even, odd));
}
#endif

#if !defined(__ARM_FEATURE_DOTPROD) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
inline const uint8_t* weights(const uint8_t* from) { return from; }
typedef const uint8_t* Weights;
#endif

constexpr size_t kQuadBytes = 4 * kLanes * kWeightBytes;  // of a vector's weights

inline VecInt load_integers(const uint8_t* from) {
  VecInt x;
  memcpy(&x, from, sizeof x);
  return x;
}

// The nearest integer, halves to even, from -128 to 127: an integer below 2^22 stands in the lowest bits of its sum
// with 1.5 * 2^23. Of a NaN these bits are 0.
constexpr float kNearest = 12582912.0f;

// The lowest bytes of the lanes; adding 128 is the same as turning the highest bit over.
inline void store_bytes(uint8_t* to, VecInt x) {
  x ^= VecInt{} + kZero;
#if QCN_LANES == 16
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(x)));
#else
  typedef uint8_t Bytes __attribute__((vector_size(4 * QCN_LANES)));
  const Bytes bytes = reinterpret_cast<Bytes>(x);
#if QCN_LANES == 8
  const __m256i each = _mm256_shuffle_epi8(
      reinterpret_cast<__m256i>(bytes), _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0,
                                                         4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to),
                   _mm_unpacklo_epi32(_mm256_castsi256_si128(each), _mm256_extracti128_si256(each, 1)));
#elif defined(__aarch64__)
  const uint16x4_t words = vmovn_u32(vreinterpretq_u32_u8(bytes));
  vst1_lane_u32(reinterpret_cast<uint32_t*>(to), vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
#else
  for (size_t i = 0; i < 4; ++i) to[i] = bytes[4 * i];
#endif
#endif
}

// The bytes of numbers behind an activation function, as a division by the scale gives them. Multiplying by its inverse
// is several times as fast, and gives the same unless a quotient lies, within what rounding is off by, in the middle
// between two integers: then it divides.
class Quantiser {
 public:
  Quantiser(float scale, Ending ending)
      : scale_(broadcast(scale)),
        inverse_(broadcast(1 / scale)),
        least_(broadcast(-128)),
        most_(broadcast(127)),
        ending_(ending),
        divides_(!(scale > 1e-37f && scale < 1e37f)) {  // the inverse has all its digits
    if (ending == Ending::kRelu || ending == Ending::kRelu6) least_ = Vec{};
    if (ending == Ending::kRelu6) most_ = min(most_, 6 * inverse_);
  }

  // The first `channels` of each of the first `valid` pixels. to(pixel): where they go.
  template <size_t pixels, size_t vectors, typename To>
  void write(Vec (&y)[pixels][vectors], size_t valid, size_t channels, const To& to) const {
    constexpr size_t group = 8 / vectors;  // so many are looked at together
    for (size_t first = 0; first < valid; first += group) {
      const size_t last = first + group < pixels ? first + group : pixels;
      VecInt sums[group][vectors];
      Vec furthest = {};  // from the nearest integer
      for (size_t p = first; p < last; ++p) {
        for (size_t v = 0; v < vectors; ++v) {
          if (ending_ == Ending::kSigmoid) y[p][v] = sigmoid(y[p][v]);
          const Vec q = min(most_, max(least_, y[p][v] * inverse_)), sum = q + kNearest;
          furthest = max(magnitude(q - (sum - kNearest)), furthest);
          sums[p - first][v] = to_bits(sum);
        }
      }
      if (divides_ || any(furthest > broadcast(0.5f - 4e-5f))) {  // three roundings of numbers up to 128
        for (size_t p = first; p < last; ++p) {
          for (size_t v = 0; v < vectors; ++v) sums[p - first][v] = divided(y[p][v]);
        }
      }
      for (size_t p = first; p < last && p < valid; ++p) {
        for (size_t v = 0; v < vectors; ++v) store_some(sums[p - first][v], v * kLanes, channels, to(p));
      }
    }
  }

 private:
  VecInt divided(Vec y) const {
    const Vec q = (ending_ == Ending::kSigmoid ? y : ended(ending_, y)) / scale_;
    return to_bits(min(broadcast(127), max(broadcast(-128), q)) + kNearest);
  }

  static void store_some(VecInt x, size_t first, size_t channels, uint8_t* to) {
    if (first + kLanes <= channels) return store_bytes(to + first, x);
    uint8_t bytes[kLanes];
    store_bytes(bytes, x);
    if (first < channels) memcpy(to + first, bytes, channels - first);
  }

  Vec scale_, inverse_, least_, most_;
  Ending ending_;
  bool divides_;
};

void quantise(const float* in, size_t count, float scale, uint8_t* out) {
  const Quantiser quantiser(scale, Ending::kNone);
  size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    Vec x[1][4] = {{load(in + i), load(in + i + kLanes), load(in + i + 2 * kLanes), load(in + i + 3 * kLanes)}};
    quantiser.write(x, 1, 4 * kLanes, [&](size_t) { return out + i; });
  }
  for (; i < count; i += kLanes) {
    const size_t some = count - i < kLanes ? count - i : kLanes;
    Vec x[1][1] = {{load_some(in + i, some)}};
    quantiser.write(x, 1, some, [&](size_t) { return out + i; });
  }
}

// Adds the products of `length` bytes to each sum. `weight` is at the run's first, and moves on to the next run's.
template <typename From, size_t pixels, size_t vectors>
inline void add_run(From from, size_t length, const uint8_t*& weight, Sum (&sum)[pixels][vectors]) {
#if defined(__ARM_FEATURE_DOTPROD)  // multiplies by a quad of a register, so that one load brings four
  for (; length >= 16; length -= 16, from.advance(16), weight += 4 * vectors * kQuadBytes) {
    int8x16_t x[pixels];
    for (size_t p = 0; p < pixels; ++p) x[p] = vld1q_s8(reinterpret_cast<const int8_t*>(from[p]));
    add_quad<0>(x, weight, sum);
    add_quad<1>(x, weight, sum);
    add_quad<2>(x, weight, sum);
    add_quad<3>(x, weight, sum);
  }
#endif
  for (; length > 0; length -= 4, from.advance(4), weight += vectors * kQuadBytes) {
    Weights w[vectors];
    for (size_t v = 0; v < vectors; ++v) w[v] = weights(weight + v * kQuadBytes);
    for (size_t p = 0; p < pixels; ++p) {
      const Quad x = quad(from[p]);
      for (size_t v = 0; v < vectors; ++v) add(sum[p][v], w[v], x);
    }
  }
}

// The sums of all runs of a source, which are `row` apart.
template <typename From, size_t pixels, size_t vectors>
inline void add_runs(const From& from, size_t runs, size_t row, size_t length, const uint8_t*& weight,
                     Sum (&result)[pixels][vectors]) {
  Sum sum[pixels][vectors] = {};
  for (size_t run = 0; run < runs; ++run) {
    From first = from;
    first.advance(run * row);
    add_run(first, length, weight, sum);
  }
  for (size_t p = 0; p < pixels; ++p) {
    for (size_t v = 0; v < vectors; ++v) result[p][v] = sum[p][v];
  }
}

// The first `channels` numbers of x, `step` apart.
template <size_t vectors>
inline void write_floats(const Vec (&x)[vectors], size_t channels, size_t step, float* to) {
  if (step == 1 && channels == vectors * kLanes) return static_cast<void>(memcpy(to, x, sizeof x));
  float values[vectors * kLanes];
  memcpy(values, x, sizeof values);
  for (size_t i = 0; i < channels; ++i) to[i * step] = values[i];
}

// What a source adds to the pixels of a tile; returns where the next one's weights are. Not inlined: then all sums stay
// in registers.
template <size_t vectors, size_t tile>
__attribute__((noinline)) const uint8_t* sum_source(const Convolution::Source& source,
                                                    const uint8_t* const (&from)[tile], size_t beside,
                                                    const uint8_t* packed, Vec (&y)[tile][vectors]) {
  const uint8_t *bias = packed, *scale = packed + vectors * kLanes * 4, *w = packed + vectors * kLanes * 8;
  const size_t length = source.kernel * source.map.channels, row = row_floats(source.map);
  Sum sum[tile][vectors];
  if (equally_spaced(from, beside)) {
    add_runs(Spaced<uint8_t, tile>(from, beside), source.kernel, row, length, w, sum);
  } else {
    add_runs(Scattered<uint8_t, tile>(from, 0), source.kernel, row, length, w, sum);
  }
  for (size_t v = 0; v < vectors; ++v) {
    const VecInt start = load_integers(bias + v * kLanes * 4);
    const Vec factor = from_bits(load_integers(scale + v * kLanes * 4));
    for (size_t p = 0; p < tile; ++p) {
      y[p][v] = __builtin_convertvector(total(sum[p][v]) + start, Vec) * factor;
    }
  }
  return w;
}

template <size_t vectors, size_t tile>
void convolve_pixels(const IntegerCall& call, size_t first_channel, const uint8_t* packed, size_t first_pixel,
                     size_t pixels) {
  const Convolution& c = call.convolution->shape;
  const float out_scale = call.convolution->out_scale;
  const Quantiser quantiser(out_scale, c.ending);
  const Map out = out_scale != 0 ? byte_map(c.out) : c.out;
  size_t left = c.out.channels - first_channel, channels = left < vectors * kLanes ? left : vectors * kLanes;
  size_t step = c.planar ? c.out.height * c.out.width : 1;
  Convolution::Source sources[2];
  size_t beside[2] = {};  // from a pixel to the one beside it
  for (size_t s = 0; s < c.source_count; ++s) {
    sources[s] = c.sources[s];
    sources[s].map = byte_map(c.sources[s].map);
    beside[s] = sources[s].stride * sources[s].map.channels;
  }
  Place place(c.out, first_pixel);
  for (size_t done = 0; done < pixels; done += tile) {
    size_t valid = pixels - done < tile ? pixels - done : tile;
    const uint8_t* from[2][tile];
    size_t to[tile];
    for (size_t p = 0; p < tile; ++p) {
      if (p > 0 && p >= valid) {
        for (size_t s = 0; s < c.source_count; ++s) from[s][p] = from[s][p - 1];
        continue;
      }
      if (p > 0 && place.x > 0) {  // beside the one before
        for (size_t s = 0; s < c.source_count; ++s) from[s][p] = from[s][p - 1] + beside[s];
        to[p] = to[p - 1] + (c.planar ? 1 : out.channels);
      } else {
        for (size_t s = 0; s < c.source_count; ++s) from[s][p] = call.in[s] + offset_in(sources[s], place);
        to[p] = (c.planar ? planar_offset(c.out, place) : map_offset(out, place)) + first_channel * step;
      }
      place.advance(c.out);
    }

    Vec y[tile][vectors];
    const uint8_t* w = sum_source(sources[0], from[0], beside[0], packed, y);
    if (c.source_count > 1) {
      Vec more[tile][vectors];
      sum_source(sources[1], from[1], beside[1], w, more);
      for (size_t p = 0; p < tile; ++p) {
        for (size_t v = 0; v < vectors; ++v) y[p][v] += more[p][v];
      }
    }
    if (out_scale != 0) {
      auto* bytes = static_cast<uint8_t*>(call.out);
      quantiser.write(y, valid, channels, [&](size_t p) { return bytes + to[p]; });
      continue;
    }
    for (size_t p = 0; p < valid; ++p) {
      for (size_t v = 0; v < vectors; ++v) y[p][v] = ended(c.ending, y[p][v]);
      write_floats(y[p], channels, step, static_cast<float*>(call.out) + to[p]);
    }
  }
}

template <size_t vectors>
void convolve_tiles(const IntegerCall& call, size_t first_channel, const uint8_t* packed, size_t first_pixel,
                    size_t pixels) {
  const size_t rest = tiles_rest(pixels, kPixels, kFewer), whole = pixels - rest;
  if (whole > 0) convolve_pixels<vectors, kPixels>(call, first_channel, packed, first_pixel, whole);
  if (rest == 1) return convolve_pixels<vectors, 1>(call, first_channel, packed, first_pixel + whole, rest);
  if (rest > 0) convolve_pixels<vectors, kFewer>(call, first_channel, packed, first_pixel + whole, rest);
}

void convolve_block(const IntegerCall& call, size_t block, const uint8_t* packed, size_t first_pixel, size_t pixels) {
  size_t first_channel = block * kVectors * kLanes;
  if (call.convolution->shape.out.channels - first_channel > kLanes) {
    convolve_tiles<2>(call, first_channel, packed, first_pixel, pixels);
  } else {
    convolve_tiles<1>(call, first_channel, packed, first_pixel, pixels);
  }
}

// What becomes of the sums of a depthwise convolution.
struct IntegerEnd {
  const IntegerConvolution& convolution;
  const float* packed;  // biases and scales
  Map out;              // as it is written
  Quantiser quantiser;
  void* written;
  size_t to;  // the row's first number

  Vec start(size_t, size_t) const { return Vec{}; }

  template <size_t pixels>
  void operator()(size_t x, size_t channel, size_t count, const Vec (&sum)[pixels]) const {
    const Convolution& c = convolution.shape;
    const VecInt bias = to_bits(load_some(packed + channel, count));
    const Vec scale = load_some(packed + c.out.channels + channel, count);
    Vec y[pixels][1];
    for (size_t p = 0; p < pixels; ++p) {
      y[p][0] = __builtin_convertvector(__builtin_convertvector(sum[p], VecInt) + bias, Vec) * scale;
    }
    const size_t plane = out.height * out.width, at = to + x * out.channels + channel;
    if (convolution.out_scale != 0) {
      auto* bytes = static_cast<uint8_t*>(written) + at;
      return quantiser.write(y, pixels, count, [&](size_t p) { return bytes + p * out.channels; });
    }
    auto* floats = static_cast<float*>(written);
    for (size_t p = 0; p < pixels; ++p) {
      y[p][0] = ended(c.ending, y[p][0]);
      write_floats(y[p], count, c.planar ? plane : 1,
                   floats + (c.planar ? to + channel * plane + x + p : at + p * out.channels));
    }
  }
};

void convolve_rows(const IntegerCall& call, size_t first_row, size_t rows) {
  const IntegerConvolution& convolution = *call.convolution;
  const Convolution& c = convolution.shape;
  Convolution::Source s = c.sources[0];
  s.map = byte_map(s.map);
  const Map out = convolution.out_scale != 0 ? byte_map(c.out) : c.out;
  const auto* packed = static_cast<const float*>(convolution.packed);
  const Quantiser quantiser(convolution.out_scale, c.ending);
  for (size_t row = first_row; row < first_row + rows; ++row) {
    const Place place(c.out, row * c.out.width);
    const Taps<uint8_t> taps = {
        call.in[0] + offset_in(s, place), s.kernel,      s.stride, s.map.channels, row_floats(s.map),
        packed + 2 * c.out.channels,      c.out.channels};
    const size_t to = c.planar ? planar_offset(c.out, place) : map_offset(out, place);
    sum_row(taps, c.out.width, IntegerEnd{convolution, packed, out, quantiser, call.out, to});
  }
}

}  // namespace

const IntegerKernels integer_kernels = {QCN_TEXT(QCN_INSTRUCTION_SET),
                                        kLanes,
                                        kVectors,
                                        kPixels,
                                        kWeightBytes,
                                        kTapsFirst,
                                        kZero,
                                        convolve_block,
                                        convolve_rows,
                                        quantise};

}  // namespace qcn::QCN_INSTRUCTION_SET

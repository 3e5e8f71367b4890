// Depthwise convolutions: each channel by itself, of floats and of bytes. The lanes of a vector are channels.
//
// Bytes are summed as floats: of kernels up to kMostIntegerKernel every sum is an integer below 2^24, which a float
// holds, and a multiply-add is the fastest instruction that all CPUs have.
#ifndef QCN_KERNELS_CONVOLUTION_DEPTHWISE_H
#define QCN_KERNELS_CONVOLUTION_DEPTHWISE_H

#include "convolution_place.h"

namespace qcn::QCN_INSTRUCTION_SET {

// A map as the sums read it.
template <typename Element>
struct Taps {
  const Element* first;         // of the window of the row's first pixel
  size_t kernel, stride, step;  // step: from one pixel to the next
  size_t row;                   // from one row to the next
  const float* weight;          // [kernel][kernel][channels]
  size_t channels;
};

inline Vec load_lanes(const float* from) { return load(from); }

// Bytes are signed, but for VNNI: see convolution_int8.h.
inline Vec load_lanes(const uint8_t* from) {
#if defined(__aarch64__)
  const int8x8_t bytes = vreinterpret_s8_s32(vld1_dup_s32(reinterpret_cast<const int32_t*>(from)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
#elif defined(__wasm_simd128__)
  const v128_t words = wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(from));
  return reinterpret_cast<Vec>(wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(words)));
#elif QCN_LANES == 16
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVXVNNI__)
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif QCN_LANES == 8
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(__SSE2__)
  int bits;
  memcpy(&bits, from, sizeof bits);
  const __m128i bytes = _mm_cvtsi32_si128(bits), words = _mm_unpacklo_epi8(bytes, bytes);
  return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(words, words), 24));
#else
  Vec x;
  for (size_t i = 0; i < kLanes; ++i) x[i] = static_cast<int8_t>(from[i]);
  return x;
#endif
}

// The first `count` lanes, the others 0.
template <typename Element>
inline Vec load_some(const Element* from, size_t count) {
  if (count == kLanes) return load_lanes(from);
  Element values[kLanes] = {};
  memcpy(values, from, count * sizeof(Element));
  return load_lanes(values);
}

// The sums of `pixels` beside each other, from pixel x and channel c on. A number of the map, once loaded, serves all
// pixels that it is in a window of.
template <size_t pixels, size_t kernel, size_t stride, typename Element>
inline void add_taps(const Taps<Element>& t, size_t x, size_t c, Vec (&sum)[pixels]) {
  const Element* from = t.first + x * stride * t.step + c;
  const float* weight = t.weight + c;
  for (size_t ky = 0; ky < kernel; ++ky, from += t.row) {
    Vec numbers[(pixels - 1) * stride + kernel];
    for (size_t i = 0; i < (pixels - 1) * stride + kernel; ++i) numbers[i] = load_lanes(from + i * t.step);
    for (size_t kx = 0; kx < kernel; ++kx, weight += t.channels) {
      const Vec w = load(weight);
      for (size_t p = 0; p < pixels; ++p) sum[p] = multiply_add(numbers[p * stride + kx], w, sum[p]);
    }
  }
}

// The same of any kernel and stride, of one pixel and `count` channels.
template <typename Element>
inline void add_taps(const Taps<Element>& t, size_t x, size_t c, size_t count, Vec& sum) {
  const Element* from = t.first + x * t.stride * t.step + c;
  const float* weight = t.weight + c;
  for (size_t ky = 0; ky < t.kernel; ++ky, from += t.row) {
    for (size_t kx = 0; kx < t.kernel; ++kx, weight += t.channels) {
      sum = multiply_add(load_some(from + kx * t.step, count), load_some(weight, count), sum);
    }
  }
}

// From pixel x to the row's last, `pixels` at once as long as there are as many. The last are summed twice rather than
// one by one. end(x, c, count, sums): writes what comes of the sums, of `count` channels from c on.
template <size_t pixels, size_t kernel, size_t stride, typename Element, typename End>
inline void sum_pixels(const Taps<Element>& t, size_t x, size_t width, const End& end) {
  const auto tile = [&](size_t first) {
    for (size_t c = 0;; c = c + 2 * kLanes < t.channels ? c + kLanes : t.channels - kLanes) {
      Vec sum[pixels];
      for (size_t p = 0; p < pixels; ++p) sum[p] = end.start(c, kLanes);
      add_taps<pixels, kernel, stride>(t, first, c, sum);
      end(first, c, kLanes, sum);
      if (c + kLanes == t.channels) break;
    }
  };
  for (; x + pixels <= width; x += pixels) tile(x);
  if (x == width) return;
  if constexpr (pixels > 1) {
    if (width >= pixels && width - x > pixels / 2) return tile(width - pixels);
    sum_pixels<pixels / 2, kernel, stride>(t, x, width, end);
  }
}

#if defined(__aarch64__) || QCN_LANES == 16
constexpr size_t kRowPixels = 8;  // with the numbers that they share, at most 28 of 32 registers
#else
constexpr size_t kRowPixels = 4;
#endif

template <typename Element, typename End>
inline void sum_row(const Taps<Element>& t, size_t width, const End& end) {
  if (t.channels >= kLanes && t.kernel == 3 && t.stride == 1) return sum_pixels<kRowPixels, 3, 1>(t, 0, width, end);
  if (t.channels >= kLanes && t.kernel == 3 && t.stride == 2) return sum_pixels<kRowPixels, 3, 2>(t, 0, width, end);
  if (t.channels >= kLanes && t.kernel == 5 && t.stride == 1) return sum_pixels<kRowPixels, 5, 1>(t, 0, width, end);
  if (t.channels >= kLanes && t.kernel == 5 && t.stride == 2) return sum_pixels<kRowPixels, 5, 2>(t, 0, width, end);
  for (size_t x = 0; x < width; ++x) {
    for (size_t c = 0; c < t.channels; c += kLanes) {
      const size_t count = t.channels - c < kLanes ? t.channels - c : kLanes;
      Vec sum[1] = {end.start(c, count)};
      add_taps(t, x, c, count, sum[0]);
      end(x, c, count, sum);
    }
  }
}

}  // namespace qcn::QCN_INSTRUCTION_SET

#endif

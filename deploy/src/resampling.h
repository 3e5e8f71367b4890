// Where a resized, cropped image takes its pixels from, in whole numbers: what preprocess.cpp and preprocess.cu share.
#ifndef QCN_SRC_RESAMPLING_H
#define QCN_SRC_RESAMPLING_H

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>

#include "qcn/qcn.h"

#ifdef __CUDACC__
#define QCN_ANYWHERE __host__ __device__
#else
#define QCN_ANYWHERE
#endif

namespace qcn {

constexpr double kStdFloor = 1.0 / 255;  // STD_FLOOR of qcn/data/spec.py
constexpr int kMaxSide = 1 << 14;        // of a picture, of an image of the data set, and of what it is resized to

// The two pixels that one pixel of the resized image lies between, and their weights, which add up to Axis::parts.
struct Neighbours {
  std::int64_t lower, upper;
  double lower_weight, upper_weight;
};

// One side of an image: `size` pixels become `side`, of which `seen` from `margin` on are kept.
struct Axis {
  std::int64_t size, side, seen, margin;
  std::int64_t common;  // what the fraction that a place is was reduced by
  std::int64_t parts;   // what a place is counted in: parts of a pixel

  Axis(int pixels, std::optional<int> resize, std::optional<int> crop)
      : size(pixels),
        side(resize.value_or(pixels)),
        seen(crop.value_or(static_cast<int>(side))),
        margin((side - seen) / 2),
        common(std::gcd(std::gcd(2 * size, 2 * side), size - side)),
        parts(2 * side / common) {}

  QCN_ANYWHERE bool resized() const { return size != side; }

  QCN_ANYWHERE Neighbours at(std::int64_t index) const {
    std::int64_t lower = index + margin, weight = 0;
    if (resized()) {  // else the same comes out, by divisions
      const std::int64_t place = (2 * (index + margin) + 1) * size - side;
      const std::int64_t part = place < 0 ? 0 : place / common;
      lower = part / parts, weight = part % parts;
    }
    return {lower, lower + 1 < size ? lower + 1 : lower, static_cast<double>(parts - weight),
            static_cast<double>(weight)};
  }
};

// Which of an image's channels is this one of the network's. Reversed are the colours: the transparency of BGRA comes
// last, as that of RGBA does.
QCN_ANYWHERE inline std::int64_t place_of(std::int64_t channel, int channels, bool reversed) {
  const int colours = channels == 4 ? 3 : channels;
  return reversed && channel < colours ? colours - 1 - channel : channel;
}

// An image, its channels in the network's order, one of its pixels at a time. Pixel is unsigned char or float.
template <typename Pixel>
struct Pixels {
  const char* data;
  std::int64_t column_stride, row_stride, channel_stride;
  int channels;
  bool reversed;

  explicit Pixels(const qcn_image& image)
      : data(static_cast<const char*>(image.data)),
        column_stride(image.column_stride),
        row_stride(image.row_stride),
        channel_stride(image.channel_stride),
        channels(image.channels),
        reversed(image.reverse_channels != 0) {}

  QCN_ANYWHERE void move(std::int64_t bytes) { data += bytes; }

  QCN_ANYWHERE double at(std::int64_t channel, std::int64_t y, std::int64_t x) const {
    const char* from =
        data + place_of(channel, channels, reversed) * channel_stride + y * row_stride + x * column_stride;
    Pixel value;
    char* to = reinterpret_cast<char*>(&value);  // byte by byte: a float need not be aligned
    for (std::size_t i = 0; i < sizeof value; ++i) to[i] = from[i];
    return value;
  }
};

// The pixel between four of an image's, times the parts of both axes: a whole number if the pixels are bytes.
template <typename Image>
QCN_ANYWHERE double between(const Image& image, std::int64_t channel, const Neighbours& y, const Neighbours& x) {
  const double left =
      image.at(channel, y.lower, x.lower) * y.lower_weight + image.at(channel, y.upper, x.lower) * y.upper_weight;
  const double right =
      image.at(channel, y.lower, x.upper) * y.lower_weight + image.at(channel, y.upper, x.upper) * y.upper_weight;
  return left * x.lower_weight + right * x.upper_weight;
}

// What white is after `between`.
inline double white(bool bytes, const Axis& y, const Axis& x) {
  return (bytes ? 255.0 : 1.0) * static_cast<double>(y.parts) * static_cast<double>(x.parts);
}

}  // namespace qcn

#endif

// Pre-processing on the CPU.
#include "preprocess.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"
#include "resampling.h"
#include "structures.h"

namespace qcn {
namespace {

// Grows to the largest size seen, then stays: a camera's frames allocate once.
struct Scratch {
  std::vector<Neighbours> rows, columns;
  std::vector<double> pixels;  // of one channel
};

[[noreturn]] void refuse(const std::string& message) { throw Error(QCN_BAD_ARGUMENT, message); }

std::string by(std::int64_t width, std::int64_t height) { return std::to_string(width) + "×" + std::to_string(height); }

// Refuses an image whose last pixel's address would wrap around, since computing it would be undefined; and floats whose
// strides were counted in floats, which would be read across each other.
void check_strides(const qcn_image& image) {
  std::ptrdiff_t below = 0, above = 0;  // how far the image reaches on either side of `data`
  const std::ptrdiff_t strides[] = {image.column_stride, image.row_stride, image.channel_stride};
  const int counts[] = {image.width, image.height, image.channels};
  for (int i = 0; i < 3; ++i) {
    std::ptrdiff_t length;
    std::ptrdiff_t& reach = strides[i] < 0 ? below : above;
    if (__builtin_mul_overflow(strides[i], static_cast<std::ptrdiff_t>(counts[i] - 1), &length) ||
        __builtin_add_overflow(reach, length, &reach)) {
      refuse("strides of " + std::to_string(strides[0]) + " (column), " + std::to_string(strides[1]) + " (row) and " +
             std::to_string(strides[2]) + " (channel) bytes reach further than there is memory");
    }
    constexpr auto kFloat = static_cast<std::ptrdiff_t>(sizeof(float));
    if (image.pixel == QCN_FLOAT32 && counts[i] > 1 && strides[i] != 0 && strides[i] > -kFloat && strides[i] < kFloat) {
      refuse("a stride of " + std::to_string(strides[i]) +
             " is less than a float: strides are in bytes, those of qcn_image_default and qcn_image_planar for bytes; "
             "multiply them by sizeof(float)");
    }
  }
  const auto address = reinterpret_cast<std::uintptr_t>(image.data);
  if (address < 0 - static_cast<std::uintptr_t>(below) ||
      UINTPTR_MAX - sizeof(float) - address < static_cast<std::uintptr_t>(above)) {
    refuse("the image's strides lead out of memory: are they in bytes, and does data point to the upper left pixel?");
  }
}

// Where each pixel along an axis comes from.
void places(const Axis& axis, std::vector<Neighbours>& out) {
  const auto seen = static_cast<std::size_t>(axis.seen);
  if (out.size() < seen) out.resize(seen);
  for (std::size_t i = 0; i < seen; ++i) out[i] = axis.at(static_cast<std::int64_t>(i));
}

// One channel, resized and cropped, into scratch.pixels.
template <typename Pixel>
void sample(const Pixels<Pixel>& image, std::int64_t channel, const Axis& rows, const Axis& columns, Scratch& scratch) {
  double* out = scratch.pixels.data();
  const bool resized = rows.resized() || columns.resized();
  for (std::int64_t y = 0; y < rows.seen; ++y) {
    const Neighbours& row = scratch.rows[static_cast<std::size_t>(y)];
    const Neighbours* column = scratch.columns.data();
    const Neighbours* const end = column + columns.seen;
    if (resized) {
      for (; column < end; ++column) *out++ = between(image, channel, row, *column);
    } else {
      for (; column < end; ++column) *out++ = image.at(channel, row.lower, column->lower);
    }
  }
}

// Σ of(pixel), in lanes that a processor adds side by side. Of bytes it is exact in any order.
template <typename Of>
double sum(const std::vector<double>& pixels, std::size_t count, const Of& of) {
  constexpr std::size_t kLanes = 8;
  double lanes[kLanes] = {}, total = 0;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += of(pixels[i + lane]);
  }
  for (; i < count; ++i) total += of(pixels[i]);
  for (const double lane : lanes) total += lane;
  return total;
}

void standardise_by_image(const std::vector<double>& pixels, std::size_t count, double one, float* out) {
  const double number = static_cast<double>(count);
  const double total = sum(pixels, count, [](double pixel) { return pixel; });
  const double squares = sum(pixels, count, [&](double pixel) {
    const double deviation = pixel * number - total;
    return deviation * deviation;
  });
  const double least = number * one * kStdFloor;
  double std = std::sqrt(squares / number);
  if (std < least) std = least;  // a NaN stays one
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>((pixels[i] * number - total) / std);
}

template <typename Pixel>
void preprocess_as(const Preprocessing& spec, const qcn_image& image, float* out) {
  thread_local Scratch scratch;
  const Axis rows(image.height, spec.resize, spec.crop), columns(image.width, spec.resize, spec.crop);
  const auto count = static_cast<std::size_t>(rows.seen * columns.seen);
  if (scratch.pixels.size() < count) scratch.pixels.resize(count);
  places(rows, scratch.rows);
  places(columns, scratch.columns);
  const Pixels<Pixel> pixels(image);
  const double one = white(sizeof(Pixel) == 1, rows, columns);
  for (int channel = 0; channel < image.channels; ++channel, out += count) {
    sample(pixels, channel, rows, columns, scratch);
    if (spec.by_image) {
      standardise_by_image(scratch.pixels, count, one, out);
      continue;
    }
    const double mean = spec.mean[static_cast<std::size_t>(channel)], std = spec.std[static_cast<std::size_t>(channel)];
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>((scratch.pixels[i] / one - mean) / std);
  }
}

}  // namespace

void check_image(const Preprocessing& spec, const qcn_image& image) {
  if (!image.data) refuse("the image has no data: data is NULL");
  if (image.width < 1 || image.height < 1 || image.channels < 1) {
    refuse("width, height and channels of an image must be 1 or more, not " + by(image.width, image.height) + " and " +
           std::to_string(image.channels));
  }
  const int pixel = number_of(image.pixel);
  if (pixel != QCN_UINT8 && pixel != QCN_FLOAT32) {
    refuse("pixel must be QCN_UINT8 or QCN_FLOAT32, not " + std::to_string(pixel));
  }
  const Stored& stored = spec.stored;
  if (!converts(image.channels, stored.channels)) {
    refuse("the picture has " + std::to_string(image.channels) + " channels, and the network takes " +
           std::to_string(stored.channels) + ": there is no way from one to the other. It takes " +
           (stored.channels == 2 ? "the two views of a stereo pair, as one picture of 2 channels"
                                 : "grey, colour, and colour with transparency: 1, 3 or 4 channels"));
  }
  if (pixel == QCN_FLOAT32 && !(stored == image)) {
    refuse("floats are taken in the size of the network's images, " + by(stored.width, stored.height) + " with " +
           std::to_string(stored.channels) + " channels, not " + by(image.width, image.height) + " with " +
           std::to_string(image.channels) + ": give bytes, which are brought to it");
  }
  if (image.width > kMaxSide || image.height > kMaxSide) {
    refuse("a picture has at most " + by(kMaxSide, kMaxSide) + " pixels, not " + by(image.width, image.height));
  }
  check_strides(image);
}

void preprocess(const Preprocessing& spec, const qcn_image& image, float* out) {
  check_image(spec, image);
  if (image.pixel == QCN_FLOAT32) return preprocess_as<float>(spec, image, out);
  if (spec.stored == image) return preprocess_as<unsigned char>(spec, image, out);
  thread_local std::vector<std::uint8_t> fitted;
  fit_picture(spec.stored, image, fitted);
  const Stored& stored = spec.stored;
  const qcn_image planar = qcn_image_planar(fitted.data(), stored.width, stored.height, stored.channels);
  preprocess_as<unsigned char>(spec, planar, out);
}

}  // namespace qcn

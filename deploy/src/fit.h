// From a picture of any size to an image as the network's data set stores them, in bytes. The definition, in whole
// numbers, is in qcn/data/fit.py; all give the same bits. What preprocess.cpp and preprocess.cu share is here.
#ifndef QCN_SRC_FIT_H
#define QCN_SRC_FIT_H

#include <cstdint>
#include <vector>

#include "qcn/qcn.h"
#include "resampling.h"

namespace qcn {

enum class Fit { kCrop, kLetterbox, kStretch };

// The images of the data set.
struct Stored {
  int channels = 0, height = 0, width = 0;
  Fit fit = Fit::kCrop;

  // Whether the image is such a one already.
  bool operator==(const qcn_image& image) const {
    return image.channels == channels && image.height == height && image.width == width;
  }
};

// Whether pictures of so many channels can become images of `wanted`: grey and colour into each other, colour with
// transparency into both. The two channels of a stereo pair come from two channels.
inline bool converts(int channels, int wanted) {
  return channels == wanted || ((wanted == 1 || wanted == 3) && (channels == 1 || channels == 3 || channels == 4));
}

// One side of a picture: `size` of its pixels, from `start` on, become `side` ones, which lie in the image from
// `margin` on. What is left of the image is black.
struct FitAxis {
  std::int64_t start, size, side, margin;

  QCN_ANYWHERE bool resized() const { return size != side; }

  QCN_ANYWHERE std::int64_t widest() const { return 2 * (size > side ? size : side); }

  // The weight, before it is made a share, of pixel i in pixel j of the result; above 0 from first(j) to last(j).
  QCN_ANYWHERE std::int64_t weight(std::int64_t i, std::int64_t j) const {
    const std::int64_t away = (2 * i + 1) * side - (2 * j + 1) * size;
    return widest() - (away < 0 ? -away : away);
  }
  QCN_ANYWHERE std::int64_t first(std::int64_t j) const {
    const std::int64_t least = (2 * j + 1) * size - widest() - side;  // (2·side)·i must be more than this
    return least < 0 ? 0 : least / (2 * side) + 1;
  }
  QCN_ANYWHERE std::int64_t last(std::int64_t j) const {
    const std::int64_t most = (2 * j + 1) * size + widest() - side;  // (2·side)·i must be less than this
    const std::int64_t found = (most - 1) / (2 * side);
    return found < size ? found : size - 1;
  }
  QCN_ANYWHERE std::int64_t total(std::int64_t j) const {
    std::int64_t sum = 0;
    for (std::int64_t i = first(j); i <= last(j); ++i) sum += weight(i, j);
    return sum;
  }
};

constexpr int kShareBits = 22;

// A weight as a share of all, in parts of 2²².
QCN_ANYWHERE inline std::int32_t share(std::int64_t weight, std::int64_t total) {
  return static_cast<std::int32_t>(((weight << (kShareBits + 1)) + total) / (2 * total));
}

QCN_ANYWHERE inline std::uint8_t rounded(std::int32_t sum) {
  const std::int32_t value = (sum + (1 << (kShareBits - 1))) >> kShareBits;
  return static_cast<std::uint8_t>(value > 255 ? 255 : value);
}

struct FitAxes {
  FitAxis rows, columns;
};

inline FitAxes fit_axes(const Stored& stored, int picture_height, int picture_width) {
  const std::int64_t rows = picture_height, columns = picture_width, height = stored.height, width = stored.width;
  FitAxes axes{{0, rows, height, 0}, {0, columns, width, 0}};
  const bool wider = columns * height > rows * width;
  const auto at_least_one = [](std::int64_t pixels) { return pixels < 1 ? 1 : pixels; };
  if (stored.fit == Fit::kCrop) {
    FitAxis& cut = wider ? axes.columns : axes.rows;
    const std::int64_t whole = cut.size;
    cut.size = at_least_one(wider ? rows * width / height : columns * height / width);
    cut.start = (whole - cut.size) / 2;
  } else if (stored.fit == Fit::kLetterbox) {
    FitAxis& boxed = wider ? axes.rows : axes.columns;
    const std::int64_t whole = boxed.side;
    boxed.side =
        at_least_one(wider ? (2 * rows * width + columns) / (2 * columns) : (2 * columns * height + rows) / (2 * rows));
    boxed.margin = (whole - boxed.side) / 2;
  }
  return axes;
}

// A picture of bytes with the channels that the network takes, one of its pixels at a time.
struct Picture {
  const unsigned char* data;
  std::int64_t column_stride, row_stride, channel_stride;
  int channels, wanted;
  bool reversed;

  Picture(const qcn_image& image, int wanted_channels)
      : data(static_cast<const unsigned char*>(image.data)),
        column_stride(image.column_stride),
        row_stride(image.row_stride),
        channel_stride(image.channel_stride),
        channels(image.channels),
        wanted(wanted_channels),
        reversed(image.reverse_channels != 0) {}

  QCN_ANYWHERE int at(int channel, std::int64_t y, std::int64_t x) const {
    const unsigned char* pixel = data + y * row_stride + x * column_stride;
    if (wanted == 1 && channels >= 3) {
      return (19595 * colour(pixel, 0) + 38470 * colour(pixel, 1) + 7471 * colour(pixel, 2) + 32768) >> 16;
    }
    return colour(pixel, channels == 1 ? 0 : channel);
  }

  // Where a channel's pixels are that `at` gives as they are, column_stride apart; null if it computes them.
  const unsigned char* unchanged(int channel, std::int64_t y, std::int64_t x) const {
    if (wanted != channels) return nullptr;
    return data + y * row_stride + x * column_stride + place_of(channel, channels, reversed) * channel_stride;
  }

 private:
  QCN_ANYWHERE int colour(const unsigned char* pixel, int channel) const {
    const int value = pixel[place_of(channel, channels, reversed) * channel_stride];
    if (channels != 4 || wanted == 4) return value;
    const int alpha = pixel[3 * channel_stride];
    return (value * alpha + 255 * (255 - alpha) + 127) / 255;
  }
};

// A picture as an image of the data set, each pixel fitted when it is asked for: slower than fit_picture, without
// memory.
struct Fitted {
  Picture picture;
  FitAxes axes;

  QCN_ANYWHERE void move(std::int64_t bytes) { picture.data += bytes; }

  QCN_ANYWHERE double at(std::int64_t channel, std::int64_t y, std::int64_t x) const {
    y -= axes.rows.margin, x -= axes.columns.margin;
    if (y < 0 || x < 0 || y >= axes.rows.side || x >= axes.columns.side) return 0;
    const std::int64_t across_total = axes.columns.resized() ? axes.columns.total(x) : 0;
    if (!axes.rows.resized()) return across(static_cast<int>(channel), y, x, across_total);
    const std::int64_t total = axes.rows.total(y), last = axes.rows.last(y);
    std::int32_t sum = 0;
    for (std::int64_t i = axes.rows.first(y); i <= last; ++i) {
      sum += share(axes.rows.weight(i, y), total) * across(static_cast<int>(channel), i, x, across_total);
    }
    return rounded(sum);
  }

 private:
  QCN_ANYWHERE std::int32_t across(int channel, std::int64_t row, std::int64_t x, std::int64_t total) const {
    const std::int64_t y = axes.rows.start + row;
    if (!axes.columns.resized()) return picture.at(channel, y, axes.columns.start + x);
    const std::int64_t last = axes.columns.last(x);
    std::int32_t sum = 0;
    for (std::int64_t i = axes.columns.first(x); i <= last; ++i) {
      sum += share(axes.columns.weight(i, x), total) * picture.at(channel, y, axes.columns.start + i);
    }
    return rounded(sum);
  }
};

// The image, [channels, height, width] of `stored`, that becomes of a picture in host memory. `picture.pixel` is
// QCN_UINT8, and converts(picture.channels, stored.channels).
void fit_picture(const Stored& stored, const qcn_image& picture, std::vector<std::uint8_t>& out);

}  // namespace qcn

#endif

// Fitting on the CPU: row by row of the picture, each made as wide as the result; then down.
#include "fit.h"

#include <algorithm>
#include <cstddef>

namespace qcn {
namespace {

// The shares of one side, [side, taps]: pixel j of the result is made of `taps` pixels from first[j] on. Their number
// is the same for all and a multiple of 8, with shares of 0 at the end: loops that a compiler makes vectors of. A share
// is high · 2¹⁵ + low, two numbers of 16 bits, which processors multiply and add in pairs.
struct Shares {
  static constexpr int kLowBits = 15;
  static constexpr std::size_t kLanes = 8;

  std::size_t taps = 0;
  std::vector<std::size_t> first;
  std::vector<std::int16_t> high, low;

  void fill(const FitAxis& axis) {
    const auto side = static_cast<std::size_t>(axis.side);
    taps = 0;
    first.resize(side);
    for (std::size_t j = 0; j < side; ++j) {
      const auto at = static_cast<std::int64_t>(j);
      first[j] = static_cast<std::size_t>(axis.first(at));
      taps = std::max(taps, static_cast<std::size_t>(axis.last(at)) - first[j] + 1);
    }
    taps = (taps + kLanes - 1) / kLanes * kLanes;
    high.assign(side * taps, 0), low.assign(side * taps, 0);
    for (std::size_t j = 0; j < side; ++j) fill_one(axis, static_cast<std::int64_t>(j), j * taps);
  }

 private:
  void fill_one(const FitAxis& axis, std::int64_t j, std::size_t at) {
    const std::int64_t total = axis.total(j), last = axis.last(j);
    for (std::int64_t i = axis.first(j); i <= last; ++i, ++at) {
      const std::int32_t part = share(axis.weight(i, j), total);
      high[at] = static_cast<std::int16_t>(part >> kLowBits);
      low[at] = static_cast<std::int16_t>(part & ((1 << kLowBits) - 1));
    }
  }
};

// Grows to the largest size seen, then stays: a camera's frames allocate once.
struct Scratch {
  Shares across, down;
  std::vector<std::int16_t> row;        // of the picture, one channel, and as many pixels after it as there are taps
  std::vector<std::uint8_t> narrow;     // of each channel all rows, each as wide as the result
  std::vector<std::int32_t> high, low;  // sums of one row of the result
};

std::uint8_t of_parts(std::int32_t high, std::int32_t low) { return rounded(high * (1 << Shares::kLowBits) + low); }

void resize_row(const Shares& across, const std::int16_t* row, std::uint8_t* out) {
  const std::int16_t *high = across.high.data(), *low = across.low.data();
  for (const std::size_t first : across.first) {
    const std::int16_t* const from = row + first;
    std::int32_t high_sum = 0, low_sum = 0;
    for (std::size_t i = 0; i < across.taps; i += Shares::kLanes, high += Shares::kLanes, low += Shares::kLanes) {
      for (std::size_t k = 0; k < Shares::kLanes; ++k) high_sum += high[k] * from[i + k];
      for (std::size_t k = 0; k < Shares::kLanes; ++k) low_sum += low[k] * from[i + k];
    }
    *out++ = of_parts(high_sum, low_sum);
  }
}

// One row of a channel, as the network takes it.
template <typename Number>
void read_row(const Picture& picture, int channel, std::int64_t y, const FitAxis& columns, Number* row) {
  if (const unsigned char* from = picture.unchanged(channel, y, columns.start)) {
    for (std::int64_t x = 0; x < columns.size; ++x, from += picture.column_stride) *row++ = *from;
  } else {
    for (std::int64_t x = 0; x < columns.size; ++x) {
      *row++ = static_cast<Number>(picture.at(channel, y, columns.start + x));
    }
  }
}

// Every row of the first `channels` channels, as wide as the result. A row is read for all channels at once, while it
// is in the cache.
void across(const Picture& picture, int channels, const FitAxes& axes, Scratch& scratch) {
  const FitAxis& columns = axes.columns;
  const auto side = static_cast<std::size_t>(columns.side), rows = static_cast<std::size_t>(axes.rows.size);
  scratch.narrow.resize(static_cast<std::size_t>(channels) * rows * side);
  scratch.row.resize(static_cast<std::size_t>(columns.size) + scratch.across.taps);
  for (std::size_t y = 0; y < rows; ++y) {
    for (int channel = 0; channel < channels; ++channel) {
      std::uint8_t* const out = scratch.narrow.data() + (static_cast<std::size_t>(channel) * rows + y) * side;
      const std::int64_t from = axes.rows.start + static_cast<std::int64_t>(y);
      if (columns.resized()) {
        read_row(picture, channel, from, columns, scratch.row.data());
        resize_row(scratch.across, scratch.row.data(), out);
      } else {
        read_row(picture, channel, from, columns, out);
      }
    }
  }
}

// The rows of one channel of the result, `stride` apart, from its rows in scratch.narrow.
void down(const FitAxes& axes, const std::uint8_t* narrow, Scratch& scratch, std::uint8_t* out, std::size_t stride) {
  const auto side = static_cast<std::size_t>(axes.columns.side), rows = static_cast<std::size_t>(axes.rows.size);
  const Shares& shares = scratch.down;
  scratch.high.resize(side), scratch.low.resize(side);
  for (std::size_t j = 0; j < static_cast<std::size_t>(axes.rows.side); ++j, out += stride) {
    if (!axes.rows.resized()) {
      std::copy_n(narrow + j * side, side, out);
      continue;
    }
    std::int32_t *const high = scratch.high.data(), *const low = scratch.low.data();
    std::fill_n(high, side, 0), std::fill_n(low, side, 0);
    const std::size_t first = shares.first[j], taps = std::min(shares.taps, rows - first);
    for (std::size_t i = 0; i < taps; ++i) {
      const std::int16_t high_share = shares.high[j * shares.taps + i], low_share = shares.low[j * shares.taps + i];
      const std::uint8_t* const row = narrow + (first + i) * side;
      for (std::size_t x = 0; x < side; ++x) {
        const std::int16_t pixel = row[x];
        high[x] += high_share * pixel, low[x] += low_share * pixel;
      }
    }
    for (std::size_t x = 0; x < side; ++x) out[x] = of_parts(high[x], low[x]);
  }
}

}  // namespace

void fit_picture(const Stored& stored, const qcn_image& image, std::vector<std::uint8_t>& out) {
  thread_local Scratch scratch;
  const FitAxes axes = fit_axes(stored, image.height, image.width);
  if (axes.columns.resized()) scratch.across.fill(axes.columns);
  if (axes.rows.resized()) scratch.down.fill(axes.rows);
  const auto width = static_cast<std::size_t>(stored.width), plane = static_cast<std::size_t>(stored.height) * width;
  out.assign(static_cast<std::size_t>(stored.channels) * plane, 0);
  const std::size_t corner =
      static_cast<std::size_t>(axes.rows.margin) * width + static_cast<std::size_t>(axes.columns.margin);
  const int channels = image.channels == 1 ? 1 : stored.channels;
  across(Picture(image, stored.channels), channels, axes, scratch);
  const std::size_t narrow = static_cast<std::size_t>(axes.rows.size * axes.columns.side);
  for (std::size_t channel = 0; channel < static_cast<std::size_t>(channels); ++channel) {
    down(axes, scratch.narrow.data() + channel * narrow, scratch, out.data() + channel * plane + corner, width);
  }
  for (int channel = channels; channel < stored.channels; ++channel) {  // grey is repeated
    std::copy_n(out.begin(), plane, out.begin() + static_cast<std::ptrdiff_t>(plane) * channel);
  }
}

}  // namespace qcn

// Fitting, by rows and pixel by pixel as on a GPU, against its definition in qcn/data/fit.py done the slow way: every
// weight of every pixel. Its bits are compared with Python's in tests/test_deploy_fit.py.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "fit.h"
#include "preprocess.h"

namespace {

using qcn::Fit;
using qcn::Stored;
using Pixels = std::vector<std::int64_t>;  // [rows, columns] of one channel

// A picture in memory with the layout that a camera or a library may give it.
struct Memory {
  std::vector<unsigned char> bytes;
  qcn_image image{};

  Memory(std::mt19937& generator, int width, int height, int channels) {
    const bool planar = generator() % 3 == 0, upside_down = generator() % 4 == 0, mirrored = generator() % 5 == 0;
    const bool black_and_white = generator() % 4 == 0;
    const std::ptrdiff_t gap = static_cast<std::ptrdiff_t>(generator() % 4);
    image = planar ? qcn_image_planar(nullptr, width, height, channels)
                   : qcn_image_default(nullptr, width, height, channels);
    image.row_stride += gap;
    if (planar) image.channel_stride = image.row_stride * height;
    bytes.resize(static_cast<std::size_t>(image.row_stride * height * (planar ? channels : 1)));
    for (auto& byte : bytes) {
      byte = static_cast<unsigned char>(generator());
      if (black_and_white) byte = byte < 128 ? 0 : 255;
    }
    unsigned char* data = bytes.data();
    if (upside_down) data += image.row_stride * (height - 1), image.row_stride *= -1;
    if (mirrored) data += image.column_stride * (width - 1), image.column_stride *= -1;
    image.data = data;
    image.reverse_channels = generator() % 3 == 0;
  }

  std::int64_t at(int channel, int y, int x) const {
    const int colours = image.channels == 4 ? 3 : image.channels;
    if (image.reverse_channels && channel < colours) channel = colours - 1 - channel;
    return static_cast<const unsigned char*>(
        image.data)[y * image.row_stride + x * image.column_stride + channel * image.channel_stride];
  }
};

// Step 2 of the definition.
Pixels channel_of(const Memory& picture, int wanted, int channel) {
  const int channels = picture.image.channels;
  Pixels out;
  for (int y = 0; y < picture.image.height; ++y) {
    for (int x = 0; x < picture.image.width; ++x) {
      const auto colour = [&](int c) {
        const std::int64_t value = picture.at(channels == 1 ? 0 : c, y, x);
        if (channels != 4 || wanted == 4) return value;
        const std::int64_t alpha = picture.at(3, y, x);
        return (alpha * value + 255 * (255 - alpha) + 127) / 255;
      };
      out.push_back(wanted == 1 && channels > 1
                        ? (19595 * colour(0) + 38470 * colour(1) + 7471 * colour(2) + 32768) >> 16
                        : colour(channel));
    }
  }
  return out;
}

// [lines, n] to [lines, m] or, downwards, [n, lines] to [m, lines].
Pixels resized(const Pixels& pixels, int lines, int n, int m, bool down) {
  if (n == m) return pixels;
  Pixels out(static_cast<std::size_t>(lines) * static_cast<std::size_t>(m));
  const auto at = [&](int line, int i, int size) {
    return static_cast<std::size_t>(down ? i * lines + line : line * size + i);
  };
  for (int j = 0; j < m; ++j) {
    std::vector<std::int64_t> weights;
    std::int64_t total = 0;
    for (int i = 0; i < n; ++i) {
      const std::int64_t apart = (2LL * i + 1) * m - (2LL * j + 1) * n;
      weights.push_back(std::max<std::int64_t>(0, 2LL * std::max(n, m) - std::abs(apart)));
      total += weights.back();
    }
    for (auto& weight : weights) weight = (2 * weight * (1LL << 22) + total) / (2 * total);
    for (int line = 0; line < lines; ++line) {
      std::int64_t sum = 0;
      for (int i = 0; i < n; ++i) sum += weights[static_cast<std::size_t>(i)] * pixels[at(line, i, n)];
      out[at(line, j, m)] = std::min<std::int64_t>(255, (sum + (1 << 21)) >> 22);
    }
  }
  return out;
}

// Step 3 of the definition.
Pixels fitted(Pixels pixels, int rows, int columns, const Stored& stored) {
  const int height = stored.height, width = stored.width;
  const bool wider = static_cast<std::int64_t>(columns) * height > static_cast<std::int64_t>(rows) * width;
  int inner_height = height, inner_width = width;
  if (stored.fit == Fit::kCrop) {
    const int kept_rows = wider ? rows : std::max(1, columns * height / width);
    const int kept_columns = wider ? std::max(1, rows * width / height) : columns;
    const int top = (rows - kept_rows) / 2, left = (columns - kept_columns) / 2;
    Pixels kept;
    for (int y = top; y < top + kept_rows; ++y) {
      for (int x = left; x < left + kept_columns; ++x)
        kept.push_back(pixels[static_cast<std::size_t>(y * columns + x)]);
    }
    pixels = kept, rows = kept_rows, columns = kept_columns;
  } else if (stored.fit == Fit::kLetterbox) {
    (wider ? inner_height : inner_width) =
        std::max(1, wider ? (2 * rows * width + columns) / (2 * columns) : (2 * columns * height + rows) / (2 * rows));
  }
  const Pixels inner =
      resized(resized(pixels, rows, columns, inner_width, false), inner_width, rows, inner_height, true);
  Pixels out(static_cast<std::size_t>(height * width), 0);
  const int top = (height - inner_height) / 2, left = (width - inner_width) / 2;
  for (int y = 0; y < inner_height; ++y) {
    for (int x = 0; x < inner_width; ++x) {
      out[static_cast<std::size_t>((top + y) * width + left + x)] =
          inner[static_cast<std::size_t>(y * inner_width + x)];
    }
  }
  return out;
}

void compare(const Stored& stored, const Memory& picture) {
  std::vector<std::uint8_t> found;
  qcn::fit_picture(stored, picture.image, found);
  Pixels expected;
  for (int channel = 0; channel < stored.channels; ++channel) {
    const Pixels one =
        fitted(channel_of(picture, stored.channels, channel), picture.image.height, picture.image.width, stored);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  const qcn::Fitted on_a_gpu{{picture.image, stored.channels},
                             qcn::fit_axes(stored, picture.image.height, picture.image.width)};
  Pixels one_by_one;
  for (int channel = 0; channel < stored.channels; ++channel) {
    for (int y = 0; y < stored.height; ++y) {
      for (int x = 0; x < stored.width; ++x) {
        one_by_one.push_back(static_cast<std::int64_t>(on_a_gpu.at(channel, y, x)));
      }
    }
  }
  const auto size = [](int channels, int height, int width) {
    return std::to_string(channels) + "x" + std::to_string(height) + "x" + std::to_string(width);
  };
  check(Pixels(found.begin(), found.end()) == expected && one_by_one == expected,
        size(picture.image.channels, picture.image.height, picture.image.width) + " to " +
            size(stored.channels, stored.height, stored.width) + ", fit " +
            std::to_string(static_cast<int>(stored.fit)));
}

constexpr Fit kFits[] = {Fit::kCrop, Fit::kLetterbox, Fit::kStretch};
constexpr int kWays[][2] = {{1, 1}, {1, 3}, {3, 1}, {3, 3}, {4, 1}, {4, 3}, {2, 2}, {4, 4}, {6, 6}};

void test_the_definition() {
  std::mt19937 generator(0);
  const auto below = [&](int limit) { return 1 + static_cast<int>(generator() % static_cast<unsigned>(limit)); };
  for (int round = 0; round < 40; ++round) {
    for (const auto& [channels, wanted] : kWays) {
      const int most = round % 8 ? 40 : 200, side = round % 2 ? below(40) : 0;
      const int height = below(most), width = below(most);
      const Stored stored{wanted, side ? side : below(60), side ? side : below(60), kFits[round % 3]};
      compare(stored, Memory(generator, width, height, channels));
    }
  }
}

// The smallest, the longest, one next to the size asked for, and that size with other channels.
void test_odd_sizes() {
  std::mt19937 generator(1);
  for (const Fit fit : kFits) {
    for (const auto& [height, width] :
         {std::pair{1, 1}, {16384, 1}, {1, 16384}, {28, 28}, {27, 28}, {28, 29}, {480, 640}, {2, 16384}}) {
      for (const auto& [channels, wanted] : kWays) {
        compare({wanted, 28, 28, fit}, Memory(generator, width, height, channels));
      }
    }
    compare({3, 1, 1, fit}, Memory(generator, 300, 200, 3));
    compare({1, 7, 16384, fit}, Memory(generator, 9, 5, 1));
  }
}

// Nothing outside the crop is read: pixels there may be no memory at all.
void test_a_crop_reads_nothing_else() {
  const std::vector<unsigned char> pixels(10 * 10, 9);
  qcn_image image = qcn_image_planar(pixels.data() - 45, 100, 10, 1);
  image.row_stride = 10;
  std::vector<std::uint8_t> found;
  qcn::fit_picture({1, 5, 5, Fit::kCrop}, image, found);
  check(found == std::vector<std::uint8_t>(25, 9), "the middle of a picture without sides");
}

void test_what_is_refused() {
  std::mt19937 generator(2);
  const auto refuse = [](const qcn::Preprocessing& spec, const qcn_image& image, const std::string& message) {
    refused(message, QCN_BAD_ARGUMENT, [&] { qcn::check_image(spec, image); }, {message});
  };
  qcn::Preprocessing spec;
  spec.by_image = true;
  for (const auto& [channels, wanted] : {std::pair{1, 2}, {3, 2}, {4, 2}, {2, 1}, {2, 3}, {3, 4}, {1, 4}, {5, 3}}) {
    spec.stored = {wanted, 28, 28, Fit::kCrop};
    refuse(spec, Memory(generator, 28, 28, channels).image, "there is no way from one to the other");
  }
  spec.stored = {1, 28, 28, Fit::kCrop};
  Memory picture(generator, 28, 29, 4);
  picture.image.channels = 1, picture.image.pixel = QCN_FLOAT32;
  refuse(spec, picture.image, "floats are taken in the size of the network's images, 28×28");
  picture.image.height = 28;
  qcn::check_image(spec, picture.image);
  spec.stored.channels = 3;
  refuse(spec, picture.image, "with 3 channels, not 28×28 with 1");
  qcn_image image = Memory(generator, 1, 1, 1).image;
  image.row_stride = image.column_stride = 0;
  image.width = 16384, image.height = 16384;
  qcn::check_image(spec, image);
  image.width = 16385;
  refuse(spec, image, "at most 16384×16384 pixels, not 16385×16384");
}

}  // namespace

int main() {
  test_the_definition();
  test_odd_sizes();
  test_a_crop_reads_nothing_else();
  test_what_is_refused();
  return verdict();
}

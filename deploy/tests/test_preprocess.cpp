// Pre-processing of images of the data set's size against its definition in qcn/data/preprocess.py, done the slow way,
// and with images that no camera makes. Those of other sizes are in test_fit.cpp. Its bits are compared with Python's
// in tests/test_deploy_fit.py.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "preprocess.h"

namespace {

struct Case {
  int channels, height, width;
  qcn::Preprocessing spec;
};

qcn::Preprocessing by_image(std::optional<int> resize, std::optional<int> crop) {
  return {{}, resize, crop, true, {}, {}};
}

qcn::Preprocessing by_set(std::optional<int> resize, std::optional<int> crop, const std::vector<double>& mean,
                          const std::vector<double>& std) {
  return {{}, resize, crop, false, mean, std};
}

// What the network of a data set of such images sees of one.
std::vector<float> seen_of(qcn::Preprocessing spec, const qcn_image& image) {
  spec.stored = {image.channels, image.height, image.width, qcn::Fit::kStretch};
  const auto side = [&](int size) { return static_cast<std::size_t>(spec.crop.value_or(spec.resize.value_or(size))); };
  std::vector<float> out(static_cast<std::size_t>(image.channels) * side(image.height) * side(image.width));
  qcn::preprocess(spec, image, out.data());
  return out;
}

// Position by position in floating point, as resizing is usually told, on pixels [H, W, C].
std::vector<float> reference(const Case& c, const std::vector<unsigned char>& pixels) {
  const int rows = c.spec.resize.value_or(c.height), columns = c.spec.resize.value_or(c.width);
  const int h = c.spec.crop.value_or(rows), w = c.spec.crop.value_or(columns);
  const auto place = [](int index, int size, int side) { return std::fmax(0.0L, (index + 0.5L) * size / side - 0.5L); };
  std::vector<float> out;
  for (int channel = 0; channel < c.channels; ++channel) {
    std::vector<long double> values;
    const auto at = [&](int y, int x) {
      const int index = (std::min(y, c.height - 1) * c.width + std::min(x, c.width - 1)) * c.channels + channel;
      return static_cast<long double>(pixels[static_cast<std::size_t>(index)]) / 255;
    };
    for (int y = 0; y < h; ++y) {
      for (int x = 0; x < w; ++x) {
        const long double v = place(y + (rows - h) / 2, c.height, rows),
                          u = place(x + (columns - w) / 2, c.width, columns);
        const int top = static_cast<int>(v), left = static_cast<int>(u);
        const long double down = v - top, across = u - left;
        values.push_back((1 - down) * ((1 - across) * at(top, left) + across * at(top, left + 1)) +
                         down * ((1 - across) * at(top + 1, left) + across * at(top + 1, left + 1)));
      }
    }
    const auto number = static_cast<long double>(values.size());
    long double mean = 0, square = 0;
    for (const long double value : values) mean += value / number;
    for (const long double value : values) square += (value - mean) * (value - mean) / number;
    long double std = std::fmax(std::sqrt(square), 1.0L / 255);
    if (!c.spec.by_image) {
      mean = c.spec.mean[static_cast<std::size_t>(channel)];
      std = c.spec.std[static_cast<std::size_t>(channel)];
    }
    for (const long double value : values) out.push_back(static_cast<float>((value - mean) / std));
  }
  return out;
}

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float unit = std::nextafter(std::fabs(a[i]), INFINITY) - std::fabs(a[i]);
    if (!(std::fabs(a[i] - b[i]) <= std::fmax(unit, 1e-11F))) return false;  // near 0 the reference rounds, too
  }
  return true;
}

std::vector<unsigned char> noise(std::size_t count) {
  std::mt19937 generator(static_cast<unsigned>(count));
  std::vector<unsigned char> pixels(count);
  for (auto& pixel : pixels) pixel = static_cast<unsigned char>(generator());
  return pixels;
}

void test_the_definition() {
  const Case cases[] = {
      {2, 96, 96, by_image(48, 32)},
      {1, 28, 28, by_set({}, {}, {0.1307}, {0.3081})},
      {3, 37, 53, by_image(48, 32)},
      {3, 480, 641, by_set(48, 31, {0.49, 0.48, 0.44}, {0.24, 0.24, 0.26})},
      {2, 40, 41, by_image({}, 32)},
      {1, 1, 1, by_image(32, {})},
      {1, 1, 7, by_set(9, 3, {0.5}, {0.25})},
      {1, 3, 2, by_image(224, 200)},
      {4, 701, 3, by_image(5, 5)},
      {1, 1, 1, by_set({}, {}, {0.25}, {0.5})},
  };
  for (const Case& c : cases) {
    const auto pixels = noise(static_cast<std::size_t>(c.channels * c.height * c.width));
    check(close(seen_of(c.spec, qcn_image_default(pixels.data(), c.width, c.height, c.channels)), reference(c, pixels)),
          "the definition holds");
  }
}

void test_the_layout_in_memory_makes_no_difference() {
  const int width = 13, height = 11, channels = 3;
  const auto spec = by_image(8, 7);
  const auto pixels = noise(static_cast<std::size_t>(width * height * channels));
  const auto expected = seen_of(spec, qcn_image_default(pixels.data(), width, height, channels));

  std::vector<unsigned char> planar(pixels.size()), reversed(pixels.size()), flipped(pixels.size());
  std::vector<char> floats(pixels.size() * sizeof(float) + 1);
  for (int i = 0; i < width * height; ++i) {
    for (int c = 0; c < channels; ++c) {
      const unsigned char pixel = pixels[static_cast<std::size_t>(i * channels + c)];
      planar[static_cast<std::size_t>(c * width * height + i)] = pixel;
      reversed[static_cast<std::size_t>(i * channels + channels - 1 - c)] = pixel;
      flipped[static_cast<std::size_t>((width * height - 1 - i) * channels + c)] = pixel;
      const float value = static_cast<float>(pixel) / 255;
      std::memcpy(floats.data() + 1 + static_cast<std::size_t>(i * channels + c) * sizeof value, &value, sizeof value);
    }
  }
  qcn_image image = qcn_image_default(planar.data(), width, height, channels);
  image.column_stride = 1, image.row_stride = width, image.channel_stride = width * height;
  check(seen_of(spec, image) == expected, "channel by channel");
  image = qcn_image_default(reversed.data(), width, height, channels);
  image.reverse_channels = 1;
  check(seen_of(spec, image) == expected, "the last channel first");
  image = qcn_image_default(flipped.data() + (width * height - 1) * channels, width, height, channels);
  image.column_stride = -channels, image.row_stride = -width * channels;
  check(seen_of(spec, image) == expected, "negative strides");
  image = qcn_image_default(floats.data() + 1, width, height, channels);
  image.pixel = QCN_FLOAT32;
  image.column_stride *= 4, image.row_stride *= 4, image.channel_stride *= 4;
  const auto from_floats = seen_of(spec, image);
  bool near = from_floats.size() == expected.size();
  for (std::size_t i = 0; near && i < expected.size(); ++i) near = std::fabs(from_floats[i] - expected[i]) < 1e-6F;
  check(near, "floats, not aligned");
}

void test_a_constant_image_is_exactly_zero() {
  for (const int value : {0, 7, 128, 255}) {
    const std::vector<unsigned char> pixels(41 * 67, static_cast<unsigned char>(value));
    for (const float seen : seen_of(by_image(48, 32), qcn_image_default(pixels.data(), 41, 67, 1))) {
      check(seen == 0.0F, "a constant image");
    }
  }
}

void test_floats_that_are_no_numbers() {
  std::vector<float> pixels(2 * 64, 0.5F);
  qcn_image image = qcn_image_default(pixels.data(), 8, 8, 2);
  image.pixel = QCN_FLOAT32;
  image.column_stride = 4, image.row_stride = 32, image.channel_stride = 256;
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38F}) {
    pixels[20] = odd;
    const auto seen = seen_of(by_image(4, {}), image);
    check(std::isnan(seen[0]) == !std::isfinite(odd), "a NaN is seen all over its channel");
    check(seen[16] == 0.0F, "and not in the next");
    check(seen_of(by_set({}, {}, {0.5, 0.5}, {1, 1}), image)[19] == 0.0F, "and in its pixel alone, by data set");
  }
}

void test_what_is_refused() {
  const std::vector<unsigned char> pixels(64);
  const qcn_image good = qcn_image_default(pixels.data(), 8, 8, 1);
  auto spec = by_image(4, {});
  spec.stored = {1, 8, 8, qcn::Fit::kCrop};
  const auto refuse = [&](const qcn_image& image, const char* what) {
    float out[64];
    refused(what, QCN_BAD_ARGUMENT, [&] { qcn::preprocess(spec, image, out); });
  };
  qcn_image image = good;
  image.data = nullptr;
  refuse(image, "no data");
  for (const int size : {0, -1, std::numeric_limits<int>::min()}) {
    for (int qcn_image::* const side : {&qcn_image::width, &qcn_image::height, &qcn_image::channels}) {
      image = good;
      image.*side = size;
      refuse(image, "no pixels");
    }
  }
  image = good;
  const unsigned int two = 2;
  std::memcpy(&image.pixel, &two, sizeof two);
  refuse(image, "an unknown type of pixel");
  for (const std::ptrdiff_t stride : {PTRDIFF_MAX, PTRDIFF_MIN, PTRDIFF_MAX / 4, PTRDIFF_MIN / 8}) {
    for (std::ptrdiff_t qcn_image::* const which : {&qcn_image::column_stride, &qcn_image::row_stride}) {
      image = good;
      image.*which = stride;
      refuse(image, "strides out of memory");
    }
  }
  image = good;
  image.width = image.height = std::numeric_limits<int>::max();
  image.row_stride = image.column_stride = 0;  // one byte is all there is of it
  refuse(image, "a huge picture");
}

}  // namespace

int main() {
  test_the_definition();
  test_the_layout_in_memory_makes_no_difference();
  test_a_constant_image_is_exactly_zero();
  test_floats_that_are_no_numbers();
  test_what_is_refused();
  return verdict();
}

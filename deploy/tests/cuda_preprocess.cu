// Pre-processing on a GPU against the CPU's: the same bits for uint8 pixels, one unit in the last place for floats.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "preprocess_cuda.h"

namespace {

void succeed(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

// How many floats lie between two of the same sign; NaN only equals NaN.
std::int64_t distance(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : INT64_MAX;
  if (std::fabs(a - b) < 1e-11F) return 0;  // floats next to their mean: what cancels is rounded
  std::int32_t i, j;
  std::memcpy(&i, &a, sizeof i);
  std::memcpy(&j, &b, sizeof j);
  return std::abs(static_cast<std::int64_t>(i) - j);
}

// The largest distance, or -1 for an exception.
std::int64_t compare(const qcn::Preprocessing& spec, qcn_image image, const std::vector<unsigned char>& bytes,
                     std::ptrdiff_t offset) {
  const qcn::Seen size = qcn::check_image(spec, image);
  const std::size_t count = static_cast<std::size_t>(size.channels) * size.height * size.width;
  std::vector<float> expected(count), found(count);
  qcn::preprocess(spec, image, expected.data());
  unsigned char* pixels;
  float* out;
  succeed(cudaMalloc(&pixels, bytes.size()));
  succeed(cudaMalloc(&out, count * sizeof(float)));
  succeed(cudaMemcpy(pixels, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  image.data = pixels + offset;
  image.on_device = 1;
  qcn::preprocess_cuda(spec, image, out, nullptr);
  succeed(cudaMemcpy(found.data(), out, count * sizeof(float), cudaMemcpyDeviceToHost));
  cudaFree(pixels);
  cudaFree(out);
  std::int64_t worst = 0;
  for (std::size_t i = 0; i < count; ++i) worst = std::max(worst, distance(expected[i], found[i]));
  return worst;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device");
    return 3;
  }
  std::mt19937 generator(0);
  const auto below = [&](int limit) { return 1 + static_cast<int>(generator() % static_cast<unsigned>(limit)); };
  int failures = 0, exact = 0, cases = 0;
  for (int round = 0; round < 300; ++round) {
    const bool floats = round % 3 == 0, constant = round % 7 == 0, upside_down = round % 2 == 0;
    const int channels = round % 50 == 49 ? 70 : below(4);
    const int height = below(round % 5 ? 120 : 900), width = below(round % 5 ? 120 : 900);
    const std::size_t pixel = floats ? sizeof(float) : 1, row = pixel * channels * width + 3;
    std::vector<unsigned char> bytes(row * height, 0);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width * channels; ++x) {
        const auto value = static_cast<unsigned char>(constant ? 77 : generator());
        const float real = static_cast<float>(value) / 255;
        unsigned char* to = bytes.data() + y * row + x * pixel;
        floats ? static_cast<void>(std::memcpy(to, &real, sizeof real)) : static_cast<void>(*to = value);
      }
    }
    if (floats && round % 4 == 0) std::memset(bytes.data(), 255, sizeof(float));  // a NaN
    const std::ptrdiff_t offset = upside_down ? static_cast<std::ptrdiff_t>(row) * (height - 1) : 0;
    qcn_image image{};
    image.size = sizeof image;
    image.data = bytes.data() + offset;
    image.width = width, image.height = height, image.channels = channels;
    image.pixel = floats ? QCN_FLOAT32 : QCN_UINT8;
    image.column_stride = static_cast<std::ptrdiff_t>(pixel) * channels;
    image.row_stride = upside_down ? -static_cast<std::ptrdiff_t>(row) : static_cast<std::ptrdiff_t>(row);
    image.channel_stride = static_cast<std::ptrdiff_t>(pixel);
    image.reverse_channels = round % 4 == 1;
    qcn::Preprocessing spec;
    if (round % 6) spec.resize = below(64);
    if (round % 5 == 1) spec.crop = below(std::min({height, width, spec.resize.value_or(1 << 20)}));
    if (spec.crop && spec.resize) spec.crop = below(*spec.resize);
    spec.by_image = round % 2 == 1;
    spec.mean.assign(channels, 0.4 + 0.01 * round / 300);
    spec.std.assign(channels, 0.3);
    const std::int64_t worst = compare(spec, image, bytes, offset);
    ++cases;
    exact += worst == 0;
    if (worst > 1) {
      std::printf("FAILED: %s %dx%dx%d, by %s: %lld units\n", floats ? "floats" : "bytes", width, height, channels,
                  spec.by_image ? "image" : "data set", static_cast<long long>(worst));
      ++failures;
    }
  }
  std::printf("%d of %d images to the last bit, %d beyond one unit in the last place\n", exact, cases, failures);
  return failures ? 1 : 0;
}

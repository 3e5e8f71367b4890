// Pre-processing on a GPU against the CPU's: the same bits for uint8 pixels, of pictures of any size and in every way
// of fitting, and one unit in the last place for floats. One by one, and in batches.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
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

// A picture in host memory, in the layout that a camera or a library may give it.
struct Picture {
  std::vector<unsigned char> bytes;
  std::ptrdiff_t offset = 0;  // of the upper left pixel
  qcn_image image{};

  Picture(std::mt19937& generator, int width, int height, int channels, bool floats) {
    const bool planar = generator() % 3 == 0, upside_down = generator() % 3 == 0, constant = generator() % 7 == 0;
    const std::ptrdiff_t pixel = floats ? sizeof(float) : 1;
    image = planar ? qcn_image_planar(nullptr, width, height, channels)
                   : qcn_image_default(nullptr, width, height, channels);
    image.column_stride *= pixel, image.row_stride = image.row_stride * pixel + 3, image.channel_stride *= pixel;
    if (planar) image.channel_stride = image.row_stride * height;
    bytes.resize(static_cast<std::size_t>(image.row_stride) * height * (planar ? channels : 1));
    for (auto& byte : bytes) byte = static_cast<unsigned char>(constant ? 77 : generator());
    if (floats) fill(generator, width, height, constant);
    if (upside_down) offset = image.row_stride * (height - 1), image.row_stride *= -1;
    image.pixel = floats ? QCN_FLOAT32 : QCN_UINT8;
    image.reverse_channels = generator() % 3 == 0;
    image.data = bytes.data() + offset;
  }

 private:
  void fill(std::mt19937& generator, int width, int height, bool constant) {
    for (int channel = 0; channel < image.channels; ++channel) {
      for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
          const float value = constant ? 0.3F : static_cast<float>(generator() % 256) / 255;
          std::memcpy(&bytes[y * image.row_stride + x * image.column_stride + channel * image.channel_stride], &value,
                      sizeof value);
        }
      }
    }
    if (generator() % 4 == 0) std::memset(bytes.data(), 255, sizeof(float));  // a NaN
  }
};

// The largest distance.
std::int64_t compare(const qcn::Preprocessing& spec, const Picture& picture) {
  const auto side = [&](int size) { return static_cast<std::size_t>(spec.crop.value_or(spec.resize.value_or(size))); };
  const std::size_t count = spec.stored.channels * side(spec.stored.height) * side(spec.stored.width);
  std::vector<float> expected(count), found(count);
  qcn::preprocess(spec, picture.image, expected.data());
  unsigned char* pixels;
  float* out;
  succeed(cudaMalloc(&pixels, picture.bytes.size()));
  succeed(cudaMalloc(&out, count * sizeof(float)));
  succeed(cudaMemcpy(pixels, picture.bytes.data(), picture.bytes.size(), cudaMemcpyHostToDevice));
  qcn_image image = picture.image;
  image.data = pixels + picture.offset;
  image.on_device = 1;
  qcn::preprocess_cuda(spec, &image, 1, out, nullptr);
  succeed(cudaMemcpy(found.data(), out, count * sizeof(float), cudaMemcpyDeviceToHost));
  cudaFree(pixels);
  cudaFree(out);
  std::int64_t worst = 0;
  for (std::size_t i = 0; i < count; ++i) worst = std::max(worst, distance(expected[i], found[i]));
  return worst;
}

struct Tally {
  int cases = 0, exact = 0, failures = 0;

  void add(const char* what, const qcn::Preprocessing& spec, const Picture& picture) {
    const std::int64_t worst = compare(spec, picture), allowed = picture.image.pixel == QCN_FLOAT32;
    ++cases;
    exact += worst == 0;
    if (worst <= allowed) return;
    std::printf("FAILED: %s: %dx%dx%d to %dx%dx%d, fit %d, resize %d, crop %d, by %s: %lld units\n", what,
                picture.image.width, picture.image.height, picture.image.channels, spec.stored.width,
                spec.stored.height, spec.stored.channels, static_cast<int>(spec.stored.fit), spec.resize.value_or(0),
                spec.crop.value_or(0), spec.by_image ? "image" : "data set", static_cast<long long>(worst));
    ++failures;
  }
  void print(const char* what) const {
    std::printf("%s: %d of %d to the last bit, %d wrong\n", what, exact, cases, failures);
  }
};

class Draw {
 public:
  int below(int limit) { return 1 + static_cast<int>(generator() % static_cast<unsigned>(limit)); }

  // What may come after fitting.
  qcn::Preprocessing spec(const qcn::Stored& stored) {
    qcn::Preprocessing spec;
    spec.stored = stored;
    if (generator() % 3) spec.resize = below(64);
    const int most = spec.resize.value_or(std::min(stored.height, stored.width));
    if (generator() % 3 == 0) spec.crop = below(most);
    spec.by_image = generator() % 2;
    spec.mean.assign(stored.channels, 0.4 + 0.001 * below(100));
    spec.std.assign(stored.channels, 0.3);
    return spec;
  }

  std::mt19937 generator{0};
};

constexpr qcn::Fit kFits[] = {qcn::Fit::kCrop, qcn::Fit::kLetterbox, qcn::Fit::kStretch};

// Images of the data set's size, as bytes and as floats.
Tally test_images(Draw& draw) {
  Tally tally;
  for (int round = 0; round < 300; ++round) {
    const int channels = round % 50 == 49 ? 70 : draw.below(4), most = round % 5 ? 120 : 900;
    const int height = draw.below(most), width = draw.below(most);
    const Picture picture(draw.generator, width, height, channels, round % 3 == 0);
    tally.add("image", draw.spec({channels, height, width, kFits[round % 3]}), picture);
  }
  return tally;
}

// Pictures of any size and any channels, in every way of fitting.
Tally test_pictures(Draw& draw) {
  constexpr int kWays[][2] = {{1, 1}, {1, 3}, {3, 1}, {3, 3}, {4, 1}, {4, 3}, {2, 2}, {4, 4}};
  Tally tally;
  for (int round = 0; round < 720; ++round) {
    const auto& [channels, wanted] = kWays[round % 8];
    const int most = round % 5 ? 120 : 700;
    const qcn::Stored stored{wanted, draw.below(100), round % 2 ? draw.below(100) : 32, kFits[round / 8 % 3]};
    tally.add("picture", draw.spec(stored),
              Picture(draw.generator, draw.below(most), draw.below(most), channels, false));
  }
  for (const qcn::Fit fit : kFits) {
    for (const auto& [width, height] : {std::pair{1, 1}, {16384, 1}, {1, 16384}, {640, 480}, {1920, 1080}, {31, 33}}) {
      for (const auto& [channels, wanted] : kWays) {
        tally.add("odd size", draw.spec({wanted, 32, 32, fit}),
                  Picture(draw.generator, width, height, channels, false));
      }
    }
  }
  return tally;
}

// A batch whose images lie one after the other, now and then with another layout, size or gap in between: launches that
// take several begin and end anywhere. Returns the largest distance to the CPU's.
std::int64_t compare_batch(Draw& draw, const qcn::Preprocessing& spec, int count, bool floats) {
  const qcn::Stored& stored = spec.stored;
  const auto side = [&](int size) { return static_cast<std::size_t>(spec.crop.value_or(spec.resize.value_or(size))); };
  const std::size_t each = stored.channels * side(stored.height) * side(stored.width);
  std::vector<unsigned char> bytes;
  std::vector<qcn_image> images;
  std::vector<std::size_t> places;
  std::vector<float> expected(count * each), found(count * each);
  std::optional<Picture> picture;
  for (int i = 0; i < count; ++i) {
    if (!picture || draw.below(8) == 1) {
      const bool fitted = !floats && draw.below(2) == 1;
      picture.emplace(draw.generator, fitted ? draw.below(80) : stored.width, fitted ? draw.below(80) : stored.height,
                      stored.channels, floats);
    } else if (!floats) {
      for (auto& byte : picture->bytes) byte = static_cast<unsigned char>(draw.generator());
    }
    qcn::preprocess(spec, picture->image, &expected[i * each]);
    if (draw.below(8) == 1) bytes.resize(bytes.size() + 5);
    places.push_back(bytes.size() + picture->offset);
    bytes.insert(bytes.end(), picture->bytes.begin(), picture->bytes.end());
    images.push_back(picture->image);
  }
  unsigned char* pixels;
  float* out;
  succeed(cudaMalloc(&pixels, bytes.size()));
  succeed(cudaMalloc(&out, found.size() * sizeof(float)));
  succeed(cudaMemcpy(pixels, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  for (int i = 0; i < count; ++i) images[i].data = pixels + places[i], images[i].on_device = 1;
  qcn::preprocess_cuda(spec, images.data(), count, out, nullptr);
  succeed(cudaMemcpy(found.data(), out, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
  cudaFree(pixels);
  cudaFree(out);
  std::int64_t worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) worst = std::max(worst, distance(expected[i], found[i]));
  return worst;
}

Tally test_batches(Draw& draw) {
  Tally tally;
  for (int round = 0; round < 200; ++round) {
    const int channels = round % 50 == 49 ? 70 : draw.below(4), most = round % 5 ? 40 : 120;
    const qcn::Preprocessing spec = draw.spec({channels, draw.below(most), draw.below(most), kFits[round % 3]});
    const bool floats = round % 4 == 0;
    const int count = draw.below(70);
    const std::int64_t worst = compare_batch(draw, spec, count, floats);
    ++tally.cases;
    tally.exact += worst == 0;
    if (worst <= floats) continue;
    std::printf("FAILED: a batch of %d: %lld units\n", count, static_cast<long long>(worst));
    ++tally.failures;
  }
  return tally;
}

// Milliseconds that 64 images of the network's size take, the least of many, of one launch.
void time_batch(Draw& draw) {
  constexpr int kCount = 64, kSide = 32, kPixels = 3 * kSide * kSide;
  qcn::Preprocessing spec;
  spec.stored = {3, kSide, kSide, qcn::Fit::kCrop};
  spec.by_image = true;
  unsigned char* pixels;
  float* out;
  succeed(cudaMalloc(&pixels, kCount * kPixels));
  succeed(cudaMalloc(&out, kCount * kPixels * sizeof(float)));
  succeed(cudaMemset(pixels, draw.below(255), kCount * kPixels));
  std::vector<qcn_image> images;
  for (int i = 0; i < kCount; ++i) images.push_back(qcn_image_default(pixels + i * kPixels, kSide, kSide, 3));
  double least = 1e9;
  for (int i = 0; i < 50; ++i) {
    const auto start = std::chrono::steady_clock::now();
    qcn::preprocess_cuda(spec, images.data(), kCount, out, nullptr);
    succeed(cudaDeviceSynchronize());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    least = std::min(least, took.count());
  }
  std::printf("%d images of %dx%dx3: %.3f ms\n", kCount, kSide, kSide, least);
  cudaFree(pixels);
  cudaFree(out);
}

// Milliseconds that a camera's frame takes, the least of many.
void time_frame(Draw& draw) {
  for (const int side : {32, 64, 96}) {
    const Picture picture(draw.generator, 640, 480, 3, false);
    qcn::Preprocessing spec;
    spec.stored = {3, side, side, qcn::Fit::kCrop};
    spec.mean = {0.4, 0.5, 0.6}, spec.std = {0.2, 0.2, 0.2};
    unsigned char* pixels;
    float* out;
    succeed(cudaMalloc(&pixels, picture.bytes.size()));
    succeed(cudaMalloc(&out, 3 * sizeof(float) * side * side));
    qcn_image image = picture.image;
    image.data = pixels + picture.offset, image.on_device = 1;
    double least = 1e9;
    for (int i = 0; i < 50; ++i) {
      const auto start = std::chrono::steady_clock::now();
      qcn::preprocess_cuda(spec, &image, 1, out, nullptr);
      succeed(cudaDeviceSynchronize());
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
      least = std::min(least, took.count());
    }
    std::printf("a frame of 640x480x3 to %dx%d: %.3f ms\n", side, side, least);
    cudaFree(pixels);
    cudaFree(out);
  }
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device");
    return 3;
  }
  Draw draw;
  const Tally images = test_images(draw), pictures = test_pictures(draw), batches = test_batches(draw);
  images.print("images of the data set's size");
  pictures.print("pictures of other sizes");
  batches.print("batches");
  time_frame(draw);
  time_batch(draw);
  return images.failures + pictures.failures + batches.failures ? 1 : 0;
}

// Pre-processing on a GPU: one block per channel. Pixels are interpolated again for each of the three passes, which is
// cheaper than keeping them: what the network sees is small, and what was read once is in the cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "error.h"
#include "preprocess_cuda.h"
#include "resampling.h"

namespace qcn {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 32;  // of one launch: their means and deviations are its arguments

struct Standard {
  bool by_image;
  double one;
  double mean[kChannels], std[kChannels];
};

// The sum over the block, for all its threads. For uint8 pixels it is exact, so the order makes no difference.
__device__ double block_sum(double value) {
  __shared__ double sums[kThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_down_sync(0xffffffffU, value, lane);
  __syncthreads();  // the sums of the call before have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

template <typename Pixel>
__global__ void __launch_bounds__(kThreads)
    preprocess_kernel(const Pixels<Pixel> image, const Axis rows, const Axis columns, const Standard standard,
                      int first_channel, float* out) {
  const int channel = first_channel + static_cast<int>(blockIdx.x);
  const std::int64_t count = rows.seen * columns.seen;
  const bool resized = rows.resized() || columns.resized();
  const auto pixel = [&](std::int64_t index) {
    const Neighbours y = rows.at(index / columns.seen), x = columns.at(index % columns.seen);
    return resized ? image.between(channel, y, x) : image.at(channel, y.lower, x.lower);
  };
  out += channel * count;
  if (!standard.by_image) {
    const double mean = standard.mean[blockIdx.x], std = standard.std[blockIdx.x];
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
      out[i] = static_cast<float>((pixel(i) / standard.one - mean) / std);
    }
    return;
  }
  const double number = static_cast<double>(count);
  double part = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) part += pixel(i);
  const double total = block_sum(part);
  part = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const double deviation = pixel(i) * number - total;
    part += deviation * deviation;
  }
  const double least = number * standard.one * kStdFloor;
  double std = sqrt(block_sum(part) / number);
  if (std < least) std = least;  // a NaN stays one
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    out[i] = static_cast<float>((pixel(i) * number - total) / std);
  }
}

template <typename Pixel>
void launch(const Preprocessing& spec, const qcn_image& image, float* out, cudaStream_t stream) {
  const Axis rows(image.height, spec.resize, spec.crop), columns(image.width, spec.resize, spec.crop);
  const Pixels<Pixel> pixels(image);
  Standard standard{spec.by_image, pixels.one(rows, columns), {}, {}};
  for (int first = 0; first < image.channels; first += kChannels) {
    const int channels = std::min(kChannels, image.channels - first);
    if (!spec.by_image) {
      std::copy_n(spec.mean.begin() + first, channels, standard.mean);
      std::copy_n(spec.std.begin() + first, channels, standard.std);
    }
    preprocess_kernel<Pixel>
        <<<static_cast<unsigned>(channels), kThreads, 0, stream>>>(pixels, rows, columns, standard, first, out);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      throw Error(QCN_DEVICE_ERROR, std::string("pre-processing on the GPU: ") + cudaGetErrorString(error));
    }
  }
}

}  // namespace

void preprocess_cuda(const Preprocessing& spec, const qcn_image& image, float* out, void* stream) {
  check_image(spec, image);
  if (image.pixel == QCN_UINT8) {
    launch<unsigned char>(spec, image, out, static_cast<cudaStream_t>(stream));
  } else {
    launch<float>(spec, image, out, static_cast<cudaStream_t>(stream));
  }
}

}  // namespace qcn

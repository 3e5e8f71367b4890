// Pre-processing on a GPU: one block per channel where the channel's mean is needed, else several. Pixels are fitted
// and interpolated again for each of the three passes instead of being kept: what the network sees is small, and what
// was read once is in the cache.
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
constexpr int kBlocks = 16;    // per channel, at most

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

template <typename Image>
__global__ void __launch_bounds__(kThreads) preprocess_kernel(const Image image, const Axis rows, const Axis columns,
                                                              const Standard standard, int first_channel, float* out) {
  const int channel = first_channel + static_cast<int>(blockIdx.x);
  const std::int64_t count = rows.seen * columns.seen;
  const bool resized = rows.resized() || columns.resized();
  const auto pixel = [&](std::int64_t index) {
    const Neighbours y = rows.at(index / columns.seen), x = columns.at(index % columns.seen);
    return resized ? between(image, channel, y, x) : image.at(channel, y.lower, x.lower);
  };
  out += channel * count;
  if (!standard.by_image) {
    const double mean = standard.mean[blockIdx.x], std = standard.std[blockIdx.x];
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < count; i += step) {
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

template <typename Image>
void launch(const Preprocessing& spec, const Image& image, bool bytes, float* out, cudaStream_t stream) {
  const Stored& stored = spec.stored;
  const Axis rows(stored.height, spec.resize, spec.crop), columns(stored.width, spec.resize, spec.crop);
  Standard standard{spec.by_image, white(bytes, rows, columns), {}, {}};
  const std::int64_t blocks = spec.by_image ? 1 : (rows.seen * columns.seen + kThreads - 1) / kThreads;
  for (int first = 0; first < stored.channels; first += kChannels) {
    const int channels = std::min(kChannels, stored.channels - first);
    if (!spec.by_image) {
      std::copy_n(spec.mean.begin() + first, channels, standard.mean);
      std::copy_n(spec.std.begin() + first, channels, standard.std);
    }
    const dim3 grid(static_cast<unsigned>(channels), static_cast<unsigned>(std::min<std::int64_t>(blocks, kBlocks)));
    preprocess_kernel<Image><<<grid, kThreads, 0, stream>>>(image, rows, columns, standard, first, out);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      throw Error(QCN_DEVICE_ERROR, std::string("pre-processing on the GPU: ") + cudaGetErrorString(error));
    }
  }
}

}  // namespace

void preprocess_cuda(const Preprocessing& spec, const qcn_image& image, float* out, void* stream_of) {
  check_image(spec, image);
  const auto stream = static_cast<cudaStream_t>(stream_of);
  if (image.pixel == QCN_FLOAT32) return launch(spec, Pixels<float>(image), false, out, stream);
  if (spec.stored == image) return launch(spec, Pixels<unsigned char>(image), true, out, stream);
  launch(spec, Fitted{{image, spec.stored.channels}, fit_axes(spec.stored, image.height, image.width)}, true, out,
         stream);
}

}  // namespace qcn

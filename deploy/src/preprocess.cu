// Pre-processing on a GPU: one block per channel of an image where the channel's mean is needed, else several.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "error.h"
#include "preprocess_cuda.h"
#include "resampling.h"

namespace qcn {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 32;   // of one launch: their means and deviations are its arguments
constexpr int kBlocks = 16;     // per channel, at most
constexpr int kImages = 65535;  // of one launch: what a grid's third side can be
constexpr int kKept = 4096;     // pixels per channel that are kept between passes; else computed again

// How many images one launch works on, and the bytes from one's data to the next's.
struct Batch {
  int count;
  std::int64_t distance;
};

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
__global__ void __launch_bounds__(kThreads)
    preprocess_kernel(const Image first, std::int64_t distance, const Axis rows, const Axis columns,
                      const Standard standard, int first_channel, int channels, float* out) {
  extern __shared__ double kept[];
  Image image = first;
  image.move(blockIdx.z * distance);
  const int channel = first_channel + static_cast<int>(blockIdx.x);
  const std::int64_t count = rows.seen * columns.seen;
  const bool resized = rows.resized() || columns.resized();
  const auto pixel = [&](std::int64_t index) {
    const Neighbours y = rows.at(index / columns.seen), x = columns.at(index % columns.seen);
    return resized ? between(image, channel, y, x) : image.at(channel, y.lower, x.lower);
  };
  out += (static_cast<std::int64_t>(blockIdx.z) * channels + channel) * count;
  if (!standard.by_image) {
    const double mean = standard.mean[blockIdx.x], std = standard.std[blockIdx.x];
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < count; i += step) {
      out[i] = static_cast<float>((pixel(i) / standard.one - mean) / std);
    }
    return;
  }
  const bool keep = count <= kKept;
  const auto again = [&](std::int64_t index) { return keep ? kept[index] : pixel(index); };  // of its own thread
  const double number = static_cast<double>(count);
  double part = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const double value = pixel(i);
    if (keep) kept[i] = value;
    part += value;
  }
  const double total = block_sum(part);
  part = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const double deviation = again(i) * number - total;
    part += deviation * deviation;
  }
  const double least = number * standard.one * kStdFloor;
  double std = sqrt(block_sum(part) / number);
  if (std < least) std = least;  // a NaN stays one
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    out[i] = static_cast<float>((again(i) * number - total) / std);
  }
}

template <typename Image>
void launch(const Preprocessing& spec, const Image& image, const Batch& batch, bool bytes, float* out,
            cudaStream_t stream) {
  const Stored& stored = spec.stored;
  const Axis rows(stored.height, spec.resize, spec.crop), columns(stored.width, spec.resize, spec.crop);
  Standard standard{spec.by_image, white(bytes, rows, columns), {}, {}};
  const std::int64_t seen = rows.seen * columns.seen;
  const std::int64_t blocks = spec.by_image ? 1 : (seen + kThreads - 1) / kThreads;
  const std::size_t shared = spec.by_image && seen <= kKept ? static_cast<std::size_t>(seen) * sizeof(double) : 0;
  for (int first = 0; first < stored.channels; first += kChannels) {
    const int channels = std::min(kChannels, stored.channels - first);
    if (!spec.by_image) {
      std::copy_n(spec.mean.begin() + first, channels, standard.mean);
      std::copy_n(spec.std.begin() + first, channels, standard.std);
    }
    const dim3 grid(static_cast<unsigned>(channels), static_cast<unsigned>(std::min<std::int64_t>(blocks, kBlocks)),
                    static_cast<unsigned>(batch.count));
    preprocess_kernel<Image><<<grid, kThreads, shared, stream>>>(image, batch.distance, rows, columns, standard, first,
                                                                 stored.channels, out);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      throw Error(QCN_DEVICE_ERROR, std::string("pre-processing on the GPU: ") + cudaGetErrorString(error));
    }
  }
}

bool alike(const qcn_image& a, const qcn_image& b) {
  return a.width == b.width && a.height == b.height && a.channels == b.channels && a.pixel == b.pixel &&
         a.column_stride == b.column_stride && a.row_stride == b.row_stride && a.channel_stride == b.channel_stride &&
         (a.reverse_channels != 0) == (b.reverse_channels != 0);
}

// The first of the images, and those after it that go into its launch.
Batch first_batch(const qcn_image* images, int count) {
  const auto distance_after = [&](int i) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(images[i + 1].data) -
                                     reinterpret_cast<std::uintptr_t>(images[i].data));
  };
  Batch batch{1, count > 1 ? distance_after(0) : 0};
  while (batch.count < std::min(count, kImages) && alike(images[0], images[batch.count]) &&
         distance_after(batch.count - 1) == batch.distance) {
    ++batch.count;
  }
  return batch;
}

}  // namespace

void preprocess_cuda(const Preprocessing& spec, const qcn_image* images, int count, float* out, void* stream_of) {
  for (int i = 0; i < count; ++i) check_image(spec, images[i]);
  const auto stream = static_cast<cudaStream_t>(stream_of);
  const Stored& stored = spec.stored;
  const Axis rows(stored.height, spec.resize, spec.crop), columns(stored.width, spec.resize, spec.crop);
  const std::int64_t floats = stored.channels * rows.seen * columns.seen;
  for (Batch batch{}; count > 0; images += batch.count, count -= batch.count, out += batch.count * floats) {
    batch = first_batch(images, count);
    const qcn_image& image = *images;
    if (image.pixel == QCN_FLOAT32) {
      launch(spec, Pixels<float>(image), batch, false, out, stream);
    } else if (stored == image) {
      launch(spec, Pixels<unsigned char>(image), batch, true, out, stream);
    } else {
      const Fitted fitted{{image, stored.channels}, fit_axes(stored, image.height, image.width)};
      launch(spec, fitted, batch, true, out, stream);
    }
  }
}

}  // namespace qcn

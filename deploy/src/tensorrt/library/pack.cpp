#include "pack.h"

#include <cstring>

namespace qcn {
namespace {

std::size_t pixel_bytes(const qcn_image& image) { return image.pixel == QCN_FLOAT32 ? sizeof(float) : 1; }

// [height, width, channels]
template <std::size_t kBytes>
void pack_elements(const qcn_image& image, const char* data, char* to) {
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const char* from = data + y * image.row_stride + x * image.column_stride;
      for (int channel = 0; channel < image.channels; ++channel, to += kBytes, from += image.channel_stride) {
        std::memcpy(to, from, kBytes);
      }
    }
  }
}

}  // namespace

std::size_t packed_bytes(const qcn_image& image) {
  return static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height) *
         static_cast<std::size_t>(image.channels) * pixel_bytes(image);
}

qcn_image pack(const qcn_image& image, char* to) {
  const auto pixel = static_cast<std::ptrdiff_t>(pixel_bytes(image));
  const bool planar = image.channels > 1 && image.column_stride == pixel;
  const int planes = planar ? image.channels : 1;
  qcn_image packed = image;
  packed.data = to;
  packed.column_stride = planar ? pixel : pixel * image.channels;
  packed.row_stride = packed.column_stride * image.width;
  packed.channel_stride = planar ? packed.row_stride * image.height : pixel;
  const char* const data = static_cast<const char*>(image.data);
  const bool adjacent = image.column_stride == packed.column_stride &&
                        (planar || image.channels == 1 || image.channel_stride == packed.channel_stride);
  if (!adjacent) {
    pixel == 1 ? pack_elements<1>(image, data, to) : pack_elements<sizeof(float)>(image, data, to);
  } else if (image.row_stride == packed.row_stride &&
             (image.channels == 1 || image.channel_stride == packed.channel_stride)) {
    std::memcpy(to, data, packed_bytes(image));
  } else {
    const auto row = static_cast<std::size_t>(packed.row_stride);
    for (int plane = 0; plane < planes; ++plane) {
      for (int y = 0; y < image.height; ++y, to += row) {
        std::memcpy(to, data + plane * image.channel_stride + y * image.row_stride, row);
      }
    }
  }
  return packed;
}

}  // namespace qcn

// Copies images of host memory without the gaps between their pixels: what travels to the GPU.
#ifndef QCN_SRC_TENSORRT_LIBRARY_PACK_H
#define QCN_SRC_TENSORRT_LIBRARY_PACK_H

#include <cstddef>

#include "qcn/qcn.h"

namespace qcn {

std::size_t packed_bytes(const qcn_image& image);

// Writes the image's pixels to `to`, packed_bytes(image) of them, and returns the image that is there now. Images with
// rows of adjacent pixels keep their order, planar or interleaved; others become interleaved.
qcn_image pack(const qcn_image& image, char* to);

}  // namespace qcn

#endif

// Pre-processing of images that are in the memory of a GPU. Same definition as preprocess.h, same bits for uint8
// pixels.
#ifndef QCN_SRC_PREPROCESS_CUDA_H
#define QCN_SRC_PREPROCESS_CUDA_H

#include "preprocess.h"

namespace qcn {

// image.data and out, [channels, height, width] of check_image, are device memory. The work is queued on `stream`, a
// cudaStream_t; nothing is allocated and nothing waits. Throws what check_image throws, and Error(QCN_DEVICE_ERROR).
void preprocess_cuda(const Preprocessing& spec, const qcn_image& image, float* out, void* stream);

}  // namespace qcn

#endif

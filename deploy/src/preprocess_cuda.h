// Pre-processing of images that are in the memory of a GPU. Same definition as preprocess.h, same bits for uint8
// pixels.
#ifndef QCN_SRC_PREPROCESS_CUDA_H
#define QCN_SRC_PREPROCESS_CUDA_H

#include "preprocess.h"

namespace qcn {

// The data of images [count], and out, [count, channels, height, width], are device memory. Images in a row that differ
// only in their data, at equal distances, take one launch. The work is queued on `stream`, a cudaStream_t; nothing is
// allocated and nothing waits. Throws what check_image throws, and Error(QCN_DEVICE_ERROR).
void preprocess_cuda(const Preprocessing& spec, const qcn_image* images, int count, float* out, void* stream);

}  // namespace qcn

#endif

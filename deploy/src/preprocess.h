// From an image of any size to what the network sees. The definition, step by step, is in qcn/data/preprocess.py: both
// sides give the same bits for uint8 pixels, and agree to one unit in the last place for floats.
#ifndef QCN_SRC_PREPROCESS_H
#define QCN_SRC_PREPROCESS_H

#include <cstddef>

#include "manifest.h"
#include "qcn/qcn.h"

namespace qcn {

struct Seen {
  int channels = 0, height = 0, width = 0;
};

// What becomes of this image, without a look at its pixels. Throws Error(QCN_BAD_ARGUMENT) for one that cannot be
// pre-processed: no data, no pixels, another number of channels than the means, a crop larger than the image, strides
// that leave the address space.
Seen check_image(const Preprocessing& spec, const qcn_image& image);

// Writes [channels, height, width] of check_image, which it calls first: compare that with the network's input before.
// Reads only the pixels that take part. The image must be in host memory. Allocates in a thread's first call of a size.
void preprocess(const Preprocessing& spec, const qcn_image& image, float* out);

}  // namespace qcn

#endif

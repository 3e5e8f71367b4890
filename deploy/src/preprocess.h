// From a picture of any size to what the network sees. The definition, step by step, is in qcn/data/fit.py and
// qcn/data/preprocess.py: all give the same bits for uint8 pixels, and agree to one unit in the last place for floats.
#ifndef QCN_SRC_PREPROCESS_H
#define QCN_SRC_PREPROCESS_H

#include "manifest.h"
#include "qcn/qcn.h"

namespace qcn {

// Refuses a picture that cannot be pre-processed, without a look at its pixels: no data, no pixels, channels that do
// not become the network's, floats of another size than the network's images, strides that leave the address space.
// Throws Error(QCN_BAD_ARGUMENT).
void check_image(const Preprocessing& spec, const qcn_image& image);

// Writes the network's input, [channels, height, width], after check_image. Reads only the pixels that take part. The
// picture must be in host memory. Allocates in a thread's first call of a size.
void preprocess(const Preprocessing& spec, const qcn_image& image, float* out);

}  // namespace qcn

#endif

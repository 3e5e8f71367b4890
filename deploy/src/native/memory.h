// Where the maps of a network lie in memory: those that are not needed at the same time share it, so that what one step
// writes is still in the cache when the next reads it.
#ifndef QCN_SRC_NATIVE_MEMORY_H
#define QCN_SRC_NATIVE_MEMORY_H

#include <cstddef>

#include "plan.h"

namespace qcn::native {

// Puts places into steps and outputs, which have numbers of `plan.memory` there. Returns the floats of an image.
std::size_t lay_out(Plan& plan);

}  // namespace qcn::native

#endif

// In place of kernels/em_routing_kernels.cpp: nothing is trained in a page, so that its table has no backward pass.
#include "em_routing_tile.h"

namespace qcn::QCN_INSTRUCTION_SET {

const RoutingKernels kernels = {
    QCN_TEXT(QCN_INSTRUCTION_SET), kLanes, 0, forward_scratch_floats, nullptr, nullptr, forward_tile, nullptr, nullptr};

}  // namespace qcn::QCN_INSTRUCTION_SET

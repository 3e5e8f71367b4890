// The table of one instruction set's kernels.
#include "em_routing_backward.h"

namespace qcn::QCN_INSTRUCTION_SET {

const RoutingKernels kernels = {QCN_TEXT(QCN_INSTRUCTION_SET),
                                kLanes,
                                sizeof(Step) / sizeof(float),
                                forward_scratch_floats,
                                backward_tile_scratch_floats,
                                backward_channel_scratch_floats,
                                forward_tile,
                                backward_tile,
                                backward_channel};

}  // namespace qcn::QCN_INSTRUCTION_SET

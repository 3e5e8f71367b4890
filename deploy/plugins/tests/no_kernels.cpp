// Stands in for em_routing.cu where test_plugin.cpp is built without nvcc. The test runs no kernel.
#include "em_routing_cuda.h"

size_t qcn_cuda_routing_rotors_size(const qcn_routing_shape* shape) { return shape->parents <= 64 ? 4096 : 0; }

int qcn_cuda_routing_prepare(const qcn_routing_shape*, qcn_cuda_arithmetic, const float*, float*, void*) { return 1; }

int qcn_cuda_routing_forward(const qcn_routing_shape*, qcn_cuda_arithmetic, qcn_cuda_type, const void*, const void*,
                             const float*, const float*, const float*, float*, float*, void*) {
  return 1;
}

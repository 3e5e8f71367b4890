// Routing by agreement on a CUDA device, forward. Shapes and layouts are those of em_routing.h; all pointers are to
// device memory. Work goes to the caller's stream: nothing is allocated, nothing waits, and calls can be captured in a
// graph.
//
//     qcn_routing_shape shape = {...};
//     cudaMalloc(&rotors, qcn_cuda_routing_rotors_size(&shape));
//     qcn_cuda_routing_prepare(&shape, QCN_CUDA_SINGLE, rotation, rotors, stream);  // once, when weights are loaded
//     qcn_cuda_routing_forward(&shape, QCN_CUDA_SINGLE, QCN_CUDA_FLOAT32, pose, activation, rotors, beta_u, beta_a,
//                              out_pose, out_activation, stream);                   // for every batch
//
// A stream is a cudaStream_t. Functions that return int return a cudaError_t: cudaErrorInvalidValue for a shape that is
// no shape, cudaErrorInvalidConfiguration for a tile that does not fit the device.
// The same input gives the same bits on the same device; another tile adds in another order.
#ifndef QCN_KERNELS_EM_ROUTING_CUDA_H
#define QCN_KERNELS_EM_ROUTING_CUDA_H

#include "em_routing.h"

#ifdef __cplusplus
extern "C" {
#endif

// Of votes and distances. Half: float16 on tensor cores, with sums, logits and softmax in float32; see
// em_routing_half.cuh. For poses whose size is about 1.
typedef enum { QCN_CUDA_SINGLE = 0, QCN_CUDA_HALF = 1 } qcn_cuda_arithmetic;

// What qcn_cuda_routing_forward runs on the current device if it is told `asked`. Half is run where it is faster, which
// depends on the batch too, and needs compute capability 8.0 and 16 parents at most; else it is single.
QCN_API qcn_cuda_arithmetic qcn_cuda_routing_runs(const qcn_routing_shape* shape, qcn_cuda_arithmetic asked);

// Of the poses and activations given. Those that come out, rotations and betas are float32.
typedef enum { QCN_CUDA_FLOAT32 = 0, QCN_CUDA_FLOAT16 = 1, QCN_CUDA_BFLOAT16 = 2 } qcn_cuda_type;

// Bytes of the prepared rotors, or 0 for a shape that is not valid. Does not depend on the batch or the map's size,
// unless the rotors are shared.
QCN_API size_t qcn_cuda_routing_rotors_size(const qcn_routing_shape* shape);

// Lays the rotations out as the kernels read them: for half precision in both ways, since it depends on the batch which
// runs. So what was prepared for half serves single too, but not the other way about. `rotors` must be aligned to 16
// bytes, as cudaMalloc's memory is.
QCN_API int qcn_cuda_routing_prepare(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic,
                                     const float* rotation, float* rotors, void* stream);

QCN_API int qcn_cuda_routing_forward(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, qcn_cuda_type type,
                                     const void* pose, const void* activation, const float* rotors, const float* beta_u,
                                     const float* beta_a, float* out_pose, float* out_activation, void* stream);

// For tuning. A tile says how a thread block is laid over windows and children; tiles are numbered from 0, in either
// arithmetic. From here on an arithmetic is taken at its word, or refused as a tile that does not fit.
typedef struct {
  int windows;       // per thread block
  int splits;        // threads that share out the children of a window
  int threads;       // per thread block
  int stages;        // steps of children in shared memory at a time
  int shared_bytes;  // per thread block
  int cluster;       // thread blocks that share out the children of a window
} qcn_cuda_routing_tile;

QCN_API int qcn_cuda_routing_tiles(void);
QCN_API qcn_cuda_routing_tile qcn_cuda_routing_describe(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic,
                                                        int tile);
// Whether the current device has the arithmetic for this shape, and the shared memory and clusters that a tile needs.
QCN_API int qcn_cuda_routing_fits(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, int tile);

// The tile that qcn_cuda_routing_forward takes on the current device if it runs this arithmetic.
QCN_API int qcn_cuda_routing_choose(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic, int* tile);

QCN_API int qcn_cuda_routing_forward_tile(const qcn_routing_shape* shape, qcn_cuda_arithmetic arithmetic,
                                          qcn_cuda_type type, const void* pose, const void* activation,
                                          const float* rotors, const float* beta_u, const float* beta_a,
                                          float* out_pose, float* out_activation, int tile, void* stream);

#ifdef __cplusplus
}
#endif

#endif

// Routing by agreement over a map of capsules, without ever writing a vote to memory: THE operator of the network.
//
// Its formula and its readable reference are in qcn/routing.py. Here are the shapes; em_routing.cpp is the body for
// CPUs, em_routing.cu the one for CUDA.
//
//     pose        [batch, channels, 3, height, width]     children: imaginary parts of pure quaternions
//     activation  [batch, channels, height, width]        from 0 to 1
//     rotation    [window_height, window_width, channels, parents, 3, 3], or [channels, parents, 3, 3] when shared
//     beta_u      [parents]         beta_a  [parents]
//     -> out_pose [batch, parents, 3, rows, columns], out_activation [batch, parents, rows, columns]
//     (or z, the activation's logit, in its place: see `logit` below)
//     with rows = (height - window_height) / stride + 1, and columns likewise
//
// All arrays are float32, contiguous, in C order. A window has window_height * window_width * channels children.
#ifndef QCN_KERNELS_EM_ROUTING_H
#define QCN_KERNELS_EM_ROUTING_H

#include <stddef.h>

#include "../include/qcn/export.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QCN_ROUTING_MAX_PARENTS 64
#define QCN_ROUTING_MAX_ITERATIONS 5
#define QCN_ROUTING_STATISTICS 7

typedef struct {
  int batch, channels, height, width;
  int window_height, window_width, stride;
  int parents;
  int iterations;
  int shared;  // 1: a (child type, parent) pair has one rotation for all places of the window, as in the class layer
  int unit;    // 1: the authors' activation, sigmoid(z / |z|); 0: sigmoid(z)
  int logit;   // 1: z (in unit mode z / |z|) comes out in place of the activation, as in the class layer
} qcn_routing_shape;

// What the functions below return: 0, or why the call was refused.
enum {
  QCN_ROUTING_OK = 0,
  QCN_ROUTING_BAD_SIZE,
  QCN_ROUTING_BAD_WINDOW,
  QCN_ROUTING_BAD_PARENTS,
  QCN_ROUTING_BAD_ITERATIONS,
  QCN_ROUTING_BAD_FLAG,
  QCN_ROUTING_TOO_LARGE,
  QCN_ROUTING_NULL_ARRAY,
  QCN_ROUTING_NO_MEMORY
};

QCN_API const char* qcn_routing_status(int status);  // in words

// On the CPU. Any number of threads may call these at once: one call at a time has the library's threads, the others
// run on the thread that made them. The bits of a result depend on neither, but may on the instruction set.

// statistics, which qcn_routing_backward needs, may be NULL. It is [iterations, QCN_ROUTING_STATISTICS, parents,
// windows], with windows = batch * rows * columns: of each M-step the mass, three means and three variances.
QCN_API int qcn_routing_forward(const qcn_routing_shape* shape, const float* pose, const float* activation,
                                const float* rotation, const float* beta_u, const float* beta_a, float* out_pose,
                                float* out_activation, float* statistics);

// In half precision: votes and responsibilities in float16 arithmetic, statistics in float32 (docs/kernels.md). Where
// the CPU has no such arithmetic it is that of qcn_routing_forward, of the same rounded rotations. They are prepared
// once, in memory of the caller's that is aligned as malloc's: so many bytes, 0 for a shape that is refused.
QCN_API size_t qcn_routing_half_bytes(const qcn_routing_shape* shape);
QCN_API int qcn_routing_half_prepare(const qcn_routing_shape* shape, const float* rotation, void* prepared);
QCN_API int qcn_routing_half_forward(const qcn_routing_shape* shape, const float* pose, const float* activation,
                                     const void* prepared, const float* beta_u, const float* beta_a, float* out_pose,
                                     float* out_activation, float* statistics);

// Gradients of the five inputs, from those of the two outputs. They are set, not added to.
QCN_API int qcn_routing_backward(const qcn_routing_shape* shape, const float* pose, const float* activation,
                                 const float* rotation, const float* beta_u, const float* beta_a,
                                 const float* statistics, const float* grad_out_pose, const float* grad_out_activation,
                                 float* grad_pose, float* grad_activation, float* grad_rotation, float* grad_beta_u,
                                 float* grad_beta_a);

// Of the next calls. Less than 1 means one per core, as at the start; more than 1024 means 1024.
QCN_API void qcn_set_threads(int threads);
QCN_API const char* qcn_instruction_set(void);       // the one chosen for this CPU: "neon", "sse2", "avx2" or "avx512"
QCN_API int qcn_half_arithmetic(void);               // whether this CPU has arithmetic of float16
QCN_API const char* qcn_half_instruction_set(void);  // the one of half precision: "neonfp16", "avx512fp16", or as above

#ifdef __cplusplus
}
#endif

#endif

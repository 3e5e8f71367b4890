// What the driver of the CPU kernels (em_routing.cpp) and the kernels, one copy per instruction set, know of each
// other.
#ifndef QCN_KERNELS_EM_ROUTING_CPU_H
#define QCN_KERNELS_EM_ROUTING_CPU_H

#include <stddef.h>
#include <stdint.h>

namespace qcn {

constexpr float kVarianceFloor = 1e-4f, kMassFloor = 1e-6f;  // as in qcn/limits.py

// A shape that has been checked, what follows from it, and the arrays of em_routing.h.
struct Routing {
  size_t batch, channels, height, width, window_height, window_width, stride, parents, iterations;
  bool shared, unit, logit;
  size_t columns, positions, windows, places, children;  // positions and windows: of one image, of the batch

  const float *pose, *activation, *rotation, *beta_u, *beta_a;
  const uint16_t* half_rotation;                  // of half precision: float16, as HalfRotationLayout has it
  size_t half_period;                             // children after which they repeat
  float *out_pose, *out_activation, *statistics;  // of the forward pass; statistics may be null

  const float *saved_statistics, *grad_out_pose, *grad_out_activation;  // of the backward pass, as all that follows
  float *grad_pose, *grad_activation, *grad_rotation;
  float* steps;       // what the windows tell the children: Step [tiles][iterations][parents] (em_routing_backward.h)
  double* grad_beta;  // [tiles][2][parents], to be summed over the tiles
};

// A tile is `lanes` windows; the last one may have fewer. Any order of tiles, and then of channels, gives the same
// bits.
struct RoutingKernels {
  const char* instruction_set;
  size_t lanes;
  size_t step_floats;  // of Routing::steps, an iteration, a parent and a tile
  size_t (*forward_scratch_floats)(const Routing&);
  size_t (*backward_tile_scratch_floats)(const Routing&);
  size_t (*backward_channel_scratch_floats)(const Routing&);
  void (*forward_tile)(const Routing&, size_t tile, float* scratch);
  void (*backward_tile)(const Routing&, size_t tile, float* scratch);
  void (*backward_channel)(const Routing&, size_t channel, float* scratch);
};

// How a body in half precision has its rotations: [group of `children`][vector of `parents`][9 * children * parents],
// of which an entry's place is child * child_step + entry * entry_step + parent. What only fills up has zeros.
struct HalfRotationLayout {
  size_t children, parents, child_step, entry_step;
};

// In half precision, forward only.
struct HalfRoutingKernels {
  const char* instruction_set;
  size_t windows;  // of a tile
  HalfRotationLayout layout;
  size_t (*scratch_floats)(const Routing&);
  void (*forward_tile)(const Routing&, size_t tile, float* scratch);
};

#if defined(__aarch64__)
namespace neon {
extern const RoutingKernels kernels;
}
namespace neonfp16 {
extern const HalfRoutingKernels half_kernels;
}
#elif defined(__wasm__)
namespace simd128 {
extern const RoutingKernels kernels;
}
namespace plain {
extern const RoutingKernels kernels;
}
#else
namespace sse2 {
extern const RoutingKernels kernels;
}
namespace avx2 {
extern const RoutingKernels kernels;
}
namespace avx512 {
extern const RoutingKernels kernels;
}
namespace avx512fp16 {
extern const HalfRoutingKernels half_kernels;
}
#endif

}  // namespace qcn

#endif

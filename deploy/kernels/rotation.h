// Rotation matrices of rotors (cos θ, sin θ · axis/|axis|), and their gradients. A rotor turns by 2θ:
//
//     R = 1 + sin 2θ [n]× + (1 − cos 2θ) (n nᵀ − 1),  n = axis/|axis|
//
//     theta [rotors], axis [rotors, 3] -> rotation [rotors, 3, 3]; float32, contiguous. Threads: see em_routing.h.
#ifndef QCN_KERNELS_ROTATION_H
#define QCN_KERNELS_ROTATION_H

#include <stddef.h>

#include "em_routing.h"

#ifdef __cplusplus
extern "C" {
#endif

// Both return a status of em_routing.h.
QCN_API int qcn_rotation_forward(size_t rotors, const float* theta, const float* axis, float* rotation);
QCN_API int qcn_rotation_backward(size_t rotors, const float* theta, const float* axis, const float* grad_rotation,
                                  float* grad_theta, float* grad_axis);

#ifdef __cplusplus
}
#endif

#endif

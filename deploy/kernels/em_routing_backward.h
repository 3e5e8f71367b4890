// What both phases of the backward pass know. By tile: from the last M-step to the first, the gradients of each
// parent's moments; a sweep over the children carries them through the E-step between two M-steps; each M-step leaves a
// Step. By channel: each child finds the gradients of its votes from the Steps of all windows it lies in, and from them
// those of its pose, activation and rotations. No vote is stored for long: both phases turn the poses again.
#ifndef QCN_KERNELS_EM_ROUTING_BACKWARD_H
#define QCN_KERNELS_EM_ROUTING_BACKWARD_H

#include "em_routing_tile.h"

namespace qcn::QCN_INSTRUCTION_SET {

struct Step {  // what a child must know of a parent and an M-step to find its gradient; d = vote - mean
  Gaussian gaussian;
  Vec moved[3];                    // the mean before, less the mean after
  Vec by_mass, by_d[3], by_d2[3];  // gradient of the child's responsibility = by_mass + by_d . d + by_d2 . d^2
};

struct Vote {
  Vec d[3], by_responsibility;  // d: from the mean before; the gradient of this child's responsibility
};

inline double sum_of_lanes(Vec x) {
  double sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(x[lane]);
  return sum;
}

// The logit, and the gradient of the responsibility, of one vote in the E-step between two M-steps.
inline Vec vote_backward(const float* rotation, const Vec* pose, const Gaussian& before, const Step& after,
                         Vote* stored) {
  Vec logit = reload(&before.prior), by_responsibility = reload(&after.by_mass), d[3];
  for (size_t h = 0; h < 3; ++h) d[h] = vote(Row(rotation, h), pose, reload(&before.minus_mean[h]));
  for (size_t h = 0; h < 3; ++h) {
    Vec d_after = d[h] + after.moved[h];
    logit -= before.precision[h] * (d[h] * d[h]);
    by_responsibility += d_after * (reload(&after.by_d[h]) + after.by_d2[h] * d_after);
  }
  for (size_t h = 0; h < 3; ++h) stored->d[h] = d[h];
  stored->by_responsibility = by_responsibility;
  return logit;
}

// The expectation over parents of the responsibilities' gradients, per child of the group: softmax's backward takes it
// off, and it is the gradient of the activation.
inline void expected_gradient(const Vote (*votes)[kGroup], const Vec (*p)[kGroup], size_t parents,
                              const Vec* inverse_sum, Vec* expected) {
  for (size_t k = 0; k < kGroup; ++k) expected[k] = Vec{};
  for (size_t j = 0; j < parents; ++j) {
    for (size_t k = 0; k < kGroup; ++k) expected[k] += p[j][k] * votes[j][k].by_responsibility;
  }
  for (size_t k = 0; k < kGroup; ++k) expected[k] *= inverse_sum[k];
}

}  // namespace qcn::QCN_INSTRUCTION_SET

#endif

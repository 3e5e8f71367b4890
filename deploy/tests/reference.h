// Routing once more, from the formula in qcn/routing.py: plain loops, double precision, votes and all.
#ifndef QCN_TESTS_REFERENCE_H
#define QCN_TESTS_REFERENCE_H

#include <vector>

#include "em_routing.h"

namespace reference {

struct Inputs {
  std::vector<double> pose, activation, rotation, beta_u, beta_a;
};

struct Outputs {
  std::vector<double> pose, activation;
};

int rows(const qcn_routing_shape& shape);
int columns(const qcn_routing_shape& shape);
Outputs route(const qcn_routing_shape& shape, const Inputs& inputs);

}  // namespace reference

#endif

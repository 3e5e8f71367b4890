// The plainest loops in double precision that run a program, one image after another.
#ifndef QCN_TESTS_PLAIN_NETWORK_H
#define QCN_TESTS_PLAIN_NETWORK_H

#include <vector>

#include "program.h"

namespace plain {

struct Answers {
  std::vector<double> logit, pose;  // pose: empty without poses
};

Answers run(const qcn::program::Program& program, const std::vector<float>& images, int batch);

}  // namespace plain

#endif

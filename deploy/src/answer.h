// From the logits of an image to an answer. The same in Python (qcn/networks/confidence.py) and in pages
// (export/backends/web/answers.js), and tested on the same cases (tests/answers.json).
#ifndef QCN_SRC_ANSWER_H
#define QCN_SRC_ANSWER_H

#include <cstddef>

#include "manifest.h"

namespace qcn {

struct Decision {
  std::size_t index = 0;   // of the largest logit, the first of equal ones
  double probability = 0;  // of this class
  bool known = true;       // false: below the threshold of the manifest
};

// softmax(logit / temperature), in double precision, of one image: [classes]. Throws as decide.
void probabilities(const Manifest& manifest, const float* logit, double* probability);

// Throws Error(QCN_WRONG_ANSWER) where a logit is not finite. Allocates nothing.
Decision decide(const Manifest& manifest, const float* logit);

}  // namespace qcn

#endif

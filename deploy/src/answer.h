// From the logits and poses of an image to an answer. The same in Python (qcn/networks/confidence.py, qcn/direction.py)
// and in pages (export/backends/web/answers.js), and tested on the same cases (tests/answers.json, directions.json).
#ifndef QCN_SRC_ANSWER_H
#define QCN_SRC_ANSWER_H

#include <cstddef>
#include <optional>

#include "manifest.h"

namespace qcn {

// From where the object is seen, in degrees; the elevation is NaN where only azimuths are known.
struct Direction {
  double azimuth = 0, elevation = 0, spread = 0;
};

struct Decision {
  std::size_t index = 0;   // of the largest logit, the first of equal ones
  double probability = 0;  // of this class
  bool known = true;       // false: below the threshold of the manifest
  std::optional<Direction> direction;
};

// softmax(logit / temperature), in double precision, of one image: [classes]. Throws as decide.
void probabilities(const Manifest& manifest, const float* logit, double* probability);

// Throws Error(QCN_WRONG_ANSWER) where a logit is not finite. Allocates nothing. `pose`, [classes, 3], may be null.
Decision decide(const Manifest& manifest, const float* logit, const float* pose);

// What the pose [3] of a class says; nothing for a round class, or a pose whose length is 0 or not finite.
std::optional<Direction> direction_of(const Directions& directions, const float* pose, std::size_t label);

}  // namespace qcn

#endif

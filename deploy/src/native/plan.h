// A network as the native backend runs it: which kernel reads which numbers and writes which, in order.
#ifndef QCN_SRC_NATIVE_PLAN_H
#define QCN_SRC_NATIVE_PLAN_H

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "convolution.h"
#include "em_routing.h"
#include "manifest.h"
#include "tensors.h"
#include "threads.h"

namespace qcn::native {

// Where an array begins in the numbers that an image takes. In a batch it begins at `first * batch`, and has the images
// one after another.
using Place = std::size_t;

// The image as a map of features, through relu(x * scale + shift) where a stack of residual blocks begins.
struct Entry {
  Map map;
  const float *scale, *shift;  // null: as it is
  Place out;
};

struct Step {
  Convolution convolution;
  Place in[2], out;
};

struct Layer {
  std::string name;
  std::size_t height, width;  // of the map of its parents
  qcn_routing_shape shape;    // for a batch of 1
  const float *rotation, *beta_u, *beta_a;
  Place pose, activation, out_pose, out_activation;
};

struct Plan {
  // Throws Error(QCN_BAD_BUNDLE) when the weights do not make the structure. Keeps `weights`.
  Plan(const Structure &structure, std::shared_ptr<const TensorFile> weights);

  Map image;  // what comes in, [channels, height, width]
  std::size_t classes = 0;
  std::vector<Entry> entries;
  std::vector<Step> steps;
  std::vector<Layer> layers;
  std::size_t image_floats = 0;  // that an image takes, all arrays together

 private:
  std::shared_ptr<const TensorFile> weights_;
  Memory packed_;  // the weights of all convolutions
};

}  // namespace qcn::native

#endif

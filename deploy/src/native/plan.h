// A program as the native backend runs it: where each value lies in memory, and which kernel reads and writes it.
#ifndef QCN_SRC_NATIVE_PLAN_H
#define QCN_SRC_NATIVE_PLAN_H

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend.h"
#include "convolution.h"
#include "convolution_int8.h"
#include "em_routing.h"
#include "maps.h"
#include "program.h"
#include "threads.h"

namespace qcn::native {

// Where a value begins in the numbers that an image takes. In a batch it begins at `place * batch`, and has the images
// one after another.
using Place = std::size_t;
constexpr Place kImages = static_cast<Place>(-1);  // the caller's images, which are not copied

struct BorderStep {  // what a convolution reads beside a map: zeros
  Map map;           // of bytes with its channels filled up
  bool bytes;
  bool once;  // nothing else lies there: done when memory is taken, not in every run
  Place out;
};

struct TransformStep {  // an affine operation, or a copy in another layout
  Map map;
  const float *scale, *shift;  // null: a copy
  Ending ending;
  Place in, out;
  Strides in_strides, out_strides;
};

struct ConvolutionStep {  // or a linear operation
  Convolution convolution;
  Place in[2], out;
};

struct QuantiseStep {  // a map of bytes for operations in int8
  Map map;             // that is read
  float scale;
  Place in, out;
};

struct IntegerStep {  // a convolution or linear operation in int8
  IntegerConvolution convolution;
  Place in[2], out;
};

struct SumStep {
  Map map;
  Place in[2], out;
  Strides in_strides[2], out_strides;
};

struct PoolStep {
  Map map;  // that it makes
  std::size_t kernel, stride;
  bool average;
  Place in, out;
  Strides in_strides, out_strides;
};

struct RouteStep {
  std::string name;
  std::size_t height, width;  // of the map of its parents
  qcn_routing_shape shape;    // for a batch of 1
  const float *rotation, *beta_u, *beta_a;
  const void *prepared;  // in half precision: the rotations for it; else null
  Place pose, activation, out_pose, out_activation;
};

using Step =
    std::variant<BorderStep, TransformStep, ConvolutionStep, QuantiseStep, IntegerStep, SumStep, PoolStep, RouteStep>;

struct MapMemory {
  Map map;
  bool bytes;
  std::size_t floats;                                          // that an image takes
  std::size_t first = static_cast<std::size_t>(-1), last = 0;  // the steps in which it is needed
  Place place = 0;
};

struct Plan {
  explicit Plan(program::Program program);  // throws Error(QCN_BAD_BUNDLE) for a network that is too large

  const program::Program program;  // keeps the weights
  std::vector<Step> steps;
  std::vector<MapMemory> memory;
  std::vector<OperationRun> runs;  // what is asked and what runs, operation by operation
  Place logit = 0;
  std::optional<Place> pose;
  std::size_t image_floats = 0;  // that an image takes; values that are not needed at the same time share memory

 private:
  Memory packed_;                 // the weights of all convolutions
  std::deque<Memory> rotations_;  // of all routing in half precision
};

}  // namespace qcn::native

#endif

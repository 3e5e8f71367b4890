// A network as weights.safetensors has it: operations in the order in which they run, with the arrays that they use.
// docs/bundle.md says what each computes; export/program/program.py writes it. Nothing of the network is known but this
// list.
#ifndef QCN_SRC_PROGRAM_H
#define QCN_SRC_PROGRAM_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "convolution.h"
#include "em_routing.h"
#include "signature.h"
#include "tensors.h"

namespace qcn::program {

using Shape = std::vector<std::size_t>;  // without the batch
using Value = std::size_t;               // what an operation reads or makes, by its number in Program::shapes

// out = ending(in * scale + shift), by channel
struct Affine {
  Value in, out;
  const float *scale, *shift;  // [channels]
  Ending ending;
};

enum class Precision { kFp32, kFp16, kInt8 };
const char* name(Precision precision);  // "fp32"

// Of one input of an operation in int8.
struct Integers {
  const std::int8_t* weight;
  const float* weight_scale;  // [channels out]
  float input_scale;
};

// out = ending(the sum of one or two convolutions + bias). In int8: see export/program/program.py.
struct Convolution {
  struct Source {
    Value in;
    const float* weight;  // [channels out, channels in, or 1 if depthwise, kernel, kernel]; null in int8
    std::size_t kernel, stride, padding;
    Integers integers;
  };
  std::vector<Source> sources;
  Value out;
  const float* bias;  // [channels out]; null in int8
  const std::int32_t* integer_bias;
  Ending ending;
  bool depthwise;  // each channel is made of the one of the same number; one source
};

// out = in[0] + in[1], of the same shape
struct Sum {
  Value in[2], out;
};

// out = the largest, or the average, of each window
struct Pool {
  Value in, out;
  bool average;
  std::size_t kernel, stride;
};

// out = ending(weight * in + bias), where `in` is taken as one row of numbers
struct Linear {
  Value in, out;
  const float *weight, *bias;  // [units, inputs], [units]; null in int8
  Integers integers;
  const std::int32_t* integer_bias;
  Ending ending;
};

// Routing by agreement: em_routing.h.
struct Route {
  Value pose, activation, out_pose, out_activation;  // the last: logits if `logit`
  const float *rotation, *beta_u, *beta_a;
  bool shared;  // one rotation for all places of a window
  std::size_t window_height, window_width, stride, iterations;
  bool unit;   // mode "unit", else "logistic"
  bool half;   // in fp16
  bool logit;  // ending "none", else "sigmoid"
};

struct Operation {
  std::string name;
  Precision precision;
  std::variant<Affine, Convolution, Sum, Pool, Linear, Route> body;
};

struct Program {
  // Reads the metadata "program", and checks it against the arrays: every size fits, and every array is used. Throws
  // Error(QCN_BAD_BUNDLE). Keeps `weights`, which the operations point into.
  explicit Program(std::shared_ptr<const TensorFile> weights);

  Signature signature;
  std::vector<Shape> shapes;  // of all values; the first is the image
  std::vector<Operation> operations;
  Value logit = 0;
  std::optional<Value> pose;
  std::shared_ptr<const TensorFile> weights;
  std::vector<std::shared_ptr<const std::vector<float>>> rotations;  // that were made from rotors

  Precision precision() const;                                // the lowest that an operation computes in
  qcn_routing_shape routing_shape(const Route& route) const;  // for a batch of 1
};

// The numbers of one value. No more than kMostFloats, so that sizes do not overflow.
std::size_t count(const Shape& shape);
constexpr std::size_t kMostFloats = std::size_t{1} << 30;  // 4 GiB

}  // namespace qcn::program

#endif

// Networks of random weights, operation by operation, as `qcn export` would write them: a program and its arrays.
#ifndef QCN_TESTS_RANDOM_NETWORK_H
#define QCN_TESTS_RANDOM_NETWORK_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tensors.h"

namespace networks {

struct Array {
  std::string type;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

using Arrays = std::map<std::string, Array>;

template <typename T>
Array array(const char* type, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {type, std::move(shape), {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}};
}

std::string safetensors(const Arrays& arrays, const std::string& texts);  // texts: JSON, of "qcn" in the metadata
std::string quoted(const std::string& text);                              // as JSON has it
std::vector<std::byte> bytes(const std::string& text);
std::vector<float> random_floats(std::size_t count, std::mt19937& generator, double scale);

struct Floats {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

struct Network {
  std::string program;
  std::map<std::string, Floats> arrays;

  std::string weights() const;                          // weights.safetensors
  std::shared_ptr<const qcn::TensorFile> file() const;  // the same, read
};

using Shape = std::vector<int>;

// Every function adds an operation and returns the name of the value it makes.
class Builder {
 public:
  Builder(const Shape& image, unsigned seed);

  struct Source {
    std::string input;
    int kernel = 3, stride = 1, padding = 1;
  };
  struct Capsules {
    std::string pose, activation;
  };
  struct Routing {
    int iterations = 2;
    std::string mode = "logistic";
    bool shared = false;
    double spread = 0.6;  // of the rotations
    bool logit = false;   // ending "none": logits come out, as Capsules::activation
  };

  std::string affine(const std::string& name, const std::string& input, const std::string& ending = "relu");
  std::string convolution(const std::string& name, const std::vector<Source>& sources, int channels,
                          const std::string& ending = "relu");
  std::string depthwise(const std::string& name, const Source& source, const std::string& ending = "relu6");
  std::string sum(const std::string& name, const std::string& first, const std::string& second);
  std::string pool(const std::string& name, const std::string& input, const std::string& kind, int kernel, int stride);
  std::string linear(const std::string& name, const std::string& input, int units, const std::string& ending);
  Capsules route(const std::string& name, const Capsules& children, int window_height, int window_width, int stride,
                 int parents, const Routing& routing);

  // What a QCN is made of: residual blocks by channels and strides, behind an affine operation where they begin on the
  // image; projections to `types` capsules; routing of the whole map, to logits.
  std::string blocks(const std::string& name, std::string input,
                     const std::vector<std::pair<int, int>>& channels_strides);
  Capsules project(const std::string& pose_input, const std::string& activation_input, int types);
  Capsules route_whole(const std::string& name, const Capsules& children, int parents, Routing routing);

  const Shape& shape(const std::string& value) const { return shapes_.at(value); }
  // `pose` is empty: a network without poses.
  Network network(const std::string& logit, const std::string& pose = "") const;

 private:
  std::string add_array(const std::string& name, const Shape& shape, double scale, double centre = 0);
  std::string add(const std::string& op, const std::string& name, const std::string& entries, const Shape& shape);

  std::mt19937 generator_;
  std::map<std::string, Shape> shapes_;
  std::map<std::string, Floats> arrays_;
  std::vector<std::string> operations_;
};

}  // namespace networks

#endif

// The entries of a program as program.cpp reads them: checked, and named in the message where they are wrong.
#ifndef QCN_SRC_PROGRAM_ENTRIES_H
#define QCN_SRC_PROGRAM_ENTRIES_H

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "error.h"
#include "half.h"
#include "json.h"
#include "program.h"
#include "text.h"

namespace qcn::program {

// Of one part of the program after another: its input, an operation, an output.
class Entries {
 protected:
  explicit Entries(Program& program) : program_(program) {}

  // ---- entries of the operation that is read ----

  const Json& entry(const char* key) const { return now_->at(key, what_); }
  [[noreturn]] void wrong(const std::string& why) const { refuse_bundle(what_ + ": " + why); }
  std::string what(const char* key) const { return what_ + ": " + key; }

  const std::string& word(const char* key) const { return entry(key).text(what(key)); }
  const JsonList& list(const char* key) const { return entry(key).list(what(key)); }
  std::size_t size(const char* key, int most = Json::kMaxSize) const {
    return static_cast<std::size_t>(entry(key).size(what(key), 1, most));
  }
  Shape sizes(const char* key, int least = 1) const {
    const std::vector<int> found = entry(key).sizes(what(key), least);
    return {found.begin(), found.end()};
  }
  Ending ending() const {
    const std::string& found = word("ending");
    if (found == "none") return Ending::kNone;
    if (found == "relu") return Ending::kRelu;
    if (found == "relu6") return Ending::kRelu6;
    if (found == "sigmoid") return Ending::kSigmoid;
    wrong("ending must be none, relu, relu6 or sigmoid, not " + quoted(found));
  }

  // ---- arrays and values ----

  template <typename T = float>
  const T* array(const std::string& name, const Shape& shape) {
    used_.insert(name);
    return program_.weights->array<T>(name, std::vector<std::int64_t>(shape.begin(), shape.end()));
  }

  Value value(const Json& json, const char* key) const {
    const std::string& name = json.text(what(key));
    const auto found = values_.find(name);
    if (found == values_.end()) wrong(std::string(key) + " is " + quoted(name) + ", which nothing before it makes");
    return found->second;
  }
  Value value(const char* key) const { return value(entry(key), key); }
  const Shape& shape(Value v) const { return program_.shapes[v]; }

  // [channels, height, width] of a value.
  Shape map(Value v, const char* key) const {
    if (shape(v).size() != 3)
      wrong(std::string(key) + " must be [channels, height, width], not " + shape_text(shape(v)));
    return shape(v);
  }
  std::size_t steps(std::size_t side, std::size_t window, std::size_t stride) const {
    if (window > side) wrong("a window of " + std::to_string(window) + " does not fit into " + std::to_string(side));
    return (side - window) / stride + 1;
  }

  Value add_value(const std::string& name, const Shape& made) {
    if (count(made) > kMostFloats) wrong(shape_text(made) + " would take more than 4 GiB of memory per image");
    if (!values_.emplace(name, program_.shapes.size()).second)
      refuse_bundle("the program makes " + quoted(name) + " twice");
    program_.shapes.push_back(made);
    return program_.shapes.size() - 1;
  }
  // The value that the operation makes, of the shape that follows from its inputs, and that must be written.
  Value made(const Shape& follows) {
    check_shape(follows);
    return add_value(name_, follows);
  }
  void check_shape(const Shape& follows) const {
    if (sizes("shape") != follows)
      wrong("its shape is given as " + shape_text(sizes("shape")) + ", but is " + shape_text(follows));
  }

  // ---- weights in int8, rotations in float16 ----

  float scale(double found, const std::string& of) const {
    const auto single = static_cast<float>(found);
    if (!(single > 0) || !std::isfinite(single) || static_cast<double>(single) != found) {
      wrong(of + " must be a positive float32 number, not " + std::to_string(found));
    }
    return single;
  }

  // The weight of one input, of the shape `of`, and its scales.
  Integers integers(const std::string& weight, const Shape& of, std::size_t input, std::size_t inputs) {
    const JsonList &named = list("weight_scales"), &given = list("input_scales");
    if (named.size() != inputs || given.size() != inputs) wrong("there must be two scales for each input");
    Integers made{};
    made.weight = array<std::int8_t>(weight, of);
    made.weight_scale = array(named[input].text(what("weight_scales")), {of[0]});
    for (std::size_t i = 0; i < of[0]; ++i) scale(static_cast<double>(made.weight_scale[i]), "a scale of its weights");
    made.input_scale = scale(given[input].real(what("input_scales")), "input_scales");
    return made;
  }

  // No weight is -128, and no sum leaves int32. `taps`: of a channel that is made.
  void check_sums(const Integers& of, std::size_t channels, std::size_t taps, const std::int32_t* bias) const {
    for (std::size_t i = 0; i < channels; ++i) {
      std::int64_t most = bias ? std::abs(static_cast<std::int64_t>(bias[i])) : 0;
      for (std::size_t t = 0; t < taps; ++t) {
        const int weight = of.weight[i * taps + t];
        if (weight < -127) wrong("a weight is -128: they go from -127 to 127");
        most += 128 * std::abs(weight);
      }
      if (most > std::numeric_limits<std::int32_t>::max()) wrong("its sums may be too large for int32");
    }
  }

  // Rotors (w, x, y, z) in float16 as matrices: those of the rotors, normalised, times `scale`. qcn/quaternion.py.
  const float* turned(const std::string& name, const Shape& of) {
    const std::uint16_t* halves = array<std::uint16_t>(name, of);
    const float scaled = scale(entry("scale").real(what("scale")), "scale");
    auto made = std::make_shared<std::vector<float>>();
    made->reserve(count(of) / 4 * 9);
    for (std::size_t i = 0; i < count(of); i += 4) {
      float q[4], square = 0;
      for (std::size_t k = 0; k < 4; ++k) q[k] = float_of_half(halves[i + k]);
      for (const float part : q) square += part * part;
      if (!(square > 0) || !std::isfinite(square)) wrong("the array " + quoted(name) + " has a rotor of no length");
      const float length = std::sqrt(square), w = q[0] / length, x = q[1] / length, y = q[2] / length,
                  z = q[3] / length;
      for (const float one : {1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),  //
                              2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),  //
                              2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}) {
        made->push_back(one * scaled);
      }
    }
    program_.rotations.push_back(made);
    return made->data();
  }

  Program& program_;
  const Json* now_ = nullptr;   // the part that is being read,
  std::string what_, name_;     // what to call it in a message, and its name
  std::set<std::string> used_;  // arrays

 private:
  std::map<std::string, Value> values_;
};

}  // namespace qcn::program

#endif

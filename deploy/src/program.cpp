#include "program.h"

#include <algorithm>
#include <set>
#include <utility>

#include "error.h"
#include "program_entries.h"
#include "text.h"

namespace qcn::program {
namespace {

using std::size_t;
using std::string;
using std::to_string;

class Reader : Entries {
 public:
  explicit Reader(Program& program) : Entries(program) {}

  void read(const Json& json) {
    json.check_entries({"input", "operations", "outputs"}, "the program");
    read_input(json["input"]);
    for (const Json& operation : json["operations"].list("'operations'")) read_operation(operation);
    if (program_.operations.empty()) refuse_bundle("the program has no operations");
    read_outputs(json["outputs"].list("'outputs'"));
    for (const auto& [name, tensor] : program_.weights->all()) {
      if (!used_.count(name)) refuse_bundle("no operation of the program uses the array " + quoted(name));
    }
  }

 private:
  void read_input(const Json& json) {
    now_ = &json, what_ = "the program's input";
    json.check_entries({"name", "shape"}, what_);
    if (word("name") != "image") wrong("its name must be 'image'");
    const Shape image = sizes("shape");
    if (image.size() != 3) wrong("its shape must be [channels, height, width], not " + shape_text(image));
    add_value("image", image);
    program_.signature.channels = static_cast<int>(image[0]);
    program_.signature.height = static_cast<int>(image[1]);
    program_.signature.width = static_cast<int>(image[2]);
  }

  void read_operation(const Json& json) {
    now_ = &json, what_ = "an operation of the program";
    name_ = entry("name").printable_text("an operation's name");
    if (name_.empty()) refuse_bundle("an operation has an empty name");
    what_ = "the operation " + quoted(name_);
    if (!operations_.insert(name_).second) wrong("another operation has the same name");
    const string& op = word("op");
    precision_ = precision(op);
    Operation operation{name_, precision_, {}};
    if (op == "affine") {
      operation.body = affine();
    } else if (op == "convolution") {
      operation.body = convolution();
    } else if (op == "sum") {
      operation.body = sum();
    } else if (op == "pool") {
      operation.body = pool();
    } else if (op == "linear") {
      operation.body = linear();
    } else if (op == "route") {
      operation.body = route();
    } else {
      wrong("op must be affine, convolution, sum, pool, linear or route, not " + quoted(op));
    }
    program_.operations.push_back(std::move(operation));
  }

  void check_entries(std::vector<std::string_view> own, const std::vector<std::string_view>& more = {}) const {
    own.insert(own.end(), {"op", "name", "precision"});
    own.insert(own.end(), more.begin(), more.end());
    now_->check_entries(own, what_);
  }

  // int8 is for products, fp16 for routing.
  Precision precision(const string& op) const {
    const string& found = word("precision");
    if (found == "fp32") return Precision::kFp32;
    if (found == "int8" && (op == "convolution" || op == "linear")) return Precision::kInt8;
    if (found == "fp16" && op == "route") return Precision::kFp16;
    wrong("it computes in " + quoted(found) +
          ", but libqcn's CPU kernels in fp32, a convolution or linear also in int8, a route also in fp16");
  }

  std::vector<std::string_view> scales() const {
    if (precision_ != Precision::kInt8) return {};
    return {"weight_scales", "input_scales"};
  }

  Affine affine() {
    check_entries({"input", "scale", "shift", "ending", "shape"});
    Affine a{};
    a.in = value("input");
    const Shape of = map(a.in, "input");
    a.scale = array(word("scale"), {of[0]}), a.shift = array(word("shift"), {of[0]});
    a.ending = ending();
    a.out = made(of);
    return a;
  }

  Convolution convolution() {
    const bool int8 = precision_ == Precision::kInt8;
    Convolution c{};
    c.depthwise = now_->find("depthwise") && entry("depthwise").boolean(what("depthwise"));
    std::vector<std::string_view> optional = scales();
    if (c.depthwise) optional.push_back("depthwise");
    check_entries({"inputs", "weights", "bias", "strides", "paddings", "ending", "shape"}, optional);
    const JsonList &inputs = list("inputs"), &weights = list("weights");
    const Shape strides = sizes("strides"), paddings = sizes("paddings", 0);
    if (inputs.empty() || inputs.size() > 2) wrong("it has " + to_string(inputs.size()) + " inputs, not 1 or 2");
    if (weights.size() != inputs.size() || strides.size() != inputs.size() || paddings.size() != inputs.size()) {
      wrong("there must be one weight, stride and padding for each input");
    }
    if (c.depthwise && inputs.size() != 1) wrong("it is depthwise, and has two inputs");
    Shape follows;
    for (size_t s = 0; s < inputs.size(); ++s) {
      const Value in = value(inputs[s], "inputs");
      const Shape of = map(in, "inputs");
      const string& name = weights[s].text(what("weights"));
      const Tensor& tensor = program_.weights->at(name);
      if (tensor.shape.size() != 4 || tensor.count() == 0) {
        wrong("the array " + quoted(name) + " must be [channels out, channels in, kernel, kernel]");
      }
      const auto out = static_cast<size_t>(tensor.shape[0]), kernel = static_cast<size_t>(tensor.shape[2]);
      if (c.depthwise && out != of[0]) {
        wrong("it is depthwise, and makes " + to_string(out) + " channels of " + to_string(of[0]));
      }
      const Shape expected = {out, c.depthwise ? 1 : of[0], kernel, kernel};
      c.sources.push_back({in, int8 ? nullptr : array(name, expected), kernel, strides[s], paddings[s], {}});
      if (int8) c.sources[s].integers = integers(name, expected, s, inputs.size());
      const Shape made = {out, steps(of[1] + 2 * paddings[s], kernel, strides[s]),
                          steps(of[2] + 2 * paddings[s], kernel, strides[s])};
      if (s == 1 && made != follows) wrong("its two parts are " + shape_text(follows) + " and " + shape_text(made));
      follows = made;
    }
    if (int8) {
      c.integer_bias = array<std::int32_t>(word("bias"), {follows[0]});
      for (size_t s = 0; s < inputs.size(); ++s) {
        const auto& source = c.sources[s];
        const size_t channels = c.depthwise ? 1 : shape(source.in)[0];
        check_sums(source.integers, follows[0], channels * source.kernel * source.kernel,
                   s == 0 ? c.integer_bias : nullptr);
      }
    } else {
      c.bias = array(word("bias"), {follows[0]});
    }
    c.ending = ending();
    c.out = made(follows);
    return c;
  }

  Sum sum() {
    check_entries({"inputs", "shape"});
    const JsonList& inputs = list("inputs");
    if (inputs.size() != 2) wrong("it has " + to_string(inputs.size()) + " inputs, not 2");
    Sum s{};
    for (size_t i = 0; i < 2; ++i) s.in[i] = value(inputs[i], "inputs");
    const Shape of = map(s.in[0], "inputs");
    if (shape(s.in[1]) != of) wrong("it adds up " + shape_text(of) + " and " + shape_text(shape(s.in[1])));
    s.out = made(of);
    return s;
  }

  Pool pool() {
    check_entries({"input", "kind", "kernel", "stride", "shape"});
    Pool p{};
    p.in = value("input");
    const Shape of = map(p.in, "input");
    p.average = entry("kind").one_of({"max", "average"}, what("kind")) == "average";
    p.kernel = size("kernel"), p.stride = size("stride");
    p.out = made({of[0], steps(of[1], p.kernel, p.stride), steps(of[2], p.kernel, p.stride)});
    return p;
  }

  Linear linear() {
    const bool int8 = precision_ == Precision::kInt8;
    check_entries({"input", "weight", "bias", "ending", "shape"}, scales());
    Linear l{};
    l.in = value("input");
    const Shape units = sizes("shape");
    if (units.size() != 1) wrong("its shape must be [units], not " + shape_text(units));
    const size_t inputs = count(shape(l.in));
    if (int8) {
      l.integers = integers(word("weight"), {units[0], inputs}, 0, 1);
      l.integer_bias = array<std::int32_t>(word("bias"), units);
      check_sums(l.integers, units[0], inputs, l.integer_bias);
    } else {
      l.weight = array(word("weight"), {units[0], inputs});
      l.bias = array(word("bias"), units);
    }
    l.ending = ending();
    l.out = made(units);
    return l;
  }

  Route route() {
    const string& rotation = word("rotation");
    const Tensor& found = program_.weights->at(rotation);
    const bool rotors = precision_ == Precision::kFp16 && found.type == "F16";
    check_entries({"pose", "activation", "rotation", "beta_u", "beta_a", "window", "stride", "iterations", "mode",
                   "ending", "shape"},
                  rotors ? std::vector<std::string_view>{"scale"} : std::vector<std::string_view>{});
    Route r{};
    r.half = precision_ == Precision::kFp16;
    r.pose = value("pose"), r.activation = value("activation");
    const Shape of = map(r.activation, "activation"), window = sizes("window"), given = sizes("shape");
    const Shape together = {3 * of[0], of[1], of[2]}, apart = {of[0], 3, of[1], of[2]};
    if (shape(r.pose) != together && shape(r.pose) != apart) {
      wrong("poses of " + shape_text(shape(r.pose)) + " do not fit activations of " + shape_text(of));
    }
    if (window.size() != 2) wrong("window must be [height, width], not " + shape_text(window));
    if (given.size() != 3) wrong("its shape must be [parents, height, width], not " + shape_text(given));
    const size_t parents = given[0];
    if (parents > QCN_ROUTING_MAX_PARENTS) {
      wrong("it has " + to_string(parents) + " parents; at most " + to_string(QCN_ROUTING_MAX_PARENTS) +
            " are possible");
    }
    r.window_height = window[0], r.window_width = window[1], r.stride = size("stride");
    r.iterations = size("iterations", QCN_ROUTING_MAX_ITERATIONS);
    r.unit = entry("mode").one_of({"logistic", "unit"}, what("mode")) == "unit";
    r.logit = entry("ending").one_of({"sigmoid", "none"}, what("ending")) == "none";
    r.shared = found.shape.size() == (rotors ? 5 : 6) && found.shape[0] == 1 && found.shape[1] == 1;
    const size_t rows = r.shared ? 1 : window[0], columns = r.shared ? 1 : window[1];
    r.rotation = rotors ? turned(rotation, {rows, columns, of[0], parents, 4})
                        : array(rotation, {rows, columns, of[0], parents, 3, 3});
    r.beta_u = array(word("beta_u"), {parents}), r.beta_a = array(word("beta_a"), {parents});
    const size_t height = steps(of[1], window[0], r.stride), width = steps(of[2], window[1], r.stride);
    check_shape({parents, height, width});
    r.out_pose = add_value(name_ + ".pose", {parents, 3, height, width});
    r.out_activation = add_value(name_ + (r.logit ? ".logit" : ".activation"), {parents, height, width});
    return r;
  }

  Value read_output(const Json& json, const char* name, const Shape& expected) {
    now_ = &json, what_ = string("the program's output '") + name + "'";
    json.check_entries({"name", "value", "shape"}, what_);
    if (word("name") != name) wrong("it is named " + quoted(word("name")));
    const Value found = value("value");
    if (sizes("shape") != expected)
      wrong("its shape must be " + shape_text(expected) + ", not " + shape_text(sizes("shape")));
    if (count(shape(found)) != count(expected))
      wrong(shape_text(shape(found)) + " cannot be read as " + shape_text(expected));
    return found;
  }

  void read_outputs(const JsonList& outputs) {
    if (outputs.empty() || outputs.size() > 2) {
      refuse_bundle("the program's outputs must be logit and, where the network has poses, pose; " +
                    to_string(outputs.size()) + " are given");
    }
    now_ = &outputs[0], what_ = "the program's output 'logit'";
    const Shape classes = sizes("shape");
    if (classes.size() != 1) wrong("its shape must be [classes], not " + shape_text(classes));
    program_.logit = read_output(outputs[0], "logit", classes);
    program_.signature.classes = static_cast<int>(classes[0]);
    if (outputs.size() == 2) {
      program_.pose = read_output(outputs[1], "pose", {classes[0], 3});
      program_.signature.poses = true;
    }
    // The values of the last operation came last; of capsules, the poses before the logits.
    const Value last = program_.shapes.size() - 1;
    const bool capsules = std::holds_alternative<Route>(program_.operations.back().body);
    if (program_.logit != last || program_.pose != (capsules ? std::optional<Value>(last - 1) : std::nullopt)) {
      refuse_bundle("the program's outputs must be all values of its last operation, " +
                    quoted(program_.operations.back().name));
    }
  }

  Precision precision_ = Precision::kFp32;  // of the operation that is being read
  std::set<string> operations_;             // their names
};

}  // namespace

size_t count(const Shape& shape) {
  size_t all = 1;
  for (const size_t size : shape) {
    all *= size;
    if (all > kMostFloats) return kMostFloats + 1;
  }
  return all;
}

const char* name(Precision precision) {
  return precision == Precision::kFp32 ? "fp32" : precision == Precision::kFp16 ? "fp16" : "int8";
}

Precision Program::precision() const {
  Precision lowest = Precision::kFp32;
  for (const Operation& operation : operations) lowest = std::max(lowest, operation.precision);
  return lowest;
}

qcn_routing_shape Program::routing_shape(const Route& r) const {
  const auto small = [](size_t size) { return static_cast<int>(size); };  // no size exceeds Json::kMaxSize
  const Shape &in = shapes[r.activation], &out = shapes[r.out_activation];
  qcn_routing_shape shape{};
  shape.batch = 1, shape.channels = small(in[0]), shape.height = small(in[1]), shape.width = small(in[2]);
  shape.window_height = small(r.window_height), shape.window_width = small(r.window_width);
  shape.stride = small(r.stride), shape.parents = small(out[0]), shape.iterations = small(r.iterations);
  shape.shared = r.shared, shape.unit = r.unit, shape.logit = r.logit;
  return shape;
}

Program::Program(std::shared_ptr<const TensorFile> file) : weights(std::move(file)) {
  Reader(*this).read(Json::parse(weights->text("program")));
}

}  // namespace qcn::program

#include "random_network.h"

#include <cmath>
#include <cstring>

namespace networks {
namespace {

using std::string;
using std::to_string;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

std::size_t count(const Shape& shape) {
  std::size_t all = 1;
  for (const int side : shape) all *= at(side);
  return all;
}

template <typename T>
string list(const std::vector<T>& values) {
  string all;
  for (const T& value : values) {
    if (!all.empty()) all += ", ";
    if constexpr (std::is_same_v<T, string>) {
      all += quoted(value);
    } else {
      all += to_string(value);
    }
  }
  return "[" + all + "]";
}

string entry(const string& key, const string& value) { return ", \"" + key + "\": " + value; }

int steps(int side, int window, int stride) { return (side - window) / stride + 1; }

}  // namespace

string quoted(const string& text) {
  string out = "\"";
  for (const char c : text) out += c == '\n' ? "\\n" : (c == '"' || c == '\\' ? "\\" : "") + string(1, c);
  return out + "\"";
}

std::vector<std::byte> bytes(const string& text) {
  std::vector<std::byte> copy(text.size());
  if (!text.empty()) std::memcpy(copy.data(), text.data(), text.size());
  return copy;
}

string safetensors(const Arrays& arrays, const string& texts) {
  string header = "{\"__metadata__\": {\"qcn\": " + quoted(texts) + "}", data;
  // The largest elements first, as the safetensors library does, so that all are aligned.
  for (const char* type : {"F64", "I64", "F32", "I32", "U8", "I8"}) {
    for (const auto& [name, array] : arrays) {
      if (array.type != type) continue;
      header += ", " + quoted(name) + ": {\"dtype\": \"" + array.type + "\", \"shape\": " + list(array.shape) +
                ", \"data_offsets\": [" + to_string(data.size()) + ", ";
      data += array.bytes;
      header += to_string(data.size()) + "]}";
    }
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(header.size() >> 8 * i & 0xFF);
  return prefix + header + data;
}

// Not a distribution of the standard library, which may differ from one library to another.
std::vector<float> random_floats(std::size_t count, std::mt19937& generator, double scale) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(scale * 1.7 * (static_cast<double>(generator() >> 8) / (1 << 23) - 1));
  }
  return values;
}

string Network::weights() const {
  Arrays all;
  for (const auto& [name, floats] : arrays) all[name] = array("F32", floats.shape, floats.values);
  return safetensors(all, "{\"schema\": \"3\", \"program\": " + quoted(program) + "}");
}

std::shared_ptr<const qcn::TensorFile> Network::file() const {
  return std::make_shared<const qcn::TensorFile>(bytes(weights()), qcn::kWeightsSchema);
}

Builder::Builder(const Shape& image, unsigned seed) : generator_(seed), shapes_{{"image", image}} {}

string Builder::add_array(const string& name, const Shape& shape, double scale, double centre) {
  Floats floats{{shape.begin(), shape.end()}, random_floats(count(shape), generator_, scale)};
  for (float& value : floats.values) value += static_cast<float>(centre);
  arrays_[name] = std::move(floats);
  return quoted(name);
}

string Builder::add(const string& op, const string& name, const string& entries, const Shape& shape) {
  operations_.push_back("{\"op\": " + quoted(op) + ", \"name\": " + quoted(name) + ", \"precision\": \"fp32\"" +
                        entries + entry("shape", list(shape)) + "}");
  shapes_[name] = shape;
  return name;
}

string Builder::affine(const string& name, const string& input, const string& ending) {
  const Shape of = shapes_.at(input);
  const string scale = add_array(name + ".scale", {of[0]}, 0.2, 1), shift = add_array(name + ".shift", {of[0]}, 0.2);
  return add(
      "affine", name,
      entry("input", quoted(input)) + entry("scale", scale) + entry("shift", shift) + entry("ending", quoted(ending)),
      of);
}

string Builder::convolution(const string& name, const std::vector<Source>& sources, int channels,
                            const string& ending) {
  std::vector<string> inputs, weights;
  std::vector<int> strides, paddings;
  Shape made;
  for (const Source& source : sources) {
    const Shape of = shapes_.at(source.input);
    const string weight = name + (inputs.empty() ? ".weight" : ".skip.weight");
    const double scale = std::sqrt(1.5 / (source.kernel * source.kernel * of[0]));
    add_array(weight, {channels, of[0], source.kernel, source.kernel}, scale);
    inputs.push_back(source.input), weights.push_back(weight);
    strides.push_back(source.stride), paddings.push_back(source.padding);
    made = {channels, steps(of[1] + 2 * source.padding, source.kernel, source.stride),
            steps(of[2] + 2 * source.padding, source.kernel, source.stride)};
  }
  const string bias = add_array(name + ".bias", {channels}, 0.3);
  return add("convolution", name,
             entry("inputs", list(inputs)) + entry("weights", list(weights)) + entry("bias", bias) +
                 entry("strides", list(strides)) + entry("paddings", list(paddings)) + entry("ending", quoted(ending)),
             made);
}

string Builder::depthwise(const string& name, const Source& source, const string& ending) {
  const Shape of = shapes_.at(source.input);
  const string weight = name + ".weight";
  add_array(weight, {of[0], 1, source.kernel, source.kernel}, 1.2 / source.kernel);
  const string bias = add_array(name + ".bias", {of[0]}, 0.3);
  return add("convolution", name,
             entry("inputs", list(std::vector<string>{source.input})) +
                 entry("weights", list(std::vector<string>{weight})) + entry("bias", bias) +
                 entry("strides", list(Shape{source.stride})) + entry("paddings", list(Shape{source.padding})) +
                 entry("ending", quoted(ending)) + entry("depthwise", "true"),
             {of[0], steps(of[1] + 2 * source.padding, source.kernel, source.stride),
              steps(of[2] + 2 * source.padding, source.kernel, source.stride)});
}

string Builder::sum(const string& name, const string& first, const string& second) {
  return add("sum", name, entry("inputs", list(std::vector<string>{first, second})), shapes_.at(first));
}

string Builder::pool(const string& name, const string& input, const string& kind, int kernel, int stride) {
  const Shape of = shapes_.at(input);
  const Shape made = {of[0], steps(of[1], kernel, stride), steps(of[2], kernel, stride)};
  return add("pool", name,
             entry("input", quoted(input)) + entry("kind", quoted(kind)) + entry("kernel", to_string(kernel)) +
                 entry("stride", to_string(stride)),
             made);
}

string Builder::linear(const string& name, const string& input, int units, const string& ending) {
  const int inputs = static_cast<int>(count(shapes_.at(input)));
  const string weight = add_array(name + ".weight", {units, inputs}, std::sqrt(1.5 / inputs));
  const string bias = add_array(name + ".bias", {units}, 0.3);
  return add(
      "linear", name,
      entry("input", quoted(input)) + entry("weight", weight) + entry("bias", bias) + entry("ending", quoted(ending)),
      {units});
}

Builder::Capsules Builder::route(const string& name, const Capsules& children, int window_height, int window_width,
                                 int stride, int parents, const Routing& routing) {
  const Shape of = shapes_.at(children.activation);
  const int rows = routing.shared ? 1 : window_height, columns = routing.shared ? 1 : window_width;
  const string rotation = add_array(name + ".rotation", {rows, columns, of[0], parents, 3, 3}, routing.spread);
  const string beta_u = add_array(name + ".beta_u", {parents}, 0.3),
               beta_a = add_array(name + ".beta_a", {parents}, 0.3);
  const Shape made = {parents, steps(of[1], window_height, stride), steps(of[2], window_width, stride)};
  add("route", name,
      entry("pose", quoted(children.pose)) + entry("activation", quoted(children.activation)) +
          entry("rotation", rotation) + entry("beta_u", beta_u) + entry("beta_a", beta_a) +
          entry("window", list(std::vector<int>{window_height, window_width})) + entry("stride", to_string(stride)) +
          entry("iterations", to_string(routing.iterations)) + entry("mode", quoted(routing.mode)) +
          entry("ending", quoted(routing.logit ? "none" : "sigmoid")),
      made);
  shapes_[name + ".pose"] = {parents, 3, made[1], made[2]};
  const string out = name + (routing.logit ? ".logit" : ".activation");
  shapes_[out] = made;
  return {name + ".pose", out};
}

string Builder::blocks(const string& name, string input, const std::vector<std::pair<int, int>>& channels_strides) {
  for (std::size_t i = 0; i < channels_strides.size(); ++i) {
    if (input == "image") input = affine(name + ".entry", input);
    const auto [channels, stride] = channels_strides[i];
    const string block = name + "." + to_string(i);
    const string first = convolution(block + ".conv1", {{input, 3, stride, 1}}, channels);
    input = convolution(block + ".conv2", {{first, 3, 1, 1}, {input, 1, stride, 0}}, channels);
  }
  return input;
}

Builder::Capsules Builder::project(const string& pose_input, const string& activation_input, int types) {
  return {convolution("pose.projection", {{pose_input, 1, 1, 0}}, 3 * types, "none"),
          convolution("activation.projection", {{activation_input, 1, 1, 0}}, types, "sigmoid")};
}

Builder::Capsules Builder::route_whole(const string& name, const Capsules& children, int parents, Routing routing) {
  const Shape of = shapes_.at(children.activation);
  routing.shared = routing.logit = true;
  return route(name, children, of[1], of[2], 1, parents, routing);
}

Network Builder::network(const string& logit, const string& pose) const {
  const int classes = static_cast<int>(count(shapes_.at(logit)));
  string program =
      "{\"input\": {\"name\": \"image\", \"shape\": " + list(shapes_.at("image")) + "},\n\"operations\": [";
  for (const string& operation : operations_) program += (&operation == &operations_[0] ? "\n" : ",\n") + operation;
  program += "],\n\"outputs\": [{\"name\": \"logit\", \"value\": " + quoted(logit) +
             ", \"shape\": " + list(Shape{classes}) + "}";
  if (!pose.empty()) {
    program += ", {\"name\": \"pose\", \"value\": " + quoted(pose) + ", \"shape\": " + list(Shape{classes, 3}) + "}";
  }
  return {program + "]}", arrays_};
}

}  // namespace networks

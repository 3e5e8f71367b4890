#include "plain_network.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "reference.h"

namespace plain {
namespace {

using std::size_t;
using std::string;

size_t at(int i) { return static_cast<size_t>(i); }

struct Maps {  // [batch, channels, height, width]
  int batch, channels, height, width;
  std::vector<double> values;

  Maps(int b, int c, int h, int w)
      : batch(b), channels(c), height(h), width(w), values(at(b) * at(c) * at(h) * at(w)) {}

  double& operator()(int image, int channel, int y, int x) {
    return values[((at(image) * at(channels) + at(channel)) * at(height) + at(y)) * at(width) + at(x)];
  }
};

void relu(Maps& maps) {
  for (double& x : maps.values) x = std::max(x, 0.0);
}

class Runner {
 public:
  explicit Runner(const Network& network) : network_(network) {}

  Maps stack(const string& name, const std::vector<int>& strides, Maps x) {
    if (!strides.empty() && network_.arrays.count(name + ".scale")) {
      const auto& scale = array(name + ".scale").values;
      const auto& shift = array(name + ".shift").values;
      size_t map = at(x.height) * at(x.width);
      for (size_t i = 0; i < x.values.size(); ++i) {
        size_t channel = i / map % at(x.channels);
        x.values[i] = x.values[i] * static_cast<double>(scale[channel]) + static_cast<double>(shift[channel]);
      }
      relu(x);
    }
    for (size_t block = 0; block < strides.size(); ++block) {
      string prefix = name + "." + std::to_string(block);
      Maps y = convolution(prefix + ".conv1", x, strides[block], true);
      relu(y);
      y = convolution(prefix + ".conv2", y, 1, true);
      Maps skip = convolution(prefix + ".skip", x, strides[block], false);
      for (size_t i = 0; i < y.values.size(); ++i) y.values[i] += skip.values[i];
      relu(y);
      x = std::move(y);
    }
    return x;
  }

  Maps convolution(const string& name, Maps& x, int stride, bool biased) {
    const Array& weight = array(name + ".weight");
    int out = static_cast<int>(weight.shape[0]), kernel = static_cast<int>(weight.shape[2]), border = kernel / 2;
    Maps y(x.batch, out, (x.height - 1) / stride + 1, (x.width - 1) / stride + 1);
    for (int image = 0; image < y.batch; ++image) {
      for (int o = 0; o < out; ++o) {
        for (int row = 0; row < y.height; ++row) {
          for (int column = 0; column < y.width; ++column) {
            double sum = biased ? static_cast<double>(array(name + ".bias").values[at(o)]) : 0.0;
            const float* w = &weight.values[at(o) * at(x.channels) * at(kernel) * at(kernel)];
            for (int c = 0; c < x.channels; ++c) {
              for (int ky = 0; ky < kernel; ++ky) {
                for (int kx = 0; kx < kernel; ++kx, ++w) {
                  int from_y = row * stride + ky - border, from_x = column * stride + kx - border;
                  if (from_y < 0 || from_y >= x.height || from_x < 0 || from_x >= x.width) continue;
                  sum += static_cast<double>(*w) * x(image, c, from_y, from_x);
                }
              }
            }
            y(image, o, row, column) = sum;
          }
        }
      }
    }
    return y;
  }

  const Array& array(const string& name) const { return network_.arrays.at(name); }

 private:
  const Network& network_;
};

}  // namespace

Network random_network(const qcn::Structure& s, const Widths& widths, unsigned seed) {
  Network network{s, {}};
  std::mt19937 generator(seed);
  auto add = [&](const string& name, std::vector<std::int64_t> shape, double scale, double centre = 0) {
    std::int64_t count = 1;
    for (std::int64_t side : shape) count *= side;
    std::normal_distribution<float> normal(static_cast<float>(centre), static_cast<float>(scale));
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values) x = normal(generator);
    network.arrays[name] = {std::move(shape), std::move(values)};
  };
  auto stack = [&](const string& name, const std::vector<int>& channels, int in, bool raw) {
    if (raw && !channels.empty()) {
      add(name + ".scale", {in}, 0.2, 1);
      add(name + ".shift", {in}, 0.2);
    }
    for (size_t block = 0; block < channels.size(); ++block) {
      int out = channels[block];
      string prefix = name + "." + std::to_string(block);
      add(prefix + ".conv1.weight", {out, in, 3, 3}, std::sqrt(2.0 / (9 * in)));
      add(prefix + ".conv1.bias", {out}, 0.3);
      add(prefix + ".conv2.weight", {out, out, 3, 3}, std::sqrt(1.0 / (9 * out)));
      add(prefix + ".conv2.bias", {out}, 0.3);
      add(prefix + ".skip.weight", {out, in, 1, 1}, std::sqrt(1.0 / in));
      in = out;
    }
    return in;
  };
  int trunk = stack("stem", widths.stem, s.channels, true);
  for (auto [name, channels, out] : {std::tuple{"pose", widths.pose, 3 * widths.capsules},
                                     std::tuple{"activation", widths.activation, widths.capsules}}) {
    int in = stack(name, channels, trunk, widths.stem.empty());
    add(string(name) + ".projection.weight", {out, in, 1, 1}, std::sqrt(1.0 / in));
    add(string(name) + ".projection.bias", {out}, 0.3);
  }
  int children = widths.capsules;  // whose poses shrink with each layer: rotations make up for it, as an RMS does
  for (size_t i = 0; i < s.capsules.size(); ++i) {
    const qcn::Capsules& layer = s.capsules[i];
    int places = layer.kernel.value_or(1), parents = layer.kernel ? widths.parents.at(i) : s.classes;
    add(layer.name + ".rotation", {places, places, children, parents, 3, 3}, i == 0 ? 0.6 : 4.0);
    add(layer.name + ".beta_u", {parents}, 0.3);
    add(layer.name + ".beta_a", {parents}, 0.3);
    children = parents;
  }
  return network;
}

std::shared_ptr<const qcn::TensorFile> file_of(const Network& network) {
  string header = "{\"__metadata__\":{\"qcn\":\"{\\\"schema\\\":\\\"1\\\"}\"}";
  std::vector<std::byte> data;
  for (const auto& [name, array] : network.arrays) {
    string shape;
    for (std::int64_t side : array.shape) shape += (shape.empty() ? "" : ",") + std::to_string(side);
    size_t begin = data.size(), end = begin + array.values.size() * sizeof(float);
    const auto* values = reinterpret_cast<const std::byte*>(array.values.data());
    data.insert(data.end(), values, values + (end - begin));
    header += ",\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[" +
              std::to_string(begin) + "," + std::to_string(end) + "]}";
  }
  header += "}";
  while (header.size() % 8 != 0) header += " ";
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(header.size() >> (8 * i) & 255));
  for (char c : header) bytes.push_back(static_cast<std::byte>(c));
  bytes.insert(bytes.end(), data.begin(), data.end());
  return std::make_shared<const qcn::TensorFile>(std::move(bytes));
}

Answers run(const Network& network, const std::vector<float>& images, int batch) {
  const qcn::Structure& s = network.structure;
  Runner runner(network);
  Maps image(batch, s.channels, s.height, s.width);
  std::copy(images.begin(), images.end(), image.values.begin());
  Maps trunk = runner.stack("stem", s.stem, std::move(image));
  Maps features = runner.stack("pose", s.pose, trunk);
  Maps pose = runner.convolution("pose.projection", features, 1, true);
  features = runner.stack("activation", s.activation, trunk);
  Maps activation = runner.convolution("activation.projection", features, 1, true);
  for (double& a : activation.values) a = 1 / (1 + std::exp(-a));

  Answers answers{activation.values, pose.values};
  qcn_routing_shape shape{batch, activation.channels, activation.height, activation.width, 0, 0, 0, 0, s.iterations,
                          0,     s.unit ? 1 : 0};
  for (const qcn::Capsules& layer : s.capsules) {
    auto doubles = [&](const string& name) {
      const auto& values = runner.array(layer.name + name).values;
      return std::vector<double>(values.begin(), values.end());
    };
    shape.window_height = layer.kernel.value_or(shape.height);
    shape.window_width = layer.kernel.value_or(shape.width);
    shape.stride = layer.stride;
    shape.shared = layer.kernel ? 0 : 1;
    shape.parents = static_cast<int>(runner.array(layer.name + ".beta_u").shape[0]);
    reference::Outputs out = reference::route(
        shape, {answers.pose, answers.activation, doubles(".rotation"), doubles(".beta_u"), doubles(".beta_a")});
    answers = {out.activation, out.pose};
    int rows = reference::rows(shape), columns = reference::columns(shape);
    shape.channels = shape.parents;
    shape.height = rows;
    shape.width = columns;
  }
  return answers;
}

}  // namespace plain

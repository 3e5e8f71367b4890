#include "plan.h"

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "em_routing_cpu.h"
#include "error.h"

namespace qcn::native {
namespace {

using std::size_t;
using std::string;
using std::to_string;

// What an image takes may not be more: 4 GiB. So no product of sizes overflows, and no altered manifest takes all
// memory.
constexpr size_t kMostFloats = size_t{1} << 30;

[[noreturn]] void refuse(const string& why) { throw Error(QCN_BAD_BUNDLE, "this network cannot be run: " + why); }

size_t product(std::initializer_list<size_t> sizes) {
  size_t all = 1;
  for (size_t size : sizes) {
    if (__builtin_mul_overflow(all, size, &all) || all > kMostFloats) {
      refuse("an image of it would take more than 4 GiB of memory");
    }
  }
  return all;
}

size_t positive(int value, const string& what) {
  if (value < 1) refuse(what + " must be at least 1, not " + to_string(value));
  return static_cast<size_t>(value);
}

string text(const Map& map) {
  return to_string(map.channels) + "×" + to_string(map.height) + "×" + to_string(map.width);
}

class Builder {
 public:
  Builder(const Structure& structure, const TensorFile& weights, Plan& plan)
      : structure_(structure), weights_(weights), plan_(plan) {}

  struct Features {
    Map map;
    Place place;
  };

  // `trunk`: none where the image itself enters the stack.
  std::optional<Features> stack(const string& name, const std::vector<int>& strides, std::optional<Features> trunk) {
    for (size_t block = 0; block < strides.size(); ++block) {
      if (!trunk)
        trunk = enter(array(name + ".scale", {plan_.image.channels}), array(name + ".shift", {plan_.image.channels}));
      trunk = residual(name + "." + to_string(block), *trunk, positive(strides[block], "a stride"));
    }
    return trunk;
  }

  // A 1x1 convolution to what routing reads: [channels, height, width].
  Features projection(const string& name, std::optional<Features> from, Ending ending) {
    if (!from) from = enter(nullptr, nullptr);
    Map map{from->map.height, from->map.width, width_of(name + ".weight")};
    Convolution c{{{from->map, 1, 1}, {}}, 1, map, true, ending, nullptr};
    Place out = take(product({map.channels, map.height, map.width}));
    add(c, {from->place, 0}, out, {array(name + ".weight", {map.channels, from->map.channels, 1, 1}), nullptr},
        array(name + ".bias", {map.channels}));
    return {map, out};
  }

  // Routes `map` (of capsules, not of features) and says what comes out.
  Map capsules(const Capsules& layer, const Map& map, Place& pose, Place& activation) {
    size_t window_height = map.height, window_width = map.width, places = 1;
    if (layer.kernel) window_height = window_width = places = positive(*layer.kernel, "a kernel");
    size_t stride = positive(layer.stride, "a stride");
    if (window_height > map.height || window_width > map.width) {
      refuse("images of " + to_string(structure_.height) + "×" + to_string(structure_.width) +
             " are too small for it: '" + layer.name + "' needs " + to_string(window_height) + "×" +
             to_string(window_width) + " places and is left " + to_string(map.height) + "×" + to_string(map.width));
    }
    string rotation = layer.name + ".rotation";
    size_t parents = layer.kernel ? dimension(rotation, 6, 3) : plan_.classes;
    if (parents < 1 || parents > QCN_ROUTING_MAX_PARENTS) {
      refuse("'" + layer.name + "' has " + to_string(parents) + " parents; from 1 to " +
             to_string(QCN_ROUTING_MAX_PARENTS) + " can be");
    }
    Map out{(map.height - window_height) / stride + 1, (map.width - window_width) / stride + 1, parents};
    auto small = [](size_t size) { return static_cast<int>(size); };  // nothing exceeds kMostFloats
    Layer made{};
    made.name = layer.name;
    made.height = out.height, made.width = out.width;
    made.shape = {1,
                  small(map.channels),
                  small(map.height),
                  small(map.width),
                  small(window_height),
                  small(window_width),
                  layer.stride,
                  small(parents),
                  structure_.iterations,
                  layer.kernel ? 0 : 1,
                  structure_.unit ? 1 : 0};
    made.rotation = array(rotation, {places, places, map.channels, parents, 3, 3});
    made.beta_u = array(layer.name + ".beta_u", {parents});
    made.beta_a = array(layer.name + ".beta_a", {parents});
    made.pose = pose;
    made.activation = activation;
    pose = made.out_pose = take(product({parents, 3, out.height, out.width}));
    activation = made.out_activation = take(product({parents, out.height, out.width}));
    plan_.layers.push_back(made);
    return out;
  }

  void refuse_unused() const {
    for (const auto& [name, tensor] : weights_.all()) {
      if (!used_.count(name)) refuse("the weights are of another: it has no '" + name + "'");
    }
  }

  // Lays the weights of all convolutions out in `packed`.
  void pack(Memory& packed) {
    size_t floats = 0;
    for (const Step& step : plan_.steps) floats += whole_lines(packed_floats(step.convolution));
    auto to = static_cast<float*>(packed.get(floats * sizeof(float)));
    if (!to && floats > 0) throw Error(QCN_NO_MEMORY, "no memory for the weights");
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      Convolution& c = plan_.steps[i].convolution;
      pack_weights(c, given_[i].weights, given_[i].bias, to);
      c.weight = to;
      to += whole_lines(packed_floats(c));
    }
  }

 private:
  struct Given {  // the weights of a step as the file has them
    const float* weights[2];
    const float* bias;
  };

  static size_t whole_lines(size_t floats) { return (floats + 15) / 16 * 16; }  // of a cache, 64 bytes

  Place take(size_t floats) {
    Place place = plan_.image_floats;
    plan_.image_floats += whole_lines(floats);
    if (plan_.image_floats > kMostFloats) refuse("an image of it would take more than 4 GiB of memory");
    return place;
  }

  Place take(const Map& map) { return take(product({map.height + 2, map.width + 2, map.channels})); }

  const float* array(const string& name, const std::vector<size_t>& shape) {
    used_.insert(name);
    return weights_.floats(name, std::vector<std::int64_t>(shape.begin(), shape.end()));
  }

  // The size of an array in one of its dimensions, where that is the array's own choice.
  size_t dimension(const string& name, size_t dimensions, size_t which) const {
    const Tensor& tensor = weights_.at(name);
    if (tensor.shape.size() != dimensions) {
      refuse("'" + name + "' has " + to_string(tensor.shape.size()) + " dimensions, not " + to_string(dimensions));
    }
    if (tensor.shape[which] < 1) refuse("'" + name + "' is empty");
    return static_cast<size_t>(tensor.shape[which]);
  }

  size_t width_of(const string& weight) const { return dimension(weight, 4, 0); }

  Features enter(const float* scale, const float* shift) {
    Entry entry{plan_.image, scale, shift, take(plan_.image)};
    plan_.entries.push_back(entry);
    return {entry.map, entry.out};
  }

  Features residual(const string& name, const Features& x, size_t stride) {
    Map map{(x.map.height - 1) / stride + 1, (x.map.width - 1) / stride + 1, width_of(name + ".conv1.weight")};
    size_t in = x.map.channels, out = map.channels;
    Convolution first{{{x.map, 3, stride}, {}}, 1, map, false, Ending::kRelu, nullptr};
    Place between = take(map);
    add(first, {x.place, 0}, between, {array(name + ".conv1.weight", {out, in, 3, 3}), nullptr},
        array(name + ".conv1.bias", {out}));
    Convolution second{{{map, 3, 1}, {x.map, 1, stride}}, 2, map, false, Ending::kRelu, nullptr};
    Place last = take(map);
    add(second, {between, x.place}, last,
        {array(name + ".conv2.weight", {out, out, 3, 3}), array(name + ".skip.weight", {out, in, 1, 1})},
        array(name + ".conv2.bias", {out}));
    return {map, last};
  }

  void add(const Convolution& convolution, std::initializer_list<Place> in, Place out,
           std::initializer_list<const float*> weights, const float* bias) {
    plan_.steps.push_back({convolution, {in.begin()[0], in.begin()[1]}, out});
    given_.push_back({{weights.begin()[0], weights.begin()[1]}, bias});
  }

  const Structure& structure_;
  const TensorFile& weights_;
  Plan& plan_;
  std::vector<Given> given_;
  std::set<string> used_;
};

void check(const Structure& s) {
  positive(s.iterations, "the number of routing iterations");
  if (s.iterations > QCN_ROUTING_MAX_ITERATIONS) {
    refuse(to_string(s.iterations) + " routing iterations; at most " + to_string(QCN_ROUTING_MAX_ITERATIONS));
  }
  if (s.capsules.empty() || s.capsules.back().kernel) refuse("its last capsule layer must route the whole map");
  for (size_t i = 0; i + 1 < s.capsules.size(); ++i) {
    if (!s.capsules[i].kernel) refuse("'" + s.capsules[i].name + "' routes the whole map and is not the last layer");
  }
  auto same = [](double found, float expected, const string& what) {
    if (static_cast<float>(found) == expected) return;
    refuse("its " + what + " is " + to_string(found) + ", but that of this library's routing " + to_string(expected));
  };
  same(s.variance_floor, kVarianceFloor, "floor of variances");
  same(s.mass_floor, kMassFloor, "floor of masses");
}

}  // namespace

Plan::Plan(const Structure& s, std::shared_ptr<const TensorFile> weights)
    : image{positive(s.height, "the height of an image"), positive(s.width, "the width of an image"),
            positive(s.channels, "the number of channels")},
      classes(positive(s.classes, "the number of classes")),
      weights_(std::move(weights)) {
  check(s);
  Builder builder(s, *weights_, *this);
  auto trunk = builder.stack("stem", s.stem, {});
  auto pose = builder.projection("pose.projection", builder.stack("pose", s.pose, trunk), Ending::kNone);
  auto activation =
      builder.projection("activation.projection", builder.stack("activation", s.activation, trunk), Ending::kSigmoid);
  Map map = activation.map;
  if (pose.map.height != map.height || pose.map.width != map.width || pose.map.channels != 3 * map.channels) {
    refuse("poses of " + text(pose.map) + " do not fit activations of " + text(map));
  }
  for (const Capsules& layer : s.capsules) map = builder.capsules(layer, map, pose.place, activation.place);
  builder.refuse_unused();
  builder.pack(packed_);
}

}  // namespace qcn::native

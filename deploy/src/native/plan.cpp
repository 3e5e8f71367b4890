#include "plan.h"

#include <algorithm>
#include <utility>

#include "error.h"

namespace qcn::native {
namespace {

using program::Value;
using std::size_t;

size_t whole_lines(size_t floats) { return (floats + 15) / 16 * 16; }  // of a cache, 64 bytes

Map map_of(const program::Shape& shape) {
  if (shape.size() == 1) return {1, 1, shape[0], 0};
  const size_t height = shape[shape.size() - 2], width = shape.back();
  return {height, width, program::count(shape) / (height * width), 0};
}

// A value may lie in memory in two layouts: planar, as routing and linear operations read it, and with the channels of
// a pixel together, as convolutions do. It is made in one that is read, and copied where the other is read too.
struct Stored {
  Map map{};  // its border: the largest padding that a convolution of it asks for
  bool convolved = false, read_planar = false;
  std::optional<Place> planar, features;
};

class Builder {
 public:
  explicit Builder(Plan& plan) : plan_(plan), program_(plan.program) {
    for (const program::Shape& shape : program_.shapes) {
      stored_.emplace_back();
      stored_.back().map = map_of(shape);
    }
  }

  void build() {
    for (const program::Operation& operation : program_.operations) {
      std::visit([&](const auto& body) { find_readers(body); }, operation.body);
    }
    read_planar(program_.activation);
    if (program_.pose) read_planar(*program_.pose);

    stored_[0].planar = kImages;
    copy_where_read(0);
    for (const program::Operation& operation : program_.operations) {
      std::visit([&](const auto& body) { add(operation.name, body); }, operation.body);
    }
    plan_.activation = *stored_[program_.activation].planar;
    if (program_.pose) plan_.pose = *stored_[*program_.pose].planar;
  }

  // Lays the weights of all convolutions out in `packed`.
  void pack(Memory& packed) {
    size_t floats = 0;
    for (const Given& given : given_) floats += whole_lines(packed_floats(convolution(given)));
    auto to = static_cast<float*>(packed.get(floats * sizeof(float)));
    if (!to && floats > 0) throw Error(QCN_NO_MEMORY, "no memory for the weights");
    for (const Given& given : given_) {
      Convolution& c = convolution(given);
      pack_weights(c, given.weights, given.bias, to);
      c.weight = to;
      to += whole_lines(packed_floats(c));
    }
  }

 private:
  struct Given {  // the weights of a step as the file has them
    size_t step;
    const float* weights[2];
    const float* bias;
  };

  Convolution& convolution(const Given& given) const {
    return std::get<ConvolutionStep>(plan_.steps[given.step]).convolution;
  }

  // ---- who reads what, and how ----

  void read_planar(Value value) { stored_[value].read_planar = true; }
  void find_readers(const program::Affine&) {}  // reads either layout, as pooling does
  void find_readers(const program::Pool&) {}
  void find_readers(const program::Linear& linear) { read_planar(linear.in); }
  void find_readers(const program::Route& route) { read_planar(route.pose), read_planar(route.activation); }
  void find_readers(const program::Convolution& c) {
    for (const auto& source : c.sources) {
      Stored& stored = stored_[source.in];
      stored.convolved = true;
      stored.map.border = std::max(stored.map.border, source.padding);
    }
  }

  // ---- memory ----

  Place take(size_t floats) {
    const Place place = plan_.image_floats;
    // Neither sum can overflow: sides and borders are at most 2^16 (program.cpp).
    plan_.image_floats += whole_lines(floats);
    if (plan_.image_floats > program::kMostFloats) {
      throw Error(QCN_BAD_BUNDLE, "this network cannot be run: an image would take more than 4 GiB of memory");
    }
    return place;
  }
  Place take_planar(Stored& s) {
    s.planar = take(s.map.height * s.map.width * s.map.channels);
    return *s.planar;
  }
  Place take_features(Stored& s) {
    s.features = take(image_floats(s.map));
    return *s.features;
  }
  // For what can write either layout; true: planar.
  std::pair<Place, bool> take_either(Stored& s) {
    if (s.read_planar && !s.convolved) return {take_planar(s), true};
    return {take_features(s), false};
  }

  static std::pair<Place, Strides> read_either(const Stored& s) {
    if (s.features) return {*s.features, feature_strides(s.map)};
    return {*s.planar, planar_strides(s.map)};
  }

  void copy_where_read(Value value) {
    Stored& s = stored_[value];
    const Strides planar = planar_strides(s.map), features = feature_strides(s.map);
    if (s.planar && !s.features && s.convolved) {
      const Place from = *s.planar, to = take_features(s);
      plan_.steps.push_back(TransformStep{s.map, nullptr, nullptr, Ending::kNone, from, to, planar, features});
    } else if (s.features && !s.planar && s.read_planar) {
      const Place from = *s.features, to = take_planar(s);
      plan_.steps.push_back(TransformStep{s.map, nullptr, nullptr, Ending::kNone, from, to, features, planar});
    }
  }

  // ---- operations ----

  void add(const std::string&, const program::Affine& affine) {
    Stored& out = stored_[affine.out];
    const auto [from, in_strides] = read_either(stored_[affine.in]);
    const auto [to, planar] = take_either(out);
    const Strides out_strides = planar ? planar_strides(out.map) : feature_strides(out.map);
    plan_.steps.push_back(
        TransformStep{out.map, affine.scale, affine.shift, affine.ending, from, to, in_strides, out_strides});
    copy_where_read(affine.out);
  }

  void add(const std::string&, const program::Pool& pool) {
    Stored& out = stored_[pool.out];
    const auto [from, in_strides] = read_either(stored_[pool.in]);
    const auto [to, planar] = take_either(out);
    const Strides out_strides = planar ? planar_strides(out.map) : feature_strides(out.map);
    plan_.steps.push_back(PoolStep{out.map, pool.kernel, pool.stride, pool.average, from, to, in_strides, out_strides});
    copy_where_read(pool.out);
  }

  void add(const std::string&, const program::Convolution& operation) {
    Stored& out = stored_[operation.out];
    const auto [to, planar] = take_either(out);
    ConvolutionStep step{{{}, operation.sources.size(), out.map, planar, operation.ending, nullptr}, {}, to};
    Given given{plan_.steps.size(), {}, operation.bias};
    for (size_t s = 0; s < operation.sources.size(); ++s) {
      const auto& source = operation.sources[s];
      step.convolution.sources[s] = {stored_[source.in].map, source.kernel, source.stride, source.padding};
      step.in[s] = *stored_[source.in].features;
      given.weights[s] = source.weight;
    }
    plan_.steps.push_back(step);
    given_.push_back(given);
    copy_where_read(operation.out);
  }

  // A convolution of one pixel, whose channels are all numbers of the input.
  void add(const std::string&, const program::Linear& linear) {
    Stored& out = stored_[linear.out];
    const Map in{1, 1, program::count(program_.shapes[linear.in]), 0};
    const Place to = take_planar(out);
    given_.push_back({plan_.steps.size(), {linear.weight, nullptr}, linear.bias});
    plan_.steps.push_back(ConvolutionStep{
        {{{in, 1, 1, 0}, {}}, 1, out.map, false, linear.ending, nullptr}, {*stored_[linear.in].planar, 0}, to});
    if (linear.ending == Ending::kSoftmax) plan_.steps.push_back(SoftmaxStep{out.map.channels, to});
  }

  void add(const std::string& name, const program::Route& route) {
    const auto small = [](size_t size) { return static_cast<int>(size); };  // no size exceeds 2^16 (program.cpp)
    Stored &pose = stored_[route.out_pose], &activation = stored_[route.out_activation];
    const Map &in = stored_[route.activation].map, &out = activation.map;
    RouteStep step{};
    step.name = name;
    step.height = out.height, step.width = out.width;
    step.shape = {1,
                  small(in.channels),
                  small(in.height),
                  small(in.width),
                  small(route.window_height),
                  small(route.window_width),
                  small(route.stride),
                  small(out.channels),
                  small(route.iterations),
                  route.shared ? 1 : 0,
                  route.unit ? 1 : 0};
    step.rotation = route.rotation, step.beta_u = route.beta_u, step.beta_a = route.beta_a;
    step.pose = *stored_[route.pose].planar, step.activation = *stored_[route.activation].planar;
    step.out_pose = take_planar(pose), step.out_activation = take_planar(activation);
    plan_.steps.push_back(step);
    copy_where_read(route.out_pose), copy_where_read(route.out_activation);
  }

  Plan& plan_;
  const program::Program& program_;
  std::vector<Stored> stored_;  // by value
  std::vector<Given> given_;
};

}  // namespace

Plan::Plan(program::Program read) : program(std::move(read)) {
  Builder builder(*this);
  builder.build();
  builder.pack(packed_);
}

}  // namespace qcn::native

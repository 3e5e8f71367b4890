#include "plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "error.h"
#include "memory.h"

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
//
// Operations in int8 read bytes, which are made once per scale. A value that nothing else reads, and all with the same
// scale, is never made in float32.
struct Stored {
  Map map{};  // its border: the largest padding that a convolution of it asks for
  bool convolved = false, read_planar = false, read_anyhow = false;
  std::set<float> scales;  // of its readers in int8
  std::optional<Place> planar, features;
  std::map<float, Place> bytes;  // by scale

  bool read_features() const { return convolved || !scales.empty(); }
  bool only_bytes() const { return scales.size() == 1 && !convolved && !read_planar && !read_anyhow; }
};

class Builder {
 public:
  Builder(Plan& plan, std::deque<Memory>& rotations) : plan_(plan), program_(plan.program), rotations_(rotations) {
    for (const program::Shape& shape : program_.shapes) {
      stored_.emplace_back();
      stored_.back().map = map_of(shape);
    }
  }

  void build() {
    for (const program::Operation& operation : program_.operations) {
      std::visit([&](const auto& body) { find_readers(body); }, operation.body);
    }
    read_planar(program_.logit);
    if (program_.pose) read_planar(*program_.pose);

    stored_[0].planar = kImages;
    copy_where_read(0);
    for (const program::Operation& operation : program_.operations) {
      plan_.runs.push_back({operation.name, "", program::name(operation.precision), "", ""});
      std::visit([&](const auto& body) { add(body); }, operation.body);
    }
    plan_.logit = *stored_[program_.logit].planar;
    if (program_.pose) plan_.pose = *stored_[*program_.pose].planar;
    plan_.image_floats = lay_out(plan_);
    if (plan_.image_floats > program::kMostFloats) {
      throw Error(QCN_BAD_BUNDLE, "this network cannot be run: an image would take more than 4 GiB of memory");
    }
  }

  // Lays the weights of all convolutions out in `packed`.
  void pack(Memory& packed) {
    size_t bytes = 0;
    for (const Given& given : given_) bytes += given_bytes(given);
    auto to = static_cast<std::byte*>(packed.get(bytes));
    if (!to && bytes > 0) throw Error(QCN_NO_MEMORY, "no memory for the weights");
    for (const Given& given : given_) {
      if (auto* step = std::get_if<ConvolutionStep>(&plan_.steps[given.step])) {
        auto floats = reinterpret_cast<float*>(to);
        pack_weights(step->convolution, given.weights, given.bias, floats);
        step->convolution.weight = floats;
      } else {
        auto& integers = std::get<IntegerStep>(plan_.steps[given.step]).convolution;
        const std::int8_t* weights[2] = {given.integers[0].weight, given.integers[1].weight};
        std::vector<float> factors[2];
        for (size_t s = 0; s < integers.shape.source_count; ++s) {
          for (size_t i = 0; i < integers.shape.out.channels; ++i) {
            factors[s].push_back(given.integers[s].input_scale * given.integers[s].weight_scale[i]);
          }
        }
        const float* scales[2] = {factors[0].data(), factors[1].data()};
        pack_integers(integers, weights, scales, given.integer_bias, to);
        integers.packed = to;
      }
      to += given_bytes(given);
    }
  }

 private:
  struct Given {  // the weights of a step as the file has them
    size_t step;
    const float* weights[2];
    const float* bias;
    program::Integers integers[2];
    const std::int32_t* integer_bias;
  };

  size_t given_bytes(const Given& given) const {
    if (const auto* step = std::get_if<ConvolutionStep>(&plan_.steps[given.step])) {
      return whole_lines(packed_floats(step->convolution)) * sizeof(float);
    }
    const auto& integers = std::get<IntegerStep>(plan_.steps[given.step]).convolution;
    return whole_lines((packed_integer_bytes(integers) + 3) / 4) * sizeof(float);
  }

  // Says how the operation that is being added runs.
  void runs(const char* op, const char* ran, const char* kernel) {
    plan_.runs.back().op = op, plan_.runs.back().ran = ran, plan_.runs.back().kernel = kernel;
  }

  // ---- who reads what, and how ----

  void read_planar(Value value) { stored_[value].read_planar = true; }
  void find_readers(const program::Affine& affine) { stored_[affine.in].read_anyhow = true; }  // reads either layout
  void find_readers(const program::Sum& sum) {
    for (const Value in : sum.in) stored_[in].read_anyhow = true;
  }
  void find_readers(const program::Pool& pool) { stored_[pool.in].read_anyhow = true; }
  void find_readers(const program::Linear& linear) { read_planar(linear.in); }
  void find_readers(const program::Route& route) { read_planar(route.pose), read_planar(route.activation); }
  void find_readers(const program::Convolution& c) {
    for (const auto& source : c.sources) {
      Stored& stored = stored_[source.in];
      if (source.weight) {
        stored.convolved = true;
      } else {
        stored.scales.insert(source.integers.input_scale);
      }
      stored.map.border = std::max(stored.map.border, source.padding);
    }
  }

  // ---- memory ----

  // The number of new memory, which lay_out() gives a place.
  Place take_map(const Map& map, bool bytes) {
    const size_t numbers = image_floats(map);
    const Place made = plan_.memory.size();
    plan_.memory.push_back({map, bytes, whole_lines(bytes ? (numbers + 3) / 4 : numbers)});
    if (map.border > 0) plan_.steps.push_back(BorderStep{map, bytes, false, made});
    return made;
  }
  Place take_planar(Stored& s) { return *(s.planar = take_map({s.map.height, s.map.width, s.map.channels, 0}, false)); }
  Place take_features(Stored& s) { return *(s.features = take_map(s.map, false)); }
  Place take_bytes(const Map& map) { return take_map(byte_map(map), true); }
  // For what can write either layout; true: planar.
  std::pair<Place, bool> take_either(Stored& s) {
    if (s.read_planar && !s.read_features()) return {take_planar(s), true};
    return {take_features(s), false};
  }

  static std::pair<Place, Strides> read_either(const Stored& s) {
    if (s.features) return {*s.features, feature_strides(s.map)};
    return {*s.planar, planar_strides(s.map)};
  }

  void copy_where_read(Value value) {
    Stored& s = stored_[value];
    const Strides planar = planar_strides(s.map), features = feature_strides(s.map);
    if (s.planar && !s.features && s.read_features()) {
      const Place from = *s.planar, to = take_features(s);
      plan_.steps.push_back(TransformStep{s.map, nullptr, nullptr, Ending::kNone, from, to, planar, features});
    } else if (s.features && !s.planar && s.read_planar) {
      const Place from = *s.features, to = take_planar(s);
      plan_.steps.push_back(TransformStep{s.map, nullptr, nullptr, Ending::kNone, from, to, features, planar});
    }
    for (const float scale : s.scales) {
      s.bytes[scale] = take_bytes(s.map);
      plan_.steps.push_back(QuantiseStep{s.map, scale, *s.features, s.bytes[scale]});
    }
  }

  // ---- operations ----

  void add(const program::Affine& affine) {
    Stored& out = stored_[affine.out];
    const auto [from, in_strides] = read_either(stored_[affine.in]);
    const auto [to, planar] = take_either(out);
    const Strides out_strides = planar ? planar_strides(out.map) : feature_strides(out.map);
    plan_.steps.push_back(
        TransformStep{out.map, affine.scale, affine.shift, affine.ending, from, to, in_strides, out_strides});
    runs("affine", "fp32", "plain loops");
    copy_where_read(affine.out);
  }

  void add(const program::Sum& sum) {
    Stored& out = stored_[sum.out];
    SumStep step{};
    step.map = out.map;
    for (size_t i = 0; i < 2; ++i) std::tie(step.in[i], step.in_strides[i]) = read_either(stored_[sum.in[i]]);
    const auto [to, planar] = take_either(out);
    step.out = to, step.out_strides = planar ? planar_strides(out.map) : feature_strides(out.map);
    plan_.steps.push_back(step);
    runs("sum", "fp32", "plain loops");
    copy_where_read(sum.out);
  }

  void add(const program::Pool& pool) {
    Stored& out = stored_[pool.out];
    const auto [from, in_strides] = read_either(stored_[pool.in]);
    const auto [to, planar] = take_either(out);
    const Strides out_strides = planar ? planar_strides(out.map) : feature_strides(out.map);
    plan_.steps.push_back(PoolStep{out.map, pool.kernel, pool.stride, pool.average, from, to, in_strides, out_strides});
    runs("pool", "fp32", "plain loops");
    copy_where_read(pool.out);
  }

  // What a convolution reads and makes. In int8 it reads bytes, and makes bytes of this scale unless it is 0.
  struct Ends {
    Place in[2] = {}, out = 0;
    float out_scale = 0;
  };

  void add_convolution(const char* op, const Convolution& shape, const Ends& ends, Given given) {
    given.step = plan_.steps.size();
    if (given.integer_bias) {
      runs(op, "int8", integer_instruction_set());
      plan_.steps.push_back(IntegerStep{{shape, nullptr, ends.out_scale}, {ends.in[0], ends.in[1]}, ends.out});
    } else {
      runs(op, "fp32", qcn_instruction_set());
      plan_.steps.push_back(ConvolutionStep{shape, {ends.in[0], ends.in[1]}, ends.out});
    }
    given_.push_back(given);
  }

  void add(const program::Convolution& operation) {
    Stored& out = stored_[operation.out];
    Convolution shape{{}, operation.sources.size(), out.map, false, operation.depthwise, operation.ending, nullptr};
    if (shape.depthwise && operation.integer_bias && operation.sources[0].kernel > kMostIntegerKernel) {
      throw Error(QCN_BAD_BUNDLE, "this network cannot be run: depthwise kernels in int8 have sides of " +
                                      std::to_string(kMostIntegerKernel) + " at most");
    }
    Ends ends;
    Given given{0, {}, operation.bias, {}, operation.integer_bias};
    const bool makes_bytes = operation.integer_bias && out.only_bytes();
    if (makes_bytes) {
      ends.out_scale = *out.scales.begin();
      ends.out = out.bytes[ends.out_scale] = take_bytes(out.map);
    } else {
      std::tie(ends.out, shape.planar) = take_either(out);
    }
    for (size_t s = 0; s < operation.sources.size(); ++s) {
      const auto& source = operation.sources[s];
      const Stored& in = stored_[source.in];
      shape.sources[s] = {in.map, source.kernel, source.stride, source.padding};
      ends.in[s] = source.weight ? *in.features : in.bytes.at(source.integers.input_scale);
      given.weights[s] = source.weight, given.integers[s] = source.integers;
    }
    add_convolution("convolution", shape, ends, given);
    if (!makes_bytes) copy_where_read(operation.out);
  }

  // A convolution of one pixel, whose channels are all numbers of the input.
  void add(const program::Linear& linear) {
    Stored& out = stored_[linear.out];
    const Map in{1, 1, program::count(program_.shapes[linear.in]), 0};
    const Convolution shape{{{in, 1, 1, 0}, {}}, 1, out.map, false, false, linear.ending, nullptr};
    Ends ends{{*stored_[linear.in].planar, 0}, take_planar(out), 0};
    if (linear.integer_bias) {
      const Place bytes = take_bytes(in);
      plan_.steps.push_back(QuantiseStep{in, linear.integers.input_scale, ends.in[0], bytes});
      ends.in[0] = bytes;
    }
    add_convolution("linear", shape, ends,
                    {0, {linear.weight, nullptr}, linear.bias, {linear.integers, {}}, linear.integer_bias});
  }

  void add(const program::Route& route) {
    Stored &pose = stored_[route.out_pose], &activation = stored_[route.out_activation];
    RouteStep step{};
    step.name = plan_.runs.back().name;
    step.height = activation.map.height, step.width = activation.map.width;
    step.shape = program_.routing_shape(route);
    if (route.half) {
      Memory& memory = rotations_.emplace_back();
      void* prepared = memory.get(qcn_routing_half_bytes(&step.shape));
      if (!prepared) throw Error(QCN_NO_MEMORY, "no memory for the rotations");
      qcn_routing_half_prepare(&step.shape, route.rotation, prepared);
      step.prepared = prepared;
    }
    runs("route", route.half && qcn_half_arithmetic() ? "fp16" : "fp32",
         route.half ? qcn_half_instruction_set() : qcn_instruction_set());
    step.rotation = route.rotation, step.beta_u = route.beta_u, step.beta_a = route.beta_a;
    step.pose = *stored_[route.pose].planar, step.activation = *stored_[route.activation].planar;
    step.out_pose = take_planar(pose), step.out_activation = take_planar(activation);
    plan_.steps.push_back(step);
    copy_where_read(route.out_pose), copy_where_read(route.out_activation);
  }

  Plan& plan_;
  const program::Program& program_;
  std::deque<Memory>& rotations_;  // where prepared ones are kept
  std::vector<Stored> stored_;     // by value
  std::vector<Given> given_;
};

}  // namespace

Plan::Plan(program::Program read) : program(std::move(read)) {
  Builder builder(*this, rotations_);
  builder.build();
  builder.pack(packed_);
}

}  // namespace qcn::native

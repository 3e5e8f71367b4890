// Random networks of all kinds: QCNs, CNNs, and some that nobody would train.
#ifndef QCN_TESTS_SAMPLE_NETWORKS_H
#define QCN_TESTS_SAMPLE_NETWORKS_H

#include <string>
#include <vector>

#include "random_network.h"

namespace networks {

struct Case {
  std::string name;
  Network network;
};

// Poses shrink with each layer of capsules: larger rotations make up for it.
inline Builder::Routing routing_of(int layer, bool unit, int iterations) {
  return {iterations, unit ? "unit" : "logistic", false, layer == 0 ? 0.6 : 4.0};
}

inline Network branched(bool unit, int iterations, unsigned seed) {
  Builder b({2, 17, 19}, seed);
  const std::string pose = b.blocks("pose", "image", {{5, 1}, {12, 2}}),
                    activation = b.blocks("activation", "image", {{7, 2}});
  auto capsules = b.project(pose, activation, 6);
  capsules = b.route("capsules1", capsules, 3, 3, 2, 9, routing_of(0, unit, iterations));
  capsules = b.route("capsules2", capsules, 2, 2, 1, 4, routing_of(1, unit, iterations));
  capsules = b.route_whole("classes", capsules, 5, routing_of(2, unit, iterations));
  return b.network(capsules.activation, capsules.pose);
}

inline Network unbranched(bool unit, int iterations, unsigned seed) {
  Builder b({3, 29, 37}, seed);
  const std::string trunk = b.blocks("stem", "image", {{8, 2}, {17, 2}});
  auto capsules = b.project(trunk, trunk, 5);
  capsules = b.route("capsules1", capsules, 3, 3, 2, 8, routing_of(0, unit, iterations));
  capsules = b.route_whole("classes", capsules, 10, routing_of(1, unit, iterations));
  return b.network(capsules.activation, capsules.pose);
}

inline Network stem_and_branches(bool unit, int iterations, unsigned seed) {
  Builder b({1, 13, 10}, seed);
  const std::string trunk = b.blocks("stem", "image", {{33, 3}});
  const std::string pose = b.blocks("pose", trunk, {{4, 2}}),
                    activation = b.blocks("activation", trunk, {{16, 1}, {3, 2}});
  auto capsules = b.route_whole("classes", b.project(pose, activation, 2), 2, routing_of(0, unit, iterations));
  return b.network(capsules.activation, capsules.pose);
}

inline Network bare(bool unit, int iterations, unsigned seed) {
  Builder b({3, 4, 3}, seed);
  auto capsules = b.project("image", "image", 4);
  capsules = b.route("capsules1", capsules, 2, 2, 1, 5, routing_of(0, unit, iterations));
  capsules = b.route_whole("classes", capsules, 3, routing_of(1, unit, iterations));
  return b.network(capsules.activation, capsules.pose);
}

// The rival: no routing, no poses.
inline Network cnn(unsigned seed) {
  Builder b({3, 16, 12}, seed);
  const std::string first = b.pool("pool1", b.convolution("conv1", {{"image", 5, 1, 2}}, 18), "max", 2, 2);
  const std::string second = b.pool("pool2", b.convolution("conv2", {{first, 5, 1, 2}}, 33), "max", 2, 2);
  return b.network(b.linear("classes", b.linear("hidden", second, 70, "relu"), 7, "none"));
}

// An extractor that is nobody's: wide strides, an average over what is left, and a linear layer.
inline Network odd_extractor(unsigned seed) {
  Builder b({2, 21, 23}, seed);
  const std::string wide = b.convolution("wide", {{"image", 5, 2, 1}}, 9);
  const std::string even = b.convolution("even", {{wide, 4, 3, 3}, {wide, 2, 3, 2}}, 11, "none");
  const std::string mean = b.pool("mean", b.affine("scaled", even, "sigmoid"), "average", 4, 1);
  return b.network(b.linear("classes", mean, 4, "sigmoid"));
}

// Blocks that widen, convolve each channel by itself, narrow and add; all strides and kernels that have a loop of their
// own, and one that has none; maps wider and narrower than a tile.
inline Network inverted_residuals(unsigned seed) {
  Builder b({3, 25, 23}, seed);
  std::string last = b.convolution("stem", {{"image", 3, 1, 1}}, 6, "relu6");
  const Builder::Source shapes[] = {{"", 3, 1, 1}, {"", 5, 1, 2}, {"", 3, 2, 1}, {"", 5, 2, 2}, {"", 2, 1, 1}};
  for (int i = 0; i < 5; ++i) {
    const std::string block = "block" + std::to_string(i);
    const std::string wide = b.convolution(block + ".expand", {{last, 1, 1, 0}}, 11 + 9 * i, "relu6");
    Builder::Source source = shapes[i];
    source.input = wide;
    const std::string apart = b.depthwise(block + ".depthwise", source);
    const std::string narrow = b.convolution(block + ".project", {{apart, 1, 1, 0}}, 6, "none");
    last = b.shape(narrow) == b.shape(last) ? b.sum(block + ".sum", last, narrow) : narrow;
  }
  const std::string planar = b.depthwise("planar", {last, 3, 1, 1}, "sigmoid");
  return b.network(b.linear("classes", b.sum("twice", planar, planar), 4, "none"));
}

// Values that are read in both layouts, from the image on: pooling before routing, routing before convolutions.
inline Network mixed(bool unit, int iterations, unsigned seed) {
  Builder b({3, 14, 14}, seed);
  const std::string features = b.convolution("features", {{"image", 3, 1, 0}}, 12, "none");
  const std::string pose = b.pool("pose", features, "average", 3, 2);
  const std::string activation =
      b.pool("activation", b.convolution("four", {{features, 1, 1, 0}}, 4, "sigmoid"), "max", 3, 2);
  auto capsules = b.route("capsules1", {pose, activation}, 2, 3, 1, 3, routing_of(0, unit, iterations));
  const std::string again = b.convolution("again", {{capsules.activation, 3, 1, 1}}, 6, "sigmoid");
  const std::string poses = b.convolution("poses", {{again, 1, 1, 0}, {capsules.activation, 3, 1, 1}}, 18, "none");
  capsules = b.route_whole("capsules2", {poses, again}, 4, routing_of(1, unit, iterations));
  b.linear("unread", "image", 9, "relu");
  return b.network(b.linear("classes", capsules.pose, 4, "none"));
}

inline std::vector<Case> cases(unsigned seed, bool unit = false, int iterations = 2) {
  return {{"branched", branched(unit, iterations, seed)},
          {"unbranched", unbranched(unit, iterations, seed)},
          {"stem and branches", stem_and_branches(unit, iterations, seed)},
          {"no convolutions but the projections", bare(unit, iterations, seed)},
          {"CNN", cnn(seed)},
          {"odd extractor", odd_extractor(seed)},
          {"inverted residuals", inverted_residuals(seed)},
          {"mixed", mixed(unit, iterations, seed)}};
}

}  // namespace networks

#endif

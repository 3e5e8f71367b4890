// The CUDA routing kernels, run on a CPU by emulated_device.h, against a plain loop over votes in double precision. An
// error may be four times that of the same loop in single precision; in half precision, of the loop with the roundings
// of a fp16 Route, or Case::half_errors times.
//
//     g++ -std=c++17 -O1 -I deploy/kernels deploy/tests/emulated_routing.cpp -o emulated_routing
//     ./emulated_routing [FILE...]
//
// FILE: a routing problem in the machine's own numbers, the shape's and then pose, activation, rotation, beta_u,
// beta_a, as tests/kernels/test_emulated.py writes it; without any, the cases of routing_cases.h. Exit status: 0 all
// right, 1 a check failed or a file could not be read.
#include <cstdio>

#include "routing_cases.h"
// The device comes before the kernels.
// clang-format off
#include "emulated_device.h"
#include "em_routing_half.cuh"
// clang-format on

namespace {

int64_t padded_children(const qcn_routing_shape& s) {
  const int64_t children = int64_t{s.window_height} * s.window_width * ((s.channels + kGroup - 1) / kGroup * kGroup);
  return (children + kPaddedChildren - 1) / kPaddedChildren * kPaddedChildren;
}

std::vector<uint16_t> in_half(const std::vector<float>& x) {
  std::vector<uint16_t> y;
  for (float each : x) y.push_back(emulated::half_bits(each));
  return y;
}

template <class T>
Result run(const Case& c, bool given_in_half) {
  const qcn_routing_shape& s = c.shape;
  const std::vector<uint16_t> half_pose = in_half(c.pose), half_activation = in_half(c.activation);
  std::vector<float> rotors(T::kScaled ? padded_children(s) / 2 * kPairFloats
                                       : padded_children(s) * 9 * T::kAllParents);
  std::vector<float> out_pose(3 * c.outputs(), NAN), out_activation(c.outputs(), NAN);
  const int padded_channels = (s.channels + kGroup - 1) / kGroup * kGroup;
  const auto floats = static_cast<int64_t>(rotors.size());
  emulated::launch(static_cast<int>(floats / 32), 1, 32, 0, [&] {
    const int places = s.window_height * s.window_width;
    if constexpr (T::kScaled) {
      prepare_half_rotors(c.rotation.data(), rotors.data(), floats, places, s.channels, padded_channels, s.parents,
                          s.shared != 0);
    } else {
      prepare_rotors(c.rotation.data(), rotors.data(), floats, places, s.channels, padded_channels, s.parents,
                     T::kAllParents, s.shared != 0);
    }
  });
  const auto inverse = [](uint32_t d) { return static_cast<uint32_t>(((uint64_t{1} << 32) + d - 1) / d); };
  Routing r{};
  r.pose = c.pose.data(), r.activation = c.activation.data(), r.rotors = rotors.data();
  if (given_in_half) r.half = true, r.pose = half_pose.data(), r.activation = half_activation.data();
  r.beta_u = c.beta_u.data(), r.beta_a = c.beta_a.data();
  r.out_pose = out_pose.data(), r.out_activation = out_activation.data();
  r.unit = s.unit != 0, r.logit = s.logit != 0;
  r.places = s.window_height * s.window_width, r.groups = padded_channels / kGroup, r.parents = s.parents;
  r.iterations = s.iterations, r.share = 1.0f / r.parents, r.cost = 2.0f * r.parents / (r.places * s.channels);
  r.rows = c.rows(), r.columns = c.columns(), r.windows = s.batch * r.rows * r.columns;
  r.channels = s.channels, r.width = s.width, r.plane = s.height * s.width;
  r.window_width = s.window_width, r.stride = s.stride;
  r.groups_inverse = inverse(r.groups), r.window_width_inverse = inverse(r.window_width);
  const int blocks = (r.windows + T::kWindows - 1) / T::kWindows * T::kCluster;
  emulated::launch(blocks, T::kCluster, T::kThreads, T::kSharedBytes, [&] {
    Block<T> block(r, reinterpret_cast<float*>(emulated::current->block->shared.data()));
    if constexpr (T::kScaled) {
      route_in_half(block);
    } else {
      route_in_single(block);
    }
  });
  return {std::vector<double>(out_pose.begin(), out_pose.end()),
          std::vector<double>(out_activation.begin(), out_activation.end())};
}

template <class T>
bool check(const Case& c, bool given_in_half = false) {
  const Result expected = reference<double>(c);
  const double planned = largest_error(T::kScaled ? half_reference(c) : reference<float>(c), expected);
  const double error = largest_error(run<T>(c, given_in_half), expected);
  const bool right = error <= (T::kScaled ? c.half_errors * planned + 1e-5 : 4 * planned + 2e-6);
  std::printf("%s  %-32s %s: error %.1e with %d windows and %d x %d threads%s, by the plan %.1e\n",
              right ? "PASS" : "FAIL", c.name.c_str(), T::kScaled ? "half" : "single", error, T::kWindows, T::kCluster,
              T::kThreads, given_in_half ? ", from float16" : "", planned);
  return right;
}

bool read(const char* path, Case* c) {
  std::FILE* file = std::fopen(path, "rb");
  if (!file) return false;
  qcn_routing_shape& s = c->shape;
  bool whole = std::fread(&s, sizeof s, 1, file) == 1;
  const auto read_array = [&](std::vector<float>* to, size_t size) {
    to->resize(size);
    whole = whole && std::fread(to->data(), sizeof(float), size, file) == size;
  };
  const size_t children = whole ? size_t(s.batch) * s.channels * s.height * s.width : 0;
  const size_t places = s.shared ? 1 : size_t(s.window_height) * s.window_width;
  read_array(&c->pose, 3 * children);
  read_array(&c->activation, children);
  read_array(&c->rotation, whole ? places * s.channels * s.parents * 9 : 0);
  read_array(&c->beta_u, whole ? s.parents : 0);
  read_array(&c->beta_a, whole ? s.parents : 0);
  whole = whole && std::fgetc(file) == EOF;
  std::fclose(file);
  c->name = path;
  return whole;
}

}  // namespace

int main(int argc, char** argv) {
  bool right = true;
  for (int i = 1; i < argc; ++i) {
    Case c;
    if (!read(argv[i], &c)) {
      std::fprintf(stderr, "%s: not a whole routing problem\n", argv[i]);
      return 1;
    }
    right &= check<HalfTile<1, 4, 1, 2>>(c);
  }
  if (argc > 1) return right ? 0 : 1;
  const std::vector<Case> all = cases();
  for (const Case& c : all) {
    if (c.shape.parents <= kHalfParents && !c.beyond_half) right &= check<HalfTile<1, 4, 1, 2>>(c);
  }
  for (const Case& c : all) {
    const int parents = c.shape.parents;
    right &= parents <= 8    ? check<Tile<2, 1, 2, 1, 8, 3>>(c)
             : parents <= 16 ? check<Tile<4, 1, 2, 1, 8, 3>>(c)
             : parents <= 32 ? check<Tile<8, 1, 2, 1, 4, 3>>(c)
                             : check<Tile<16, 1, 2, 1, 4, 3>>(c);
  }
  right &= check<Tile<4, 8, 2, 2, 2, 2>>(all[0]);
  right &= check<Tile<4, 2, 2, 1, 8, 2>>(all[0]);
  // Clusters whose blocks have several steps, one, and some none; a guard that trips.
  for (int i : {0, 4, 21}) {
    if (all[i].shape.parents <= 8) {
      right &= check<Tile<2, 1, 2, 1, 8, 3, 4>>(all[i]);
    } else {
      right &= check<Tile<4, 1, 2, 1, 8, 3, 4>>(all[i]) && check<Tile<4, 1, 2, 1, 8, 3, 8>>(all[i]);
    }
  }
  right &= check<HalfTile<1, 4, 2, 2>>(all[0]);
  right &= check<HalfTile<1, 8, 8, 1>>(all[21]);
  right &= check<HalfTile<4, 1, 1, 2>>(all[1], true);
  right &= check<HalfTile<1, 8, 8, 1>>(all[1]);
  return right ? 0 : 1;
}

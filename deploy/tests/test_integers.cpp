// Convolutions in int8 against plain loops: the same bits, by whichever kernels run. tests/test_deploy_native.py
// compares with numpy.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "convolution_int8.h"
#include "program.h"
#include "random_network.h"
#include "threads.h"

namespace {

using qcn::Convolution;
using qcn::Map;
using std::size_t;

std::mt19937 generator(0);

template <typename T>
std::vector<T> random_integers(size_t count, int least, int most) {
  std::uniform_int_distribution<int> any(least, most);
  std::vector<T> values(count);
  for (T& x : values) x = static_cast<T>(any(generator));
  return values;
}

std::vector<float> random_floats(size_t count, float least, float most) {
  std::uniform_real_distribution<float> any(least, most);
  std::vector<float> values(count);
  for (float& x : values) x = any(generator);
  return values;
}

struct Source {
  size_t channels, height, width, kernel, stride, padding;
  float scale;
  bool depthwise = false;
};

float quantised(float x, float scale) { return std::fmin(std::fmax(std::nearbyint(x / scale), -128.0f), 127.0f); }

// y before an ending of one pixel and channel. `x` is [channels][height][width].
float plain(const Source& s, const std::vector<float>& x, const std::vector<std::int8_t>& w, float factor,
            std::int64_t sum, size_t out, size_t y, size_t column) {
  const size_t first = s.depthwise ? out : 0, channels = s.depthwise ? 1 : s.channels;
  for (size_t c = first; c < first + channels; ++c) {
    for (size_t ky = 0; ky < s.kernel; ++ky) {
      for (size_t kx = 0; kx < s.kernel; ++kx) {
        const size_t row = y * s.stride + ky - s.padding, place = column * s.stride + kx - s.padding;  // may wrap
        if (row >= s.height || place >= s.width) continue;
        const auto q = static_cast<std::int64_t>(quantised(x[(c * s.height + row) * s.width + place], s.scale));
        sum += q * w[((out * channels + c - first) * s.kernel + ky) * s.kernel + kx];
      }
    }
  }
  const volatile float product = static_cast<float>(sum) * factor;  // volatile: not fused with the sum that follows
  return product;
}

void compare(const std::vector<Source>& sources, size_t out_channels, size_t height, size_t width, float out_scale) {
  const size_t count = sources.size(), border = 1;
  qcn::IntegerConvolution c{};
  c.shape.source_count = count;
  c.shape.out = {height, width, out_channels, border};
  c.shape.ending = qcn::Ending::kNone;
  c.shape.depthwise = sources[0].depthwise;
  c.out_scale = out_scale;
  std::vector<float> x[2], factors[2];
  std::vector<std::int8_t> weights[2];
  std::vector<std::uint8_t> bytes[2];
  for (size_t s = 0; s < count; ++s) {
    const Source& of = sources[s];
    const Map map{of.height, of.width, of.channels, of.padding};
    c.shape.sources[s] = {map, of.kernel, of.stride, of.padding};
    x[s] = random_floats(of.channels * of.height * of.width, -140 * of.scale, 140 * of.scale);
    weights[s] = random_integers<std::int8_t>(out_channels * (of.depthwise ? 1 : of.channels) * of.kernel * of.kernel,
                                              -127, 127);
    factors[s] = random_floats(out_channels, 0.001f, 0.01f);
    std::vector<float> features(qcn::image_floats(map));
    for (size_t i = 0; i < x[s].size(); ++i) {
      const size_t channel = i / (of.height * of.width), row = i / of.width % of.height, column = i % of.width;
      features[qcn::inside(map, of.padding) + row * qcn::row_floats(map) + column * of.channels + channel] = x[s][i];
    }
    bytes[s].assign(qcn::image_floats(qcn::byte_map(map)), qcn::integer_zero());
    qcn::quantise_map(map, 1, of.scale, features.data(), bytes[s].data());
  }
  const auto bias = random_integers<std::int32_t>(out_channels, -100000, 100000);
  std::vector<std::uint8_t> packed(qcn::packed_integer_bytes(c));
  const std::int8_t* all_weights[2] = {weights[0].data(), weights[1].data()};
  const float* all_factors[2] = {factors[0].data(), factors[1].data()};
  const std::uint8_t* all_bytes[2] = {bytes[0].data(), bytes[1].data()};
  qcn::pack_integers(c, all_weights, all_factors, bias.data(), packed.data());
  c.packed = packed.data();

  const Map made = out_scale != 0 ? qcn::byte_map(c.shape.out) : c.shape.out;
  std::vector<float> found(qcn::image_floats(made));
  qcn::convolve_integers(c, 1, all_bytes, found.data());
  size_t wrong = 0;
  for (size_t out = 0; out < out_channels; ++out) {
    for (size_t y = 0; y < height; ++y) {
      for (size_t column = 0; column < width; ++column) {
        float expected = 0;
        for (size_t s = 0; s < count; ++s) {
          const float part =
              plain(sources[s], x[s], weights[s], factors[s][out], s == 0 ? bias[out] : 0, out, y, column);
          expected = s == 0 ? part : expected + part;
        }
        const size_t at = qcn::inside(made, border) + y * qcn::row_floats(made) + column * made.channels + out;
        if (out_scale != 0) {
          const auto* as_bytes = reinterpret_cast<const std::uint8_t*>(found.data());
          const int q = static_cast<std::int8_t>(as_bytes[at] ^ qcn::integer_zero());
          wrong += q != static_cast<int>(quantised(expected, out_scale));
        } else {
          wrong += std::memcmp(&found[at], &expected, sizeof expected) != 0;
        }
      }
    }
  }
  check(wrong == 0, std::to_string(wrong) + " numbers of " + std::to_string(out_channels) + " channels are wrong");
}

// A program of one linear operation in int8, with one text of its description replaced, or with other numbers.
struct Description {
  std::string from, to;
  std::vector<std::int8_t> weights = {-127, 3, 5, 127};
  std::vector<float> scales = {0.5f, 0.25f};
  std::vector<std::int32_t> bias = {7, -7};
};

void read(const Description& d) {
  std::string program =
      R"({"input": {"name": "image", "shape": [1, 1, 2]}, "operations": [{"op": "linear", "name": "units", )"
      R"("precision": "int8", "input": "image", "weight": "w", "bias": "b", "ending": "none", "shape": [2], )"
      R"("weight_scales": ["s"], "input_scales": [0.5]}], )"
      R"("outputs": [{"name": "logit", "value": "units", "shape": [2]}]})";
  if (!d.from.empty()) program.replace(program.find(d.from), d.from.size(), d.to);
  const networks::Arrays arrays = {{"w", networks::array("I8", {2, 2}, d.weights)},
                                   {"s", networks::array("F32", {2}, d.scales)},
                                   {"b", networks::array("I32", {2}, d.bias)}};
  const std::string texts = "{\"schema\": \"3\", \"program\": " + networks::quoted(program) + "}";
  const std::string file = networks::safetensors(arrays, texts);
  const qcn::program::Program read(std::make_shared<qcn::TensorFile>(networks::bytes(file), qcn::kWeightsSchema));
  check(read.precision() == qcn::program::Precision::kInt8, "it is in int8");
}

void test_refusals() {
  read({});
  const std::pair<const char*, Description> cases[] = {
      {"a positive float32 number", {"[0.5]", "[0.1]"}},  // not exactly a float32
      {"a positive float32 number", {"[0.5]", "[-0.5]"}},
      {"a positive float32 number", {"[0.5]", "[0]"}},
      {"two scales for each input", {"[0.5]", "[0.5, 0.5]"}},
      {"two scales for each input", {"[\"s\"]", "[]"}},
      {"unknown entry", {"\"precision\": \"int8\"", "\"precision\": \"fp32\""}},
      {"computes in 'fp16'", {"\"precision\": \"int8\"", "\"precision\": \"fp16\""}},
      {"must be I8", {"\"weight\": \"w\"", "\"weight\": \"s\""}},
      {"must be I32", {"\"bias\": \"b\"", "\"bias\": \"s\""}},
      {"-127 to 127", {"", "", {-128, 0, 0, 0}}},
      {"a scale of its weights", {"", "", {1, 1, 1, 1}, {0.0f, 1.0f}}},
      {"a scale of its weights", {"", "", {1, 1, 1, 1}, {INFINITY, 1.0f}}},
      {"too large for int32", {"", "", {1, 1, 1, 1}, {1.0f, 1.0f}, {2147483647, 0}}},
  };
  for (const auto& [expected, description] : cases) {
    refused(expected, QCN_BAD_BUNDLE, [&d = description] { read(d); }, {expected});
  }
}

}  // namespace

int main() {
  std::printf("instruction set: %s\n", qcn::integer_instruction_set());
  qcn::set_threads(1);  // the sums are small; test_deploy_native.py has several
  test_refusals();
  for (const size_t channels : {1, 3, 8, 17, 37}) {
    compare({{channels, 7, 6, 3, 1, 1, 0.03f}}, 5, 7, 6, 0);
    compare({{channels, 7, 6, 3, 2, 1, 0.03f}, {3, 7, 6, 1, 2, 0, 0.7f}}, channels, 4, 3, 0);
    compare({{channels, 5, 9, 2, 1, 0, 0.5f}}, channels, 4, 8, 0.25f);
    compare({{4 * channels, 1, 1, 1, 1, 0, 2.0f}}, 33, 1, 1, 0);
    for (const float out_scale : {0.0f, 2.5f}) {
      compare({{channels, 7, 13, 3, 1, 1, 0.03f, true}}, channels, 7, 13, out_scale);
      compare({{channels, 7, 21, 3, 2, 1, 0.03f, true}}, channels, 4, 11, out_scale);
      compare({{channels, 6, 7, 5, 1, 2, 0.03f, true}}, channels, 6, 7, out_scale);
      compare({{channels, 6, 31, 5, 2, 2, 0.03f, true}}, channels, 3, 16, out_scale);
      compare({{channels, 24, 25, qcn::kMostIntegerKernel, 3, 0, 0.03f, true}}, channels, 1, 2, out_scale);
    }
  }
  return verdict();
}

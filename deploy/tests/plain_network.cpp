#include "plain_network.h"

#include <algorithm>
#include <cmath>

#include "reference.h"

namespace plain {
namespace {

using std::size_t;
namespace program = qcn::program;
using Numbers = std::vector<double>;

double ended(qcn::Ending ending, double x) {
  if (ending == qcn::Ending::kRelu) return std::max(x, 0.0);
  if (ending == qcn::Ending::kRelu6) return std::clamp(x, 0.0, 6.0);
  return ending == qcn::Ending::kSigmoid ? 1 / (1 + std::exp(-x)) : x;
}

class Runner {
 public:
  explicit Runner(const program::Program& program) : program_(program), values_(program.shapes.size()) {}

  void run(const float* image) {
    values_[0].assign(image, image + program_.signature.image_floats());
    for (const program::Operation& operation : program_.operations) {
      std::visit([&](const auto& body) { run(body); }, operation.body);
    }
  }

  const Numbers& value(program::Value value) const { return values_[value]; }

 private:
  const program::Shape& shape(program::Value value) const { return program_.shapes[value]; }

  void run(const program::Affine& a) {
    const size_t map = shape(a.in)[1] * shape(a.in)[2];
    values_[a.out].resize(values_[a.in].size());
    for (size_t i = 0; i < values_[a.in].size(); ++i) {
      const size_t c = i / map;
      values_[a.out][i] = ended(a.ending, values_[a.in][i] * double{a.scale[c]} + double{a.shift[c]});
    }
  }

  void run(const program::Convolution& c) {
    const program::Shape& made = shape(c.out);
    Numbers& out = values_[c.out];
    out.clear();
    for (size_t channel = 0; channel < made[0]; ++channel) {
      for (size_t y = 0; y < made[1]; ++y) {
        for (size_t x = 0; x < made[2]; ++x) {
          double sum = double{c.bias[channel]};
          for (const auto& source : c.sources) sum += at(source, c.depthwise, channel, y, x);
          out.push_back(ended(c.ending, sum));
        }
      }
    }
  }

  double at(const program::Convolution::Source& s, bool depthwise, size_t channel, size_t y, size_t x) const {
    const program::Shape& of = shape(s.in);
    const size_t first = depthwise ? channel : 0, channels = depthwise ? 1 : of[0];
    const float* weight = s.weight + channel * channels * s.kernel * s.kernel;
    double sum = 0;
    for (size_t c = first; c < first + channels; ++c) {
      for (size_t ky = 0; ky < s.kernel; ++ky) {
        for (size_t kx = 0; kx < s.kernel; ++kx, ++weight) {
          const size_t row = y * s.stride + ky, column = x * s.stride + kx;
          if (row < s.padding || column < s.padding) continue;
          if (row - s.padding >= of[1] || column - s.padding >= of[2]) continue;
          sum += double{*weight} * values_[s.in][(c * of[1] + row - s.padding) * of[2] + column - s.padding];
        }
      }
    }
    return sum;
  }

  void run(const program::Sum& s) {
    values_[s.out] = values_[s.in[0]];
    for (size_t i = 0; i < values_[s.out].size(); ++i) values_[s.out][i] += values_[s.in[1]][i];
  }

  void run(const program::Pool& p) {
    const program::Shape &of = shape(p.in), &made = shape(p.out);
    Numbers& out = values_[p.out];
    out.clear();
    for (size_t c = 0; c < made[0]; ++c) {
      for (size_t y = 0; y < made[1]; ++y) {
        for (size_t x = 0; x < made[2]; ++x) {
          double largest = -INFINITY, sum = 0;
          for (size_t i = 0; i < p.kernel * p.kernel; ++i) {
            const size_t row = y * p.stride + i / p.kernel, column = x * p.stride + i % p.kernel;
            const double number = values_[p.in][(c * of[1] + row) * of[2] + column];
            largest = std::max(largest, number), sum += number;
          }
          out.push_back(p.average ? sum / static_cast<double>(p.kernel * p.kernel) : largest);
        }
      }
    }
  }

  void run(const program::Linear& l) {
    const Numbers& in = values_[l.in];
    Numbers& out = values_[l.out];
    out.clear();
    for (size_t unit = 0; unit < shape(l.out)[0]; ++unit) {
      double sum = double{l.bias[unit]};
      for (size_t i = 0; i < in.size(); ++i) sum += double{l.weight[unit * in.size() + i]} * in[i];
      out.push_back(ended(l.ending, sum));
    }
  }

  void run(const program::Route& r) {
    const program::Shape &of = shape(r.activation), &made = shape(r.out_activation);
    const size_t places = r.shared ? 1 : r.window_height * r.window_width, rotations = places * of[0] * made[0] * 9;
    reference::Outputs out = reference::route(
        program_.routing_shape(r), {values_[r.pose], values_[r.activation], Numbers(r.rotation, r.rotation + rotations),
                                    Numbers(r.beta_u, r.beta_u + made[0]), Numbers(r.beta_a, r.beta_a + made[0])});
    values_[r.out_pose] = out.pose, values_[r.out_activation] = out.activation;
  }

  const program::Program& program_;
  std::vector<Numbers> values_;
};

}  // namespace

Answers run(const program::Program& program, const std::vector<float>& images, int batch) {
  Runner runner(program);
  Answers answers;
  for (int image = 0; image < batch; ++image) {
    runner.run(images.data() + static_cast<size_t>(image) * program.signature.image_floats());
    const Numbers& logit = runner.value(program.logit);
    answers.logit.insert(answers.logit.end(), logit.begin(), logit.end());
    if (!program.pose) continue;
    const Numbers& pose = runner.value(*program.pose);
    answers.pose.insert(answers.pose.end(), pose.begin(), pose.end());
  }
  return answers;
}

}  // namespace plain

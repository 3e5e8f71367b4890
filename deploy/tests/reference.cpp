#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace reference {

using std::size_t;

int rows(const qcn_routing_shape& s) { return (s.height - s.window_height) / s.stride + 1; }
int columns(const qcn_routing_shape& s) { return (s.width - s.window_width) / s.stride + 1; }

namespace {

struct Window {
  std::vector<double> votes;       // [children][parents][3]
  std::vector<double> activation;  // [children]
};

Window window_at(const qcn_routing_shape& s, const Inputs& in, int image, int row, int column) {
  auto at = [](int i) { return static_cast<size_t>(i); };
  Window window;
  for (int ky = 0; ky < s.window_height; ++ky) {
    for (int kx = 0; kx < s.window_width; ++kx) {
      for (int c = 0; c < s.channels; ++c) {
        int y = row * s.stride + ky, x = column * s.stride + kx, channel = image * s.channels + c;
        window.activation.push_back(in.activation[at((channel * s.height + y) * s.width + x)]);
        int place = s.shared ? 0 : ky * s.window_width + kx;
        for (int j = 0; j < s.parents; ++j) {
          const double* rotation = &in.rotation[at(((place * s.channels + c) * s.parents + j) * 9)];
          for (int h = 0; h < 3; ++h) {
            double vote = 0;
            for (int axis = 0; axis < 3; ++axis) {
              vote += rotation[3 * h + axis] * in.pose[at(((channel * 3 + axis) * s.height + y) * s.width + x)];
            }
            window.votes.push_back(vote);
          }
        }
      }
    }
  }
  return window;
}

struct Parents {
  std::vector<double> mass, mean, variance, log_spread, z;
};

Parents m_step(const qcn_routing_shape& s, const Inputs& in, const Window& window, const std::vector<double>& r) {
  size_t parents = static_cast<size_t>(s.parents), children = window.activation.size();
  Parents p;
  p.mass.assign(parents, 0);
  p.mean.assign(3 * parents, 0);
  p.variance.assign(3 * parents, 0);
  p.log_spread.assign(parents, 0);
  double norm = 0;
  for (size_t j = 0; j < parents; ++j) {
    for (size_t i = 0; i < children; ++i) p.mass[j] += r[i * parents + j];
    for (size_t h = 0; h < 3; ++h) {
      double& mean = p.mean[3 * j + h];
      double& variance = p.variance[3 * j + h];
      for (size_t i = 0; i < children; ++i) mean += r[i * parents + j] * window.votes[(i * parents + j) * 3 + h];
      mean /= p.mass[j] + 1e-6;
      for (size_t i = 0; i < children; ++i) {
        double d = window.votes[(i * parents + j) * 3 + h] - mean;
        variance += r[i * parents + j] * d * d;
      }
      variance = variance / (p.mass[j] + 1e-6) + 1e-4;
      p.log_spread[j] += 0.5 * std::log(variance);
    }
    double scale = 2.0 * static_cast<double>(parents) / static_cast<double>(children);
    p.z.push_back(in.beta_a[j] - (3 * in.beta_u[j] + p.log_spread[j]) * p.mass[j] * scale);
    norm += p.z[j] * p.z[j];
  }
  if (s.unit) {
    for (double& z : p.z) z /= std::max(std::sqrt(norm), 1e-12);
  }
  return p;
}

double log_sigmoid(double z) { return std::min(z, 0.0) - std::log1p(std::exp(-std::fabs(z))); }

// The responsibilities of all children after an M-step.
std::vector<double> e_step(const Window& window, const Parents& p) {
  size_t parents = p.mass.size();
  std::vector<double> r;
  for (size_t i = 0; i < window.activation.size(); ++i) {
    std::vector<double> logit(parents);
    for (size_t j = 0; j < parents; ++j) {
      logit[j] = log_sigmoid(p.z[j]) - p.log_spread[j];
      for (size_t h = 0; h < 3; ++h) {
        double d = window.votes[(i * parents + j) * 3 + h] - p.mean[3 * j + h];
        logit[j] -= d * d / (2 * p.variance[3 * j + h]);
      }
    }
    double largest = *std::max_element(logit.begin(), logit.end()), sum = 0;
    for (double l : logit) sum += std::exp(l - largest);
    for (double l : logit) r.push_back(window.activation[i] * std::exp(l - largest) / sum);
  }
  return r;
}

}  // namespace

Outputs route(const qcn_routing_shape& s, const Inputs& in) {
  size_t parents = static_cast<size_t>(s.parents), positions = static_cast<size_t>(rows(s) * columns(s));
  Outputs out;
  out.pose.resize(static_cast<size_t>(s.batch) * parents * 3 * positions);
  out.activation.resize(static_cast<size_t>(s.batch) * parents * positions);
  for (int image = 0; image < s.batch; ++image) {
    for (int row = 0; row < rows(s); ++row) {
      for (int column = 0; column < columns(s); ++column) {
        Window window = window_at(s, in, image, row, column);
        std::vector<double> r;
        for (double a : window.activation) r.insert(r.end(), parents, a / s.parents);
        Parents found = m_step(s, in, window, r);
        for (int t = 1; t < s.iterations; ++t) found = m_step(s, in, window, e_step(window, found));
        size_t position = static_cast<size_t>(row * columns(s) + column);
        for (size_t j = 0; j < parents; ++j) {
          size_t map = static_cast<size_t>(image) * parents + j;
          for (size_t h = 0; h < 3; ++h) out.pose[(map * 3 + h) * positions + position] = found.mean[3 * j + h];
          out.activation[map * positions + position] =
              s.logit ? found.z[j] : std::exp(log_sigmoid(found.z[j]));
        }
      }
    }
  }
  return out;
}

}  // namespace reference

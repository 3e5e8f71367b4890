// Routing problems and their answers by plain loops over votes, for the tests of the CUDA kernels.
#ifndef QCN_TESTS_ROUTING_CASES_H
#define QCN_TESTS_ROUTING_CASES_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "em_routing.h"

namespace {

struct Case {
  std::string name;
  qcn_routing_shape shape;
  std::vector<float> pose, activation, rotation, beta_u, beta_a;
  bool beyond_half = false;  // poses far above 1, where float16 keeps too few digits behind the point
  double half_errors = 4;    // in half precision, an error may be this many times half_reference()'s

  int rows() const { return (shape.height - shape.window_height) / shape.stride + 1; }
  int columns() const { return (shape.width - shape.window_width) / shape.stride + 1; }
  size_t outputs() const { return size_t(shape.batch) * shape.parents * rows() * columns(); }
};

// Poses N(0, 1), activations uniform, rotations of random unit quaternions.
inline Case random_case(const std::string& name, const qcn_routing_shape& s, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.02f, 0.98f);
  Case c;
  c.name = name, c.shape = s;
  const size_t children = size_t(s.batch) * s.channels * s.height * s.width;
  for (size_t i = 0; i < 3 * children; ++i) c.pose.push_back(normal(generator));
  for (size_t i = 0; i < children; ++i) c.activation.push_back(uniform(generator));
  const size_t places = s.shared ? 1 : size_t(s.window_height) * s.window_width;
  for (size_t i = 0; i < places * s.channels * s.parents; ++i) {
    double w = normal(generator), x = normal(generator), y = normal(generator), z = normal(generator);
    const double length = std::sqrt(w * w + x * x + y * y + z * z);
    w /= length, x /= length, y /= length, z /= length;
    for (double entry : {1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z),
                         1 - 2 * (x * x + z * z), 2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x),
                         1 - 2 * (x * x + y * y)}) {
      c.rotation.push_back(static_cast<float>(entry));
    }
  }
  for (int j = 0; j < s.parents; ++j) {
    c.beta_u.push_back(0.3f * normal(generator));
    c.beta_a.push_back(0.5f * normal(generator));
  }
  return c;
}

struct Result {
  std::vector<double> pose, activation;
};

// The nearest float16, ties to even.
inline double to_half(double x) {
  if (!std::isfinite(x) || x == 0) return x;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
  return std::nearbyint(x / step) * step;
}

// The formula of qcn/routing.py, votes and all. `rounded` is what becomes of a number that a fp16 Route rounds:
// rotations, poses, means, votes as they are added up, differences, 1/sigma and differences times it.
template <class Real, class Rounded>
Result reference(const Case& c, const Rounded& rounded) {
  const qcn_routing_shape& s = c.shape;
  const int rows = c.rows(), columns = c.columns(), parents = s.parents;
  const size_t plane = size_t(s.height) * s.width, positions = size_t(rows) * columns;
  const int children = s.window_height * s.window_width * s.channels;
  Result result{std::vector<double>(3 * c.outputs()), std::vector<double>(c.outputs())};
  std::vector<Real> votes(size_t(children) * parents * 3), r(size_t(children) * parents), active(children);
  for (size_t n = 0; n < s.batch * positions; ++n) {
    const int b = n / positions, row = n % positions / columns, column = n % columns;
    for (int i = 0; i < children; ++i) {
      const int channel = i % s.channels, place = i / s.channels;
      const size_t position =
          size_t(row * s.stride + place / s.window_width) * s.width + column * s.stride + place % s.window_width;
      const size_t at = size_t(b) * s.channels + channel;
      active[i] = c.activation[at * plane + position];
      for (int j = 0; j < parents; ++j) {
        const float* rotation = &c.rotation[9 * (size_t(s.shared ? channel : i) * parents + j)];
        for (int h = 0; h < 3; ++h) {
          Real vote = 0;
          for (int k = 0; k < 3; ++k) {
            const Real pose = rounded(Real(c.pose[(3 * at + k) * plane + position]));
            vote = rounded(vote + rounded(Real(rotation[3 * h + k])) * pose);
          }
          votes[(size_t(i) * parents + j) * 3 + h] = vote;
        }
        r[size_t(i) * parents + j] = active[i] / parents;
      }
    }
    std::vector<Real> mean(3 * parents), variance(3 * parents), z(parents), prior(parents);
    std::vector<Real> moved(votes);  // as the last differences, rounded, would have them
    for (int iteration = 0;; ++iteration) {
      for (int j = 0; j < parents; ++j) {
        Real mass = 0, log_spread = 0;
        for (int i = 0; i < children; ++i) mass += r[size_t(i) * parents + j];
        for (int h = 0; h < 3; ++h) {
          Real first = 0, second = 0;
          for (int i = 0; i < children; ++i)
            first += r[size_t(i) * parents + j] * moved[(size_t(i) * parents + j) * 3 + h];
          mean[3 * j + h] = first / (mass + Real(1e-6));
          for (int i = 0; i < children; ++i) {
            const Real d = moved[(size_t(i) * parents + j) * 3 + h] - mean[3 * j + h];
            second += r[size_t(i) * parents + j] * d * d;
          }
          variance[3 * j + h] = second / (mass + Real(1e-6)) + Real(1e-4);
          log_spread += Real(0.5) * std::log(variance[3 * j + h]);
        }
        z[j] = c.beta_a[j] - (3 * Real(c.beta_u[j]) + log_spread) * mass * (Real(2) * parents / children);
        prior[j] = -log_spread;
      }
      if (s.unit) {
        Real square = 0;
        for (Real x : z) square += x * x;
        for (Real& x : z) x /= std::max(std::sqrt(square), Real(1e-12));
      }
      if (iteration == s.iterations - 1) break;
      for (int j = 0; j < parents; ++j) prior[j] += std::min(z[j], Real(0)) - std::log1p(std::exp(-std::abs(z[j])));
      for (int i = 0; i < children; ++i) {
        std::vector<Real> logit(prior);
        for (int j = 0; j < parents; ++j) {
          for (int h = 0; h < 3; ++h) {
            const Real exact = votes[(size_t(i) * parents + j) * 3 + h] - rounded(mean[3 * j + h]), d = rounded(exact);
            moved[(size_t(i) * parents + j) * 3 + h] = votes[(size_t(i) * parents + j) * 3 + h] + (d - exact);
            const Real x = rounded(d * rounded(1 / std::sqrt(variance[3 * j + h])));
            logit[j] -= x * x / 2;
          }
        }
        const Real largest = *std::max_element(logit.begin(), logit.end());
        Real total = 0;
        for (Real& x : logit) total += x = std::exp(x - largest);
        for (int j = 0; j < parents; ++j) r[size_t(i) * parents + j] = active[i] * (logit[j] / total);
      }
    }
    for (int j = 0; j < parents; ++j) {
      const size_t at = size_t(b) * parents + j, position = n % positions;
      for (int h = 0; h < 3; ++h) result.pose[(3 * at + h) * positions + position] = mean[3 * j + h];
      result.activation[at * positions + position] = s.logit ? z[j] : 1 / (1 + std::exp(-z[j]));
    }
  }
  return result;
}

template <class Real>
Result reference(const Case& c) {
  return reference<Real>(c, [](Real x) { return x; });
}
// By the plan of a fp16 Route: what it rounds, and all else exact.
inline Result half_reference(const Case& c) { return reference<double>(c, to_half); }

// Of poses relative to the largest, of activations as they are. NaN counts as infinite.
inline double largest_error(const Result& a, const Result& b) {
  double scale = 1e-30, error = 0;
  for (double x : b.pose) scale = std::max(scale, std::abs(x));
  const auto worse = [&](double x) { error = std::isnan(x) ? INFINITY : std::max(error, x); };
  for (size_t i = 0; i < a.pose.size(); ++i) worse(std::abs(a.pose[i] - b.pose[i]) / scale);
  for (size_t i = 0; i < a.activation.size(); ++i) worse(std::abs(a.activation[i] - b.activation[i]));
  return error;
}

// batch, channels, height, width, window_height, window_width, stride, parents, iterations, shared, unit, logit
inline std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* name, const qcn_routing_shape& s, const std::function<void(Case&)>& change = {}) {
    all.push_back(random_case(name, s, all.size() + 1));
    if (change) change(all.back());
  };
  const auto scale_poses = [](float by) {
    return [by](Case& c) {
      for (float& x : c.pose) x *= by;
      c.beyond_half = by > 100;
    };
  };
  const qcn_routing_shape layer = {1, 16, 8, 8, 5, 5, 1, 16, 2, 0, 0, 0};
  add("layer of a QCN", layer);
  add("odd sizes", {3, 5, 7, 6, 3, 2, 1, 5, 2, 0, 0, 0});
  add("stride 2", {2, 8, 9, 10, 3, 3, 2, 8, 3, 0, 0, 0});
  add("class layer", {5, 16, 4, 4, 4, 4, 1, 10, 2, 1, 0, 1});
  add("class layer, one image", {1, 16, 4, 4, 4, 4, 1, 5, 2, 1, 0, 1});
  add("shared rotors in small windows", {2, 6, 5, 5, 3, 3, 1, 4, 2, 1, 0, 0});
  add("one iteration", {2, 4, 5, 5, 3, 3, 1, 12, 1, 0, 0, 0});
  add("five iterations", {2, 8, 5, 5, 3, 3, 1, 16, 5, 0, 0, 0});
  add("unit activation", {2, 8, 5, 5, 3, 3, 1, 11, 3, 0, 1, 0});
  add("1 parent", {2, 4, 4, 4, 3, 3, 1, 1, 3, 0, 0, 0});
  add("17 parents", {2, 6, 5, 5, 3, 3, 1, 17, 2, 0, 0, 0});
  add("33 parents", {2, 3, 5, 5, 3, 3, 1, 33, 2, 0, 1, 1});
  add("64 parents", {2, 8, 4, 4, 2, 2, 1, 64, 2, 0, 0, 1});
  add("1 child", {3, 1, 3, 3, 1, 1, 1, 6, 3, 0, 0, 0});
  add("1 child, large", {3, 1, 3, 3, 1, 1, 2, 6, 3, 0, 0, 0}, scale_poses(1e4f));
  add("poses of 1e4", layer, scale_poses(1e4f));
  add("poses of 1e-4", layer, scale_poses(1e-4f));
  add("no pose at all", layer, scale_poses(0.0f));
  add("no activation at all", layer, [](Case& c) { std::fill(c.activation.begin(), c.activation.end(), 0.0f); });
  add("one dominant child", layer, [](Case& c) {
    for (size_t i = 0; i < c.activation.size(); ++i) c.activation[i] = i % 311 == 0 ? 0.99f : 1e-6f;
  });
  add("outliers", layer, [](Case& c) {
    for (size_t i = 0; i < c.pose.size(); i += 37) c.pose[i] *= 1000.0f;
    c.beyond_half = true;
  });
  add("collapsed votes", layer, [](Case& c) {
    for (size_t i = 0; i < c.pose.size(); ++i) c.pose[i] = 100.0f + 1e-3f * c.pose[i];
    for (size_t i = 0; i < c.rotation.size(); ++i) c.rotation[i] = i % 9 % 4 == 0;
  });
  add("two collapsed clusters", {1, 16, 8, 8, 5, 5, 1, 16, 3, 0, 0, 0}, [](Case& c) {
    for (size_t i = 0; i < c.pose.size(); ++i) c.pose[i] = (i / 192 % 2 ? 30.0f : -20.0f) + 1e-2f * c.pose[i];
    for (size_t i = 0; i < c.rotation.size(); ++i) c.rotation[i] = i % 9 % 4 == 0;
    c.half_errors = 10;  // r and r x, rounded alike for hundreds of votes that are alike: it does not average out
  });
  add("children far from all parents", layer, [](Case& c) {  // some 6 sigma: about their largest logit, in half
    const size_t plane = size_t(c.shape.height) * c.shape.width;
    for (size_t i = 0; i < c.activation.size(); i += 29) {
      c.activation[i] = 0.9f;
      for (size_t k = 0; k < 3; ++k) c.pose[(3 * (i / plane) + k) * plane + i % plane] *= 5.0f;
    }
  });
  return all;
}

}  // namespace

#endif

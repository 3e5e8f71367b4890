// libqcn's routing on the CPU against plain loops in double precision. Every precision claim is tested in Python
// (tests/kernels/test_native.py); here is what a program without Python relies on, under the sanitizers too.
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "em_routing.h"
#include "reference.h"

namespace {

using std::size_t;
using Floats = std::vector<float>;

struct Problem {
  qcn_routing_shape shape;
  Floats pose, activation, rotation, beta_u, beta_a;
  Floats grad_out_pose, grad_out_activation;
};

struct Result {
  Floats pose, activation, statistics;
  Floats grad_pose, grad_activation, grad_rotation, grad_beta_u, grad_beta_a;

  bool operator==(const Result& other) const {
    return pose == other.pose && activation == other.activation && grad_pose == other.grad_pose &&
           grad_activation == other.grad_activation && grad_rotation == other.grad_rotation &&
           grad_beta_u == other.grad_beta_u && grad_beta_a == other.grad_beta_a;
  }
};

std::mt19937 generator(0);

Floats normal(size_t count, float scale = 1.0f) {
  std::normal_distribution<float> distribution(0.0f, scale);
  Floats values(count);
  for (float& x : values) x = distribution(generator);
  return values;
}

// Random matrices, rotations or not: routing does not ask.
Problem make_problem(const qcn_routing_shape& s) {
  auto size = [](int x) { return static_cast<size_t>(x); };
  size_t map = size(s.batch) * size(s.channels) * size(s.height) * size(s.width);
  size_t places = s.shared ? 1 : size(s.window_height) * size(s.window_width);
  size_t out = size(s.batch) * size(s.parents) * size(reference::rows(s)) * size(reference::columns(s));
  Problem p;
  p.shape = s;
  p.pose = normal(3 * map);
  p.activation = normal(map, 2.0f);
  for (float& a : p.activation) a = 1.0f / (1.0f + std::exp(-a));
  p.rotation = normal(places * size(s.channels) * size(s.parents) * 9, 0.6f);
  p.beta_u = normal(size(s.parents), 0.3f);
  p.beta_a = normal(size(s.parents), 0.3f);
  p.grad_out_pose = normal(3 * out);
  p.grad_out_activation = normal(out);
  return p;
}

Result run(const Problem& p) {
  Result r;
  r.pose.resize(p.grad_out_pose.size());
  r.activation.resize(p.grad_out_activation.size());
  r.statistics.resize(static_cast<size_t>(p.shape.iterations) * QCN_ROUTING_STATISTICS * r.activation.size());
  r.grad_pose.resize(p.pose.size());
  r.grad_activation.resize(p.activation.size());
  r.grad_rotation.resize(p.rotation.size());
  r.grad_beta_u.resize(p.beta_u.size());
  r.grad_beta_a.resize(p.beta_a.size());
  int forward = qcn_routing_forward(&p.shape, p.pose.data(), p.activation.data(), p.rotation.data(), p.beta_u.data(),
                                    p.beta_a.data(), r.pose.data(), r.activation.data(), r.statistics.data());
  int backward = qcn_routing_backward(&p.shape, p.pose.data(), p.activation.data(), p.rotation.data(), p.beta_u.data(),
                                      p.beta_a.data(), r.statistics.data(), p.grad_out_pose.data(),
                                      p.grad_out_activation.data(), r.grad_pose.data(), r.grad_activation.data(),
                                      r.grad_rotation.data(), r.grad_beta_u.data(), r.grad_beta_a.data());
  check(forward == QCN_ROUTING_OK && backward == QCN_ROUTING_OK, "a good call returns 0");
  return r;
}

std::vector<double> widen(const Floats& x) { return {x.begin(), x.end()}; }

reference::Inputs widen(const Problem& p) {
  return {widen(p.pose), widen(p.activation), widen(p.rotation), widen(p.beta_u), widen(p.beta_a)};
}

double worst(const Floats& got, const std::vector<double>& want) {
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i) most = std::fmax(most, std::fabs(static_cast<double>(got[i]) - want[i]));
  return most;
}

double dot(const Floats& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < b.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// The gradient along a random direction of all inputs together, against the difference of the reference's losses.
double slope_error(const Problem& p, const Result& r) {
  constexpr double kStep = 1e-5;
  reference::Inputs ahead = widen(p), behind = ahead;
  double slope = 0, size = 0;
  auto along = [&](std::vector<double>& a, std::vector<double>& b, const Floats& grad) {
    std::vector<double> direction = widen(normal(a.size()));
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] += kStep * direction[i];
      b[i] -= kStep * direction[i];
      size += std::fabs(static_cast<double>(grad[i]) * direction[i]);
    }
    slope += dot(grad, direction);
  };
  along(ahead.pose, behind.pose, r.grad_pose);
  along(ahead.activation, behind.activation, r.grad_activation);
  along(ahead.rotation, behind.rotation, r.grad_rotation);
  along(ahead.beta_u, behind.beta_u, r.grad_beta_u);
  along(ahead.beta_a, behind.beta_a, r.grad_beta_a);
  auto loss = [&](const reference::Inputs& inputs) {
    reference::Outputs out = reference::route(p.shape, inputs);
    return dot(p.grad_out_pose, out.pose) + dot(p.grad_out_activation, out.activation);
  };
  return std::fabs(slope - (loss(ahead) - loss(behind)) / (2 * kStep)) / size;
}

void test_against_reference() {
  // batch, channels, height, width, window, stride, parents, iterations, shared, unit, logit
  const qcn_routing_shape shapes[] = {
      {1, 4, 6, 6, 3, 3, 1, 5, 2, 0, 0, 0}, {2, 3, 7, 5, 3, 2, 2, 4, 3, 0, 1, 1},  {3, 5, 4, 4, 4, 4, 1, 3, 2, 1, 0, 1},
      {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0}, {2, 2, 9, 3, 1, 3, 3, 64, 2, 0, 0, 1}, {1, 7, 5, 5, 2, 2, 1, 17, 5, 1, 1, 1},
      {5, 3, 3, 8, 3, 5, 1, 2, 4, 0, 0, 0}, {1, 9, 5, 6, 5, 5, 1, 16, 1, 0, 0, 0},
  };
  for (const qcn_routing_shape& shape : shapes) {
    Problem p = make_problem(shape);
    Result r = run(p);
    reference::Outputs want = reference::route(shape, widen(p));
    std::string name = "parents " + std::to_string(shape.parents) + ", iterations " + std::to_string(shape.iterations);
    check(worst(r.pose, want.pose) < 2e-4, name + ": pose, off by " + std::to_string(worst(r.pose, want.pose)));
    check(worst(r.activation, want.activation) < 2e-5, name + ": activation");
    double error = slope_error(p, r);
    check(error < 1e-5, name + ": gradient, off by a relative " + std::to_string(error));
  }
}

struct Half {
  int status;
  Floats pose, activation, statistics;
};

Half run_half(const Problem& p) {
  std::vector<std::max_align_t> prepared(qcn_routing_half_bytes(&p.shape) / sizeof(std::max_align_t) + 1);
  Half r{qcn_routing_half_prepare(&p.shape, p.rotation.data(), prepared.data()),
         p.grad_out_pose,
         p.grad_out_activation,
         {}};
  r.statistics.resize(static_cast<size_t>(p.shape.iterations) * QCN_ROUTING_STATISTICS * r.activation.size());
  r.status |= qcn_routing_half_forward(&p.shape, p.pose.data(), p.activation.data(), prepared.data(), p.beta_u.data(),
                                       p.beta_a.data(), r.pose.data(), r.activation.data(), r.statistics.data());
  return r;
}

// Windows that are full, in part or hardly; parents that leave a vector's lane empty; children that fill up a group.
void test_half_precision() {
  const qcn_routing_shape shapes[] = {
      {1, 8, 8, 6, 3, 3, 1, 16, 2, 0, 0, 0}, {2, 6, 7, 5, 3, 2, 2, 5, 3, 0, 1, 1},  {3, 10, 4, 4, 4, 4, 1, 3, 2, 1, 0, 1},
      {1, 4, 5, 9, 3, 3, 1, 33, 2, 0, 0, 0}, {1, 9, 9, 8, 5, 5, 1, 16, 1, 0, 0, 0},
  };
  for (const qcn_routing_shape& shape : shapes) {
    Problem p = make_problem(shape);
    Half r = run_half(p);
    reference::Outputs want = reference::route(shape, widen(p));
    std::string name = "half precision, parents " + std::to_string(shape.parents);
    check(r.status == QCN_ROUTING_OK, name + ": returns 0");
    // Poses are around 1: so much is eight roundings.
    constexpr double kMost = 8.0 / 2048;
    check(worst(r.pose, want.pose) < kMost, name + ": pose, off by " + std::to_string(worst(r.pose, want.pose)));
    check(worst(r.activation, want.activation) < kMost,
          name + ": activation, off by " + std::to_string(worst(r.activation, want.activation)));
    Floats last(r.statistics.end() - static_cast<std::ptrdiff_t>(QCN_ROUTING_STATISTICS * r.activation.size()),
                r.statistics.end());
    bool same = shape.batch > 1;  // statistics are [parents][windows]: as the poses of one image
    for (size_t i = 0; i < r.activation.size() && shape.batch == 1; ++i) {
      size_t positions = r.activation.size() / static_cast<size_t>(shape.parents);
      same = last[r.activation.size() + i] == r.pose[i / positions * 3 * positions + i % positions];
      if (!same) break;
    }
    check(same, name + ": the last means are the poses");
  }
}

// Where float16 overflows, a tile is routed in float32, to the precision of that; a NaN stays one.
void test_half_overflow() {
  Problem p = make_problem({1, 6, 9, 8, 3, 3, 1, 7, 2, 0, 0, 0});
  for (float& x : p.pose) x *= 1e4f;
  Half r = run_half(p);
  reference::Outputs want = reference::route(p.shape, widen(p));
  check(worst(r.pose, want.pose) < 1e4 / 1024, "poses of 1e4, off by " + std::to_string(worst(r.pose, want.pose)));
  p.pose[0] = NAN;
  r = run_half(p);
  check(std::isnan(r.pose[0]) && !std::isnan(r.pose.back()), "a NaN stays in its window");
}

void test_refusals() {
  const qcn_routing_shape good = {2, 3, 7, 6, 3, 3, 1, 4, 2, 0, 0, 0};
  Problem p = make_problem(good);
  Floats pose(p.grad_out_pose.size()), activation(p.grad_out_activation.size());
  auto status = [&](const qcn_routing_shape* shape, const float* first) {
    return qcn_routing_forward(shape, first, p.activation.data(), p.rotation.data(), p.beta_u.data(), p.beta_a.data(),
                               pose.data(), activation.data(), nullptr);
  };
  check(status(&good, p.pose.data()) == QCN_ROUTING_OK, "statistics may be null");
  check(status(nullptr, p.pose.data()) == QCN_ROUTING_NULL_ARRAY, "a null shape");
  check(status(&good, nullptr) == QCN_ROUTING_NULL_ARRAY, "a null array");
  check(qcn_routing_half_bytes(nullptr) == 0 &&
            qcn_routing_half_prepare(&good, nullptr, pose.data()) == QCN_ROUTING_NULL_ARRAY,
        "half precision: a null shape, a null array");
  struct Case {
    int qcn_routing_shape::* field;
    int value, status;
  };
  using S = qcn_routing_shape;
  const Case cases[] = {
      {&S::batch, 0, QCN_ROUTING_BAD_SIZE},
      {&S::channels, -1, QCN_ROUTING_BAD_SIZE},
      {&S::height, 0, QCN_ROUTING_BAD_SIZE},
      {&S::width, INT_MIN, QCN_ROUTING_BAD_SIZE},
      {&S::window_height, 0, QCN_ROUTING_BAD_SIZE},
      {&S::window_width, 0, QCN_ROUTING_BAD_SIZE},
      {&S::stride, 0, QCN_ROUTING_BAD_SIZE},
      {&S::window_height, 8, QCN_ROUTING_BAD_WINDOW},
      {&S::window_width, 7, QCN_ROUTING_BAD_WINDOW},
      {&S::parents, 0, QCN_ROUTING_BAD_PARENTS},
      {&S::parents, QCN_ROUTING_MAX_PARENTS + 1, QCN_ROUTING_BAD_PARENTS},
      {&S::iterations, 0, QCN_ROUTING_BAD_ITERATIONS},
      {&S::iterations, QCN_ROUTING_MAX_ITERATIONS + 1, QCN_ROUTING_BAD_ITERATIONS},
      {&S::shared, 2, QCN_ROUTING_BAD_FLAG},
      {&S::unit, -1, QCN_ROUTING_BAD_FLAG},
      {&S::logit, 2, QCN_ROUTING_BAD_FLAG},
      {&S::batch, INT_MAX, QCN_ROUTING_TOO_LARGE},
  };
  for (const Case& c : cases) {
    qcn_routing_shape shape = good;
    shape.*c.field = c.value;
    if (c.status == QCN_ROUTING_TOO_LARGE) shape.channels = shape.height = shape.width = INT_MAX;
    check(status(&shape, p.pose.data()) == c.status, qcn_routing_status(c.status));
  }
}

void test_threads() {
  const Problem p = make_problem({2, 6, 9, 8, 3, 3, 1, 7, 3, 0, 0, 0});
  qcn_set_threads(1);
  const Result want = run(p);
  for (int threads : {2, 3, 7, 1, 0}) {
    qcn_set_threads(threads);
    for (int repeat = 0; repeat < 20; ++repeat) check(run(p) == want, std::to_string(threads) + " threads");
  }
  std::vector<std::thread> hosts;
  std::vector<Result> results(4);
  for (Result& result : results) hosts.emplace_back([&p, &result] { result = run(p); });
  for (std::thread& host : hosts) host.join();
  for (const Result& result : results) check(result == want, "several host threads at once");
  const Half half = run_half(p);
  for (int threads : {1, 3}) {
    qcn_set_threads(threads);
    check(run_half(p).pose == half.pose, "half precision, " + std::to_string(threads) + " threads");
  }

  pid_t child = fork();
  if (child == 0) _exit(run(p) == want ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child");
}

}  // namespace

int main() {
  std::printf("instruction set: %s, half precision: %s\n", qcn_instruction_set(), qcn_half_instruction_set());
  test_against_reference();
  test_half_precision();
  test_half_overflow();
  test_refusals();
  test_threads();
  return verdict();
}

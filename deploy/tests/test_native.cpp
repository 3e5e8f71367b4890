// The native backend against the plainest loops in double precision, on random networks. Trained networks and their
// golden answers are for Python (tests/test_deploy_native.py); here is what a program without it relies on, under the
// sanitizers too.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend.h"
#include "em_routing.h"
#include "error.h"
#include "plain_network.h"

// The linker (--wrap) sends what the backend calls for memory here, so that the calls can be counted.
namespace {
std::atomic<long> allocations{0};
}
extern "C" {
#define QCN_COUNT(function, parameters, arguments) \
  void* __real_##function parameters;              \
  void* __wrap_##function parameters;              \
  void* __wrap_##function parameters {             \
    ++allocations;                                 \
    return __real_##function arguments;            \
  }
QCN_COUNT(malloc, (std::size_t bytes), (bytes))
QCN_COUNT(aligned_alloc, (std::size_t alignment, std::size_t bytes), (alignment, bytes))
QCN_COUNT(_Znwm, (std::size_t bytes), (bytes))  // operator new
#undef QCN_COUNT
}

namespace {

using std::size_t;
using std::string;
using std::to_string;
using Floats = std::vector<float>;

int failures = 0;

void check(bool good, const string& what) {
  if (good) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

struct Result {
  Floats activation, pose;
  bool operator==(const Result& other) const { return activation == other.activation && pose == other.pose; }
};

Result run(qcn::Runner& runner, const qcn::Structure& s, const Floats& images, int batch) {
  Result r{Floats(static_cast<size_t>(batch * s.classes)), Floats(static_cast<size_t>(batch * s.classes * 3))};
  runner.run(images.data(), batch, r.activation.data(), r.pose.data());
  return r;
}

Floats random_images(const qcn::Structure& s, int batch, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Floats images(static_cast<size_t>(batch * s.channels * s.height * s.width));
  for (float& x : images) x = normal(generator);
  return images;
}

double distance(const Floats& found, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    double d = std::fabs(static_cast<double>(found[i]) - expected[i]);
    largest = d <= largest ? largest : d;  // a NaN stays
  }
  return largest;
}

double distance(const Result& found, const plain::Answers& expected) {
  return std::max(distance(found.activation, expected.activation), distance(found.pose, expected.pose));
}

// float32 has 6e-8 of a number; sums over hundreds of children and three layers make a few times that of it.
constexpr double kTolerance = 1e-5;

struct Case {
  string name;
  qcn::Structure structure;
  plain::Widths widths;
};

qcn::Structure structure_of(int channels, int height, int width, int classes) {
  qcn::Structure s;
  s.channels = channels;
  s.height = height;
  s.width = width;
  s.classes = classes;
  s.iterations = 2;
  s.variance_floor = 1e-4;
  s.mass_floor = 1e-6;
  return s;
}

// Widths that fill no vector, one that fills one exactly, maps of odd sides.
std::vector<Case> cases() {
  Case branched{"branched", structure_of(2, 17, 19, 5), {{}, {5, 12}, {7}, 6, {9, 4}}};
  branched.structure.pose = {1, 2};
  branched.structure.activation = {2};
  branched.structure.capsules = {{"capsules1", 3, 2}, {"capsules2", 2, 1}, {"classes", {}, 1}};
  Case unbranched{"unbranched", structure_of(3, 29, 37, 10), {{8, 17}, {}, {}, 5, {8}}};
  unbranched.structure.stem = {2, 2};
  unbranched.structure.capsules = {{"capsules1", 3, 2}, {"classes", {}, 1}};
  Case both{"stem and branches", structure_of(1, 13, 10, 2), {{33}, {4}, {16, 3}, 2, {}}};
  both.structure.stem = {3};
  both.structure.pose = {2};
  both.structure.activation = {1, 2};
  both.structure.capsules = {{"classes", {}, 1}};
  Case bare{"no convolutions but the projections", structure_of(3, 4, 3, 3), {{}, {}, {}, 4, {5}}};
  bare.structure.capsules = {{"capsules1", 2, 1}, {"classes", {}, 1}};
  return {branched, unbranched, both, bare};
}

std::unique_ptr<qcn::Backend> backend_of(const plain::Network& network) {
  return qcn::native_backend(network.structure, plain::file_of(network));
}

void test_answers() {
  double worst = 0;
  for (Case c : cases()) {
    for (bool unit : {false, true}) {
      for (int iterations = 1; iterations <= 3; ++iterations) {
        c.structure.unit = unit;
        c.structure.iterations = iterations;
        plain::Network network = plain::random_network(c.structure, c.widths, 3);
        auto runner = backend_of(network)->runner(nullptr);  // it outlives its backend
        for (int batch : {1, 2, 3, 17}) {
          if (batch > 1 && iterations != 2) continue;
          Floats images = random_images(c.structure, batch);
          double d = distance(run(*runner, c.structure, images, batch), plain::run(network, images, batch));
          worst = d <= worst ? worst : d;
          check(d <= kTolerance, c.name + ", unit " + to_string(unit) + ", " + to_string(iterations) +
                                     " iterations, batch " + to_string(batch) + ": off by " + to_string(d * 1e6) +
                                     "e-6");
        }
      }
    }
  }
  std::printf("worst distance from float64: %.2g\n", worst);
}

// Any number of threads, any runner, alone or beside others: the same bits. A large batch goes through in parts.
void test_bits() {
  Case c = cases()[0];
  plain::Network network = plain::random_network(c.structure, c.widths, 4);
  auto backend = backend_of(network);
  const int batch = 70;
  Floats images = random_images(c.structure, batch);
  qcn_set_threads(1);
  Result expected = run(*backend->runner(nullptr), c.structure, images, batch);
  check(distance(expected, plain::run(network, images, batch)) <= kTolerance, "a batch of 70");
  for (int threads : {2, 3, 8, 0}) {
    qcn_set_threads(threads);
    check(run(*backend->runner(nullptr), c.structure, images, batch) == expected, to_string(threads) + " threads");
  }
  std::vector<std::thread> hosts;
  std::atomic<int> wrong{0};
  for (int host = 0; host < 4; ++host) {
    hosts.emplace_back([&] {
      auto runner = backend->runner(nullptr);
      for (int i = 0; i < 10; ++i) wrong += !(run(*runner, c.structure, images, batch) == expected);
    });
  }
  for (std::thread& host : hosts) host.join();
  check(wrong == 0, "runners beside each other: " + to_string(wrong) + " of 40 answers wrong");
}

void test_no_pose_asked() {
  Case c = cases()[0];
  auto runner = backend_of(plain::random_network(c.structure, c.widths, 5))->runner(nullptr);
  Floats images = random_images(c.structure, 3), activation(15);
  runner->run(images.data(), 3, activation.data(), nullptr);
  check(activation == run(*runner, c.structure, images, 3).activation, "activations without poses");
  runner->run(nullptr, 0, nullptr, nullptr);
}

// Layers are shown in parts, first to last; to look changes no bit. A layer gives out the means of its last iteration.
void test_layers() {
  Case c = cases()[0];
  c.structure.iterations = 3;
  auto backend = backend_of(plain::random_network(c.structure, c.widths, 8));
  const int batch = 70;
  Floats images = random_images(c.structure, batch);
  const Result expected = run(*backend->runner(nullptr), c.structure, images, batch);
  std::vector<string> names;
  Floats activation, pose;
  size_t wrong = 0;
  auto runner = backend->runner(nullptr);
  check(runner->show_layers([&](const qcn_layer& layer) {
    names.emplace_back(layer.name);
    const size_t places = static_cast<size_t>(layer.height * layer.width), parents = static_cast<size_t>(layer.parents);
    const size_t images_of_it = static_cast<size_t>(layer.images), numbers = images_of_it * parents * places;
    const float* last = layer.statistics + static_cast<size_t>(layer.iterations - 1) * QCN_ROUTING_STATISTICS * numbers;
    for (size_t i = 0; i < images_of_it; ++i) {
      for (size_t j = 0; j < parents; ++j) {
        for (size_t axis = 0; axis < 3; ++axis) {
          const float* mean = last + (((1 + axis) * parents + j) * images_of_it + i) * places;
          const float* given = layer.pose + ((i * parents + j) * 3 + axis) * places;
          for (size_t n = 0; n < places; ++n) wrong += mean[n] != given[n];
        }
      }
    }
    if (names.back() != c.structure.capsules.back().name) return;
    activation.insert(activation.end(), layer.activation, layer.activation + numbers);
    pose.insert(pose.end(), layer.pose, layer.pose + 3 * numbers);
  }),
        "the native backend shows its layers");
  check(run(*runner, c.structure, images, batch) == expected, "the answers of a runner that shows its layers");
  check(activation == expected.activation && pose == expected.pose, "the last layer's are the answers");
  check(wrong == 0, to_string(wrong) + " means differ from poses");
  const size_t layers = c.structure.capsules.size();
  check(names.size() % layers == 0 && names.size() > layers, "layers are shown of every part of a batch");
  for (size_t i = 0; i < names.size(); ++i) check(names[i] == c.structure.capsules[i % layers].name, names[i]);
}

void test_no_allocation_after_warm_up() {
  Case c = cases()[0];
  auto runner = backend_of(plain::random_network(c.structure, c.widths, 6))->runner(nullptr);
  Floats images = random_images(c.structure, 40), activation(40 * 5), pose(40 * 15);
  for (int threads : {1, 2, 5}) {  // more of them may take more scratch, in their first run
    qcn_set_threads(threads);
    long before = allocations;
    runner->run(images.data(), 40, activation.data(), pose.data());
    check(allocations > before || threads > 1, "allocations are counted");
    before = allocations;
    for (int batch : {40, 1, 33, 7}) runner->run(images.data(), batch, activation.data(), pose.data());
    check(allocations == before, to_string(allocations - before) + " allocations after the first run");
  }
  qcn_set_threads(0);
}

void test_odd_numbers() {
  for (const Case& c : cases()) {
    auto runner = backend_of(plain::random_network(c.structure, c.widths, 7))->runner(nullptr);
    for (float odd : {std::nanf(""), std::numeric_limits<float>::infinity(), -3e38f}) {
      Floats images = random_images(c.structure, 2);
      Result good = run(*runner, c.structure, images, 2);
      images[images.size() / 4] = odd;  // of the first image
      Result r = run(*runner, c.structure, images, 2);
      bool nan = false;
      for (float x : r.pose) nan = nan || std::isnan(x);
      check(nan || !std::isnan(odd), c.name + ": a NaN pixel comes out as NaN");
      images[images.size() / 4] = random_images(c.structure, 2)[images.size() / 4];
      check(run(*runner, c.structure, images, 2) == good, c.name + ": nothing of it stays");
    }
  }
}

// A wrong number in any array shows: what the tests above compare is the whole network.
void test_planted_faults() {
  for (const Case& c : cases()) {
    plain::Network network = plain::random_network(c.structure, c.widths, 8);
    Floats images = random_images(c.structure, 4);
    plain::Answers expected = plain::run(network, images, 4);
    for (auto& [name, array] : network.arrays) {
      float& last = array.values.back();
      float right = std::exchange(last, last + 1.5f);
      double d = distance(run(*backend_of(network)->runner(nullptr), c.structure, images, 4), expected);
      check(d > 4 * kTolerance, c.name + ": a wrong " + name + " goes unnoticed");
      last = right;
    }
  }
}

void refused(const plain::Network& network, const string& what) {
  try {
    backend_of(network);
    check(false, what + " is not refused");
  } catch (const qcn::Error& error) {
    check(error.status == QCN_BAD_BUNDLE, what + ": " + error.what());
  }
}

void test_refusals() {
  Case c = cases()[0];
  const plain::Network good = plain::random_network(c.structure, c.widths, 9);
  for (const auto& [name, array] : good.arrays) {
    plain::Network network = good;
    network.arrays.erase(name);
    refused(network, "no " + name);
    network = good;
    network.arrays[name].shape.push_back(1);
    refused(network, name + " of one dimension too many");
    network.arrays[name] = {{0}, {}};
    refused(network, "an empty " + name);
    if (array.shape.size() > 1 && array.shape[0] != array.shape[1]) {
      network = good;
      std::swap(network.arrays[name].shape[0], network.arrays[name].shape[1]);
      refused(network, name + " transposed");
    }
  }
  plain::Network more = good;
  more.arrays["more"] = {{1}, {0.0f}};
  refused(more, "an array too many");

  auto altered = [&](const string& what, auto alter) {
    plain::Network network = good;
    alter(network.structure);
    refused(network, what);
  };
  for (int size : {0, -1, std::numeric_limits<int>::min()}) {
    altered("channels", [&](qcn::Structure& s) { s.channels = size; });
    altered("height", [&](qcn::Structure& s) { s.height = size; });
    altered("width", [&](qcn::Structure& s) { s.width = size; });
    altered("classes", [&](qcn::Structure& s) { s.classes = size; });
    altered("iterations", [&](qcn::Structure& s) { s.iterations = size; });
    altered("a stride", [&](qcn::Structure& s) { s.pose[1] = size; });
    altered("a capsule layer's stride", [&](qcn::Structure& s) { s.capsules[0].stride = size; });
    altered("a kernel", [&](qcn::Structure& s) { s.capsules[0].kernel = size; });
  }
  const int huge = std::numeric_limits<int>::max();
  altered("a huge height", [&](qcn::Structure& s) { s.height = huge; });
  altered("a huge image", [&](qcn::Structure& s) { s.height = s.width = huge; });
  altered("a huge stride", [&](qcn::Structure& s) { s.pose[0] = huge; });
  altered("a huge kernel", [&](qcn::Structure& s) { s.capsules[0].kernel = huge; });
  altered("too small an image", [&](qcn::Structure& s) { s.height = s.width = 4; });
  altered("branches to different maps", [&](qcn::Structure& s) { s.pose[0] = 2; });
  altered("6 iterations", [&](qcn::Structure& s) { s.iterations = 6; });
  altered("another variance floor", [&](qcn::Structure& s) { s.variance_floor = 1e-3; });
  altered("another mass floor", [&](qcn::Structure& s) { s.mass_floor = std::nan(""); });
  altered("no capsule layer", [&](qcn::Structure& s) { s.capsules.clear(); });
  altered("two class layers", [&](qcn::Structure& s) { s.capsules[1].kernel.reset(); });
  altered("a class layer with a kernel", [&](qcn::Structure& s) { s.capsules[2].kernel = 1; });
  altered("a stack too many", [&](qcn::Structure& s) { s.stem = {1}; });
  c.structure.classes = QCN_ROUTING_MAX_PARENTS + 1;
  refused(plain::random_network(c.structure, c.widths, 9), "65 classes");
}

void test_name() {
  Case c = cases()[3];
  auto backend = backend_of(plain::random_network(c.structure, c.widths, 10));
  qcn_set_threads(3);
  check(backend->name() == string("native, ") + qcn_instruction_set() + ", 3 threads", backend->name());
  qcn_set_threads(1);
  check(backend->name() == string("native, ") + qcn_instruction_set() + ", 1 thread", backend->name());
  qcn_set_threads(0);
  check(backend->precision() == "fp32" && backend->max_batch() == 0, "precision and largest batch");
}

}  // namespace

int main() {
  test_answers();
  test_bits();
  test_no_pose_asked();
  test_layers();
  test_no_allocation_after_warm_up();
  test_odd_numbers();
  test_planted_faults();
  test_refusals();
  test_name();
  std::printf("%s: %s\n", qcn_instruction_set(), failures ? "FAILED" : "all passed");
  return failures ? 1 : 0;
}

// The native backend against the plainest loops in double precision, on random networks. Trained networks and their
// golden answers are for Python (tests/test_deploy_native.py); here is what a program without it relies on, under the
// sanitizers too.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend.h"
#include "check.h"
#include "em_routing.h"
#include "plain_network.h"
#include "program.h"
#include "sample_networks.h"

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

using networks::Builder;
using networks::Case;
using networks::Network;
using qcn::program::Program;
using std::size_t;
using std::string;
using std::to_string;
using Floats = std::vector<float>;

struct Result {
  Floats logit, pose;
  bool operator==(const Result& other) const { return logit == other.logit && pose == other.pose; }
};

// A network that is loaded.
struct Loaded {
  explicit Loaded(const Network& network)
      : program(network.file()), signature(program.signature), backend(qcn::native_backend(program)) {}

  const Program program;
  const qcn::Signature signature;
  const std::unique_ptr<qcn::Backend> backend;

  Floats images(int batch, unsigned seed = 1) const {
    std::mt19937 generator(seed);
    return networks::random_floats(static_cast<size_t>(batch) * signature.image_floats(), generator, 1);
  }
  Result run(qcn::Runner& runner, const Floats& images, int batch) const {
    const auto count = static_cast<size_t>(batch);
    Result r{Floats(count * signature.logit_floats()), Floats(count * signature.pose_floats())};
    runner.run(images.data(), batch, r.logit.data(), signature.poses ? r.pose.data() : nullptr);
    return r;
  }
  Result run(const Floats& images, int batch) const { return run(*backend->runner(nullptr), images, batch); }
  plain::Answers expected(const Floats& images, int batch) const { return plain::run(program, images, batch); }
};

double distance(const Floats& found, const std::vector<double>& expected) {
  check(found.size() == expected.size(), "as many numbers as expected");
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    double d = std::fabs(static_cast<double>(found[i]) - expected[i]);
    largest = d <= largest ? largest : d;  // a NaN stays
  }
  return largest;
}

double distance(const Result& found, const plain::Answers& expected) {
  return std::max(distance(found.logit, expected.logit), distance(found.pose, expected.pose));
}

// float32 has 6e-8 of a number; sums over hundreds of children and three layers make a few times that of it.
constexpr double kTolerance = 1e-5;

void test_answers() {
  double worst = 0;
  for (bool unit : {false, true}) {
    for (int iterations = 1; iterations <= 3; ++iterations) {
      for (const Case& c : networks::cases(3, unit, iterations)) {
        const Loaded loaded(c.network);
        auto runner = qcn::native_backend(loaded.program)->runner(nullptr);  // it outlives its backend
        for (int batch : {1, 2, 3, 17}) {
          if (batch > 1 && iterations != 2) continue;
          Floats images = loaded.images(batch);
          double d = distance(loaded.run(*runner, images, batch), loaded.expected(images, batch));
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

// Programs of random operations, each on values that random ones before it made.
void test_random_programs() {
  std::mt19937 generator(11);
  const auto up_to = [&](int most) { return 1 + static_cast<int>(generator() % static_cast<unsigned>(most)); };
  const std::vector<string> endings = {"none", "relu", "relu6", "sigmoid"};
  for (unsigned seed = 0; seed < 60; ++seed) {
    Builder b({up_to(3), 4 + up_to(12), 4 + up_to(12)}, seed);
    std::vector<string> maps = {"image"}, all = maps;
    for (int i = 0; i < 6; ++i) {
      const string name = "n" + to_string(i), input = maps[generator() % maps.size()];
      const networks::Shape of = b.shape(input);
      const int side = std::min(of[1], of[2]), kernel = up_to(std::min(side, 5)), stride = up_to(3);
      const string& ending = endings[generator() % 4];
      string made = name;
      switch (generator() % 7) {
        case 0:
          b.affine(name, input, ending);
          break;
        case 1: {
          std::vector<Builder::Source> sources = {{input, kernel, stride, up_to(4) - 1}};
          // A second source that makes the same map: a kernel and a padding that are larger by 2 and 1.
          if (generator() % 2) sources.push_back({input, kernel + 2, stride, sources[0].padding + 1});
          b.convolution(name, sources, up_to(20), ending);
          break;
        }
        case 2:
          b.pool(name, input, generator() % 2 ? "max" : "average", kernel, stride);
          break;
        case 3:
          b.depthwise(name, {input, kernel, stride, up_to(4) - 1}, ending);
          break;
        case 4:
          b.sum(name, input, b.affine(name + ".other", input, ending));
          break;
        case 5:
          all.push_back(b.linear(name, all[generator() % all.size()], up_to(40), ending));
          continue;
        default: {
          const int types = up_to(4);
          const Builder::Capsules children = {b.convolution(name + ".p", {{input, 1, 1, 0}}, 3 * types, "none"),
                                              b.convolution(name + ".a", {{input, 1, 1, 0}}, types, "sigmoid")};
          const Builder::Routing routing = {2, "logistic", generator() % 2 == 0, 0.6, generator() % 4 == 0};
          const auto capsules = b.route(name, children, kernel, up_to(of[2]), stride, up_to(5), routing);
          all.push_back(capsules.pose);
          made = capsules.activation;
        }
      }
      maps.push_back(made), all.push_back(made);
    }
    const auto last = [&] {
      if (generator() % 2) return b.network(b.linear("classes", all.back(), 5, generator() % 2 ? "sigmoid" : "none"));
      const networks::Shape of = b.shape(maps.back());
      const auto capsules = b.route("classes", b.project(maps.back(), maps.back(), 2), of[1], of[2], 1, 5, {});
      return b.network(capsules.activation, capsules.pose);
    };
    const Loaded loaded(last());
    const int batch = up_to(4);
    const Floats images = loaded.images(batch, seed);
    const double d = distance(loaded.run(images, batch), loaded.expected(images, batch));
    check(d <= 3 * kTolerance, "random program " + to_string(seed) + ": off by " + to_string(d * 1e6) + "e-6");
  }
}

// Any number of threads, any runner, alone or beside others: the same bits. A large batch goes through in parts.
void test_bits() {
  for (const Case& c : {Case{"branched", networks::branched(false, 2, 4)}, Case{"CNN", networks::cnn(4)}}) {
    const Loaded loaded(c.network);
    const int batch = 40;
    Floats images = loaded.images(batch);
    qcn_set_threads(1);
    const Result expected = loaded.run(images, batch), first = loaded.run(images, 1);
    const double d = distance(expected, loaded.expected(images, batch));
    // The worst of forty images: rounding alone gives up to 1.3e-5, by the instruction set.
    check(d <= 3 * kTolerance, c.name + ", a batch of 40: off by " + to_string(d * 1e6) + "e-6");
    for (int threads : {2, 3, 8, 0}) {
      qcn_set_threads(threads);
      check(loaded.run(images, batch) == expected, c.name + ", " + to_string(threads) + " threads");
      check(loaded.run(images, 1) == first, c.name + ", one image, " + to_string(threads) + " threads");
    }
    if (!loaded.signature.poses) {  // routing has the images of a batch in one vector: there, last bits may differ
      check(std::equal(first.logit.begin(), first.logit.end(), expected.logit.begin()),
            c.name + ": an image alone has the bits that it has in a batch");
    }
    std::vector<std::thread> hosts;
    std::atomic<int> wrong{0};
    for (int host = 0; host < 4; ++host) {
      hosts.emplace_back([&] {
        auto runner = loaded.backend->runner(nullptr);
        for (int i = 0; i < 5; ++i) wrong += !(loaded.run(*runner, images, batch) == expected);
      });
    }
    for (std::thread& host : hosts) host.join();
    check(wrong == 0, c.name + ", runners beside each other: " + to_string(wrong) + " of 20 answers wrong");
  }
}

void test_no_pose_asked() {
  const Loaded loaded(networks::branched(false, 2, 5));
  auto runner = loaded.backend->runner(nullptr);
  Floats images = loaded.images(3), logit(15);
  runner->run(images.data(), 3, logit.data(), nullptr);
  check(logit == loaded.run(*runner, images, 3).logit, "logits without poses");
  runner->run(nullptr, 0, nullptr, nullptr);
}

// Layers are shown in parts, first to last; to look changes no bit. A layer gives out the means of its last iteration.
void test_layers() {
  const Loaded loaded(networks::branched(false, 3, 8));
  const std::vector<string> layers = {"capsules1", "capsules2", "classes"};
  const int batch = 40;
  Floats images = loaded.images(batch);
  const Result expected = loaded.run(images, batch);
  std::vector<string> names;
  Floats logit, pose;
  size_t wrong = 0;
  auto runner = loaded.backend->runner(nullptr);
  const bool shows = runner->show_layers([&](const qcn_layer& layer) {
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
    if (names.back() != layers.back()) {
      check(layer.activation && !layer.logit, "a layer before has activations");
      return;
    }
    check(layer.logit && !layer.activation, "the layer of the classes has logits");
    logit.insert(logit.end(), layer.logit, layer.logit + numbers);
    pose.insert(pose.end(), layer.pose, layer.pose + 3 * numbers);
  });
  check(shows, "the native backend shows its layers");
  check(loaded.run(*runner, images, batch) == expected, "the answers of a runner that shows its layers");
  check(logit == expected.logit && pose == expected.pose, "the last layer's are the answers");
  check(wrong == 0, to_string(wrong) + " means differ from poses");
  check(names.size() % layers.size() == 0 && names.size() > layers.size(), "layers are shown of every part of a batch");
  for (size_t i = 0; i < names.size(); ++i) check(names[i] == layers[i % layers.size()], names[i]);
}

void test_no_allocation_after_warm_up() {
  for (const Case& c : networks::cases(6)) {
    const Loaded loaded(c.network);
    auto runner = loaded.backend->runner(nullptr);
    Floats images = loaded.images(40), logit(40 * loaded.signature.logit_floats());
    Floats poses(40 * loaded.signature.pose_floats());
    float* pose = loaded.signature.poses ? poses.data() : nullptr;
    for (int threads : {1, 2, 5}) {  // more of them may take more scratch, in their first run
      qcn_set_threads(threads);
      long before = allocations;
      runner->run(images.data(), 40, logit.data(), pose);
      check(allocations > before || threads > 1, "allocations are counted");
      before = allocations;
      for (int batch : {40, 1, 33, 7}) runner->run(images.data(), batch, logit.data(), pose);
      check(allocations == before,
            c.name + ": " + to_string(allocations - before) + " allocations after the first run");
    }
  }
  qcn_set_threads(0);
}

void test_odd_numbers() {
  for (const Case& c : networks::cases(7)) {
    const Loaded loaded(c.network);
    auto runner = loaded.backend->runner(nullptr);
    for (float odd : {std::nanf(""), std::numeric_limits<float>::infinity(), -3e38f}) {
      Floats images = loaded.images(2);
      Result good = loaded.run(*runner, images, 2);
      const float right = std::exchange(images[images.size() / 4], odd);  // of the first image
      Result r = loaded.run(*runner, images, 2);
      const Floats& seen = loaded.signature.poses ? r.pose : r.logit;
      const bool nan = std::any_of(seen.begin(), seen.end(), [](float x) { return std::isnan(x); });
      check(nan || !std::isnan(odd), c.name + ": a NaN pixel comes out as NaN");
      images[images.size() / 4] = right;
      check(loaded.run(*runner, images, 2) == good, c.name + ": nothing of it stays");
    }
  }
}

// Wrong numbers in any array show: what the tests above compare is the whole network. Three in each, since one may meet
// a relu that is closed for all four images.
void test_planted_faults() {
  for (Case& c : networks::cases(8)) {
    const Loaded good(c.network);
    Floats images = good.images(4);
    plain::Answers expected = good.expected(images, 4);
    for (auto& [name, array] : c.network.arrays) {
      if (name.compare(0, 6, "unread") == 0) continue;  // nothing reads what this makes
      const Floats right = array.values;
      for (size_t place : {size_t{0}, right.size() / 2, right.size() - 1}) array.values[place] = right[place] + 1.5f;
      double d = distance(Loaded(c.network).run(images, 4), expected);
      check(d > 4 * kTolerance, c.name + ": a wrong " + name + " goes unnoticed");
      array.values = right;
    }
  }
}

void test_name() {
  const Loaded loaded(networks::bare(false, 2, 10));
  const string name = string("native, ") + qcn_instruction_set() + ", ";
  for (const auto& [threads, says] : {std::pair{3, "3 threads"}, {1, "1 thread"}, {3000, "1024 threads"}}) {
    qcn_set_threads(threads);
    check(loaded.backend->name() == name + says, loaded.backend->name());
  }
  for (const int threads : {0, -3000}) {  // one per core
    qcn_set_threads(threads);
    check(!contains(loaded.backend->name(), "1024"), loaded.backend->name());
  }
  check(loaded.backend->precision() == "fp32" && loaded.backend->max_batch() == 0, "precision and largest batch");
}

}  // namespace

int main() {
  std::printf("instruction set: %s\n", qcn_instruction_set());
  test_answers();
  test_random_programs();
  test_bits();
  test_no_pose_asked();
  test_layers();
  test_no_allocation_after_warm_up();
  test_odd_numbers();
  test_planted_faults();
  test_name();
  return verdict();
}

// Images in the memory of a GPU, on a stand-in for one: its memory is the host's, at addresses that only it can turn
// into the host's. Who else reads there, crashes. What is real is in cuda_images.cu.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "preprocess.h"
#include "session.h"

namespace {

constexpr int kSide = 4, kPixels = kSide * kSide, kMostAtOnce = 3;
constexpr std::uintptr_t kNowhere = std::uintptr_t{1} << 62;  // no program has memory there

const void* device_address(const void* host) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(host) + kNowhere);
}

struct Calls {
  int images = 0, inputs = 0, runs = 0, runs_put = 0;
};

// The logit of the one class is the sum of the network's input; each number of its pose, the last pixel.
class StandIn final : public qcn::DeviceRunner {
 public:
  explicit StandIn(Calls& calls) : calls_(calls), input_(kMostAtOnce * kPixels) {}

  void run(const float* input, int count, float* logit, float* pose) override {
    ++calls_.runs;
    answer(input, count, logit, pose);
  }
  void put_image(const qcn::Preprocessing& spec, const qcn_image& image, int index) override {
    ++calls_.images;
    qcn_image here = image;
    here.data = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(image.data) - kNowhere);
    qcn::preprocess(spec, here, place(index));
  }
  void put_input(const float* input, int index) override {
    ++calls_.inputs;
    std::copy_n(input, kPixels, place(index));
  }
  void run_put(int count, float* logit, float* pose) override {
    ++calls_.runs_put;
    answer(input_.data(), count, logit, pose);
    std::fill(input_.begin(), input_.end(), -1e9F);  // what was put is used up
  }

 private:
  float* place(int index) { return input_.data() + index * kPixels; }
  static void answer(const float* input, int count, float* logit, float* pose) {
    check(count <= kMostAtOnce, "no more images at once than the backend takes");
    for (int i = 0; i < count; ++i) {
      logit[i] = std::accumulate(input + i * kPixels, input + (i + 1) * kPixels, 0.0F);
      if (pose) std::fill_n(pose + 3 * i, 3, input[(i + 1) * kPixels - 1]);
    }
  }

  Calls& calls_;
  std::vector<float> input_;
};

class HostOnly final : public qcn::Runner {
 public:
  void run(const float*, int, float*, float*) override { check(false, "what cannot be read was run"); }
};

class StandInBackend final : public qcn::Backend {
 public:
  StandInBackend(Calls& calls, bool on_device) : calls_(calls), on_device_(on_device) {}
  std::unique_ptr<qcn::Runner> runner(void*) const override {
    if (on_device_) return std::make_unique<StandIn>(calls_);
    return std::make_unique<HostOnly>();
  }
  std::string name() const override { return on_device_ ? "a stand-in" : "native"; }
  std::string precision() const override { return "fp32"; }
  int max_batch() const override { return kMostAtOnce; }

 private:
  Calls& calls_;
  const bool on_device_;
};

std::shared_ptr<const qcn::Model> model(Calls& calls, bool on_device, bool poses = true) {
  auto made = std::make_shared<qcn::Model>();
  made->manifest.signature = {1, kSide, kSide, 1, poses};
  made->manifest.preprocessing.stored = {1, kSide, kSide, qcn::Fit::kStretch};
  made->manifest.preprocessing.mean = {0.25}, made->manifest.preprocessing.std = {0.5};
  made->backend = std::make_unique<StandInBackend>(calls, on_device);
  made->backend_name = made->backend->name();
  return made;
}

// Seven images of several sizes; those whose bit is set in `on_device` lie there.
std::vector<qcn_image> images(const std::vector<std::vector<unsigned char>>& pixels, unsigned on_device) {
  std::vector<qcn_image> all;
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const int side = kSide + static_cast<int>(i % 3);
    all.push_back(qcn_image_default(pixels[i].data(), side, side, 1));
    if (on_device >> i & 1) all.back().on_device = 1, all.back().data = device_address(all.back().data);
  }
  return all;
}

void test_answers(const std::vector<std::vector<unsigned char>>& pixels) {
  Calls calls;
  qcn::Session session(model(calls, true), nullptr);
  const int count = static_cast<int>(pixels.size());
  std::vector<float> expected(pixels.size()), expected_pose(3 * pixels.size());
  session.classify(images(pixels, 0).data(), count, {nullptr, expected.data(), expected_pose.data()});
  check(calls.runs == 3 && calls.runs_put == 0, "images of the host take the way they always did, in three parts");
  check(expected[0] != expected[1], "the images differ");
  for (const unsigned on_device : {0x7fU, 0x01U, 0x40U, 0x2aU, 0x55U}) {
    calls = {};
    std::vector<float> found(pixels.size()), pose(3 * pixels.size());
    session.classify(images(pixels, on_device).data(), count, {nullptr, found.data(), pose.data()});
    const std::string what = "images on the device: " + std::to_string(on_device);
    check(found == expected && pose == expected_pose, what + ", their answers");
    check(calls.images == __builtin_popcount(on_device) && calls.images + calls.inputs == count, what + ", their ways");
    check(calls.runs_put == 3 && calls.runs == 0, what + ", their parts");
    session.classify(images(pixels, on_device).data(), count, {nullptr, found.data(), nullptr});
    check(found == expected, what + ", without poses");
  }
}

void test_refusals(const std::vector<std::vector<unsigned char>>& pixels) {
  Calls calls;
  const auto here = model(calls, true), host_only = model(calls, false);
  std::vector<float> found(pixels.size(), 7.0F);
  const int count = static_cast<int>(pixels.size());
  const auto classify = [&](const std::shared_ptr<const qcn::Model>& by, const std::vector<qcn_image>& given) {
    qcn::Session(by, nullptr).classify(given.data(), count, {nullptr, found.data(), nullptr});
  };
  const std::string native =
      refused("a device image for native", QCN_BAD_ARGUMENT, [&] { classify(host_only, images(pixels, 0x40)); });
  check(native == "this image is in CUDA device memory, which native cannot read", native);
  refused("qcn_preprocess of a device image", QCN_BAD_ARGUMENT,
          [&] { qcn::preprocess_for(*here, images(pixels, 1)[0], found.data()); }, {"qcn_preprocess cannot read"});
  refused("layers of a backend that shows none", QCN_BAD_ARGUMENT,
          [&] { qcn::Session(here, nullptr, [](const qcn_layer&) {}); }, {"a stand-in shows no layers"});
  std::vector<float> pose(3 * pixels.size(), 7.0F);
  qcn::Session without(model(calls, true, false), nullptr);
  refused("poses of a network without them", QCN_BAD_ARGUMENT,
          [&] {
            without.classify(images(pixels, 0).data(), count, {nullptr, found.data(), pose.data()});
          },
          {"has no poses", "NULL"});
  // The last is bad: nothing may have been queued for the others.
  std::vector<qcn_image> last = images(pixels, 0x3f);
  last.back().channels = 2;
  refused("a bad image behind good ones", QCN_BAD_ARGUMENT, [&] { classify(here, last); });
  last = images(pixels, 0x7f);
  last.back().data = nullptr;
  refused("no data", QCN_BAD_ARGUMENT, [&] { classify(here, last); });
  check(calls.images + calls.inputs + calls.runs + calls.runs_put == 0, "a refused call does nothing");
  check(found == std::vector<float>(pixels.size(), 7.0F), "and leaves the answers as they were");
}

}  // namespace

int main() {
  std::vector<std::vector<unsigned char>> pixels(7);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    for (std::size_t k = 0; k < 36; ++k) pixels[i].push_back(static_cast<unsigned char>(37 * k * (i + 1) + i));
  }
  test_answers(pixels);
  test_refusals(pixels);
  return verdict();
}

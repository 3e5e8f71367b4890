// Images for a GPU, on a stand-in for one: its memory is the host's, at addresses that only it can turn into the
// host's. Who else reads there, crashes. What is real is in cuda_images.cu. And how the host's are packed to travel
// there.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "preprocess.h"
#include "session.h"
#include "tensorrt/library/pack.h"

namespace {

constexpr int kSide = 4, kPixels = kSide * kSide, kMostAtOnce = 3;
constexpr std::uintptr_t kNowhere = std::uintptr_t{1} << 62;  // no program has memory there

const void* device_address(const void* host) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(host) + kNowhere);
}

struct Calls {
  int host = 0, device = 0, runs = 0;  // images of the host and of the device; batches
};

// The logit of the one class is the sum of the network's input; each number of its pose, the last pixel.
class StandIn final : public qcn::Runner {
 public:
  explicit StandIn(Calls& calls) : calls_(calls) {}

  void run(const float*, int, float*, float*) override { check(false, "images were pre-processed on the CPU"); }
  bool takes_images() const override { return true; }
  void run_images(const qcn::Preprocessing& spec, const qcn_image* images, int count, float* logit,
                  float* pose) override {
    ++calls_.runs;
    check(count <= kMostAtOnce, "no more images at once than the backend takes");
    for (int i = 0; i < count; ++i) {
      qcn_image here = images[i];
      ++(here.on_device ? calls_.device : calls_.host);
      if (here.on_device) {
        here.data = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(here.data) - kNowhere);
      }
      answer(spec, here, logit + i, pose ? pose + 3 * i : nullptr);
    }
  }

  static void answer(const qcn::Preprocessing& spec, const qcn_image& image, float* logit, float* pose) {
    float input[kPixels];
    qcn::preprocess(spec, image, input);
    *logit = std::accumulate(input, input + kPixels, 0.0F);
    if (pose) std::fill_n(pose, 3, input[kPixels - 1]);
  }

 private:
  Calls& calls_;
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
  const auto taken = model(calls, true);
  qcn::Session session(taken, nullptr);
  const int count = static_cast<int>(pixels.size());
  std::vector<float> expected(pixels.size()), expected_pose(3 * pixels.size());
  const std::vector<qcn_image> host = images(pixels, 0);
  for (std::size_t i = 0; i < host.size(); ++i) {
    StandIn::answer(taken->manifest.preprocessing, host[i], &expected[i], &expected_pose[3 * i]);
  }
  check(expected[0] != expected[1], "the images differ");
  for (const unsigned on_device : {0U, 0x7fU, 0x01U, 0x40U, 0x2aU, 0x55U}) {
    calls = {};
    std::vector<float> found(pixels.size()), pose(3 * pixels.size());
    session.classify(images(pixels, on_device).data(), count, {nullptr, found.data(), pose.data()});
    const std::string what = "images on the device: " + std::to_string(on_device);
    check(found == expected && pose == expected_pose, what + ", their answers");
    check(calls.device == __builtin_popcount(on_device) && calls.host + calls.device == count, what + ", all as given");
    check(calls.runs == 3, what + ", their parts");
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
  check(calls.host + calls.device + calls.runs == 0, "a refused call does nothing");
  check(found == std::vector<float>(pixels.size(), 7.0F), "and leaves the answers as they were");
}

// Every layout that a library may give: what is packed has no gaps and gives the network the same input.
void test_packing() {
  std::mt19937 generator(0);
  constexpr int kWidth = 5, kHeight = 4, kChannels = 3, kGap = 3, kCount = kWidth * kHeight * kChannels;
  for (int round = 0; round < 256; ++round) {
    const bool planar = round & 1, rows_apart = round & 2, pixels_apart = round & 4, floats = round & 8;
    const std::ptrdiff_t pixel = floats ? sizeof(float) : 1;
    qcn_image image = planar ? qcn_image_planar(nullptr, kWidth, kHeight, kChannels)
                             : qcn_image_default(nullptr, kWidth, kHeight, kChannels);
    image.pixel = floats ? QCN_FLOAT32 : QCN_UINT8;
    image.column_stride = (image.column_stride + pixels_apart) * pixel;
    image.channel_stride = planar ? image.column_stride * kWidth * kHeight + kGap * kHeight : pixel;
    image.row_stride = image.column_stride * kWidth + (rows_apart ? kGap : 0);
    std::vector<unsigned char> bytes(2 * sizeof(float) * (kCount + kGap * kHeight * (kChannels + 1)));
    for (auto& byte : bytes) byte = static_cast<unsigned char>(generator() % 64);  // floats of them are finite
    const unsigned char* data = bytes.data();
    const auto flip = [&](std::ptrdiff_t& stride, int size) { data += stride * (size - 1), stride = -stride; };
    if (round & 16) flip(image.row_stride, kHeight);
    if (round & 32) flip(image.column_stride, kWidth);
    if (round & 64) flip(image.channel_stride, kChannels);
    image.reverse_channels = round >> 7;
    image.data = data;
    qcn::Preprocessing spec;
    spec.stored = {kChannels, kHeight, kWidth, qcn::Fit::kStretch};
    spec.mean = {0.2, 0.4, 0.6}, spec.std = {0.5, 0.25, 0.125};
    const std::string what = "packed layout " + std::to_string(round);
    const std::size_t packed_bytes = qcn::packed_bytes(image);
    check(packed_bytes == static_cast<std::size_t>(kCount * pixel), what + ", its bytes");
    std::vector<char> memory(packed_bytes);  // a sanitizer sees what is written beyond
    const qcn_image packed = qcn::pack(image, memory.data());
    check(packed.data == memory.data(), what + ", its place");
    std::vector<float> expected(kCount), found(kCount);
    qcn::preprocess(spec, image, expected.data());
    qcn::preprocess(spec, packed, found.data());
    check(found == expected, what);
  }
  const qcn_image largest = qcn_image_default(nullptr, 16384, 16384, 4);
  check(qcn::packed_bytes(largest) == std::size_t{1} << 30, "the bytes of the largest picture");
}

}  // namespace

int main() {
  std::vector<std::vector<unsigned char>> pixels(7);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    for (std::size_t k = 0; k < 36; ++k) pixels[i].push_back(static_cast<unsigned char>(37 * k * (i + 1) + i));
  }
  test_answers(pixels);
  test_refusals(pixels);
  test_packing();
  return verdict();
}

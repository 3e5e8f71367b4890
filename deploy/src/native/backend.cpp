// The native backend: the plan of a network, run by this library's kernels on the CPU.
#include "backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "error.h"
#include "plan.h"

namespace qcn::native {
namespace {

using std::size_t;

// A large batch goes through in parts. The last capsule layer has one window an image, and the widest vector 16 lanes;
// more than twice that brings no more speed.
constexpr size_t kMostImages = 32, kMostBytes = size_t{64} << 20;

class NativeRunner final : public Runner {
 public:
  explicit NativeRunner(std::shared_ptr<const Plan> plan)
      : plan_(std::move(plan)),
        most_images_(std::clamp<size_t>(kMostBytes / (plan_->image_floats * sizeof(float)), 1, kMostImages)) {}

  bool show_layers(ShowLayer show) override {
    show_ = std::move(show);
    return true;
  }

  void run(const float* input, int count, float* activation, float* pose) override {
    const Map& image = plan_->image;
    for (size_t left = count > 0 ? static_cast<size_t>(count) : 0; left > 0;) {
      size_t batch = std::min(left, most_images_);
      run_part(input, batch, activation, pose);
      input += batch * image.channels * image.height * image.width;
      activation += batch * plan_->classes;
      if (pose) pose += batch * plan_->classes * 3;
      left -= batch;
    }
  }

 private:
  // Memory of a part is kept for the next: maps have their borders, zeros that nothing overwrites.
  void reserve(size_t batch) {
    if (batch <= capacity_) return;
    size_t bytes = batch * plan_->image_floats * sizeof(float);
    capacity_ = 0;
    memory_ = static_cast<float*>(owner_.get(bytes));
    if (!memory_) throw Error(QCN_NO_MEMORY, "no memory for a batch of " + std::to_string(batch) + " images");
    std::memset(memory_, 0, bytes);
    capacity_ = batch;
  }

  float* at(Place place) const { return memory_ + place * capacity_; }

  void run_part(const float* input, size_t batch, float* activation, float* pose) {
    reserve(batch);
    for (const Entry& entry : plan_->entries) {
      size_t pixels = entry.map.channels * entry.map.height * entry.map.width;
      parallel_for(batch, 0, [&](size_t i, float*) {
        enter(entry, input + i * pixels, at(entry.out) + i * image_floats(entry.map));
      });
    }
    for (const Step& step : plan_->steps) {
      const float* in[2] = {at(step.in[0]), at(step.in[1])};
      convolve(step.convolution, batch, in, at(step.out));
    }
    for (const Layer& layer : plan_->layers) {
      bool last = &layer == &plan_->layers.back();
      qcn_routing_shape shape = layer.shape;
      shape.batch = static_cast<int>(batch);
      float* out_pose = last && pose ? pose : at(layer.out_pose);
      float* out_activation = last ? activation : at(layer.out_activation);
      int status =
          qcn_routing_forward(&shape, at(layer.pose), at(layer.activation), layer.rotation, layer.beta_u, layer.beta_a,
                              out_pose, out_activation, show_ ? statistics(shape, layer) : nullptr);
      if (status != QCN_ROUTING_OK) {
        throw Error(status == QCN_ROUTING_NO_MEMORY ? QCN_NO_MEMORY : QCN_INTERNAL_ERROR, qcn_routing_status(status));
      }
      if (show_) show(layer, shape, out_pose, out_activation);
    }
  }

  float* statistics(const qcn_routing_shape& shape, const Layer& layer) {
    size_t numbers =
        static_cast<size_t>(shape.iterations) * QCN_ROUTING_STATISTICS * static_cast<size_t>(shape.parents);
    statistics_.resize(numbers * static_cast<size_t>(shape.batch) * layer.height * layer.width);
    return statistics_.data();
  }

  void show(const Layer& layer, const qcn_routing_shape& shape, const float* pose, const float* activation) const {
    qcn_layer shown{};
    shown.size = sizeof shown;
    shown.name = layer.name.c_str();
    shown.images = shape.batch, shown.parents = shape.parents, shown.iterations = shape.iterations;
    shown.height = static_cast<int>(layer.height), shown.width = static_cast<int>(layer.width);
    shown.pose = pose, shown.activation = activation, shown.statistics = statistics_.data();
    show_(shown);
  }

  static void enter(const Entry& entry, const float* from, float* to) {
    const Map& map = entry.map;
    for (size_t c = 0; c < map.channels; ++c) {
      for (size_t y = 0; y < map.height; ++y) {
        float* pixel = to + (y + 1) * row_floats(map) + map.channels + c;
        for (size_t x = 0; x < map.width; ++x, pixel += map.channels) {
          float value = *from++;
          if (entry.scale) value = value * entry.scale[c] + entry.shift[c];
          *pixel = entry.scale && value < 0 ? 0.0f : value;  // a NaN stays one
        }
      }
    }
  }

  std::shared_ptr<const Plan> plan_;
  size_t most_images_;
  Memory owner_;
  float* memory_ = nullptr;
  size_t capacity_ = 0;
  ShowLayer show_;
  std::vector<float> statistics_;  // of the layer that is shown
};

class NativeBackend final : public Backend {
 public:
  NativeBackend(const Structure& structure, std::shared_ptr<const TensorFile> weights)
      : plan_(std::make_shared<const Plan>(structure, std::move(weights))) {}

  std::unique_ptr<Runner> runner(void*) const override { return std::make_unique<NativeRunner>(plan_); }

  std::string name() const override {
    int threads = thread_count();
    return std::string("native, ") + qcn_instruction_set() + ", " + std::to_string(threads) +
           (threads == 1 ? " thread" : " threads");
  }

  std::string precision() const override { return "fp32"; }
  int max_batch() const override { return 0; }

 private:
  std::shared_ptr<const Plan> plan_;
};

}  // namespace
}  // namespace qcn::native

namespace qcn {

std::unique_ptr<Backend> native_backend(const Structure& structure, std::shared_ptr<const TensorFile> weights) {
  return std::make_unique<native::NativeBackend>(structure, std::move(weights));
}

}  // namespace qcn

// The native backend: the plan of a program, run by this library's kernels on the CPU.
#include "backend.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "plan.h"

namespace qcn::native {
namespace {

using std::size_t;

// A large batch goes through in parts. The last capsule layer has one window per image, and the widest vector 16
// lanes; more than twice that brings no more speed.
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

  void run(const float* input, int count, float* logit, float* pose) override {
    const Signature& signature = plan_->program.signature;
    for (size_t left = count > 0 ? static_cast<size_t>(count) : 0; left > 0;) {
      const size_t batch = std::min(left, most_images_);
      run_part(input, batch);
      input += batch * signature.image_floats();
      logit = copy(plan_->logit, batch * signature.logit_floats(), logit);
      if (pose && plan_->pose) pose = copy(*plan_->pose, batch * signature.pose_floats(), pose);
      left -= batch;
    }
  }

 private:
  // Memory of a part is kept for the next.
  void reserve(size_t batch) {
    if (batch <= capacity_) return;
    size_t bytes = batch * plan_->image_floats * sizeof(float);
    capacity_ = 0;
    memory_ = static_cast<float*>(owner_.get(bytes));
    if (!memory_) throw Error(QCN_NO_MEMORY, "no memory for a batch of " + std::to_string(batch) + " images");
    capacity_ = batch;
    for (const Step& step : plan_->steps) {
      if (const auto* border = std::get_if<BorderStep>(&step); border && border->once) clear(*border, batch);
    }
  }

  const float* in(Place place) const { return place == kImages ? images_ : out(place); }
  float* out(Place place) const { return memory_ + place * capacity_; }

  float* copy(Place place, size_t floats, float* to) const { return std::copy_n(in(place), floats, to); }

  void run_part(const float* images, size_t batch) {
    reserve(batch);
    images_ = images;
    for (const Step& step : plan_->steps) {
      std::visit([&](const auto& one) { run_step(one, batch); }, step);
    }
  }

  void clear(const BorderStep& s, size_t batch) const {
    const size_t size = s.bytes ? 1 : sizeof(float), image_bytes = image_floats(s.map) * size;
    parallel_for(batch * s.map.height, 0, [&](size_t row, float*) {
      clear_border(s.map, row % s.map.height, size, s.bytes ? integer_zero() : 0,
                   bytes(s.out) + row / s.map.height * image_bytes);
    });
  }

  void run_step(const BorderStep& s, size_t batch) const {
    if (!s.once) clear(s, batch);
  }

  void run_step(const TransformStep& s, size_t batch) const {
    parallel_for(batch, 0, [&](size_t i, float*) {
      transform(s.map, s.scale, s.shift, s.ending, in(s.in) + i * s.in_strides.image, s.in_strides,
                out(s.out) + i * s.out_strides.image, s.out_strides);
    });
  }

  void run_step(const ConvolutionStep& s, size_t batch) const {
    const float* from[2] = {in(s.in[0]), in(s.in[1])};
    convolve(s.convolution, batch, from, out(s.out));
  }

  std::uint8_t* bytes(Place place) const { return reinterpret_cast<std::uint8_t*>(out(place)); }

  void run_step(const QuantiseStep& s, size_t batch) const {
    quantise_map(s.map, batch, s.scale, in(s.in), bytes(s.out));
  }

  void run_step(const IntegerStep& s, size_t batch) const {
    const std::uint8_t* from[2] = {bytes(s.in[0]), bytes(s.in[1])};
    convolve_integers(s.convolution, batch, from, out(s.out));
  }

  void run_step(const SumStep& s, size_t batch) const {
    parallel_for(batch, 0, [&](size_t i, float*) {
      add_maps(s.map, in(s.in[0]) + i * s.in_strides[0].image, s.in_strides[0], in(s.in[1]) + i * s.in_strides[1].image,
               s.in_strides[1], out(s.out) + i * s.out_strides.image, s.out_strides);
    });
  }

  void run_step(const PoolStep& s, size_t batch) const {
    parallel_for(batch, 0, [&](size_t i, float*) {
      pool(s.map, s.kernel, s.stride, s.average, in(s.in) + i * s.in_strides.image, s.in_strides,
           out(s.out) + i * s.out_strides.image, s.out_strides);
    });
  }

  void run_step(const RouteStep& s, size_t batch) {
    qcn_routing_shape shape = s.shape;
    shape.batch = static_cast<int>(batch);
    float* kept = show_ ? statistics(shape, s) : nullptr;
    const int status = s.prepared ? qcn_routing_half_forward(&shape, in(s.pose), in(s.activation), s.prepared, s.beta_u,
                                                             s.beta_a, out(s.out_pose), out(s.out_activation), kept)
                                  : qcn_routing_forward(&shape, in(s.pose), in(s.activation), s.rotation, s.beta_u,
                                                        s.beta_a, out(s.out_pose), out(s.out_activation), kept);
    if (status != QCN_ROUTING_OK) {
      throw Error(status == QCN_ROUTING_NO_MEMORY ? QCN_NO_MEMORY : QCN_INTERNAL_ERROR, qcn_routing_status(status));
    }
    if (show_) show(shape, s);
  }

  float* statistics(const qcn_routing_shape& shape, const RouteStep& step) {
    size_t numbers =
        static_cast<size_t>(shape.iterations) * QCN_ROUTING_STATISTICS * static_cast<size_t>(shape.parents);
    statistics_.resize(numbers * static_cast<size_t>(shape.batch) * step.height * step.width);
    return statistics_.data();
  }

  void show(const qcn_routing_shape& shape, const RouteStep& step) const {
    qcn_layer shown{};
    shown.size = sizeof shown;
    shown.name = step.name.c_str();
    shown.images = shape.batch, shown.parents = shape.parents, shown.iterations = shape.iterations;
    shown.height = static_cast<int>(step.height), shown.width = static_cast<int>(step.width);
    shown.pose = out(step.out_pose);
    (shape.logit ? shown.logit : shown.activation) = out(step.out_activation);
    shown.statistics = statistics_.data();
    show_(shown);
  }

  std::shared_ptr<const Plan> plan_;
  size_t most_images_;
  Memory owner_;
  float* memory_ = nullptr;
  const float* images_ = nullptr;  // of the part that runs
  size_t capacity_ = 0;
  ShowLayer show_;
  std::vector<float> statistics_;  // of the layer that is shown
};

class NativeBackend final : public Backend {
 public:
  explicit NativeBackend(program::Program program) : plan_(std::make_shared<const Plan>(std::move(program))) {}

  std::unique_ptr<Runner> runner(void*) const override { return std::make_unique<NativeRunner>(plan_); }

  std::string name() const override {
    int threads = thread_count();
    return std::string("native, ") + qcn_instruction_set() + ", " + std::to_string(threads) +
           (threads == 1 ? " thread" : " threads");
  }

  std::string precision() const override { return program::name(plan_->program.precision()); }
  std::vector<OperationRun> operations() const override { return plan_->runs; }
  int max_batch() const override { return 0; }

 private:
  std::shared_ptr<const Plan> plan_;
};

}  // namespace
}  // namespace qcn::native

namespace qcn {

std::unique_ptr<Backend> native_backend(program::Program program) {
  return std::make_unique<native::NativeBackend>(std::move(program));
}

}  // namespace qcn

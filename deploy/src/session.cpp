#include "session.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "preprocess.h"
#include "structures.h"

namespace qcn {
namespace {

constexpr std::size_t kAtOnce = 64;  // images, when the backend takes any number: what bounds the memory of a session

template <typename T>
T* grown(std::vector<T>& memory, std::size_t count) {
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

[[noreturn]] void refuse_device_memory(const std::string& what) {
  throw Error(QCN_BAD_ARGUMENT, "this image is in CUDA device memory, which " + what + " cannot read");
}

}  // namespace

// Held during a call. Two threads in one session would get each other's answers, so the second is refused.
class Session::Lock {
 public:
  explicit Lock(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      throw Error(QCN_BAD_ARGUMENT,
                  "another thread is using this session: make one session per thread, from the same model");
    }
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& busy_;
};

Session::Session(std::shared_ptr<const Model> model, void* stream, const ShowLayer& show)
    : model_(std::move(model)), runner_(model_->backend->runner(stream)) {
  if (show && !runner_->show_layers(show)) {
    throw Error(QCN_BAD_ARGUMENT, model_->backend_name + " shows no layers: only the native backend does");
  }
}

void Session::check_pose(const float* pose) const {
  if (pose && !model_->manifest.signature.poses) {
    throw Error(QCN_BAD_ARGUMENT, "the network " + model_->manifest.name +
                                      " has no poses (qcn_model_info.poses is 0): pass NULL for pose");
  }
}

// `run(first, count, activation, pose)` answers that many images from the first on.
template <typename Run>
void Session::in_parts(int count, float* activation, float* pose, const Run& run) {
  const std::size_t images = static_cast<std::size_t>(count);
  const std::size_t classes = model_->manifest.signature.activation_floats();
  const int most = model_->backend->max_batch();
  const std::size_t at_once = std::min(images, most > 0 ? static_cast<std::size_t>(most) : kAtOnce);
  float* const found = grown(activation_, images * classes);
  float* const found_pose = pose ? grown(pose_, images * classes * 3) : nullptr;
  for (std::size_t first = 0; first < images; first += at_once) {
    const std::size_t now = std::min(at_once, images - first);
    run(first, static_cast<int>(now), found + first * classes, found_pose ? found_pose + first * classes * 3 : nullptr);
  }
  std::copy_n(found, images * classes, activation);
  if (pose) std::copy_n(found_pose, images * classes * 3, pose);
}

void Session::classify(const qcn_image* images, int count, float* activation, float* pose) {
  const Lock lock(busy_);
  check_pose(pose);
  const std::size_t pixels = model_->manifest.signature.image_floats();
  // All are looked at before the first is worked on: a refused call leaves nothing running on a GPU.
  bool on_device = false;
  for (int i = 0; i < count; ++i) {
    const qcn_image image = image_at(images, i);
    if (image.on_device && !runner_->on_device()) refuse_device_memory(model_->backend_name);
    check_image(model_->manifest.preprocessing, image);
    on_device |= image.on_device != 0;
  }
  in_parts(count, activation, pose, [&](std::size_t first, int now, float* found, float* found_pose) {
    if (on_device) return run_on_device(images, first, now, found, found_pose);
    float* const input = grown(input_, static_cast<std::size_t>(now) * pixels);
    for (int i = 0; i < now; ++i) {
      preprocess(model_->manifest.preprocessing, image_at(images, static_cast<int>(first) + i),
                 input + static_cast<std::size_t>(i) * pixels);
    }
    runner_->run(input, now, found, found_pose);
  });
}

// Images of which some are in device memory: those of the host are pre-processed here, and join them there.
void Session::run_on_device(const qcn_image* images, std::size_t first, int count, float* activation, float* pose) {
  DeviceRunner& runner = *runner_->on_device();
  float* const input = grown(input_, model_->manifest.signature.image_floats());
  for (int i = 0; i < count; ++i) {
    const qcn_image image = image_at(images, static_cast<int>(first) + i);
    if (image.on_device) {
      runner.put_image(model_->manifest.preprocessing, image, i);
    } else {
      preprocess(model_->manifest.preprocessing, image, input);
      runner.put_input(input, i);
    }
  }
  runner.run_put(count, activation, pose);
}

void Session::infer(const float* input, int count, float* activation, float* pose) {
  const Lock lock(busy_);
  check_pose(pose);
  const std::size_t pixels = model_->manifest.signature.image_floats();
  in_parts(count, activation, pose, [&](std::size_t first, int now, float* found, float* found_pose) {
    runner_->run(input + first * pixels, now, found, found_pose);
  });
}

void preprocess_for(const Model& model, const qcn_image& image, float* input) {
  if (image.on_device) refuse_device_memory("qcn_preprocess");
  preprocess(model.manifest.preprocessing, image, input);
}

qcn_image image_at(const qcn_image* images, int index) {
  // The fields of the first version are needed; those after them default to zero.
  constexpr std::size_t kLeast = offsetof(qcn_image, reverse_channels);
  constexpr const char* kMaker = "take it from qcn_image_default";
  std::size_t first_size, size;
  std::memcpy(&first_size, images, sizeof first_size);
  check_size<qcn_image>(first_size, "a qcn_image", kMaker, kLeast);
  const char* const place = reinterpret_cast<const char*>(images) + static_cast<std::size_t>(index) * first_size;
  std::memcpy(&size, place, sizeof size);
  if (size != first_size) {
    throw Error(QCN_BAD_ARGUMENT,
                "image " + std::to_string(index) + " has another size of structure than the first: " + kMaker);
  }
  return read_structure(reinterpret_cast<const qcn_image*>(place), qcn_image_default(nullptr, 0, 0, 0), "a qcn_image",
                        kMaker, kLeast);
}

}  // namespace qcn

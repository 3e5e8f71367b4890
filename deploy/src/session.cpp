#include "session.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <type_traits>
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

void Session::check(const Outputs& outputs) const {
  if (!outputs.answers && !outputs.logit && !outputs.pose) {
    throw Error(QCN_BAD_ARGUMENT, "every output is NULL: there is nothing to compute");
  }
  if (outputs.pose && !model_->manifest.signature.poses) {
    throw Error(QCN_BAD_ARGUMENT, "the network " + model_->manifest.name +
                                      " has no poses (qcn_model_info.poses is 0): pass NULL for pose");
  }
}

// `run(first, count, logit, pose)` answers that many images from the first on.
template <typename Run>
void Session::in_parts(int count, const Outputs& outputs, const Run& run) {
  const std::size_t images = static_cast<std::size_t>(count);
  const std::size_t classes = model_->manifest.signature.logit_floats();
  const int most = model_->backend->max_batch();
  const std::size_t at_once = std::min(images, most > 0 ? static_cast<std::size_t>(most) : kAtOnce);
  float* const logit = grown(logit_, images * classes);
  const bool poses = outputs.pose || (outputs.answers && model_->manifest.direction);
  float* const pose = poses ? grown(pose_, images * classes * 3) : nullptr;
  for (std::size_t first = 0; first < images; first += at_once) {
    const std::size_t now = std::min(at_once, images - first);
    run(first, static_cast<int>(now), logit + first * classes, pose ? pose + first * classes * 3 : nullptr);
  }
  if (outputs.answers) {
    Decision* const decisions = grown(decisions_, images);
    for (std::size_t i = 0; i < images; ++i) {
      decisions[i] = decide(model_->manifest, logit + i * classes, pose ? pose + i * classes * 3 : nullptr);
    }
    write_answers(*model_, decisions, count, outputs.answers);
  }
  if (outputs.logit) std::copy_n(logit, images * classes, outputs.logit);
  if (outputs.pose) std::copy_n(pose, images * classes * 3, outputs.pose);
}

void Session::classify(const qcn_image* images, int count, const Outputs& outputs) {
  const Lock lock(busy_);
  const auto start = std::chrono::steady_clock::now();
  check(outputs);
  if (outputs.answers) check_answers(outputs.answers, count);
  const std::size_t pixels = model_->manifest.signature.image_floats();
  const bool takes_images = runner_->takes_images();
  // All are looked at before the first is worked on: a refused call leaves nothing running on a GPU.
  for (int i = 0; i < count; ++i) {
    const qcn_image image = image_at(images, i);
    if (image.on_device && !takes_images) refuse_device_memory(model_->backend_name);
    check_image(model_->manifest.preprocessing, image);
  }
  in_parts(count, outputs, [&](std::size_t first, int now, float* logit, float* pose) {
    const auto image = [&](int i) { return image_at(images, static_cast<int>(first) + i); };
    if (takes_images) {
      images_.clear();
      for (int i = 0; i < now; ++i) images_.push_back(image(i));
      return runner_->run_images(model_->manifest.preprocessing, images_.data(), now, logit, pose);
    }
    float* const input = grown(input_, static_cast<std::size_t>(now) * pixels);
    for (int i = 0; i < now; ++i) {
      preprocess(model_->manifest.preprocessing, image(i), input + static_cast<std::size_t>(i) * pixels);
    }
    runner_->run(input, now, logit, pose);
  });
  if (outputs.answers && model_->field) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    model_->field->record(decisions_.data(), images, count, elapsed.count());
  }
}

void Session::infer(const float* input, int count, const Outputs& outputs) {
  const Lock lock(busy_);
  check(outputs);
  const std::size_t pixels = model_->manifest.signature.image_floats();
  in_parts(count, outputs, [&](std::size_t first, int now, float* logit, float* pose) {
    runner_->run(input + first * pixels, now, logit, pose);
  });
}

void preprocess_for(const Model& model, const qcn_image& image, float* input) {
  if (image.on_device) refuse_device_memory("qcn_preprocess");
  preprocess(model.manifest.preprocessing, image, input);
}

namespace {

// The number of bytes from one element of a caller's array to the next: the size that its elements begin with.
template <typename T>
std::size_t element_bytes(const T* elements, const char* what, const char* maker, std::size_t least) {
  std::size_t size;
  std::memcpy(&size, elements, sizeof size);
  check_size<T>(size, what, maker, least);
  return size;
}

template <typename T>
T* element_at(T* elements, std::size_t bytes, int index, const char* what, const char* maker) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  T* const element = reinterpret_cast<T*>(reinterpret_cast<Byte*>(elements) + static_cast<std::size_t>(index) * bytes);
  std::size_t size;
  std::memcpy(&size, element, sizeof size);
  if (size != bytes) {
    throw Error(QCN_BAD_ARGUMENT, std::string(what) + " " + std::to_string(index) +
                                      " has another size of structure than the first: " + maker);
  }
  return element;
}

constexpr const char *kImageMaker = "take it from qcn_image_default", *kAnswerMaker = "take it from qcn_answer_default";

}  // namespace

qcn_image image_at(const qcn_image* images, int index) {
  // The fields of the first version are needed; those after them default to zero.
  constexpr std::size_t kLeast = offsetof(qcn_image, reverse_channels);
  const std::size_t bytes = element_bytes(images, "a qcn_image", kImageMaker, kLeast);
  return read_structure(element_at(images, bytes, index, "image", kImageMaker), qcn_image_default(nullptr, 0, 0, 0),
                        "a qcn_image", kImageMaker, kLeast);
}

void check_answers(const qcn_answer* answers, int count) {
  // Directions came later: programs of an older header go without.
  constexpr std::size_t kLeast = offsetof(qcn_answer, azimuth);
  const std::size_t bytes = element_bytes(answers, "a qcn_answer", kAnswerMaker, kLeast);
  for (int i = 0; i < count; ++i) element_at(answers, bytes, i, "answer", kAnswerMaker);
}

void write_answers(const Model& model, const Decision* decisions, int count, qcn_answer* answers) {
  const std::size_t bytes = answers->size;
  for (int i = 0; i < count; ++i) {
    const Decision& decision = decisions[i];
    qcn_answer ours = qcn_answer_default();
    ours.size = bytes;
    ours.index = static_cast<int>(decision.index);
    ours.label = model.manifest.classes[decision.index].c_str();
    ours.probability = decision.probability;
    ours.known = decision.known ? 1 : 0;
    if (decision.direction) {
      ours.has_direction = 1;
      ours.azimuth = decision.direction->azimuth;
      ours.elevation = decision.direction->elevation;
      ours.spread = decision.direction->spread;
    }
    write_structure(ours, element_at(answers, bytes, i, "answer", kAnswerMaker));
  }
}

}  // namespace qcn

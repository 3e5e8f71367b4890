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

}  // namespace

// A session is one thread's at a time; two at once would get each other's answers.
class Session::Turn {
 public:
  explicit Turn(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      throw Error(QCN_BAD_ARGUMENT, "another thread is using this session: make one a thread, from the same model");
    }
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& busy_;
};

Session::Session(std::shared_ptr<const Model> model, void* stream)
    : model_(std::move(model)), runner_(model_->backend->runner(stream)) {}

// `input(first, count)` gives that many images from the first on, pre-processed.
template <typename Input>
void Session::run(int count, float* activation, float* pose, const Input& input) {
  const std::size_t images = static_cast<std::size_t>(count);
  const std::size_t classes = static_cast<std::size_t>(model_->manifest.structure.classes);
  const int most = model_->backend->max_batch();
  const std::size_t at_once = std::min(images, most > 0 ? static_cast<std::size_t>(most) : kAtOnce);
  float* const found = grown(activation_, images * classes);
  float* const found_pose = pose ? grown(pose_, images * classes * 3) : nullptr;
  for (std::size_t first = 0; first < images; first += at_once) {
    const std::size_t now = std::min(at_once, images - first);
    runner_->run(input(first, now), static_cast<int>(now), found + first * classes,
                 found_pose ? found_pose + first * classes * 3 : nullptr);
  }
  std::copy_n(found, images * classes, activation);
  if (pose) std::copy_n(found_pose, images * classes * 3, pose);
}

void Session::classify(const qcn_image* images, int count, float* activation, float* pose) {
  const Turn turn(busy_);
  const std::size_t pixels = model_->pixels();
  run(count, activation, pose, [&](std::size_t first, std::size_t now) {
    float* const input = grown(input_, now * pixels);
    for (std::size_t i = 0; i < now; ++i) {
      preprocess_for(*model_, image_at(images, static_cast<int>(first + i)), input + i * pixels);
    }
    return input;
  });
}

void Session::infer(const float* input, int count, float* activation, float* pose) {
  const Turn turn(busy_);
  const std::size_t pixels = model_->pixels();
  run(count, activation, pose, [&](std::size_t first, std::size_t) { return input + first * pixels; });
}

void preprocess_for(const Model& model, const qcn_image& image, float* input) {
  const Structure& structure = model.manifest.structure;
  if (image.on_device) {
    throw Error(QCN_BAD_ARGUMENT, "this image is in CUDA device memory, which " + model.backend_name + " cannot read");
  }
  if (image.channels != structure.channels) {
    throw Error(QCN_BAD_ARGUMENT, "the image has " + std::to_string(image.channels) +
                                      " channels, but the network was trained on " +
                                      std::to_string(structure.channels));
  }
  const Seen seen = check_image(model.manifest.preprocessing, image);
  if (seen.channels != structure.channels || seen.height != structure.height || seen.width != structure.width) {
    throw Error(QCN_BAD_ARGUMENT, "the network takes images of " + std::to_string(structure.width) + "×" +
                                      std::to_string(structure.height) +
                                      " and its bundle asks for no resize; this one is " + std::to_string(image.width) +
                                      "×" + std::to_string(image.height));
  }
  preprocess(model.manifest.preprocessing, image, input);
}

qcn_image image_at(const qcn_image* images, int index) {
  // The fields of the first version are needed; those after them default to zero.
  constexpr std::size_t kLeast = offsetof(qcn_image, reverse_channels);
  constexpr const char* kMaker = "take it from qcn_image_default";
  std::size_t first_size, size;
  std::memcpy(&first_size, images, sizeof first_size);
  check_size<qcn_image>(first_size, kLeast, "a qcn_image", kMaker);
  const char* const place = reinterpret_cast<const char*>(images) + static_cast<std::size_t>(index) * first_size;
  std::memcpy(&size, place, sizeof size);
  if (size != first_size) {
    throw Error(QCN_BAD_ARGUMENT,
                "image " + std::to_string(index) + " has another size of structure than the first: " + kMaker);
  }
  const qcn_image image = read_structure(reinterpret_cast<const qcn_image*>(place), qcn_image_default(nullptr, 0, 0, 0),
                                         kLeast, "a qcn_image", kMaker);
  const int pixel = number_of(image.pixel);
  if (pixel != QCN_UINT8 && pixel != QCN_FLOAT32) {
    throw Error(QCN_BAD_ARGUMENT, "image " + std::to_string(index) + ": " + std::to_string(pixel) +
                                      " is no qcn_pixel: QCN_UINT8 or QCN_FLOAT32 is wanted");
  }
  return image;
}

}  // namespace qcn

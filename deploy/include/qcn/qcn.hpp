// libqcn in C++17: RAII owners for the handles of qcn.h, and exceptions in place of its status codes.
//
//     #include <iostream>
//     #include <qcn/qcn.hpp>
//     #include <string>
//
//     // Prints the class of a picture of any size: packed bytes, with the channels of a pixel next to each other.
//     void classify(const std::string& bundle, const unsigned char* pixels, int width, int height, int channels) {
//       const qcn::Model model(bundle);  // for any number of threads
//       qcn::Session session(model);     // for one thread at a time; it may outlive the model
//       const qcn::Answer answer = session.classify(qcn_image_default(pixels, width, height, channels));
//       std::cout << model.class_name(answer.best()) << "\n";
//     }
//
// Whatever fails throws qcn::Error with the library's message, which says what was found and what was expected: here,
// for example, that one picture is not the two views that a stereo network takes. The rules for threads are those of
// qcn.h.
#ifndef QCN_QCN_HPP
#define QCN_QCN_HPP

#include <qcn/qcn.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace qcn {
// The library itself uses the namespace qcn, with other classes of these names. The inline namespace keeps the two
// apart in a program that links libqcn.a.
inline namespace api {

class Error : public std::runtime_error {
 public:
  Error(qcn_status code, const std::string& message) : std::runtime_error(message), status_(code) {}
  qcn_status status() const noexcept { return status_; }

 private:
  qcn_status status_;
};

// Throws Error unless the call of qcn.h went well.
inline void check(qcn_status status) {
  if (status != QCN_OK) throw Error(status, qcn_last_error());
}

using Log = std::function<void(qcn_log_level level, const std::string& message)>;
using LayerSeen = std::function<void(const qcn_layer& layer)>;

class Model {
 public:
  // Loads a bundle. `log` takes the place of params.log. The texts that params points to, such as public_key, need only
  // live until this returns.
  explicit Model(const std::string& bundle, qcn_model_params params = qcn_model_default_params(), Log log = nullptr) {
    auto loaded = std::make_shared<Loaded>();
    if (log) {
      loaded->log = std::move(log);
      params.log_user = loaded.get();
      params.log = [](qcn_log_level level, const char* message, void* user) {
        static_cast<Loaded*>(user)->log(level, message);
      };
    }
    check(qcn_model_load(bundle.c_str(), &params, &loaded->model));
    loaded->info.size = sizeof loaded->info;
    check(qcn_model_describe(loaded->model, &loaded->info));
    loaded_ = std::move(loaded);
  }

  // Name, classes, sizes, backend, precision. Its texts are valid as long as the model, or a session of it, lives.
  const qcn_model_info& info() const noexcept { return loaded_->info; }

  std::size_t classes() const noexcept { return static_cast<std::size_t>(info().classes); }
  std::size_t input_size() const noexcept {  // numbers that the network takes per image
    return static_cast<std::size_t>(info().channels) * static_cast<std::size_t>(info().height) *
           static_cast<std::size_t>(info().width);
  }
  std::size_t pose_size() const noexcept { return info().poses ? 3 * classes() : 0; }  // numbers per image

  std::string class_name(int index) const {
    const char* name = qcn_model_class(get(), index);
    if (!name) {
      throw Error(QCN_BAD_ARGUMENT,
                  "there is no class " + std::to_string(index) + ": classes are 0 to " + std::to_string(classes() - 1));
    }
    return name;
  }

  // The index-th of info().operations: what the network asks of it, and what runs.
  qcn_operation operation(int index) const {
    qcn_operation found{};
    found.size = sizeof found;
    check(qcn_model_operation(get(), index, &found));
    return found;
  }

  // The image as the network sees it: [channels, height, width] of info().
  std::vector<float> preprocess(const qcn_image& image) const {
    std::vector<float> input(input_size());
    check(qcn_preprocess(get(), &image, input.data()));
    return input;
  }

  const qcn_model* get() const noexcept { return loaded_->model; }

 private:
  friend class Session;
  // Sessions share it, since the library may log as long as one of them lives.
  struct Loaded {
    qcn_model* model = nullptr;
    qcn_model_info info{};
    Log log;

    Loaded() = default;
    Loaded(const Loaded&) = delete;
    Loaded& operator=(const Loaded&) = delete;
    ~Loaded() { qcn_model_free(model); }
  };
  std::shared_ptr<const Loaded> loaded_;
};

// The answer for one image.
struct Answer {
  std::vector<float> activation;  // one number per class, from 0 to 1
  std::vector<float> pose;        // three numbers per class; empty for a network without poses

  // The class with the largest activation; -1 if all are NaN.
  int best() const noexcept { return qcn_best(activation.data(), static_cast<int>(activation.size())); }
};

class Session {
 public:
  // `layer` takes the place of params.layer: it is called for every capsule layer of every call.
  explicit Session(const Model& model, qcn_session_params params = qcn_session_default_params(),
                   LayerSeen layer = nullptr)
      : model_(model) {
    if (layer) {
      layer_ = std::make_unique<LayerSeen>(std::move(layer));
      params.layer_user = layer_.get();
      params.layer = [](const qcn_layer* seen, void* user) { (*static_cast<LayerSeen*>(user))(*seen); };
    }
    qcn_session* session = nullptr;
    check(qcn_session_create(model.get(), &params, &session));
    session_.reset(session);
  }

  Answer classify(const qcn_image& image) {
    Answer answer{std::vector<float>(model_.classes()), std::vector<float>(model_.pose_size())};
    classify(&image, 1, answer.activation.data(), pointer(answer.pose));
    return answer;
  }

  // One answer per image, in order. The images may differ in size.
  std::vector<Answer> classify(const std::vector<qcn_image>& images) {
    if (images.empty()) return {};
    const std::size_t classes = model_.classes(), poses = model_.pose_size();
    std::vector<float> activation(images.size() * classes), pose(images.size() * poses);
    classify(images.data(), static_cast<int>(images.size()), activation.data(), pointer(pose));
    std::vector<Answer> answers(images.size());
    for (std::size_t i = 0; i < images.size(); ++i) {
      const float *a = activation.data() + i * classes, *p = pose.data() + i * poses;
      answers[i] = {{a, a + classes}, {p, p + poses}};
    }
    return answers;
  }

  // Into memory of your own, which allocates nothing from the second call on: activation is [count, classes], and pose
  // is [count, classes, 3] or nullptr.
  void classify(const qcn_image* images, int count, float* activation, float* pose = nullptr) {
    check(qcn_classify(session_.get(), images, count, activation, pose));
  }
  // The same without pre-processing: input is [count, channels, height, width], as Model::preprocess gives it.
  void infer(const float* input, int count, float* activation, float* pose = nullptr) {
    check(qcn_infer(session_.get(), input, count, activation, pose));
  }

  const Model& model() const noexcept { return model_; }
  qcn_session* get() const noexcept { return session_.get(); }

 private:
  struct Free {
    void operator()(qcn_session* session) const noexcept { qcn_session_free(session); }
  };
  static float* pointer(std::vector<float>& numbers) noexcept { return numbers.empty() ? nullptr : numbers.data(); }

  Model model_;  // a share of it
  std::unique_ptr<LayerSeen> layer_;
  std::unique_ptr<qcn_session, Free> session_;  // freed first
};

}  // namespace api
}  // namespace qcn

#endif

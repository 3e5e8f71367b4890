// libqcn in C++17: RAII owners for the handles of qcn.h, and exceptions in place of its status codes.
//
//     #include <iostream>
//     #include <qcn/qcn.hpp>
//     #include <string>
//
//     // Prints what is on a picture of any size: packed bytes, with the channels of a pixel next to each other.
//     void classify(const std::string& bundle, const unsigned char* pixels, int width, int height, int channels) {
//       const qcn::Model model(bundle);  // for any number of threads
//       qcn::Session session(model);     // for one thread at a time; it may outlive the model
//       const qcn::Answer answer = session.classify(qcn_image_default(pixels, width, height, channels));
//       std::cout << (answer.known ? "" : "unknown, most like ") << answer.label << ", " << 100 * answer.probability
//                 << " %\n";
//     }
//
// Whatever fails throws qcn::Error with the library's message, which says what was found and what was expected: here,
// for example, that one picture is not the two views that a stereo network takes. The rules for threads are those of
// qcn.h.
#ifndef QCN_QCN_HPP
#define QCN_QCN_HPP

#include <qcn/qcn.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
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
  explicit Model(const std::string& bundle, qcn_model_params params = qcn_model_default_params(), Log log = nullptr)
      : Model(params, std::move(log), [&](const qcn_model_params& given, qcn_model** model) {
          return qcn_model_load(bundle.c_str(), &given, model);
        }) {}

  // Loads a bundle whose files are in memory, which need only live until this returns.
  static Model from_memory(const std::vector<qcn_file>& files, qcn_model_params params = qcn_model_default_params(),
                           Log log = nullptr) {
    return Model(params, std::move(log), [&](const qcn_model_params& given, qcn_model** model) {
      const qcn_file none{};
      return qcn_model_load_memory(files.empty() ? &none : files.data(), files.size(), &given, model);
    });
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

  // How likely each class is, from the logits of one or more images, [images, classes].
  std::vector<double> probabilities(const std::vector<float>& logit) const {
    std::vector<double> probability(logit.size());
    check(qcn_probabilities(get(), logit.data(), images_in(logit), probability.data()));
    return probability;
  }

  // Answers from logits, [images, classes], and poses, [images, classes, 3], or none: then they have no direction. The
  // labels belong to the model.
  std::vector<qcn_answer> decide(const std::vector<float>& logit, const std::vector<float>& pose = {}) const {
    if (!pose.empty() && pose.size() != 3 * logit.size()) {
      throw Error(QCN_BAD_ARGUMENT, std::to_string(pose.size()) + " numbers are not three per logit: no poses");
    }
    std::vector<qcn_answer> answers(static_cast<std::size_t>(images_in(logit)), qcn_answer_default());
    check(qcn_decide(get(), logit.data(), pose.empty() ? nullptr : pose.data(), images_in(logit), answers.data()));
    return answers;
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

  template <typename Load>
  Model(qcn_model_params params, Log log, const Load& load) {
    auto loaded = std::make_shared<Loaded>();
    if (log) {
      loaded->log = std::move(log);
      params.log_user = loaded.get();
      params.log = [](qcn_log_level level, const char* message, void* user) {
        static_cast<Loaded*>(user)->log(level, message);
      };
    }
    check(load(params, &loaded->model));
    loaded->info.size = sizeof loaded->info;
    check(qcn_model_describe(loaded->model, &loaded->info));
    loaded_ = std::move(loaded);
  }

  int images_in(const std::vector<float>& logit) const {
    if (logit.empty() || logit.size() % classes() != 0) {
      throw Error(QCN_BAD_ARGUMENT, std::to_string(logit.size()) + " logits are not " + std::to_string(classes()) +
                                        " for each image, one per class");
    }
    return static_cast<int>(logit.size() / classes());
  }

  std::shared_ptr<const Loaded> loaded_;
};

// From where an object is seen, in degrees: see qcn_answer.
struct Direction {
  double azimuth, elevation, spread;
};

// The answer for one image.
struct Answer {
  int index = -1;            // of the class with the largest logit
  std::string label;         // its name
  double probability = 0;    // how likely it is right
  bool known = false;        // false: the image is like nothing that the network was trained on
  std::vector<float> logit;  // one number per class, of any size
  std::vector<float> pose;   // three numbers per class; empty for a network without poses
  std::optional<Direction> direction;

  // The classes, from the largest logit to the smallest; equal ones by index.
  std::vector<int> order() const {
    std::vector<int> classes(logit.size());
    std::iota(classes.begin(), classes.end(), 0);
    std::stable_sort(classes.begin(), classes.end(), [this](int a, int b) {
      return logit[static_cast<std::size_t>(a)] > logit[static_cast<std::size_t>(b)];
    });
    return classes;
  }
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

  Answer classify(const qcn_image& image) { return std::move(classify(std::vector<qcn_image>{image})[0]); }

  // One answer per image, in order. The images may differ in size.
  std::vector<Answer> classify(const std::vector<qcn_image>& images) {
    if (images.empty()) return {};
    const std::size_t classes = model_.classes(), poses = model_.pose_size();
    std::vector<qcn_answer> found(images.size(), qcn_answer_default());
    std::vector<float> logit(images.size() * classes), pose(images.size() * poses);
    classify(images.data(), static_cast<int>(images.size()), found.data(), logit.data(), pointer(pose));
    std::vector<Answer> answers(images.size());
    for (std::size_t i = 0; i < images.size(); ++i) {
      const float *z = logit.data() + i * classes, *p = pose.data() + i * poses;
      const qcn_answer& one = found[i];
      answers[i] = {one.index, one.label, one.probability, one.known != 0, {z, z + classes}, {p, p + poses}, {}};
      if (one.has_direction) answers[i].direction = Direction{one.azimuth, one.elevation, one.spread};
    }
    return answers;
  }

  // Into memory of your own, which allocates nothing from the second call on: answers are [count], of
  // qcn_answer_default; logit is [count, classes], and pose is [count, classes, 3]. What is nullptr is not given.
  void classify(const qcn_image* images, int count, qcn_answer* answers, float* logit = nullptr,
                float* pose = nullptr) {
    check(qcn_classify(session_.get(), images, count, answers, logit, pose));
  }
  // The same without pre-processing: input is [count, channels, height, width], as Model::preprocess gives it.
  void infer(const float* input, int count, float* logit, float* pose = nullptr) {
    check(qcn_infer(session_.get(), input, count, logit, pose));
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

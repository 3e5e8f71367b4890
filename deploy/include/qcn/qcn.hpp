// libqcn in C++17: owners for the handles of qcn.h, and exceptions for its status codes.
//
//     #include <qcn/qcn.hpp>
//
//     qcn::Model model("bundle");    // any number of threads
//     qcn::Session session(model);   // one thread at a time; may outlive the model
//     qcn::Answer answer = session.classify(qcn_image_default(rgb, width, height, 3));
//     std::cout << model.class_name(answer.best()) << "\n";
//
// Everything that fails throws qcn::Error. For answers into memory of your own, without an allocation, session.get()
// and model.get() go to the functions of qcn.h.
#ifndef QCN_QCN_HPP
#define QCN_QCN_HPP

#include <qcn/qcn.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace qcn {
// Inside the library, whose namespace this is too, the same names are other things: with libqcn.a they must not meet.
inline namespace api {

class Error : public std::runtime_error {
 public:
  Error(qcn_status code, const std::string& message) : std::runtime_error(message), status_(code) {}
  qcn_status status() const noexcept { return status_; }

 private:
  qcn_status status_;
};

inline void check(qcn_status status) {
  if (status != QCN_OK) throw Error(status, qcn_last_error());
}

class Model {
 public:
  explicit Model(const std::string& path, const qcn_model_params& params = qcn_model_default_params()) {
    qcn_model* model = nullptr;
    check(qcn_model_load(path.c_str(), &params, &model));
    model_.reset(model);
  }

  // Its texts hold as long as the model.
  qcn_model_info info() const {
    qcn_model_info info{};
    info.size = sizeof info;
    check(qcn_model_describe(model_.get(), &info));
    return info;
  }

  std::string class_name(int index) const {
    const char* name = qcn_model_class(model_.get(), index);
    if (!name) throw Error(QCN_BAD_ARGUMENT, "there is no class " + std::to_string(index));
    return name;
  }

  const qcn_model* get() const noexcept { return model_.get(); }

 private:
  struct Free {
    void operator()(qcn_model* model) const noexcept { qcn_model_free(model); }
  };
  std::unique_ptr<qcn_model, Free> model_;
};

// Of one image.
struct Answer {
  std::vector<float> activation;  // one a class, from 0 to 1
  std::vector<float> pose;        // three a class

  int best() const noexcept { return qcn_best(activation.data(), static_cast<int>(activation.size())); }
};

class Session {
 public:
  explicit Session(const Model& model, const qcn_session_params& params = qcn_session_default_params())
      : classes_(static_cast<std::size_t>(model.info().classes)) {
    qcn_session* session = nullptr;
    check(qcn_session_create(model.get(), &params, &session));
    session_.reset(session);
  }

  Answer classify(const qcn_image& image) {
    Answer answer{std::vector<float>(classes_), std::vector<float>(classes_ * 3)};
    check(qcn_classify(session_.get(), &image, 1, answer.activation.data(), answer.pose.data()));
    return answer;
  }

  std::vector<Answer> classify(const std::vector<qcn_image>& images) {
    if (images.empty()) return {};
    std::vector<float> activation(images.size() * classes_), pose(images.size() * classes_ * 3);
    check(qcn_classify(session_.get(), images.data(), static_cast<int>(images.size()), activation.data(), pose.data()));
    std::vector<Answer> answers(images.size());
    for (std::size_t i = 0; i < images.size(); ++i) {
      const float *a = activation.data() + i * classes_, *p = pose.data() + i * classes_ * 3;
      answers[i] = {{a, a + classes_}, {p, p + classes_ * 3}};
    }
    return answers;
  }

  qcn_session* get() const noexcept { return session_.get(); }

 private:
  struct Free {
    void operator()(qcn_session* session) const noexcept { qcn_session_free(session); }
  };
  std::size_t classes_;
  std::unique_ptr<qcn_session, Free> session_;
};

}  // namespace api
}  // namespace qcn

#endif

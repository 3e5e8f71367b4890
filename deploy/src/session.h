// A Runner with the memory that it works in, for one thread at a time.
#ifndef QCN_SRC_SESSION_H
#define QCN_SRC_SESSION_H

#include <atomic>
#include <memory>
#include <vector>

#include "answer.h"
#include "model.h"

namespace qcn {

// Of the caller; those that are null are not asked for.
struct Outputs {
  qcn_answer* answers = nullptr;  // [count]
  float* logit = nullptr;         // [count, classes]
  float* pose = nullptr;          // [count, classes, 3]
};

class Session {
 public:
  // Throws Error(QCN_BAD_ARGUMENT) when layers are to be shown by a backend that cannot.
  Session(std::shared_ptr<const Model> model, void* stream, const ShowLayer& show = nullptr);

  // As qcn_classify and qcn_infer. Outputs are written when all went well.
  void classify(const qcn_image* images, int count, const Outputs& outputs);
  void infer(const float* input, int count, const Outputs& outputs);

 private:
  class Lock;

  void check(const Outputs& outputs) const;  // throws Error(QCN_BAD_ARGUMENT)
  template <typename Run>
  void in_parts(int count, const Outputs& outputs, const Run& run);

  const std::shared_ptr<const Model> model_;  // outlives the runner
  std::unique_ptr<Runner> runner_;
  std::vector<qcn_image> images_;  // of one run, as this version has them
  std::vector<float> input_, logit_, pose_;
  std::vector<Decision> decisions_;
  std::atomic<bool> busy_{false};
};

// One image in host memory as the network of this model sees it. Throws Error(QCN_BAD_ARGUMENT).
void preprocess_for(const Model& model, const qcn_image& image, float* input);

// Writes decisions [count] of this model to a caller's array, whose elements are as large as the caller's header says;
// check_answers throws Error(QCN_BAD_ARGUMENT) where they are not.
void check_answers(const qcn_answer* answers, int count);
void write_answers(const Model& model, const Decision* decisions, int count, qcn_answer* answers);

// The image number `index` of a caller's array, whose elements are as large as the caller's header says.
qcn_image image_at(const qcn_image* images, int index);

}  // namespace qcn

#endif

// A Runner with the memory that it works in, for one thread at a time.
#ifndef QCN_SRC_SESSION_H
#define QCN_SRC_SESSION_H

#include <atomic>
#include <memory>
#include <vector>

#include "model.h"

namespace qcn {

class Session {
 public:
  // Throws Error(QCN_BAD_ARGUMENT) when layers are to be shown by a backend that cannot.
  Session(std::shared_ptr<const Model> model, void* stream, const ShowLayer& show = nullptr);

  // As qcn_classify and qcn_infer. Outputs are written when all went well.
  void classify(const qcn_image* images, int count, float* activation, float* pose);
  void infer(const float* input, int count, float* activation, float* pose);

 private:
  class Lock;

  void check_pose(const float* pose) const;  // throws Error(QCN_BAD_ARGUMENT) for a network without poses
  template <typename Run>
  void in_parts(int count, float* activation, float* pose, const Run& run);
  void run_on_device(const qcn_image* images, std::size_t first, int count, float* activation, float* pose);

  const std::shared_ptr<const Model> model_;  // outlives the runner
  std::unique_ptr<Runner> runner_;
  std::vector<float> input_, activation_, pose_;
  std::atomic<bool> busy_{false};
};

// One image in host memory as the network of this model sees it. Throws Error(QCN_BAD_ARGUMENT).
void preprocess_for(const Model& model, const qcn_image& image, float* input);

// The image number `index` of a caller's array, whose elements are as large as the caller's header says.
qcn_image image_at(const qcn_image* images, int index);

}  // namespace qcn

#endif

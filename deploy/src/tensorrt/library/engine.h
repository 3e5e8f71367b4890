// An engine that TensorRT has loaded. Any number of runners share it.
#ifndef QCN_SRC_TENSORRT_LIBRARY_ENGINE_H
#define QCN_SRC_TENSORRT_LIBRARY_ENGINE_H

#include <NvInferRuntime.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../library.h"

namespace qcn {

class Engine {
 public:
  // Throws Error(QCN_BAD_ENGINE) if TensorRT refuses the plan, or if it does not have this signature.
  Engine(const Signature& signature, const std::vector<std::byte>& plan, const Machine& machine,
         const TensorrtRequest& request);

  struct Output {
    std::string name;
    std::size_t floats;  // per image
  };

  // A context for batches of this size, without working memory. Any thread may call it, although it is not const.
  std::unique_ptr<nvinfer1::IExecutionContext> context(int batch);
  std::size_t working_memory() const;  // bytes per context

  const Signature signature;
  const Machine machine;
  const int device;
  const Log log;
  int min_batch = 1, max_batch = 1;
  std::size_t pixels = 0, classes = 0;  // per image
  std::vector<Output> outputs;          // all of them: TensorRT needs memory even for outputs that nobody reads

  static constexpr char kInput[] = "image", kLogit[] = "logit", kPose[] = "pose";

 private:
  void read_tensors();

  std::mutex mutex_;
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  nvinfer1::Dims image_{};
};

std::unique_ptr<Runner> engine_runner(std::shared_ptr<Engine> engine, void* stream);

}  // namespace qcn

#endif

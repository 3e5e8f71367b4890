// A plan that TensorRT has loaded: what any number of runners share.
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
  // Throws Error(QCN_BAD_ENGINE) for a plan that TensorRT refuses, or that is not of this structure.
  Engine(const Structure& structure, const std::vector<std::byte>& plan, const Machine& machine,
         const TensorrtRequest& request);

  struct Output {
    std::string name;
    std::size_t floats;  // of an image
  };

  // A context without working memory, for images in batches of this size; not const, but any thread may call it.
  std::unique_ptr<nvinfer1::IExecutionContext> context(int batch);
  std::size_t working_memory() const;  // in bytes, of a context

  const Structure structure;
  const Machine machine;
  const int device;
  const Log log;
  int min_batch = 1, max_batch = 1;
  std::size_t pixels = 0, classes = 0;  // of an image
  std::vector<Output> outputs;          // all of them: TensorRT wants memory also for those that nobody reads

  static constexpr char kInput[] = "image", kActivation[] = "activation", kPose[] = "pose";

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

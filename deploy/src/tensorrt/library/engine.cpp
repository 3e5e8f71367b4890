#include "engine.h"

#include <cuda_runtime_api.h>

#include "cuda.h"
#include "logger.h"

namespace qcn {
namespace {

std::string text(const nvinfer1::Dims& dims) {
  std::string all;
  for (int i = 0; i < dims.nbDims; ++i) all += (i ? ", " : "") + std::to_string(dims.d[i]);
  return "[" + all + "]";
}

Error not_ours(const std::string& what) {
  return Error(QCN_BAD_ENGINE, "the engine does not belong to the bundle's network: " + what);
}

}  // namespace

Engine::Engine(const Signature& network, const std::vector<std::byte>& plan, const Machine& where,
               const TensorrtRequest& request)
    : signature(network), machine(where), device(request.device), log(request.log) {
  const OnDevice on(device);
  const LogScope log_scope(log);
  runtime_.reset(nvinfer1::createInferRuntime(logger()));
  if (!runtime_) throw Error(QCN_DEVICE_ERROR, "TensorRT cannot be started" + log_scope.errors());
  engine_.reset(runtime_->deserializeCudaEngine(plan.data(), plan.size()));
  if (!engine_) {
    throw Error(QCN_BAD_ENGINE, "TensorRT " + machine.version + " on " + machine.gpu + " refuses the engine" +
                                    log_scope.errors() + "; build it here by `qcn export " + request.files->word +
                                    " --format trt`");
  }
  read_tensors();
}

void Engine::read_tensors() {
  using nvinfer1::OptProfileSelector;
  classes = signature.logit_floats();
  pixels = signature.image_floats();
  bool has_input = false, has_logit = false, has_pose = false;
  for (int i = 0; i < engine_->getNbIOTensors(); ++i) {
    const std::string name = engine_->getIOTensorName(i);
    const nvinfer1::Dims dims = engine_->getTensorShape(name.c_str());
    if (engine_->getTensorDataType(name.c_str()) != nvinfer1::DataType::kFLOAT) {
      throw not_ours("its '" + name + "' is not float32");
    }
    std::size_t floats = 1;
    for (int axis = 1; axis < dims.nbDims; ++axis) {
      if (dims.d[axis] < 1) throw not_ours("its '" + name + "' is " + text(dims) + ": only the batch may be open");
      floats *= static_cast<std::size_t>(dims.d[axis]);
    }
    if (engine_->getTensorIOMode(name.c_str()) != nvinfer1::TensorIOMode::kINPUT) {
      outputs.push_back({name, floats});
      has_logit |= name == kLogit && floats == classes;
      has_pose |= name == kPose && floats == signature.pose_floats();
      continue;
    }
    if (name != kInput || dims.nbDims != 4 || dims.d[1] != signature.channels || dims.d[2] != signature.height ||
        dims.d[3] != signature.width) {
      throw not_ours("it takes '" + name + "' of " + text(dims));
    }
    has_input = true;
    image_ = dims;
    nvinfer1::Dims least = dims, most = dims;
    if (dims.d[0] < 0) {
      least = engine_->getProfileShape(kInput, 0, OptProfileSelector::kMIN);
      most = engine_->getProfileShape(kInput, 0, OptProfileSelector::kMAX);
    }
    min_batch = static_cast<int>(least.d[0]), max_batch = static_cast<int>(most.d[0]);
  }
  if (!has_input || !has_logit || has_pose != signature.poses || min_batch < 1 || max_batch < min_batch) {
    throw not_ours("it must take " + signature.text());
  }
}

std::unique_ptr<nvinfer1::IExecutionContext> Engine::context(int batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
#if NV_TENSORRT_MAJOR >= 10
  std::unique_ptr<nvinfer1::IExecutionContext> made(
      engine_->createExecutionContext(nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED));
#else
  std::unique_ptr<nvinfer1::IExecutionContext> made(engine_->createExecutionContextWithoutDeviceMemory());
#endif
  if (!made) throw Error(QCN_DEVICE_ERROR, "TensorRT cannot create an execution context");
  nvinfer1::Dims shape = image_;
  shape.d[0] = batch;
  if (!made->setInputShape(kInput, shape)) throw Error(QCN_DEVICE_ERROR, "TensorRT refuses " + text(shape));
  return made;
}

std::size_t Engine::working_memory() const {
#if NV_TENSORRT_MAJOR > 10 || (NV_TENSORRT_MAJOR == 10 && NV_TENSORRT_MINOR >= 1)
  return static_cast<std::size_t>(engine_->getDeviceMemorySizeV2());
#else
  return engine_->getDeviceMemorySize();
#endif
}

}  // namespace qcn

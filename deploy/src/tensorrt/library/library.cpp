// What libqcn_tensorrt.so offers to libqcn.
#include "../library.h"

#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "cuda.h"
#include "engine.h"

namespace qcn {
namespace {

// 8601 is 8.6.1, and from TensorRT 10 on 100300 is 10.3.0.
std::string version() {
  const int number = getInferLibVersion(), major = number < 10000 ? 1000 : 10000;
  const int minor = number % major / 100;
  return std::to_string(number / major) + "." + std::to_string(minor) + "." + std::to_string(number % 100);
}

class EngineBackend final : public Backend {
 public:
  EngineBackend(std::shared_ptr<Engine> engine, std::string precision)
      : engine_(std::move(engine)), precision_(std::move(precision)) {}

  std::unique_ptr<Runner> runner(void* stream) const override { return engine_runner(engine_, stream); }
  std::string name() const override { return "TensorRT " + engine_->machine.version + " on " + engine_->machine.gpu; }
  std::string precision() const override { return precision_; }
  int max_batch() const override { return engine_->max_batch; }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::string precision_;
};

class Library final : public TensorrtLibrary {
 public:
  Machine machine(int device) const override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || device >= devices) {
      const std::string why =
          error == cudaSuccess ? "this machine has " + std::to_string(devices) : cudaGetErrorString(error);
      cudaGetLastError();  // clears it
      throw Error(QCN_NO_BACKEND, "there is no CUDA device " + std::to_string(device) + ": " + why);
    }
    cudaDeviceProp properties;
    cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    Machine here;
    here.version = version();
    here.gpu = properties.name;
    here.sm = 10 * properties.major + properties.minor;
    return here;
  }

  std::unique_ptr<Backend> load(const Signature& signature, const Artefact& artefact,
                                const std::vector<std::byte>& plan, const TensorrtRequest& request) const override {
    auto engine = std::make_shared<Engine>(signature, plan, machine(request.device), request);
    if (request.log) request.log(QCN_LOG_INFO, "TensorRT runs " + artefact.file);
    return std::make_unique<EngineBackend>(std::move(engine), artefact.precision);
  }
};

}  // namespace
}  // namespace qcn

extern "C" QCN_API const qcn::TensorrtLibrary* qcn_tensorrt_library(const char* version) {
  static const qcn::Library library;
  return version && std::strcmp(version, QCN_TENSORRT_LIBRARY_VERSION) == 0 ? &library : nullptr;
}

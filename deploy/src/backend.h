// What runs a network: one Backend per loaded model, which any thread may ask for Runners, one per session.
#ifndef QCN_SRC_BACKEND_H
#define QCN_SRC_BACKEND_H

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "manifest.h"
#include "qcn/qcn.h"

namespace qcn {

using Log = std::function<void(qcn_log_level, const std::string&)>;
using ShowLayer = std::function<void(const qcn_layer&)>;

namespace program {
struct Program;
}

class Runner {
 public:
  virtual ~Runner() = default;

  // input [count, channels, height, width] -> logit [count, classes] and, unless it is null, pose
  // [count, classes, 3], which is null for a network without poses. All in host memory.
  virtual void run(const float* input, int count, float* logit, float* pose) = 0;

  // Shows every capsule layer from now on, as it is computed; false: this runner cannot.
  virtual bool show_layers(ShowLayer) { return false; }

  // Whether it takes images as they are, in host memory or a GPU's. If not, they are pre-processed for `run`.
  virtual bool takes_images() const { return false; }

  // As run, of images that check_image (preprocess.h) has passed. Throws Error(QCN_BAD_ARGUMENT) for device memory that
  // it cannot read.
  virtual void run_images(const Preprocessing& /*spec*/, const qcn_image* /*images*/, int /*count*/, float* /*logit*/,
                          float* /*pose*/) {
    throw std::logic_error("this runner takes no images");
  }
};

// What a program asks of an operation, and what the backend runs.
struct OperationRun {
  std::string name, op, asked, ran, kernel;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::unique_ptr<Runner> runner(void* stream) const = 0;
  virtual std::string name() const = 0;                                // "native, neon, 2 threads"
  virtual std::string precision() const = 0;                           // "fp32"
  virtual int max_batch() const = 0;                                   // 0: any
  virtual std::vector<OperationRun> operations() const { return {}; }  // empty: it does not say
};

// A backend, and the file of the manifest that it runs.
struct LoadedBackend {
  std::unique_ptr<Backend> backend;
  const Artefact* artefact = nullptr;
};

// The library's own kernels on the CPU (native/). Throws Error(QCN_BAD_BUNDLE) for a network that is too large.
std::unique_ptr<Backend> native_backend(program::Program program);

}  // namespace qcn

#endif

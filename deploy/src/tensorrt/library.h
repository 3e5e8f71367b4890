// What libqcn and libqcn_tensorrt.so know of each other. Both are of one build: `version` is compared when it loads.
#ifndef QCN_SRC_TENSORRT_LIBRARY_H
#define QCN_SRC_TENSORRT_LIBRARY_H

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tensorrt_backend.h"

namespace qcn {

// Where an engine is to run.
struct Machine {
  std::string flavour = "tensorrt";
  std::string version;  // of TensorRT, "8.6.0"
  std::string gpu;      // its name
  int sm = 0;           // its compute capability, 90 for 9.0
};

class TensorrtLibrary {
 public:
  virtual ~TensorrtLibrary() = default;

  virtual Machine machine(int device) const = 0;  // throws Error(QCN_NO_BACKEND) where there is no GPU
  virtual std::unique_ptr<Backend> load(const Signature& signature, const Artefact& engine,
                                        const std::vector<std::byte>& plan, const TensorrtRequest& request) const = 0;
};

// Of the engines in the manifest, the one to take on this machine. Throws Error as tensorrt_backend says.
const Artefact& choose_engine(const Manifest& manifest, const Machine& machine, const TensorrtRequest& request);

// Exported by libqcn_tensorrt.so under this name; null for another version than its own.
using TensorrtEntry = const TensorrtLibrary* (*)(const char* version);
constexpr char kTensorrtEntry[] = "qcn_tensorrt_library";

}  // namespace qcn

#endif

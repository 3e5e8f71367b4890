// Engines of a bundle, run by TensorRT. The backend is a library of its own, libqcn_tensorrt.so, which is loaded when a
// model asks for it: one libqcn runs with and without TensorRT and CUDA.
#ifndef QCN_SRC_TENSORRT_TENSORRT_BACKEND_H
#define QCN_SRC_TENSORRT_TENSORRT_BACKEND_H

#include <memory>
#include <string>

#include "backend.h"
#include "files.h"

namespace qcn {

// What is asked of TensorRT. Everything is copied.
struct TensorrtRequest {
  std::shared_ptr<const Files> files;  // of the bundle
  std::string precision;               // "fp32", "fp16", …; empty: the fastest there is
  int device = 0;                      // CUDA's number of it
  Log log;                             // may be empty
};

// Always there, in load.cpp; libqcn needs nothing of TensorRT to link. Chooses an engine of the manifest for this GPU,
// TensorRT version and precision, checks its hash, and loads it. Throws Error:
//   QCN_NO_BACKEND    no libqcn_tensorrt.so beside libqcn, or it does not load; no GPU; the bundle has no engine
//   QCN_BAD_ENGINE    engines only for another GPU, TensorRT version or precision, with the command that makes one
//   QCN_BAD_BUNDLE    an engine that was altered        QCN_NO_FILE  one that is gone
//   QCN_DEVICE_ERROR  what CUDA or TensorRT complained of
// For QCN_BACKEND_AUTO, the first two are the cases in which native is taken instead.
LoadedBackend tensorrt_backend(const Manifest& manifest, const TensorrtRequest& request);

}  // namespace qcn

#endif

// RAII owners for CUDA's memory, streams and graphs.
#ifndef QCN_SRC_TENSORRT_LIBRARY_CUDA_H
#define QCN_SRC_TENSORRT_LIBRARY_CUDA_H

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "../../error.h"

namespace qcn {

inline void cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const qcn_status status = error == cudaErrorMemoryAllocation ? QCN_NO_MEMORY : QCN_DEVICE_ERROR;
  throw Error(status,
              std::string(what) + " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

// Makes `device` the current CUDA device of this thread, and restores the caller's device at the end of the scope.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) cuda(cudaSetDevice(device), "cudaSetDevice");
    changed_ = device != before_;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
struct FreePinned {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
struct FreeStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct FreeGraph {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
struct FreeGraphExec {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};

using DeviceMemory = std::unique_ptr<void, FreeDevice>;
using PinnedMemory = std::unique_ptr<void, FreePinned>;
using Stream = std::unique_ptr<CUstream_st, FreeStream>;
using Graph = std::unique_ptr<CUgraph_st, FreeGraph>;
using GraphExec = std::unique_ptr<CUgraphExec_st, FreeGraphExec>;

inline DeviceMemory device_memory(std::size_t bytes) {
  void* memory = nullptr;
  cuda(cudaMalloc(&memory, bytes ? bytes : 1), "cudaMalloc");
  return DeviceMemory(memory);
}

inline PinnedMemory pinned_memory(std::size_t bytes) {
  void* memory = nullptr;
  cuda(cudaMallocHost(&memory, bytes ? bytes : 1), "cudaMallocHost");
  return PinnedMemory(memory);
}

inline Stream new_stream() {
  cudaStream_t stream = nullptr;
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return Stream(stream);
}

}  // namespace qcn

#endif

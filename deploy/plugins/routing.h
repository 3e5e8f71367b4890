// The node EMRouting (export/backends/onnx/fused.py) as a TensorRT plugin, without the interface that TensorRT asks for. That is
// in plugin_v2.cpp for TensorRT 8.6, and in plugin_v3.cpp from TensorRT 10 on.
#ifndef QCN_PLUGINS_ROUTING_H
#define QCN_PLUGINS_ROUTING_H

#include <NvInferRuntime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "em_routing_cuda.h"

namespace qcn::plugin {

constexpr char kName[] = "EMRouting", kVersion[] = "1", kNamespace[] = "";
constexpr int kInputs = 5, kOutputs = 2;  // pose, activation, rotation, beta_u, beta_a -> pose, activation or logit

// The node's attributes. All are 4-byte numbers, so that they can be written to a plan as they are.
struct Attributes {
  std::int32_t window[2] = {0, 0};
  std::int32_t stride = 1, iterations = 2;
  std::int32_t unit = 0;   // mode "unit", else "logistic"
  std::int32_t half = 0;   // votes may be made in half precision
  std::int32_t logit = 0;  // the parents' logits come out in place of their activations
};

// A node's attributes as PluginFields, for TensorRT's creators: the ONNX parser looks for them, and a plan stores them.
class Fields {
 public:
  explicit Fields(const Attributes& attributes);  // keeps pointers to them
  const nvinfer1::PluginFieldCollection* get() const { return &collection_; }

  // The inverse. False for attributes that the kernels do not support; the reason goes to TensorRT's log.
  static bool read(const nvinfer1::PluginFieldCollection* fields, Attributes* attributes);

 private:
  std::array<nvinfer1::PluginField, 6> fields_;
  nvinfer1::PluginFieldCollection collection_;
};

class Routing {
 public:
  explicit Routing(const Attributes& attributes) : attributes_(attributes) {}
  Routing(const Routing& other) : attributes_(other.attributes_) {}  // the copy prepares its own rotors
  Routing& operator=(const Routing&) = delete;
  ~Routing() { release(); }

  const Attributes& attributes() const { return attributes_; }

  // The sizes of output `index`, from the sizes of the inputs.
  nvinfer1::DimsExprs output(int index, const nvinfer1::DimsExprs* inputs, nvinfer1::IExprBuilder& build) const;

  // Poses and activations are float32, bfloat16 where TensorRT has it, or, with the attribute half, what TensorRT 8.6
  // makes float16 by itself; both of the same type. All other tensors are float32.
  bool supports(int position, const nvinfer1::PluginTensorDesc& tensor, const nvinfer1::PluginTensorDesc& pose) const;

  // Whether the kernels support these sizes; if not, the reason goes to TensorRT's log.
  bool fits(const nvinfer1::Dims* inputs) const;

  std::size_t workspace(const nvinfer1::Dims* inputs) const;

  // Returns a cudaError_t.
  int enqueue(const nvinfer1::PluginTensorDesc* descriptions, const void* const* inputs, void* const* outputs,
              void* workspace, cudaStream_t stream);

  void release();  // frees the device memory

 private:
  qcn_routing_shape shape(const nvinfer1::Dims* inputs) const;
  const float* rotors(const qcn_routing_shape& shape, const void* rotation, void* workspace, cudaStream_t stream,
                      int* error);
  qcn_cuda_arithmetic arithmetic() const { return attributes_.half ? QCN_CUDA_HALF : QCN_CUDA_SINGLE; }

  const Attributes attributes_;
  // The rotations in the layout of the kernel, made in the first call, and the tensor they were made from.
  float* rotors_ = nullptr;
  const void* rotation_ = nullptr;
};

void log_error(const char* what);  // to TensorRT's log

}  // namespace qcn::plugin

#endif

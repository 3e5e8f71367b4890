// What the node EMRouting (export/fused.py) means to a plugin, apart from the interface that TensorRT wants of one,
// which is plugin_v2.cpp for TensorRT 8.6 and plugin_v3.cpp from 10 on.
#ifndef QCN_PLUGINS_ROUTING_H
#define QCN_PLUGINS_ROUTING_H

#include <NvInferRuntime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "em_routing.h"

namespace qcn::plugin {

constexpr char kName[] = "EMRouting", kVersion[] = "1", kNamespace[] = "";
constexpr int kInputs = 5, kOutputs = 2;  // pose, activation, rotation, beta_u, beta_a -> pose, activation

// The node's attributes. Of 4-byte numbers only, so that they can be written to a plan as they are.
struct Attributes {
  std::int32_t window[2] = {0, 0};
  std::int32_t stride = 1, iterations = 2;
  std::int32_t unit = 0;  // mode "unit", else "logistic"
  float variance_floor = 1e-4f, mass_floor = 1e-6f;
};

// A node's attributes as PluginFields, for TensorRT's creators: what the ONNX parser is told to look for, and what a
// plan keeps.
class Fields {
 public:
  explicit Fields(const Attributes& attributes);  // which must stay
  const nvinfer1::PluginFieldCollection* get() const { return &collection_; }

  // The inverse. False, with the reason given to TensorRT's log, for attributes that the kernels do not know.
  static bool read(const nvinfer1::PluginFieldCollection* fields, Attributes* attributes);

 private:
  std::array<nvinfer1::PluginField, 6> fields_;
  nvinfer1::PluginFieldCollection collection_;
};

class Routing {
 public:
  explicit Routing(const Attributes& attributes) : attributes_(attributes) {}
  Routing(const Routing& other) : attributes_(other.attributes_) {}  // the copy prepares rotors of its own
  Routing& operator=(const Routing&) = delete;
  ~Routing() { release(); }

  const Attributes& attributes() const { return attributes_; }

  // Sizes of output `index` from those of the inputs.
  nvinfer1::DimsExprs output(int index, const nvinfer1::DimsExprs* inputs, nvinfer1::IExprBuilder& build) const;

  // Poses and activations in float32, float16 or, where TensorRT has it, bfloat16, both in the same; the rest float32.
  static bool supports(int position, const nvinfer1::PluginTensorDesc& tensor, const nvinfer1::PluginTensorDesc& pose);

  // Whether the kernels can do these sizes; if not, why goes to TensorRT's log.
  bool fits(const nvinfer1::Dims* inputs) const;

  std::size_t workspace(const nvinfer1::Dims* inputs) const;

  // A cudaError_t.
  int enqueue(const nvinfer1::PluginTensorDesc* descriptions, const void* const* inputs, void* const* outputs,
              void* workspace, cudaStream_t stream);

  void release();  // the device memory

 private:
  qcn_routing_shape shape(const nvinfer1::Dims* inputs) const;
  const float* rotors(const qcn_routing_shape& shape, const void* rotation, void* workspace, cudaStream_t stream,
                      int* error);

  const Attributes attributes_;
  // The rotations as the kernel reads them, made in the first call, and what they were made from.
  float* rotors_ = nullptr;
  const void* rotation_ = nullptr;
};

void complain(const char* what);  // to TensorRT's log

}  // namespace qcn::plugin

#endif

#include "routing.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

namespace qcn::plugin {

using nvinfer1::DataType;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

namespace {

constexpr const char* kModes[] = {"logistic", "unit"};

int size(const nvinfer1::Dims& dims, int axis) { return static_cast<int>(dims.d[axis]); }

}  // namespace

void log_error(const char* what) {
  if (nvinfer1::ILogger* log = ::getLogger()) {
    log->log(nvinfer1::ILogger::Severity::kERROR, (std::string("EMRouting: ") + what).c_str());
  }
}

Fields::Fields(const Attributes& a)
    : fields_{PluginField("window", a.window, PluginFieldType::kINT32, 2),
              PluginField("stride", &a.stride, PluginFieldType::kINT32, 1),
              PluginField("iterations", &a.iterations, PluginFieldType::kINT32, 1),
              PluginField("mode", kModes[a.unit], PluginFieldType::kCHAR,
                          static_cast<std::int32_t>(std::strlen(kModes[a.unit]))),
              PluginField("half", &a.half, PluginFieldType::kINT32, 1),
              PluginField("logit", &a.logit, PluginFieldType::kINT32, 1)},
      collection_{static_cast<std::int32_t>(fields_.size()), fields_.data()} {}

bool Fields::read(const nvinfer1::PluginFieldCollection* given, Attributes* attributes) {
  Attributes a;
  for (int i = 0; given && i < given->nbFields; ++i) {
    const PluginField& field = given->fields[i];
    const auto is = [&](const char* name, PluginFieldType type, int least) {
      return std::strcmp(field.name, name) == 0 && field.type == type && field.length >= least && field.data;
    };
    const auto* whole = static_cast<const std::int32_t*>(field.data);
    if (is("window", PluginFieldType::kINT32, 2)) a.window[0] = whole[0], a.window[1] = whole[1];
    if (is("stride", PluginFieldType::kINT32, 1)) a.stride = whole[0];
    if (is("iterations", PluginFieldType::kINT32, 1)) a.iterations = whole[0];
    if (is("half", PluginFieldType::kINT32, 1)) a.half = whole[0];
    if (is("logit", PluginFieldType::kINT32, 1)) a.logit = whole[0];
    if (is("mode", PluginFieldType::kCHAR, 1)) {
      // Some parsers count the terminating zero.
      const auto* text = static_cast<const char*>(field.data);
      const std::string mode(text, ::strnlen(text, static_cast<std::size_t>(field.length)));
      if (mode != kModes[0] && mode != kModes[1]) {
        log_error(("its mode is '" + mode + "', but must be 'logistic' or 'unit'").c_str());
        return false;
      }
      a.unit = mode == kModes[1];
    }
  }
  if (a.window[0] < 1 || a.window[1] < 1 || a.stride < 1 || a.iterations < 1 ||
      a.iterations > QCN_ROUTING_MAX_ITERATIONS || (a.logit != 0 && a.logit != 1)) {
    log_error("it needs a window and a stride of 1 or more, 1 to 5 iterations, and a logit of 0 or 1");
    return false;
  }
  *attributes = a;
  return true;
}

nvinfer1::DimsExprs Routing::output(int index, const nvinfer1::DimsExprs* inputs, nvinfer1::IExprBuilder& build) const {
  using nvinfer1::DimensionOperation;
  const nvinfer1::IDimensionExpr* const* pose = inputs[0].d;
  const auto places = [&](const nvinfer1::IDimensionExpr& along, std::int32_t window) {
    const auto* steps = build.operation(DimensionOperation::kFLOOR_DIV,
                                        *build.operation(DimensionOperation::kSUB, along, *build.constant(window)),
                                        *build.constant(attributes_.stride));
    return build.operation(DimensionOperation::kSUM, *steps, *build.constant(1));
  };
  const auto* rows = places(*pose[3], attributes_.window[0]);
  const auto* columns = places(*pose[4], attributes_.window[1]);
  const nvinfer1::IDimensionExpr *batch = pose[0], *parents = inputs[2].d[3];
  return index == 0 ? nvinfer1::DimsExprs{5, {batch, parents, build.constant(3), rows, columns}}
                    : nvinfer1::DimsExprs{4, {batch, parents, rows, columns}};
}

bool Routing::supports(int position, const nvinfer1::PluginTensorDesc& tensor,
                       const nvinfer1::PluginTensorDesc& pose) const {
  if (tensor.format != nvinfer1::TensorFormat::kLINEAR) return false;
  if (position == 1) return tensor.type == pose.type;
  if (position > 1) return tensor.type == DataType::kFLOAT;
#if NV_TENSORRT_MAJOR >= 10
  if (tensor.type == DataType::kBF16) return true;
#endif
  return tensor.type == DataType::kFLOAT || (attributes_.half && tensor.type == DataType::kHALF);
}

qcn_routing_shape Routing::shape(const nvinfer1::Dims* inputs) const {
  const nvinfer1::Dims &pose = inputs[0], &rotation = inputs[2];
  const Attributes& a = attributes_;
  const bool shared = size(rotation, 0) == 1 && size(rotation, 1) == 1 && a.window[0] * a.window[1] > 1;
  return {size(pose, 0), size(pose, 1),     size(pose, 3), size(pose, 4), a.window[0], a.window[1],
          a.stride,      size(rotation, 3), a.iterations,  shared,        a.unit,      a.logit};
}

bool Routing::fits(const nvinfer1::Dims* inputs) const {
  constexpr int kRanks[kInputs] = {5, 4, 6, 1, 1};
  for (int i = 0; i < kInputs; ++i) {
    if (inputs[i].nbDims != kRanks[i]) {
      log_error("pose must have 5 axes, activation 4, rotation 6, beta_u and beta_a 1");
      return false;
    }
  }
  const nvinfer1::Dims &pose = inputs[0], &activation = inputs[1], &rotation = inputs[2];
  const qcn_routing_shape s = shape(inputs);
  const bool whole = s.shared || (size(rotation, 0) == s.window_height && size(rotation, 1) == s.window_width);
  const bool agree = size(pose, 2) == 3 && size(activation, 0) == s.batch && size(activation, 1) == s.channels &&
                     size(activation, 2) == s.height && size(activation, 3) == s.width &&
                     size(rotation, 2) == s.channels && size(rotation, 4) == 3 && size(rotation, 5) == 3 &&
                     size(inputs[3], 0) == s.parents && size(inputs[4], 0) == s.parents;
  if (!whole || !agree || qcn_cuda_routing_rotors_size(&s) == 0) {
    log_error("the sizes of its inputs do not fit each other or the window, or there are more than 64 parents");
    return false;
  }
  return true;
}

std::size_t Routing::workspace(const nvinfer1::Dims* inputs) const {
  const qcn_routing_shape s = shape(inputs);
  return qcn_cuda_routing_rotors_size(&s);
}

// Rotations are constants, so they are converted to the kernel's layout once, into memory that the plugin owns. While a
// CUDA graph is captured nothing can be allocated: then they are converted into the workspace, in every launch.
// TensorRT makes its first run outside of the graph.
const float* Routing::rotors(const qcn_routing_shape& s, const void* rotation, void* workspace, cudaStream_t stream,
                             int* error) {
  if (rotors_ && rotation_ == rotation) return rotors_;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  *error = cudaStreamIsCapturing(stream, &capturing);
  if (*error != cudaSuccess) return nullptr;
  float* to = static_cast<float*>(workspace);
  if (capturing == cudaStreamCaptureStatusNone) {
    // Relaxed, so that allocating does not break a graph that another thread captures.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    void* memory = rotors_;
    if (rotors_ || cudaMalloc(&memory, qcn_cuda_routing_rotors_size(&s)) == cudaSuccess) {
      to = rotors_ = static_cast<float*>(memory), rotation_ = rotation;
    } else {
      cudaGetLastError();  // no memory: use the workspace
    }
    cudaThreadExchangeStreamCaptureMode(&mode);
  }
  *error = qcn_cuda_routing_prepare(&s, arithmetic(), static_cast<const float*>(rotation), to, stream);
  if (*error != cudaSuccess) rotation_ = nullptr;
  return to;
}

int Routing::enqueue(const nvinfer1::PluginTensorDesc* descriptions, const void* const* inputs, void* const* outputs,
                     void* workspace, cudaStream_t stream) {
  nvinfer1::Dims dims[kInputs];
  for (int i = 0; i < kInputs; ++i) dims[i] = descriptions[i].dims;
  const qcn_routing_shape s = shape(dims);
  const DataType given = descriptions[0].type;
  int error = cudaSuccess;
  const float* prepared = rotors(s, inputs[2], workspace, stream, &error);
  if (error != cudaSuccess) return error;
  const qcn_cuda_type type = given == DataType::kFLOAT  ? QCN_CUDA_FLOAT32
                             : given == DataType::kHALF ? QCN_CUDA_FLOAT16
                                                        : QCN_CUDA_BFLOAT16;
  return qcn_cuda_routing_forward(&s, arithmetic(), type, inputs[0], inputs[1], prepared,
                                  static_cast<const float*>(inputs[3]), static_cast<const float*>(inputs[4]),
                                  static_cast<float*>(outputs[0]), static_cast<float*>(outputs[1]), stream);
}

void Routing::release() {
  if (rotors_) cudaFree(rotors_);
  rotors_ = nullptr, rotation_ = nullptr;
}

}  // namespace qcn::plugin

// For `qcn export`, which records both, and refuses a plugin that was built for another TensorRT.
#define QCN_TEXT_(x) #x
#define QCN_TEXT(x) QCN_TEXT_(x)
extern "C" QCN_API const char* qcn_plugin_version() { return QCN_PLUGIN_VERSION; }
extern "C" QCN_API const char* qcn_plugin_tensorrt() {
  return QCN_TEXT(NV_TENSORRT_MAJOR) "." QCN_TEXT(NV_TENSORRT_MINOR) "." QCN_TEXT(NV_TENSORRT_PATCH);
}

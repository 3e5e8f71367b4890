// libqcn_onnxruntime.so: the node EMRouting (export/backends/onnx/fused.py) as a custom operator of ONNX Runtime on the CPU, with the
// kernels of libqcn. It is registered with the options of a session, from C or Python: see README.md. It uses only ONNX
// Runtime's C interface and links to nothing, so that one file works with every ONNX Runtime from 1.16 on.
#include <onnxruntime_c_api.h>

#include <array>
#include <cstring>
#include <new>
#include <string>

#include "em_routing.h"

namespace qcn {
namespace {

constexpr std::uint32_t kApiVersion = 16;  // of ONNX Runtime's interface: 1.16 and all later versions have it
constexpr int kInputs = 5, kOutputs = 2;   // pose, activation, rotation, beta_u, beta_a -> pose, activation or logit

// Returns from the function with the status of a failed call.
#define QCN_TRY(call) \
  if (OrtStatus* status = (call)) return status

// One node of a model. Any number of threads may run it at once.
class Routing {
 public:
  explicit Routing(const OrtApi& api) : api_(api) {}

  OrtStatus* read_attributes(const OrtKernelInfo* info) {
    std::int64_t window[2] = {0, 0}, stride = 0, iterations = 0, logit = 0;
    std::size_t numbers = 2, letters = 16;
    char mode[16] = "";
    QCN_TRY(api_.KernelInfoGetAttributeArray_int64(info, "window", window, &numbers));
    QCN_TRY(api_.KernelInfoGetAttribute_int64(info, "stride", &stride));
    QCN_TRY(api_.KernelInfoGetAttribute_int64(info, "iterations", &iterations));
    QCN_TRY(api_.KernelInfoGetAttribute_string(info, "mode", mode, &letters));
    if (OrtStatus* missing = api_.KernelInfoGetAttribute_int64(info, "logit", &logit)) {
      api_.ReleaseStatus(missing);  // it is optional
      logit = 0;
    }
    const bool unit = std::strcmp(mode, "unit") == 0;
    if (!unit && std::strcmp(mode, "logistic") != 0) return refuse("its mode is neither 'logistic' nor 'unit'");
    if (logit != 0 && logit != 1) return refuse("its logit is neither 0 nor 1");
    for (const std::int64_t number : {window[0], window[1], stride, iterations}) {
      if (number < 1 || number > 1 << 20) return refuse("its window, stride or iterations are out of range");
    }
    shape_.window_height = static_cast<int>(window[0]), shape_.window_width = static_cast<int>(window[1]);
    shape_.stride = static_cast<int>(stride), shape_.iterations = static_cast<int>(iterations), shape_.unit = unit;
    shape_.logit = static_cast<int>(logit);
    return nullptr;
  }

  OrtStatus* run(OrtKernelContext* context) const {
    constexpr std::size_t kRanks[kInputs] = {5, 4, 6, 1, 1};
    std::array<Tensor, kInputs> inputs;
    for (std::size_t i = 0; i < kInputs; ++i) {
      QCN_TRY(read(context, i, &inputs[i]));
      if (inputs[i].rank != kRanks[i]) {
        return refuse("pose must have 5 axes, activation 4, rotation 6, beta_u and beta_a 1");
      }
    }
    const auto& [pose, activation, rotation, beta_u, beta_a] = inputs;
    qcn_routing_shape s = shape_;
    s.batch = pose.dims[0], s.channels = pose.dims[1], s.height = pose.dims[3], s.width = pose.dims[4];
    s.parents = rotation.dims[3];
    s.shared = rotation.dims[0] == 1 && rotation.dims[1] == 1 && s.window_height * s.window_width > 1;
    const bool whole = s.shared || (rotation.dims[0] == s.window_height && rotation.dims[1] == s.window_width);
    const bool agree = pose.dims[2] == 3 && activation.dims[0] == s.batch && activation.dims[1] == s.channels &&
                       activation.dims[2] == s.height && activation.dims[3] == s.width &&
                       rotation.dims[2] == s.channels && rotation.dims[4] == 3 && rotation.dims[5] == 3 &&
                       beta_u.dims[0] == s.parents && beta_a.dims[0] == s.parents;
    if (!whole || !agree) return refuse("the sizes of its inputs do not fit each other or the window");
    if (s.height < s.window_height || s.width < s.window_width)
      return refuse(qcn_routing_status(QCN_ROUTING_BAD_WINDOW));

    const std::int64_t rows = (s.height - s.window_height) / s.stride + 1;
    const std::int64_t columns = (s.width - s.window_width) / s.stride + 1;
    const std::int64_t pose_dims[] = {s.batch, s.parents, 3, rows, columns};
    const std::int64_t activation_dims[] = {s.batch, s.parents, rows, columns};
    float *out_pose, *out_activation;
    QCN_TRY(output(context, 0, pose_dims, 5, &out_pose));
    QCN_TRY(output(context, 1, activation_dims, 4, &out_activation));
    const int status = qcn_routing_forward(&s, pose.floats(), activation.floats(), rotation.floats(), beta_u.floats(),
                                           beta_a.floats(), out_pose, out_activation, nullptr);
    return status == QCN_ROUTING_OK ? nullptr : refuse(qcn_routing_status(status));
  }

  OrtStatus* refuse(const char* why) const {
    return api_.CreateStatus(ORT_INVALID_ARGUMENT, (std::string("EMRouting: ") + why).c_str());
  }

 private:
  struct Tensor {
    const void* data = nullptr;
    std::size_t rank = 0;
    std::array<int, 6> dims{};

    const float* floats() const { return static_cast<const float*>(data); }
  };

  OrtStatus* read(OrtKernelContext* context, std::size_t index, Tensor* tensor) const {
    const OrtValue* value;
    QCN_TRY(api_.KernelContext_GetInput(context, index, &value));
    void* data;
    QCN_TRY(api_.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    OrtTensorTypeAndShapeInfo* info;
    QCN_TRY(api_.GetTensorTypeAndShape(value, &info));
    std::int64_t dims[6] = {};
    OrtStatus* status = api_.GetDimensionsCount(info, &tensor->rank);
    if (!status && tensor->rank <= 6) status = api_.GetDimensions(info, dims, tensor->rank);
    api_.ReleaseTensorTypeAndShapeInfo(info);
    tensor->data = data;
    for (std::size_t i = 0; i < 6 && i < tensor->rank; ++i) {
      if (dims[i] > 1 << 30) return refuse(qcn_routing_status(QCN_ROUTING_TOO_LARGE));
      tensor->dims[i] = static_cast<int>(dims[i]);
    }
    return status;
  }

  OrtStatus* output(OrtKernelContext* context, std::size_t index, const std::int64_t* dims, std::size_t rank,
                    float** data) const {
    OrtValue* value;
    QCN_TRY(api_.KernelContext_GetOutput(context, index, dims, rank, &value));
    return api_.GetTensorMutableData(value, reinterpret_cast<void**>(data));
  }

  const OrtApi& api_;
  qcn_routing_shape shape_{};  // the fields that the attributes set
};

#undef QCN_TRY

// The operator for ONNX Runtime. It computes in float32, with the attribute half too.
struct Operator : OrtCustomOp {
  Operator() : OrtCustomOp{} {
    version = kApiVersion;
    GetName = [](const OrtCustomOp*) { return "EMRouting"; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // the CPU's
    GetInputTypeCount = [](const OrtCustomOp*) { return std::size_t{kInputs}; };
    GetOutputTypeCount = [](const OrtCustomOp*) { return std::size_t{kOutputs}; };
    GetInputType = [](const OrtCustomOp*, std::size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
    GetOutputType = [](const OrtCustomOp*, std::size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
    GetInputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
    GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
    GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemTypeDefault; };
    const auto none = [](const OrtCustomOp*) { return 0; };
    GetVariadicInputMinArity = GetVariadicInputHomogeneity = none;
    GetVariadicOutputMinArity = GetVariadicOutputHomogeneity = none;
    CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
      auto* routing = new (std::nothrow) Routing(*api);
      *kernel = routing;
      OrtStatus* status =
          routing ? routing->read_attributes(info) : api->CreateStatus(ORT_FAIL, "EMRouting: there is no memory");
      if (status) {
        delete routing;
        *kernel = nullptr;
      }
      return status;
    };
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatus* {
      const auto* routing = static_cast<const Routing*>(kernel);
      try {
        return routing->run(context);
      } catch (const std::bad_alloc&) {
        return routing->refuse("there is no memory");
      }
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Routing*>(kernel); };
  }
};

}  // namespace
}  // namespace qcn

// The domain with the operator; null if there is no memory for it. ONNX Runtime keeps pointers to it while sessions
// live.
static OrtCustomOpDomain* domain_of_operators(const OrtApi& api) {
  static const qcn::Operator routing;
  OrtCustomOpDomain* domain = nullptr;
  OrtStatus* status = api.CreateCustomOpDomain("qcn", &domain);
  if (!status) status = api.CustomOpDomain_Add(domain, &routing);
  if (!status) return domain;
  api.ReleaseStatus(status);
  return nullptr;
}

// ONNX Runtime looks for this name.
extern "C" QCN_API OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(qcn::kApiVersion);
  if (!api) return base->GetApi(1)->CreateStatus(ORT_FAIL, "libqcn_onnxruntime needs ONNX Runtime 1.16 or newer");
  static OrtCustomOpDomain* const domain = domain_of_operators(*api);
  if (!domain) return api->CreateStatus(ORT_FAIL, "EMRouting: there is no memory");
  return api->AddCustomOpDomain(options, domain);
}

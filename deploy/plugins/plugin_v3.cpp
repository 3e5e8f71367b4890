// The plugin from TensorRT 10 (JetPack 6.2) on, as IPluginV3: IPluginV2DynamicExt is deprecated there.
#include <NvInferRuntime.h>

#if NV_TENSORRT_MAJOR >= 10

#include <memory>
#include <new>

#include "routing.h"

namespace qcn::plugin {
namespace {

using namespace nvinfer1;

class Plugin final : public IPluginV3, public IPluginV3OneCore, public IPluginV3OneBuild, public IPluginV3OneRuntime {
 public:
  explicit Plugin(const Attributes& attributes) : routing_(attributes), fields_(routing_.attributes()) {}

  IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
    switch (type) {
      case PluginCapabilityType::kCORE:
        return static_cast<IPluginV3OneCore*>(this);
      case PluginCapabilityType::kBUILD:
        return static_cast<IPluginV3OneBuild*>(this);
      case PluginCapabilityType::kRUNTIME:
        return static_cast<IPluginV3OneRuntime*>(this);
    }
    return nullptr;
  }

  IPluginV3* clone() noexcept override { return new (std::nothrow) Plugin(routing_.attributes()); }

  // Core
  const char* getPluginName() const noexcept override { return kName; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

  // Build
  std::int32_t getNbOutputs() const noexcept override { return kOutputs; }

  std::int32_t getOutputDataTypes(DataType* types, std::int32_t outputs, const DataType*,
                                  std::int32_t inputs) const noexcept override {
    if (inputs != kInputs || outputs != kOutputs) return 1;
    types[0] = types[1] = DataType::kFLOAT;
    return 0;
  }

  std::int32_t getOutputShapes(const DimsExprs* in, std::int32_t inputs, const DimsExprs*, std::int32_t, DimsExprs* out,
                               std::int32_t outputs, IExprBuilder& build) noexcept override {
    if (inputs != kInputs || outputs != kOutputs || in[0].nbDims != 5 || in[2].nbDims != 6) return 1;
    for (int i = 0; i < kOutputs; ++i) out[i] = routing_.output(i, in, build);
    return 0;
  }

  bool supportsFormatCombination(std::int32_t position, const DynamicPluginTensorDesc* tensors, std::int32_t inputs,
                                 std::int32_t outputs) noexcept override {
    return inputs == kInputs && outputs == kOutputs &&
           routing_.supports(position, tensors[position].desc, tensors[0].desc);
  }

  std::int32_t configurePlugin(const DynamicPluginTensorDesc* in, std::int32_t inputs, const DynamicPluginTensorDesc*,
                               std::int32_t) noexcept override {
    if (inputs != kInputs) return 1;
    Dims largest[kInputs];
    for (int i = 0; i < kInputs; ++i) largest[i] = in[i].max;
    return routing_.fits(largest) ? 0 : 1;
  }

  std::size_t getWorkspaceSize(const DynamicPluginTensorDesc* in, std::int32_t inputs, const DynamicPluginTensorDesc*,
                               std::int32_t) const noexcept override {
    if (inputs != kInputs) return 0;
    Dims largest[kInputs];
    for (int i = 0; i < kInputs; ++i) largest[i] = in[i].max;
    return routing_.workspace(largest);
  }

  // Runtime
  std::int32_t onShapeChange(const PluginTensorDesc* in, std::int32_t inputs, const PluginTensorDesc*,
                             std::int32_t) noexcept override {
    if (inputs != kInputs) return 1;
    Dims dims[kInputs];
    for (int i = 0; i < kInputs; ++i) dims[i] = in[i].dims;
    return routing_.fits(dims) ? 0 : 1;
  }

  std::int32_t enqueue(const PluginTensorDesc* in, const PluginTensorDesc*, const void* const* inputs,
                       void* const* outputs, void* workspace, cudaStream_t stream) noexcept override {
    return routing_.enqueue(in, inputs, outputs, workspace, stream);
  }

  IPluginV3* attachToContext(IPluginResourceContext*) noexcept override { return clone(); }
  const PluginFieldCollection* getFieldsToSerialize() noexcept override { return fields_.get(); }

 private:
  Routing routing_;
  const Fields fields_;
};

class Creator final : public IPluginCreatorV3One {
 public:
  const char* getPluginName() const noexcept override { return kName; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }
  const PluginFieldCollection* getFieldNames() noexcept override { return names_.get(); }

  // The fields come from the parser when an engine is built, and from getFieldsToSerialize when it is loaded.
  IPluginV3* createPlugin(const char*, const PluginFieldCollection* fields, TensorRTPhase) noexcept override {
    Attributes attributes;
    return Fields::read(fields, &attributes) ? new (std::nothrow) Plugin(attributes) : nullptr;
  }

 private:
  const Attributes defaults_;
  const Fields names_{defaults_};
};

REGISTER_TENSORRT_PLUGIN(Creator);

}  // namespace
}  // namespace qcn::plugin

#endif

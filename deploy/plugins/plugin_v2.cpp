// The plugin for TensorRT 8.6 (JetPack 6.0), whose newest interface is IPluginV2DynamicExt.
#include <NvInferRuntime.h>

#if NV_TENSORRT_MAJOR < 10

#include <cstring>
#include <memory>
#include <string>

#include "routing.h"

namespace qcn::plugin {
namespace {

using namespace nvinfer1;

class Plugin final : public IPluginV2DynamicExt {
 public:
  explicit Plugin(const Attributes& attributes) : routing_(attributes) {}

  IPluginV2DynamicExt* clone() const noexcept override {
    auto* copy = new (std::nothrow) Plugin(routing_.attributes());
    if (copy) copy->setPluginNamespace(namespace_.c_str());
    return copy;
  }

  DimsExprs getOutputDimensions(std::int32_t index, const DimsExprs* inputs, std::int32_t,
                                IExprBuilder& build) noexcept override {
    return routing_.output(index, inputs, build);
  }

  bool supportsFormatCombination(std::int32_t position, const PluginTensorDesc* tensors, std::int32_t inputs,
                                 std::int32_t outputs) noexcept override {
    return inputs == kInputs && outputs == kOutputs && routing_.supports(position, tensors[position], tensors[0]);
  }

  // It cannot report that sizes do not fit: enqueue does.
  void configurePlugin(const DynamicPluginTensorDesc* in, std::int32_t inputs, const DynamicPluginTensorDesc*,
                       std::int32_t) noexcept override {
    Dims largest[kInputs];
    for (int i = 0; i < kInputs && inputs == kInputs; ++i) largest[i] = in[i].max;
    fits_ = inputs == kInputs && routing_.fits(largest);
  }

  std::size_t getWorkspaceSize(const PluginTensorDesc* in, std::int32_t inputs, const PluginTensorDesc*,
                               std::int32_t) const noexcept override {
    Dims dims[kInputs];
    for (int i = 0; i < kInputs && inputs == kInputs; ++i) dims[i] = in[i].dims;
    return inputs == kInputs ? routing_.workspace(dims) : 0;
  }

  std::int32_t enqueue(const PluginTensorDesc* in, const PluginTensorDesc*, const void* const* inputs,
                       void* const* outputs, void* workspace, cudaStream_t stream) noexcept override {
    return fits_ ? routing_.enqueue(in, inputs, outputs, workspace, stream) : 1;
  }

  DataType getOutputDataType(std::int32_t, const DataType*, std::int32_t) const noexcept override {
    return DataType::kFLOAT;
  }

  const char* getPluginType() const noexcept override { return kName; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  std::int32_t getNbOutputs() const noexcept override { return kOutputs; }
  std::int32_t initialize() noexcept override { return 0; }
  void terminate() noexcept override { routing_.release(); }
  std::size_t getSerializationSize() const noexcept override { return sizeof(Attributes); }
  void serialize(void* buffer) const noexcept override {
    std::memcpy(buffer, &routing_.attributes(), sizeof(Attributes));
  }
  void destroy() noexcept override { delete this; }
  void setPluginNamespace(const char* name) noexcept override { namespace_ = name ? name : ""; }
  const char* getPluginNamespace() const noexcept override { return namespace_.c_str(); }

 private:
  Routing routing_;
  bool fits_ = true;  // not all versions configure a plugin that comes from a plan
  std::string namespace_ = kNamespace;
};

class Creator final : public IPluginCreator {
 public:
  const char* getPluginName() const noexcept override { return kName; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const PluginFieldCollection* getFieldNames() noexcept override { return names_.get(); }

  Plugin* createPlugin(const char*, const PluginFieldCollection* fields) noexcept override {
    Attributes attributes;
    return Fields::read(fields, &attributes) ? named(new (std::nothrow) Plugin(attributes)) : nullptr;
  }

  Plugin* deserializePlugin(const char*, const void* data, std::size_t size) noexcept override {
    Attributes attributes;
    if (!data || size != sizeof attributes) {
      log_error("the plan stores it in the form of another version: build the engine again");
      return nullptr;
    }
    std::memcpy(&attributes, data, size);
    return named(new (std::nothrow) Plugin(attributes));
  }

  void setPluginNamespace(const char* name) noexcept override { namespace_ = name ? name : ""; }
  const char* getPluginNamespace() const noexcept override { return namespace_.c_str(); }

 private:
  Plugin* named(Plugin* plugin) const {
    if (plugin) plugin->setPluginNamespace(namespace_.c_str());
    return plugin;
  }

  const Attributes defaults_;
  const Fields names_{defaults_};
  std::string namespace_ = kNamespace;
};

REGISTER_TENSORRT_PLUGIN(Creator);

}  // namespace
}  // namespace qcn::plugin

#endif

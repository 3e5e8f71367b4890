// Tests the plugin as TensorRT uses it, with a stand-in for TensorRT and without a GPU. It is found in the registry by
// the name of the ONNX node, created from attributes as the ONNX parser passes them, asked for sizes and types, written
// to a plan and read back.
//
//     test_plugin libqcn_plugin.so
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace nvinfer1;

int failures = 0;

void check(bool right, const char* what) {
  std::printf("%s  %s\n", right ? "PASS" : "FAIL", what);
  failures += !right;
}

// A size that is known.
class Size final : public IDimensionExpr, public apiv::VDimensionExpr {
 public:
  explicit Size(std::int64_t value) : value_(value) { mImpl = this; }
  bool isConstant() const noexcept override { return true; }
#if NV_TENSORRT_MAJOR >= 10
  std::int64_t getConstantValue() const noexcept override { return value_; }
  bool isSizeTensor() const noexcept override { return false; }
#else
  std::int32_t getConstantValue() const noexcept override { return static_cast<std::int32_t>(value_); }
#endif

 private:
  const std::int64_t value_;
};

class Builder final : public IExprBuilder, public apiv::VExprBuilder {
 public:
  Builder() { mImpl = this; }
  const IDimensionExpr* add(std::int64_t value) noexcept { return &sizes_.emplace_back(value); }
  const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first,
                                  const IDimensionExpr& second) noexcept override {
    const std::int64_t a = first.getConstantValue(), b = second.getConstantValue();
    return add(op == DimensionOperation::kSUM ? a + b : op == DimensionOperation::kSUB ? a - b : a / b);
  }
#if NV_TENSORRT_MAJOR >= 10
  const IDimensionExpr* constant(std::int64_t value) noexcept override { return add(value); }
  const IDimensionExpr* declareSizeTensor(std::int32_t, const IDimensionExpr&,
                                          const IDimensionExpr&) noexcept override {
    return nullptr;
  }
#else
  const IDimensionExpr* constant(std::int32_t value) noexcept override { return add(value); }
#endif

 private:
  std::deque<Size> sizes_;
};

using Sizes = std::vector<std::int64_t>;
const std::vector<Sizes> kLayer = {{2, 16, 3, 9, 8}, {2, 16, 9, 8}, {5, 5, 16, 12, 3, 3}, {12}, {12}};

Dims dims(const Sizes& sizes) {
  Dims all{};
  all.nbDims = static_cast<std::int32_t>(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    all.d[i] = static_cast<std::remove_reference_t<decltype(all.d[0])>>(sizes[i]);
  return all;
}

#if NV_TENSORRT_MAJOR >= 10
using Made = IPluginV3;
IPluginV3OneBuild& build(Made& plugin) {
  return *static_cast<IPluginV3OneBuild*>(plugin.getCapabilityInterface(PluginCapabilityType::kBUILD));
}
IPluginV3OneRuntime& runtime(Made& plugin) {
  return *static_cast<IPluginV3OneRuntime*>(plugin.getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}
IPluginCreatorV3One* creator() {
  return static_cast<IPluginCreatorV3One*>(getPluginRegistry()->getCreator("EMRouting", "1", ""));
}
Made* make(const PluginFieldCollection& fields) { return creator()->createPlugin("n", &fields, TensorRTPhase::kBUILD); }
void destroy(Made* plugin) { delete plugin; }
Made* copied(Made& plugin) {
  return creator()->createPlugin("n", runtime(plugin).getFieldsToSerialize(), TensorRTPhase::kRUNTIME);
}
#else
using Made = IPluginV2DynamicExt;
IPluginCreator* creator() { return getPluginRegistry()->getPluginCreator("EMRouting", "1", ""); }
Made* make(const PluginFieldCollection& fields) { return static_cast<Made*>(creator()->createPlugin("n", &fields)); }
void destroy(Made* plugin) { plugin->destroy(); }
Made* copied(Made& plugin) {
  std::vector<char> plan(plugin.getSerializationSize());
  plugin.serialize(plan.data());
  return static_cast<Made*>(creator()->deserializePlugin("n", plan.data(), plan.size()));
}
#endif

Sizes output(Made& plugin, int index) {
  Builder builder;
  DimsExprs inputs[5];
  for (std::size_t i = 0; i < 5; ++i) {
    inputs[i].nbDims = static_cast<std::int32_t>(kLayer[i].size());
    for (std::size_t axis = 0; axis < kLayer[i].size(); ++axis) inputs[i].d[axis] = builder.add(kLayer[i][axis]);
  }
#if NV_TENSORRT_MAJOR >= 10
  DimsExprs both[2];
  if (build(plugin).getOutputShapes(inputs, 5, nullptr, 0, both, 2, builder) != 0) return {};
  const DimsExprs& found = both[index];
#else
  const DimsExprs found = plugin.getOutputDimensions(index, inputs, 5, builder);
#endif
  Sizes sizes;
  for (int axis = 0; axis < found.nbDims; ++axis) sizes.push_back(found.d[axis]->getConstantValue());
  return sizes;
}

// Whether all seven tensors may be of these types.
bool supports(Made& plugin, const std::vector<DataType>& types) {
  bool all = true;
  for (int position = 0; position < 7; ++position) {
#if NV_TENSORRT_MAJOR >= 10
    DynamicPluginTensorDesc tensors[7] = {};
    for (std::size_t i = 0; i < 7; ++i) tensors[i].desc.type = types[i], tensors[i].desc.format = TensorFormat::kLINEAR;
    all &= build(plugin).supportsFormatCombination(position, tensors, 5, 2);
#else
    PluginTensorDesc tensors[7] = {};
    for (std::size_t i = 0; i < 7; ++i) tensors[i].type = types[i], tensors[i].format = TensorFormat::kLINEAR;
    all &= plugin.supportsFormatCombination(position, tensors, 5, 2);
#endif
  }
  return all;
}

// Whether the plugin accepts inputs of these sizes. If not, running it must fail before it reaches the GPU.
bool fits(Made& plugin, const std::vector<Sizes>& sizes) {
  DynamicPluginTensorDesc in[5] = {}, out[2] = {};
  for (std::size_t i = 0; i < 5; ++i) in[i].max = in[i].min = in[i].desc.dims = dims(sizes[i]);
#if NV_TENSORRT_MAJOR >= 10
  return build(plugin).configurePlugin(in, 5, out, 2) == 0;
#else
  plugin.configurePlugin(in, 5, out, 2);
  return plugin.enqueue(&in[0].desc, &out[0].desc, nullptr, nullptr, nullptr, nullptr) != 1;
#endif
}

struct Node {
  std::int32_t window[2] = {5, 5}, stride = 2, iterations = 3, half = 1, logit = 1;
  std::string mode = "unit";

  Made* make() const {
    const std::vector<PluginField> fields = {
        {"window", window, PluginFieldType::kINT32, 2},
        {"stride", &stride, PluginFieldType::kINT32, 1},
        {"iterations", &iterations, PluginFieldType::kINT32, 1},
        {"half", &half, PluginFieldType::kINT32, 1},
        {"logit", &logit, PluginFieldType::kINT32, 1},
        {"mode", mode.data(), PluginFieldType::kCHAR, static_cast<std::int32_t>(mode.size())}};
    return ::make({static_cast<std::int32_t>(fields.size()), fields.data()});
  }
  bool refused() const {
    Made* made = make();
    if (made) destroy(made);
    return !made;
  }
};

void test_sizes_and_types(Made& plugin) {
  check(output(plugin, 0) == Sizes{2, 12, 3, 3, 2}, "poses are [batch, parents, 3, rows, columns]");
  check(output(plugin, 1) == Sizes{2, 12, 3, 2}, "activations are [batch, parents, rows, columns]");
  constexpr auto kFloat = DataType::kFLOAT, kHalf = DataType::kHALF;
  check(supports(plugin, {kFloat, kFloat, kFloat, kFloat, kFloat, kFloat, kFloat}), "float32");
  check(supports(plugin, {kHalf, kHalf, kFloat, kFloat, kFloat, kFloat, kFloat}), "float16 in, float32 out");
  check(!supports(plugin, {kHalf, kFloat, kFloat, kFloat, kFloat, kFloat, kFloat}), "not float16 with float32");
  check(!supports(plugin, {kHalf, kHalf, kFloat, kFloat, kFloat, kHalf, kHalf}), "not float16 out");
  check(!supports(plugin, {kHalf, kHalf, kHalf, kFloat, kFloat, kFloat, kFloat}), "not rotations in float16");
  Node node;
  node.half = 0;
  Made* single = node.make();
  check(!supports(*single, {kHalf, kHalf, kFloat, kFloat, kFloat, kFloat, kFloat}), "no float16 without half");
  destroy(single);
#if NV_TENSORRT_MAJOR >= 10
  constexpr auto kBrain = DataType::kBF16;
  check(supports(plugin, {kBrain, kBrain, kFloat, kFloat, kFloat, kFloat, kFloat}), "bfloat16 in, float32 out");
#endif
}

void test_refusals() {
  Node node;
  node.mode = "softmax";
  check(node.refused(), "an unknown mode is refused");
  node = Node(), node.iterations = 6;
  check(node.refused(), "six iterations are refused");
  node = Node(), node.window[1] = 0;
  check(node.refused(), "a window of width 0 is refused");
  node = Node(), node.logit = 2;
  check(node.refused(), "a logit of 2 is refused");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return std::fprintf(stderr, "usage: test_plugin libqcn_plugin.so\n"), 2;
  check(!creator(), "no plugin before the library is loaded");
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const auto built_for = reinterpret_cast<const char* (*)()>(dlsym(library, "qcn_plugin_tensorrt"));
  check(built_for && std::atoi(built_for()) == NV_TENSORRT_MAJOR, "it says which TensorRT it is for");
  check(creator(), "loading it is enough to have it in the registry");
  if (failures) return 1;
  check(creator()->getFieldNames()->nbFields == 6, "the parser is told of six attributes");

  Node node;
  Made* plugin = node.make();
  check(plugin, "it is created from the attributes that the parser passes");
  test_sizes_and_types(*plugin);
  Made* copy = copied(*plugin);
  check(copy && output(*copy, 0) == output(*plugin, 0), "it comes back from a plan");
  const DataType kHalf = DataType::kHALF, kFloat = DataType::kFLOAT;
  check(copy && supports(*copy, {kHalf, kHalf, kFloat, kFloat, kFloat, kFloat, kFloat}), "with half allowed");
  check(copy && copied(*copy), "and again");

  std::vector<Sizes> wrong = kLayer;
  wrong[1] = {2, 15, 9, 8};
  check(!fits(*plugin, wrong), "activations for other channels are refused");
  wrong = kLayer, wrong[2] = {3, 5, 16, 12, 3, 3};
  check(!fits(*plugin, wrong), "rotations for another window are refused");
  test_refusals();
  destroy(plugin);
  if (copy) destroy(copy);
  std::printf("%s\n", failures ? "failed" : "all passed");
  return failures != 0;
}

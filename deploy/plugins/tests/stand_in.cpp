// A libnvinfer.so with a plugin registry and nothing else, from the headers of any TensorRT from 8.6 to 11. Where there
// is no TensorRT, test_plugin.cpp loads the plugin with it, and libqcn_tensorrt links to it.
#include <NvInferRuntime.h>

#include <cstdio>
#include <cstring>
#include <vector>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // a registry must also implement deprecated functions

namespace {

using namespace nvinfer1;

class Log final : public ILogger {
 public:
  void log(Severity, const char* message) noexcept override { std::printf("      logged: %s\n", message); }
};

#if NV_TENSORRT_MAJOR >= 10
using AnyCreator = IPluginCreatorInterface;
using OurCreator = IPluginCreatorV3One;
#else
using AnyCreator = IPluginCreator;
using OurCreator = IPluginCreator;
#endif

class Registry final : public IPluginRegistry {
 public:
  bool registerCreator(AnyCreator& creator, const char*) noexcept override {
    creators_.push_back(&creator);
    return true;
  }
  AnyCreator* find(const char* name, const char* version, const char* space) const noexcept {
    for (AnyCreator* any : creators_) {
      const auto* creator = static_cast<const OurCreator*>(any);
      if (!std::strcmp(creator->getPluginName(), name) && !std::strcmp(creator->getPluginVersion(), version) &&
          !std::strcmp(creator->getPluginNamespace(), space)) {
        return any;
      }
    }
    return nullptr;
  }
  bool deregisterCreator(const AnyCreator&) noexcept override { return false; }
  bool isParentSearchEnabled() const override { return false; }
  void setParentSearchEnabled(bool) override {}
  PluginLibraryHandle loadLibrary(const char*) noexcept override { return nullptr; }
  void deregisterLibrary(PluginLibraryHandle) noexcept override {}
  void setErrorRecorder(IErrorRecorder*) noexcept override {}
  IErrorRecorder* getErrorRecorder() const noexcept override { return nullptr; }

#if NV_TENSORRT_MAJOR >= 10
  AnyCreator* const* getAllCreators(std::int32_t*) const noexcept override { return nullptr; }
  AnyCreator* getCreator(const char* name, const char* version, const char* space) noexcept override {
    return find(name, version, space);
  }
  IPluginResource* acquirePluginResource(const char*, IPluginResource*) noexcept override { return nullptr; }
  std::int32_t releasePluginResource(const char*) noexcept override { return 0; }
#if NV_TENSORRT_MAJOR > 10 || NV_TENSORRT_MINOR >= 7
  AnyCreator* const* getAllCreatorsRecursive(std::int32_t*) noexcept override { return nullptr; }
#endif
#else
  IPluginCreator* getPluginCreator(const char* name, const char* version, const char* space) noexcept override {
    return find(name, version, space);
  }
#endif
#if NV_TENSORRT_MAJOR == 10
  bool registerCreator(IPluginCreator&, const char*) noexcept override { return false; }
  bool deregisterCreator(const IPluginCreator&) noexcept override { return false; }
  IPluginCreator* getPluginCreator(const char*, const char*, const char*) noexcept override { return nullptr; }
#endif
#if NV_TENSORRT_MAJOR <= 10
  IPluginCreator* const* getPluginCreatorList(std::int32_t*) const noexcept override { return nullptr; }
#endif

 private:
  std::vector<AnyCreator*> creators_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) IPluginRegistry* getPluginRegistry() noexcept {
  static auto* registry = new Registry;
  return registry;
}
extern "C" __attribute__((visibility("default"))) ILogger* getLogger() noexcept {
  static auto* log = new Log;
  return log;
}
extern "C" __attribute__((visibility("default"))) std::int32_t getInferLibVersion() noexcept {
  return NV_TENSORRT_VERSION;
}
extern "C" __attribute__((visibility("default"))) void* createInferRuntime_INTERNAL(void*, std::int32_t) noexcept {
  return nullptr;
}

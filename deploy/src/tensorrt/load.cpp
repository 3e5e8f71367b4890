// Finds libqcn_tensorrt.so beside libqcn, or where the loader looks, and has it load an engine.
#include <dlfcn.h>

#include <string>

#include "../bundle.h"
#include "../error.h"
#include "library.h"

namespace qcn {
namespace {

constexpr char kLibrary[] = "libqcn_tensorrt.so";

std::string own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&own_folder), &info) || !info.dli_fname) return {};
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

const TensorrtLibrary& open_library() {
  std::string why;
  const std::string beside = own_folder() + kLibrary;
  for (const std::string& path : {beside, std::string(kLibrary)}) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* said = dlerror();
      if (why.empty() && said) why = said;  // the first is of the library that belongs here
      continue;
    }
    // It stays open: TensorRT holds on to what the library registers.
    const auto entry = reinterpret_cast<TensorrtEntry>(dlsym(handle, kTensorrtEntry));
    const TensorrtLibrary* library = entry ? entry(qcn_version()) : nullptr;
    if (library) return *library;
    throw Error(QCN_NO_BACKEND,
                path + " is of another version than libqcn, " + qcn_version() + ": build and install them together");
  }
  throw Error(QCN_NO_BACKEND, "the TensorRT backend cannot be loaded (" + why +
                                  "): build libqcn where TensorRT's headers and CUDA are, -DQCN_TENSORRT=ON");
}

}  // namespace

LoadedBackend tensorrt_backend(const Manifest& manifest, const TensorrtRequest& request) {
  // A bundle without engines should not start CUDA: choose_engine refuses it.
  const TensorrtLibrary* library = find_artefact(manifest, "trt") ? &open_library() : nullptr;
  const Machine machine = library ? library->machine(request.device) : Machine();
  const Artefact& engine = choose_engine(manifest, machine, request);
  return {library->load(manifest.signature, engine, read_artefact(*request.files, engine), request), &engine};
}

}  // namespace qcn

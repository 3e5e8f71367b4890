// Any text as a manifest: it is read, or refused as not being a bundle, and nothing else.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "error.h"
#include "manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const qcn::Manifest manifest = qcn::parse_manifest({reinterpret_cast<const char*>(data), size});
    if (manifest.classes.size() != manifest.signature.logit_floats()) std::abort();
    for (const qcn::Artefact& artefact : manifest.files) {
      if (artefact.file.find("..") == 0 || artefact.file.find("/.") != std::string::npos) std::abort();
      if (artefact.format != "golden" && !(artefact.tolerance.logit > 0)) std::abort();
    }
  } catch (const qcn::Error& error) {
    if (error.status != QCN_BAD_BUNDLE) std::abort();
  }
  return 0;
}

// A file of a bundle, as manifest.json describes it.
#ifndef QCN_SRC_ARTEFACT_H
#define QCN_SRC_ARTEFACT_H

#include <cstdint>
#include <string>

#include "signature.h"

namespace qcn {

class Json;

// The largest absolute error that is allowed against the golden answers. tolerance.h computes it again.
struct Tolerance {
  double logit = 0, pose = 0;  // pose: of a network that has them
};

struct Artefact {
  std::string file, format, sha256, precision;
  std::uint64_t bytes = 0;
  int min_batch = 0, opt_batch = 0, max_batch = 0;  // 0: any
  std::string rebuild;                              // the command that makes it again, with "{bundle}" in it
  bool plugin = false;                              // it needs the TensorRT plugin
  Tolerance tolerance;                              // of all but the golden answers
  // Of a TensorRT engine.
  std::string flavour, version, gpu;
  int sm = 0;
  bool hardware_compatible = false;  // every GPU from sm80 on runs it
  bool stripped = false;             // it has no weights in it

  std::string rebuild_in(const std::string& word) const;  // the command, with this word of a shell for the bundle
};

// An entry of 'files', of a network with this signature. Throws Error(QCN_BAD_BUNDLE) with what is wrong.
Artefact parse_artefact(const Json& json, const Signature& signature);

}  // namespace qcn

#endif

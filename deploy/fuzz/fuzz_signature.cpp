// Any bytes as what protects a manifest: as manifest.sha256, as a public key in PEM form, and as a signature.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "bundle.h"
#include "error.h"
#include "public_key.h"

namespace {

template <typename Body>
void refused_or_done(qcn_status status, const Body& body) {
  try {
    body();
  } catch (const qcn::Error& error) {
    if (error.status != status) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  refused_or_done(QCN_BAD_BUNDLE, [&] { qcn::check_digest(std::string(64, 'a'), text); });
  refused_or_done(QCN_BAD_ARGUMENT, [&] {
    if (!qcn::is_public_key(qcn::parse_public_key(text))) std::abort();
  });
  if (size < 32) return 0;
  qcn::PublicKey key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = data[i];
  // Whoever finds a signature by chance has broken Ed25519.
  if (qcn::verify_ed25519(key, "a manifest", text.substr(32))) std::abort();
  return 0;
}

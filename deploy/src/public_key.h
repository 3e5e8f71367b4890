// The public key that a bundle must be signed with, as `qcn sign --new-key` and openssl write it.
#ifndef QCN_SRC_PUBLIC_KEY_H
#define QCN_SRC_PUBLIC_KEY_H

#include <string_view>

#include "ed25519.h"

namespace qcn {

// From a PEM text, "-----BEGIN PUBLIC KEY-----…" (RFC 8410). Throws Error(QCN_BAD_ARGUMENT) for any other text, and for
// keys that prove nothing.
PublicKey parse_public_key(std::string_view pem);

}  // namespace qcn

#endif

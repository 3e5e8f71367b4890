// Ed25519 signatures (RFC 8032): verification alone. Nothing here is secret, so nothing runs in constant time.
#ifndef QCN_SRC_ED25519_H
#define QCN_SRC_ED25519_H

#include <array>
#include <string_view>

namespace qcn {

using PublicKey = std::array<unsigned char, 32>;

// Whether these bytes are a point of the curve in its one canonical form, and not one of the eight points of small
// order, for which anybody can make signatures.
bool is_public_key(const PublicKey& key);

// Whether `signature` is that of `message` by the owner of this key. Strict: the key as above, R canonical, S < L.
bool verify_ed25519(const PublicKey& key, std::string_view message, std::string_view signature);

}  // namespace qcn

#endif

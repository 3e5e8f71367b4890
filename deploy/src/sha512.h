// SHA-512 (FIPS 180-4), for Ed25519.
#ifndef QCN_SRC_SHA512_H
#define QCN_SRC_SHA512_H

#include <array>
#include <string_view>

namespace qcn {

std::array<unsigned char, 64> sha512(std::string_view message);

}  // namespace qcn

#endif

// SHA-256 (FIPS 180-4), by the processor's own instructions where it has them.
#ifndef QCN_SRC_SHA256_H
#define QCN_SRC_SHA256_H

#include <cstddef>
#include <string>

namespace qcn {

std::string sha256(const void* data, std::size_t size);        // 64 hexadecimal digits
std::string plain_sha256(const void* data, std::size_t size);  // the same in C++ alone, as on other processors

}  // namespace qcn

#endif

// Errors inside the library are exceptions; the C functions of qcn.h turn them into a status and a message.
#ifndef QCN_SRC_ERROR_H
#define QCN_SRC_ERROR_H

#include <stdexcept>
#include <string>

#include "qcn/qcn.h"

namespace qcn {

class Error : public std::runtime_error {
 public:
  Error(qcn_status code, const std::string& message) : std::runtime_error(message), status(code) {}
  const qcn_status status;
};

[[noreturn]] inline void refuse_bundle(const std::string& why) { throw Error(QCN_BAD_BUNDLE, why); }

}  // namespace qcn

#endif

// TensorRT's logger. TensorRT keeps the first logger of a process for good, so there is only one. It passes messages on
// to the LogScope of the calling thread.
#ifndef QCN_SRC_TENSORRT_LIBRARY_LOGGER_H
#define QCN_SRC_TENSORRT_LIBRARY_LOGGER_H

#include <NvInferRuntime.h>

#include <string>

#include "../../backend.h"

namespace qcn {

nvinfer1::ILogger& logger();

// As long as it lives, what TensorRT logs in this thread goes to `log`, and errors are kept for the message of an
// Error.
class LogScope {
 public:
  explicit LogScope(const Log& log);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

  std::string errors() const;  // ": " and the errors, for the end of a message; empty if there were none

 private:
  friend class Logger;
  const Log& log_;
  std::string errors_;
  LogScope* const outer_;
};

}  // namespace qcn

#endif

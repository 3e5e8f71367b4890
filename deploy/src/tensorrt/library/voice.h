// TensorRT's log. TensorRT keeps the first logger of a process for good, so there is one, which passes on what it hears
// to whoever listens in the calling thread.
#ifndef QCN_SRC_TENSORRT_LIBRARY_VOICE_H
#define QCN_SRC_TENSORRT_LIBRARY_VOICE_H

#include <NvInferRuntime.h>

#include <string>

#include "../../backend.h"

namespace qcn {

nvinfer1::ILogger& voice();

// While it lives, what TensorRT says in this thread goes to `log`, and its errors are kept for a message.
class Listening {
 public:
  explicit Listening(const Log& log);
  ~Listening();
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

  std::string said() const;  // ": " and the errors, or nothing

 private:
  friend class Voice;
  const Log& log_;
  std::string errors_;
  Listening* const before_;
};

}  // namespace qcn

#endif

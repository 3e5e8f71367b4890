#include "voice.h"

namespace qcn {

namespace {
thread_local Listening* listener = nullptr;
}

class Voice final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override {
    if (!listener || severity > Severity::kWARNING) return;
    try {
      const bool error = severity != Severity::kWARNING;
      if (error) listener->errors_ += (listener->errors_.empty() ? "" : "; ") + std::string(message);
      if (listener->log_) {
        listener->log_(error ? QCN_LOG_ERROR : QCN_LOG_WARNING, "TensorRT: " + std::string(message));
      }
    } catch (...) {  // no memory for a message: the call's own status still tells
    }
  }
};

nvinfer1::ILogger& voice() {
  static Voice* one = new Voice;  // never freed: TensorRT may speak until the process ends
  return *one;
}

Listening::Listening(const Log& log) : log_(log), before_(listener) { listener = this; }
Listening::~Listening() { listener = before_; }
std::string Listening::said() const { return errors_.empty() ? "" : ": " + errors_; }

}  // namespace qcn

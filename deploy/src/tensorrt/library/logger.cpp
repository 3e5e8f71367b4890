#include "logger.h"

namespace qcn {

namespace {
thread_local LogScope* scope = nullptr;  // the innermost one of this thread
}

class Logger final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override {
    if (!scope || severity > Severity::kWARNING) return;
    try {
      const bool error = severity != Severity::kWARNING;
      if (error) scope->errors_ += (scope->errors_.empty() ? "" : "; ") + std::string(message);
      if (scope->log_) {
        scope->log_(error ? QCN_LOG_ERROR : QCN_LOG_WARNING, "TensorRT: " + std::string(message));
      }
    } catch (...) {  // no memory for the message: the status of the call still reports the failure
    }
  }
};

nvinfer1::ILogger& logger() {
  static Logger* one = new Logger;  // never freed: TensorRT may log until the process ends
  return *one;
}

LogScope::LogScope(const Log& log) : log_(log), outer_(scope) { scope = this; }
LogScope::~LogScope() { scope = outer_; }
std::string LogScope::errors() const { return errors_.empty() ? "" : ": " + errors_; }

}  // namespace qcn

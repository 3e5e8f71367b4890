#include "model.h"

#include <cstdio>
#include <exception>
#include <new>

namespace qcn_programs {
namespace {

void print_log(qcn_log_level level, const char* message, void* verbose) {
  if (level == QCN_LOG_ERROR) return;  // it comes back as the error of the call
  if (level == QCN_LOG_WARNING || verbose) std::fprintf(stderr, "%s\n", message);
}

}  // namespace

void ModelOptions::add_to(Arguments& arguments) {
  arguments.choice("--backend", "what runs the network", {"auto", "native", "tensorrt"}, backend);
  arguments.choice("--precision", "of an engine", {"fp32", "fp16", "bf16", "int8"}, precision);
  arguments.number("--threads", "of the native backend; one a core", 1, 1024, threads);
  arguments.number("--device", "CUDA device; 0", 0, 1023, device);
  arguments.flag("--no-self-test", "load without running the bundle's golden images", no_self_test);
  arguments.flag("--verbose", "print which backend was chosen, and why", verbose);
}

Exit LibraryError::exit_for(qcn_status status) {
  switch (status) {
    case QCN_BAD_ARGUMENT:
    case QCN_NO_FILE:
      return kUsage;
    case QCN_NO_BACKEND:
    case QCN_BAD_ENGINE:
    case QCN_NO_MEMORY:
    case QCN_DEVICE_ERROR:
      return kMissing;
    default:
      return kFailed;
  }
}

void succeed(qcn_status status) {
  if (status != QCN_OK) throw LibraryError(status, qcn_last_error());
}

Session::Session(const qcn_model* model) : session_(nullptr, qcn_session_free) {
  qcn_session* session = nullptr;
  succeed(qcn_session_create(model, nullptr, &session));
  session_.reset(session);
}

Model::Model(const std::string& bundle, const ModelOptions& options) : model_(nullptr, qcn_model_free) {
  qcn_model_params params = qcn_model_default_params();
  params.backend = options.backend == "native"     ? QCN_BACKEND_NATIVE
                   : options.backend == "tensorrt" ? QCN_BACKEND_TENSORRT
                                                   : QCN_BACKEND_AUTO;
  params.precision = options.precision.empty() ? nullptr : options.precision.c_str();
  params.threads = options.threads;
  params.device = options.device;
  if (options.no_self_test) params.self_test = 0;
  params.log = print_log;
  static int anything;  // only whether there is a pointer counts: a backend may log for as long as it lives
  params.log_user = options.verbose ? &anything : nullptr;
  qcn_model* model = nullptr;
  succeed(qcn_model_load(bundle.c_str(), &params, &model));
  model_.reset(model);
  info_.size = sizeof info_;
  succeed(qcn_model_describe(model, &info_));
}

std::string Model::json() const {
  return "\"name\": " + quoted(info_.name) + ", \"backend\": " + quoted(info_.backend_name) +
         ", \"precision\": " + quoted(info_.precision);
}

int guarded_main(const char* program, int (*body)(int, char**), int argc, char** argv) {
  try {
    const int status = body(argc, argv);
    if (std::fflush(stdout) != 0) {
      std::fprintf(stderr, "%s: the output could not be written\n", program);
      return kFailed;
    }
    return status;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return kUsage;
  } catch (const LibraryError& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return error.exit;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: there is not enough memory\n", program);
    return kMissing;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return kFailed;
  }
}

}  // namespace qcn_programs

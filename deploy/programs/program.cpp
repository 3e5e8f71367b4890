#include "program.h"

#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>

namespace qcn_programs {
namespace {

Exit exit_for(qcn_status status) {
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

// The text of a key's file: at most as much as such a file can have.
std::string read_key(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(4096, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.empty()) throw UsageError("--public-key: " + path + " cannot be read, or is empty");
  return text;
}

}  // namespace

void ModelOptions::add_to(Arguments& arguments) {
  arguments.choice("--backend", "what runs the network", {"auto", "native", "tensorrt"}, backend);
  arguments.choice("--precision", "of the engine or the weights", {"fp32", "fp16", "bf16", "int8"}, precision);
  arguments.number("--threads", "threads of the native backend (default: one per core)", 1, QCN_MAX_THREADS, threads);
  arguments.number("--device", "CUDA device (default: 0)", 0, 1023, device);
  arguments.text("--public-key", "PEM file; refuse a bundle not signed by its owner (qcn sign)", public_key);
  arguments.flag("--no-self-test", "load without running the bundle's golden images", no_self_test);
  arguments.flag("--verbose", "print which backend was chosen, and why", verbose);
}

void ModelOptions::add_field_to(Arguments& arguments) {
  arguments.text("--field", "folder to count answers in, for qcn report field (default: none)", field);
  arguments.number("--field-pictures", "uncertain pictures to keep there, the last ones (default: 0)", 0, 100000,
                   field_pictures);
}

qcn::Model ModelOptions::load(const std::string& bundle) const {
  qcn_model_params params = qcn_model_default_params();
  params.backend = backend == "native"     ? QCN_BACKEND_NATIVE
                   : backend == "tensorrt" ? QCN_BACKEND_TENSORRT
                                           : QCN_BACKEND_AUTO;
  params.precision = precision.empty() ? nullptr : precision.c_str();
  params.threads = threads;
  params.device = device;
  if (no_self_test) params.self_test = 0;
  const std::string key = public_key.empty() ? "" : read_key(public_key);
  if (!public_key.empty()) params.public_key = key.c_str();
  qcn_field_params recorded = qcn_field_default_params(field.c_str());
  recorded.pictures = field_pictures;
  if (!field.empty()) params.field = &recorded;
  if (field.empty() && field_pictures > 0) throw UsageError("--field-pictures needs --field, the folder for them");
  return qcn::Model(bundle, params, [all = verbose](qcn_log_level level, const std::string& message) {
    if (level == QCN_LOG_ERROR) return;  // it is also the exception's message
    if (level == QCN_LOG_WARNING || all) std::fprintf(stderr, "%s\n", readable(message).c_str());
  });
}

std::string words(const std::string& label, double probability, bool known) {
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f %%", 100 * probability);
  const std::string shown = readable(label);
  return known ? shown + " " + percent : "unknown (most like " + shown + ", " + percent + ")";
}

std::string seen_from(double azimuth, double elevation, double spread) {
  const auto whole = [](double degrees) { return static_cast<int>(std::floor(degrees + 0.5)); };
  const std::string up = std::isnan(elevation) ? "" : ", elevation " + std::to_string(whole(elevation)) + "°";
  return ", seen from azimuth " + std::to_string(whole(azimuth) % 360) + "°" + up + " (± " +
         std::to_string(whole(spread)) + "°)";
}

std::string json_entries(const qcn_model_info& info) {
  return "\"name\": " + quoted(info.name) + ", \"backend\": " + quoted(info.backend_name) +
         ", \"precision\": " + quoted(info.precision);
}

int guarded_main(const char* program, int (*body)(int, char**), int argc, char** argv) {
  const auto fail = [program](const char* message, Exit code) {
    std::fprintf(stderr, "%s: %s\n", program, readable(message).c_str());
    return code;
  };
  try {
    const int code = body(argc, argv);
    if (std::fflush(stdout) != 0) return fail("the output could not be written", kFailed);
    return code;
  } catch (const UsageError& error) {
    return fail(error.what(), kUsage);
  } catch (const qcn::Error& error) {
    return fail(error.what(), exit_for(error.status()));
  } catch (const std::bad_alloc&) {
    return fail("there is not enough memory", kMissing);
  } catch (const std::exception& error) {
    return fail(error.what(), kFailed);
  }
}

}  // namespace qcn_programs

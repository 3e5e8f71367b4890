#include "model.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "bundle.h"
#include "error.h"
#include "program.h"
#include "self_test.h"
#include "tensorrt/tensorrt_backend.h"
#include "threads.h"
#include "tolerance.h"

namespace qcn {
namespace {

std::shared_ptr<const TensorFile> read_tensors(const Files& files, const Artefact& artefact, const char* schema) {
  std::vector<std::byte> bytes = read_artefact(files, artefact);
  try {
    return std::make_shared<const TensorFile>(std::move(bytes), schema);
  } catch (const Error& error) {
    throw Error(error.status, files.path(artefact.file) + " cannot be read: " + error.what());
  }
}

const Artefact& wanted(const Manifest& manifest, const LoadRequest& request, const char* format, const char* what) {
  if (const Artefact* artefact = find_artefact(manifest, format)) return *artefact;
  throw Error(QCN_BAD_BUNDLE, request.files->where + " has no " + what + ": `qcn export RUN --format native --out " +
                                  request.files->word + "` adds them");
}

LoadedBackend load_native(const Manifest& manifest, const LoadRequest& request) {
  const Artefact& artefact = wanted(manifest, request, "native", "weights");
  const std::shared_ptr<const TensorFile> weights = read_tensors(*request.files, artefact, kWeightsSchema);
  try {
    program::Program program(weights);
    const std::string precision = program::name(program.precision());
    if (!request.precision.empty() && request.precision != precision) {
      throw Error(QCN_NO_BACKEND, "the native backend computes in " + precision + ", not in " + request.precision);
    }
    if (artefact.precision != precision) {  // it decides what the self-test allows
      throw Error(QCN_BAD_BUNDLE, "its program computes in " + precision + ", but manifest.json says " +
                                      artefact.precision);
    }
    if (!(program.signature == manifest.signature)) {
      throw Error(QCN_BAD_BUNDLE, "its program takes " + program.signature.text() + ", but manifest.json describes " +
                                      manifest.signature.text());
    }
    if (request.threads > 0) set_threads(request.threads);
    return {native_backend(std::move(program)), &artefact};
  } catch (const Error& error) {
    throw Error(error.status, request.files->path(artefact.file) + ": " + error.what());
  }
}

LoadedBackend load_tensorrt(const Manifest& manifest, const LoadRequest& request) {
  return tensorrt_backend(manifest, {request.files, request.precision, request.device, request.log});
}

// The backend asked for, or the best there is, and which that is.
std::pair<LoadedBackend, qcn_backend> load_backend(const Manifest& manifest, const LoadRequest& request) {
  if (request.backend == QCN_BACKEND_NATIVE) return {load_native(manifest, request), QCN_BACKEND_NATIVE};
  if (request.backend == QCN_BACKEND_TENSORRT) return {load_tensorrt(manifest, request), QCN_BACKEND_TENSORRT};
  try {
    return {load_tensorrt(manifest, request), QCN_BACKEND_TENSORRT};
  } catch (const Error& error) {
    // An altered engine, or a GPU that fails, is no reason to go on in silence at another speed.
    if (error.status != QCN_NO_BACKEND && error.status != QCN_BAD_ENGINE) throw;
    // Engines that do not fit are worth a warning; that there is no GPU is not.
    const qcn_log_level level = error.status == QCN_BAD_ENGINE ? QCN_LOG_WARNING : QCN_LOG_INFO;
    if (request.log) request.log(level, std::string("native is taken, not TensorRT: ") + error.what());
    return {load_native(manifest, request), QCN_BACKEND_NATIVE};
  }
}

void run_self_test(const Model& model, const LoadRequest& request) {
  const Artefact& artefact = wanted(model.manifest, request, "golden", "golden answers for the self-test");
  const std::shared_ptr<const TensorFile> file = read_tensors(*request.files, artefact, kGoldenSchema);
  Golden golden;
  try {
    golden = read_golden(*file, model.manifest);
  } catch (const Error& error) {
    throw Error(error.status, request.files->path(artefact.file) + " is not a golden file: " + error.what());
  }
  try {
    check_tolerances(model.manifest, golden);
  } catch (const Error& error) {
    throw Error(error.status, request.files->path(artefact.file) +
                                  " does not belong to the network that manifest.json describes: " + error.what());
  }
  check_preprocessing(model.manifest, golden);
  const Signature& signature = model.manifest.signature;
  const Tolerance tolerance = tolerance_of(golden, signature, model.artefact->precision);
  const std::string passed = self_test(*model.backend, tolerance, golden, signature, request.self_test > 1);
  if (request.log) request.log(QCN_LOG_INFO, passed);
}

std::shared_ptr<const Model> load_once(const LoadRequest& request, const Manifest& manifest) {
  const auto start = std::chrono::steady_clock::now();
  auto model = std::make_shared<Model>();
  model->manifest = manifest;
  auto [loaded, kind] = load_backend(model->manifest, request);
  model->backend = std::move(loaded.backend), model->artefact = loaded.artefact, model->kind = kind;
  model->backend_name = model->backend->name();
  model->precision = model->backend->precision();
  model->operations = model->backend->operations();
  if (request.log) {
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    char text[64];
    std::snprintf(text, sizeof text, " in %.1f ms", elapsed.count());
    request.log(QCN_LOG_INFO, request.files->where + ": " + model->backend_name + ", " + model->precision + text);
  }
  if (request.self_test > 0) run_self_test(*model, request);
  model->field = open_field(request.field, *model, request.log);
  return model;
}

}  // namespace

std::shared_ptr<const Model> load_model(const LoadRequest& request) {
  Manifest manifest = read_manifest(*request.files, request.public_key);
  for (int attempts = 3;; --attempts) {
    try {
      return load_once(request, manifest);
    } catch (const Error&) {
      // A writer may have finished since the manifest was read, and the files that it names be gone.
      Manifest now = read_manifest(*request.files, request.public_key);
      if (attempts == 1 || now.digest == manifest.digest) throw;
      manifest = std::move(now);
    }
  }
}

}  // namespace qcn

// The functions of qcn.h: arguments are checked, and exceptions end here.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "answer.h"
#include "error.h"
#include "model.h"
#include "public_key.h"
#include "qcn/qcn.h"
#include "session.h"
#include "structures.h"
#include "text.h"

struct qcn_model {
  std::shared_ptr<const qcn::Model> model;
};

struct qcn_session {
  qcn::Session session;
};

namespace qcn {
namespace {

// Of a fixed size: a message must be possible where there is no memory.
thread_local char last_error[2048] = "";

void set_last_error(const char* message) noexcept {
  const std::size_t length = whole_characters(message, sizeof last_error - 1);
  std::memcpy(last_error, message, length);
  last_error[length] = '\0';
}

template <typename Body>
qcn_status guarded(const Body& body) noexcept {
  try {
    body();
    return QCN_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status;
  } catch (const std::bad_alloc&) {
    set_last_error("there is not enough memory");
    return QCN_NO_MEMORY;
  } catch (const std::length_error&) {  // a size beyond what a container can have
    set_last_error("there is not enough memory");
    return QCN_NO_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return QCN_INTERNAL_ERROR;
  } catch (...) {
    set_last_error("an exception of an unknown kind");
    return QCN_INTERNAL_ERROR;
  }
}

void require(const void* argument, const char* what) {
  if (!argument) throw Error(QCN_BAD_ARGUMENT, std::string(what) + " is NULL");
}

void require_count(int count) {
  if (count < 1) throw Error(QCN_BAD_ARGUMENT, "the number of images must be 1 or more, not " + std::to_string(count));
}

FieldRequest field_request(const qcn_field_params* given) {
  if (!given) return {};
  const char* const maker = "take it from qcn_field_default_params";
  const qcn_field_params params = read_structure(given, qcn_field_default_params(nullptr), "qcn_field_params", maker);
  const auto check = [](const char* what, double number, double least, double most) {
    if (number >= least && number <= most) return;
    char text[160];
    std::snprintf(text, sizeof text, "qcn_field_params: %s is %g, not from %g to %g", what, number, least, most);
    throw Error(QCN_BAD_ARGUMENT, text);
  };
  if (!params.folder || !*params.folder) throw Error(QCN_BAD_ARGUMENT, "qcn_field_params: folder is NULL or empty");
  check("pictures", params.pictures, 0, 100000);
  check("below", params.below, 0, 1);
  check("gap", params.gap, 0, 86400);
  check("mib", params.mib, 1, 1 << 20);
  check("period", params.period, 1, 31 * 86400);
  return {params.folder, params.pictures, params.below, params.gap, std::int64_t{params.mib} << 20, params.period};
}

LoadRequest load_request(const qcn_model_params* given) {
  const qcn_model_params defaults = qcn_model_default_params();
  const qcn_model_params params =
      given ? read_structure(given, defaults, "qcn_model_params", "take it from qcn_model_default_params") : defaults;
  const auto refuse = [](const std::string& what, int found, const char* expected) {
    throw Error(QCN_BAD_ARGUMENT, "qcn_model_params: " + what + " is " + std::to_string(found) + ", not " + expected);
  };
  LoadRequest request;
  const int backend = number_of(params.backend);
  if (backend < QCN_BACKEND_AUTO || backend > QCN_BACKEND_TENSORRT) refuse("backend", backend, "a qcn_backend");
  request.backend = static_cast<qcn_backend>(backend);
  if (params.precision) request.precision = params.precision;
  const auto known = {"", "fp32", "fp16", "bf16", "int8"};
  if (std::find(known.begin(), known.end(), request.precision) == known.end()) {
    throw Error(QCN_BAD_ARGUMENT, "qcn_model_params: precision must be fp32, fp16, bf16, int8 or NULL");
  }
  request.self_test = params.self_test;
  request.threads = params.threads;
  request.device = params.device;
  if (request.self_test < 0 || request.self_test > 2) refuse("self_test", request.self_test, "0, 1 or 2");
  if (request.threads < 0 || request.threads > QCN_MAX_THREADS) {
    refuse("threads", request.threads, ("from 0 to " + std::to_string(QCN_MAX_THREADS)).c_str());
  }
  if (request.device < 0) refuse("device", request.device, "0 or more");
  if (params.public_key) request.public_key = parse_public_key(params.public_key);
  request.field = field_request(params.field);
  if (params.log) {
    request.log = [log = params.log, user = params.log_user](qcn_log_level level, const std::string& message) {
      log(level, message.c_str(), user);
    };
  }
  return request;
}

}  // namespace
}  // namespace qcn

using qcn::guarded;
using qcn::require;

const char* qcn_last_error(void) { return qcn::last_error; }

namespace {

// `files` gives those of the bundle.
template <typename Files>
void load(const Files& files, const qcn_model_params* params, qcn_model** model) {
  require(model, "model");
  qcn::LoadRequest request = qcn::load_request(params);
  try {
    request.files = files();
    *model = new qcn_model{qcn::load_model(request)};
  } catch (const qcn::Error& error) {
    try {
      if (request.log) request.log(QCN_LOG_ERROR, error.what());
    } catch (...) {  // of the program's function: it must not hide why loading failed
    }
    throw;
  }
}

}  // namespace

qcn_status qcn_model_load(const char* path, const qcn_model_params* params, qcn_model** model) {
  return guarded([&] {
    require(path, "path");
    load([&] { return qcn::files_in_folder(path); }, params, model);
  });
}

qcn_status qcn_model_load_memory(const qcn_file* files, size_t count, const qcn_model_params* params,
                                 qcn_model** model) {
  return guarded([&] {
    require(files, "files");
    load([&] { return qcn::files_in_memory(files, count); }, params, model);
  });
}

void qcn_model_free(qcn_model* model) { delete model; }

qcn_status qcn_model_describe(const qcn_model* model, qcn_model_info* info) {
  return guarded([&] {
    require(model, "model");
    require(info, "info");
    qcn::check_size<qcn_model_info>(info->size, "qcn_model_info", "set info.size = sizeof info before the call");
    const qcn::Model& ours = *model->model;
    const qcn::Signature& signature = ours.manifest.signature;
    qcn_model_info known;
    std::memset(&known, 0, sizeof known);
    known.size = info->size;
    known.name = ours.manifest.name.c_str();
    known.classes = signature.classes;
    known.channels = signature.channels, known.height = signature.height, known.width = signature.width;
    known.backend = ours.kind;
    known.backend_name = ours.backend_name.c_str();
    known.precision = ours.precision.c_str();
    known.max_batch = ours.backend->max_batch();
    known.poses = signature.poses ? 1 : 0;
    known.image_height = ours.manifest.preprocessing.stored.height;
    known.image_width = ours.manifest.preprocessing.stored.width;
    known.operations = static_cast<int>(ours.operations.size());
    known.temperature = ours.manifest.temperature;
    known.says_unknown = ours.manifest.known ? 1 : 0;
    known.says_direction = ours.manifest.direction ? 1 : 0;
    qcn::write_structure(known, info);
  });
}

qcn_status qcn_model_operation(const qcn_model* model, int index, qcn_operation* operation) {
  return guarded([&] {
    require(model, "model");
    require(operation, "operation");
    qcn::check_size<qcn_operation>(operation->size, "qcn_operation",
                                   "set operation.size = sizeof operation before the call");
    const auto& all = model->model->operations;
    if (index < 0 || static_cast<std::size_t>(index) >= all.size()) {
      throw qcn::Error(QCN_BAD_ARGUMENT, "there is no operation " + std::to_string(index) + ": this backend tells of " +
                                             std::to_string(all.size()));
    }
    const qcn::OperationRun& run = all[static_cast<std::size_t>(index)];
    const qcn_operation ours = {operation->size,   run.name.c_str(), run.op.c_str(),
                                run.asked.c_str(), run.ran.c_str(),  run.kernel.c_str()};
    qcn::write_structure(ours, operation);
  });
}

const char* qcn_model_class(const qcn_model* model, int index) {
  if (!model || index < 0 || index >= model->model->manifest.signature.classes) return nullptr;
  return model->model->manifest.classes[static_cast<std::size_t>(index)].c_str();
}

qcn_status qcn_session_create(const qcn_model* model, const qcn_session_params* params, qcn_session** session) {
  return guarded([&] {
    require(model, "model");
    require(session, "session");
    const qcn_session_params defaults = qcn_session_default_params();
    const qcn_session_params ours =
        params ? qcn::read_structure(params, defaults, "qcn_session_params", "take it from qcn_session_default_params")
               : defaults;
    qcn::ShowLayer show;
    if (ours.layer) {
      show = [seen = ours.layer, user = ours.layer_user](const qcn_layer& layer) { seen(&layer, user); };
    }
    *session = new qcn_session{{model->model, ours.stream, show}};
  });
}

void qcn_session_free(qcn_session* session) { delete session; }

qcn_status qcn_classify(qcn_session* session, const qcn_image* images, int count, qcn_answer* answers, float* logit,
                        float* pose) {
  return guarded([&] {
    require(session, "session");
    require(images, "images");
    qcn::require_count(count);
    session->session.classify(images, count, {answers, logit, pose});
  });
}

qcn_status qcn_preprocess(const qcn_model* model, const qcn_image* image, float* input) {
  return guarded([&] {
    require(model, "model");
    require(image, "image");
    require(input, "input");
    qcn::preprocess_for(*model->model, qcn::image_at(image, 0), input);
  });
}

qcn_status qcn_infer(qcn_session* session, const float* input, int count, float* logit, float* pose) {
  return guarded([&] {
    require(session, "session");
    require(input, "input");
    qcn::require_count(count);
    session->session.infer(input, count, {nullptr, logit, pose});
  });
}

qcn_status qcn_decide(const qcn_model* model, const float* logit, const float* pose, int count, qcn_answer* answers) {
  return guarded([&] {
    require(model, "model");
    require(logit, "logit");
    require(answers, "answers");
    qcn::require_count(count);
    qcn::check_answers(answers, count);
    const qcn::Model& ours = *model->model;
    std::vector<qcn::Decision> decisions;
    const std::size_t classes = ours.manifest.classes.size();
    for (std::size_t first = 0; first < static_cast<std::size_t>(count) * classes; first += classes) {
      decisions.push_back(qcn::decide(ours.manifest, logit + first, pose ? pose + 3 * first : nullptr));
    }
    qcn::write_answers(ours, decisions.data(), count, answers);
  });
}

qcn_status qcn_probabilities(const qcn_model* model, const float* logit, int count, double* probability) {
  return guarded([&] {
    require(model, "model");
    require(logit, "logit");
    require(probability, "probability");
    qcn::require_count(count);
    const qcn::Manifest& manifest = model->model->manifest;
    const std::size_t classes = manifest.classes.size();
    std::vector<double> all(static_cast<std::size_t>(count) * classes);
    for (std::size_t i = 0; i < all.size(); i += classes) qcn::probabilities(manifest, logit + i, all.data() + i);
    std::copy(all.begin(), all.end(), probability);
  });
}

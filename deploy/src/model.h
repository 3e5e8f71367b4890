// A loaded bundle with the backend that runs it: what qcn_model and its sessions share.
#ifndef QCN_SRC_MODEL_H
#define QCN_SRC_MODEL_H

#include <memory>
#include <optional>
#include <string>

#include "backend.h"
#include "ed25519.h"
#include "field.h"
#include "files.h"
#include "manifest.h"

namespace qcn {

// As qcn_model_params, checked.
struct LoadRequest {
  std::shared_ptr<const Files> files;  // of the bundle
  qcn_backend backend = QCN_BACKEND_AUTO;
  std::string precision;  // empty: any
  int self_test = 1;
  int threads = 0;
  int device = 0;
  std::optional<PublicKey> public_key;  // by whose owner the bundle must be signed
  Log log;                              // may be empty
  FieldRequest field;
};

struct Model {
  Manifest manifest;
  const Artefact* artefact = nullptr;  // the file of the manifest that is run
  std::unique_ptr<Backend> backend;
  qcn_backend kind = QCN_BACKEND_NATIVE;
  std::string backend_name, precision;  // as the backend says, kept for qcn_model_describe
  std::vector<OperationRun> operations;
  std::unique_ptr<Field> field;  // null: nothing is recorded
};

std::shared_ptr<const Model> load_model(const LoadRequest& request);  // throws Error

}  // namespace qcn

#endif

#include "error.h"
#include "field.h"

namespace qcn {

std::unique_ptr<Field> open_field(const FieldRequest& request, const Model&, Log) {
  if (!request.folder.empty()) throw Error(QCN_BAD_ARGUMENT, "a page has no folder to record in");
  return nullptr;
}

}  // namespace qcn

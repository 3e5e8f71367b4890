// What a model meets in the field: counts of its answers, and the last uncertain pictures, in a folder (docs/field.md).
#ifndef QCN_SRC_FIELD_H
#define QCN_SRC_FIELD_H

#include <cstdint>
#include <memory>
#include <string>

#include "answer.h"
#include "backend.h"

namespace qcn {

struct Model;

// As qcn_field_params, checked.
struct FieldRequest {
  std::string folder;  // empty: nothing is recorded
  int pictures = 0;
  double below = 0, gap = 0;
  std::int64_t most_bytes = 0;
  int period = 0;  // seconds
};

class Field {
 public:
  virtual ~Field() = default;  // writes what is not written yet

  // Answers to `count` images of a caller's array, which took `seconds` in all. For any number of threads at once. Waits
  // for nothing: what cannot be kept at once is counted as lost.
  virtual void record(const Decision* decisions, const qcn_image* images, int count, double seconds) noexcept = 0;
};

// Null if nothing is asked for. Throws Error(QCN_NO_FILE) for a folder that cannot be written to. `log` is called by
// record, so from the caller's thread, if writing fails later.
std::unique_ptr<Field> open_field(const FieldRequest& request, const Model& model, Log log);

}  // namespace qcn

#endif

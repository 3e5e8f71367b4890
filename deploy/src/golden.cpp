#include "golden.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "json.h"
#include "text.h"

namespace qcn {
namespace {

const double* read_answers(const TensorFile& file, const std::string& name, const std::vector<std::int64_t>& shape) {
  const double* answers = file.doubles(name, shape);
  const bool finite =
      std::all_of(answers, answers + file.at(name).count(), [](double answer) { return std::isfinite(answer); });
  if (!finite) throw Error(QCN_BAD_BUNDLE, "the answers in " + quoted(name) + " must be finite");
  return answers;
}

}  // namespace

Golden read_golden(const TensorFile& file, const Signature& signature) {
  Golden golden;
  const Json names = Json::parse(file.text("rows"));
  for (const Json& row : names.list("'rows'")) golden.rows.push_back(row.text("a row's name"));
  const auto rows = static_cast<std::int64_t>(golden.rows.size());
  if (rows == 0) throw Error(QCN_BAD_BUNDLE, "it has no rows");
  golden.input = file.floats("input", {rows, signature.channels, signature.height, signature.width});
  golden.activation = read_answers(file, "activation", {rows, signature.classes});
  if (signature.poses) golden.pose = read_answers(file, "pose", {rows, signature.classes, 3});
  return golden;
}

}  // namespace qcn

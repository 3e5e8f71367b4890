#include "golden.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "json.h"
#include "text.h"

namespace qcn {
namespace {

Answers read_answers(const TensorFile& file, const std::string& name, const std::vector<std::int64_t>& shape) {
  Answers answers{file.doubles(name, shape), file.floats(name + ".float32", shape)};
  const std::size_t count = file.at(name).count();
  answers.width = count / static_cast<std::size_t>(shape[0]);
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(answers.exact[i]) || !std::isfinite(answers.rounded[i])) {
      throw Error(QCN_BAD_BUNDLE, "the answers in " + quoted(name) + " must be finite");
    }
    answers.noise = std::max(answers.noise, std::abs(answers.exact[i] - double{answers.rounded[i]}));
    answers.scale = std::max(answers.scale, std::abs(answers.exact[i]));
  }
  return answers;
}

}  // namespace

Golden read_golden(const TensorFile& file, const Structure& structure) {
  Golden golden;
  const Json names = Json::parse(file.text("rows"));
  for (const Json& row : names.list("'rows'")) golden.rows.push_back(row.text("a row's name"));
  const auto rows = static_cast<std::int64_t>(golden.rows.size());
  if (rows == 0) throw Error(QCN_BAD_BUNDLE, "it has no rows");
  golden.input = file.floats("input", {rows, structure.channels, structure.height, structure.width});
  golden.activation = read_answers(file, "activation", {rows, structure.classes});
  golden.pose = read_answers(file, "pose", {rows, structure.classes, 3});
  return golden;
}

}  // namespace qcn

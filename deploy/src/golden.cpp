#include "golden.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "error.h"
#include "json.h"
#include "text.h"

namespace qcn {
namespace {

// One of the file's texts, which is a list of texts again.
std::vector<std::string> read_names(const TensorFile& file, const std::string& text) {
  const Json list = Json::parse(file.text(text));
  std::vector<std::string> names;
  for (const Json& name : list.list(quoted(text))) names.push_back(name.text("an entry of " + quoted(text)));
  return names;
}

template <typename Number>
void check_finite(const TensorFile& file, const std::string& name, const Number* numbers) {
  const std::size_t count = file.at(name).count();
  if (!std::all_of(numbers, numbers + count, [](Number number) { return std::isfinite(number); })) {
    refuse_bundle("the numbers in " + quoted(name) + " must be finite");
  }
}

template <typename Number>
const Number* read_answers(const TensorFile& file, const std::string& name, const std::vector<std::int64_t>& shape) {
  const Number* const answers = file.array<Number>(name, shape);
  check_finite(file, name, answers);
  return answers;
}

void check_classes(const std::vector<std::string>& found, const std::vector<std::string>& classes) {
  for (std::size_t i = 0; i < std::max(found.size(), classes.size()); ++i) {
    if (i >= found.size() || i >= classes.size() || found[i] != classes[i]) {
      refuse_bundle("its class " + std::to_string(i) + " is " + (i < found.size() ? quoted(found[i]) : "missing") +
                    ", in manifest.json it is " + (i < classes.size() ? quoted(classes[i]) : "missing"));
    }
  }
}

void check_labels(const TensorFile& file, const std::vector<std::string>& rows, std::int64_t classes) {
  const std::int64_t* const labels = file.array<std::int64_t>("label", {static_cast<std::int64_t>(rows.size())});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (labels[i] < -1 || labels[i] >= classes) {
      refuse_bundle(quoted(rows[i]) + " has the label " + std::to_string(labels[i]) + ", and there are " +
                    std::to_string(classes) + " classes (-1: of none)");
    }
  }
}

// Which rows have an image: all but those named as having none.
std::vector<bool> rows_with_image(const TensorFile& file, const std::vector<std::string>& rows) {
  const std::set<std::string> all(rows.begin(), rows.end());
  if (all.size() != rows.size()) refuse_bundle("two of its rows have the same name");
  std::set<std::string> without;
  for (const std::string& row : read_names(file, "inputs_only")) {
    if (!all.count(row)) refuse_bundle(quoted(row) + " is not one of its rows");
    without.insert(row);
  }
  if (without.size() == all.size()) refuse_bundle("it has no images");
  std::vector<bool> found;
  for (const std::string& row : rows) found.push_back(!without.count(row));
  return found;
}

std::map<std::string, std::map<std::string, double>> read_floors(const TensorFile& file) {
  std::map<std::string, std::map<std::string, double>> floors;
  if (!file.has_text("floors")) return floors;
  const Json json = Json::parse(file.text("floors"));
  for (const JsonEntry& precision : json.object("'floors'")) {
    for (const JsonEntry& floor : precision.value.object("an entry of 'floors'")) {
      const double* const number = std::get_if<double>(&floor.value.value);  // 1 is not one, as in Python
      if (!number || !(*number >= 0)) refuse_bundle("a noise floor must be a positive number: " + quoted(floor.name));
      floors[precision.name][floor.name] = *number;
    }
  }
  return floors;
}

}  // namespace

Golden read_golden(const TensorFile& file, const Manifest& manifest) {
  const Signature& signature = manifest.signature;
  const Stored& stored = manifest.preprocessing.stored;
  Golden golden;
  golden.rows = read_names(file, "rows");
  const auto rows = static_cast<std::int64_t>(golden.rows.size());
  check_classes(read_names(file, "classes"), manifest.classes);
  if (!(parse_preprocessing(Json::parse(file.text("preprocessing"))) == manifest.preprocessing)) {
    refuse_bundle("its pre-processing is " + file.text("preprocessing") + ", which is not that of manifest.json");
  }
  golden.has_image = rows_with_image(file, golden.rows);
  check_labels(file, golden.rows, signature.classes);
  golden.image = file.array<unsigned char>("image", {rows, stored.channels, stored.height, stored.width});
  golden.input = file.array<float>("input", {rows, signature.channels, signature.height, signature.width});
  check_finite(file, "input", golden.input);
  const std::vector<std::int64_t> logits = {rows, signature.classes}, poses = {rows, signature.classes, 3};
  golden.logit = read_answers<double>(file, "logit", logits);
  golden.logit_float32 = read_answers<float>(file, "logit.float32", logits);
  if (signature.poses) {
    golden.pose = read_answers<double>(file, "pose", poses);
    golden.pose_float32 = read_answers<float>(file, "pose.float32", poses);
  }
  golden.plan = file.all().count("trained.logit") > 0;
  if (golden.plan) read_answers<double>(file, "trained.logit", logits);
  golden.floors = read_floors(file);
  return golden;
}

}  // namespace qcn

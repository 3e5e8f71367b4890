// What the self-test allows, computed from golden files: the cases of tests/tolerances.json, which Python is tested on
// as well.
//
//     test_tolerances tolerances.json
#include <string>
#include <vector>

#include "check.h"
#include "golden.h"
#include "json.h"
#include "manifest.h"
#include "random_network.h"
#include "tiny_bundle.h"
#include "tolerance.h"

namespace {

using networks::array;
using networks::quoted;
using std::string;

constexpr std::int64_t kClasses = 2;

string number(const qcn::Json& value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value.real("a number"));
  return text;
}

template <typename Number>
std::vector<Number> numbers(const qcn::Json& list) {
  std::vector<Number> found;
  for (const qcn::Json& one : list.list("a list")) found.push_back(static_cast<Number>(one.real("a number")));
  return found;
}

string text_in_text(string text) {  // as JSON inside of JSON
  for (std::size_t at = 0; (at = text.find('"', at)) != string::npos; at += 2) text.insert(at, "\\");
  return '"' + text + '"';
}

string golden_file(const qcn::Json& json) {
  const std::vector<double> logit = numbers<double>(json["logit"]);
  const std::int64_t rows = static_cast<std::int64_t>(logit.size()) / kClasses;
  const auto count = static_cast<std::size_t>(rows);
  networks::Arrays arrays = {
      {"image", array("U8", {rows, 1, 1, 1}, std::vector<unsigned char>(count, 0))},
      {"label", array("I64", {rows}, std::vector<std::int64_t>(count, -1))},
      {"input", array("F32", {rows, 1, 1, 1}, std::vector<float>(count, -2))},
      {"logit", array("F64", {rows, kClasses}, logit)},
      {"logit.float32", array("F32", {rows, kClasses}, numbers<float>(json["logit.float32"]))}};
  if (json.find("pose")) {
    arrays["pose"] = array("F64", {rows, kClasses, 3}, numbers<double>(json["pose"]));
    arrays["pose.float32"] = array("F32", {rows, kClasses, 3}, numbers<float>(json["pose.float32"]));
  }
  if (json["plan"].boolean("plan")) {
    arrays["trained.logit"] = arrays["logit"];
    if (json.find("pose")) arrays["trained.pose"] = arrays["pose"];
  }
  string names;
  for (std::int64_t row = 0; row < rows; ++row) names += (row ? ", \"row " : "\"row ") + std::to_string(row) + '"';
  const string floors =
      json["floors"].is_null() ? "" : ", \"floors\": " + text_in_text(json["floors"].text("floors"));
  return networks::safetensors(
      arrays, R"({"schema": "3", "rows": )" + text_in_text("[" + names + "]") +
                  R"(, "inputs_only": "[]", "classes": "[\"cat\", \"dog\"]", "preprocessing": "{\"fit\": \"crop\", )"
                  R"(\"resize\": null, \"crop\": null, \"standardise\": \"dataset\", \"mean\": [0.5], )"
                  R"(\"std\": [0.25]}")" +
                  floors + "}");
}

string manifest_text(const qcn::Json& json) {
  const string precision = json["precision"].text("precision");
  const qcn::Json& allowed = json["tolerance"];
  const bool poses = json.find("pose") != nullptr;
  return R"({"name": "case", "classes": ["cat", "dog"], "image": [1, 1, 1], "preprocessing": {"fit": "crop", )"
         R"("resize": null, "crop": null, "standardise": "dataset", "mean": [0.5], "std": [0.25]}, )"
         R"("confidence": null, "known": null, "direction": null, "measured": null, )"
         R"("input": {"name": "image", "shape": [1, 1, 1], )"
         R"("layout": "NCHW", "dtype": "float32"}, "outputs": [{"name": "logit", "shape": [2], "layout": "NK", )"
         R"("dtype": "float32"})" +
         string(poses ? R"(, {"name": "pose", "shape": [2, 3], "layout": "NKP", "dtype": "float32"})" : "") +
         R"(], "source": {"sha256": "", "model": "qcn", "checkpoint": "best", "epoch": 1, "data": "", )"
         R"("data_sha256": ""}, "tools": {}, "files": [{"file": )" +
         quoted("model" + (precision == "fp32" ? "" : "." + precision) + ".onnx") +
         R"(, "format": "onnx", "sha256": ")" + string(64, '0') + R"(", "bytes": 1, "precision": )" +
         quoted(precision) +
         R"(, "found": null, "batch": null, "rebuild": "qcn export RUN --out {bundle}", "plugin": false, )"
         R"("tolerance": {"logit": )" +
         number(allowed["logit"]) + (poses ? ", \"pose\": " + number(allowed["pose"]) : "") +
         R"(}, "facts": {}}], "schema": 4})";
}

void test_case(const qcn::Json& json) {
  const string name = json["name"].text("name");
  const qcn::Manifest manifest = qcn::parse_manifest(manifest_text(json));
  const string bytes = golden_file(json);
  string why = "taken";
  const bool taken = accepted_or_refused(name, [&] {
    const qcn::TensorFile file(networks::bytes(bytes), qcn::kGoldenSchema);
    try {
      qcn::check_tolerances(manifest, qcn::read_golden(file, manifest));
    } catch (const qcn::Error& error) {
      why = error.what();
      throw;
    }
  });
  check(taken == json["taken"].boolean("taken"), name + ": " + why);
  std::printf("%s: %s\n", name.c_str(), why.c_str());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const qcn::Json json = qcn::Json::parse(tiny::read(arguments[1]));
  const qcn::JsonList& cases = json.at("cases", "the file").list("cases");
  check(cases.size() >= 50, "there are cases");
  for (const qcn::Json& one : cases) test_case(one);
  return verdict();
}

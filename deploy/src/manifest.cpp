#include "manifest.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "error.h"
#include "json.h"
#include "sha256.h"
#include "text.h"

namespace qcn {
namespace {

constexpr int kSchema = 2;
// Far above any network there is, and low enough that the size of its input is sure to fit its type.
constexpr int kMaxCount = 1 << 16;
constexpr std::int64_t kMaxPixels = std::int64_t{1} << 26;
constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void refuse(const std::string& why) { throw Error(QCN_BAD_BUNDLE, why); }

int count(const Json& json, const std::string& what) { return static_cast<int>(json.integer(what, 1, kMaxCount)); }

std::optional<int> count_or_null(const Json& json, const std::string& what) {
  if (json.is_null()) return std::nullopt;
  return count(json, what);
}

std::string plain_text(const Json& json, const std::string& what) {
  const std::string& text = json.text(what);
  if (!printable(text)) refuse(what + " must be printable text, not " + quoted(text));
  return text;
}

std::vector<int> counts(const Json& json, const std::string& what) {
  std::vector<int> found;
  for (const Json& entry : json.list(what)) found.push_back(count(entry, "an entry of " + what));
  return found;
}

std::string one_of(const Json& json, const std::vector<std::string>& choices, const std::string& what) {
  const std::string& text = json.text(what);
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
  std::string known;
  for (const std::string& choice : choices) known += (known.empty() ? "" : ", ") + choice;
  refuse(what + " must be one of " + known + ", not " + quoted(text));
}

// The shape of an input or output of this name and layout.
std::vector<int> parse_port(const Json& json, const char* name, const char* layout) {
  const std::string what = std::string("the input or output '") + name + "'";
  json.check_entries({"name", "shape", "layout", "dtype"}, what);
  const auto check = [&](const char* key, const char* expected) {
    const std::string& found = json.at(key, what).text(what + ": " + key);
    if (found != expected) refuse(what + ": " + key + " must be " + quoted(expected) + ", not " + quoted(found));
  };
  check("name", name), check("layout", layout), check("dtype", "float32");
  return counts(json.at("shape", what), "the shape of " + what);
}

Signature parse_signature(const Json& input, const JsonList& outputs, int classes) {
  Signature signature;
  const std::vector<int> image = parse_port(input, "image", "NCHW");
  if (image.size() != 3) refuse("the input 'image' must be [channels, height, width]");
  signature.channels = image[0], signature.height = image[1], signature.width = image[2];
  if (std::int64_t{image[0]} * image[1] * image[2] > kMaxPixels) {
    refuse("the network's input is too large: " + std::to_string(image[0]) + " channels of " +
           std::to_string(image[1]) + "×" + std::to_string(image[2]));
  }
  if (outputs.empty() || outputs.size() > 2) {
    refuse("outputs must be activation and, where the network has poses, pose; " + std::to_string(outputs.size()) +
           " are given");
  }
  signature.classes = classes;
  signature.poses = outputs.size() == 2;
  const auto check = [](const std::vector<int>& found, const std::vector<int>& expected, const char* name) {
    if (found != expected) {
      refuse(std::string("the shape of the output '") + name + "' does not fit " + std::to_string(expected[0]) +
             " classes");
    }
  };
  check(parse_port(outputs[0], "activation", "NK"), {classes}, "activation");
  if (signature.poses) check(parse_port(outputs[1], "pose", "NKP"), {classes, 3}, "pose");
  return signature;
}

// What makes probabilities of activations: 1 where it was not measured.
double parse_temperature(const Json& json) {
  if (json.is_null()) return 1;
  json.check_entries({"temperature", "error"}, "confidence");
  const double temperature = json.at("temperature", "confidence").real("temperature");
  const double error = json.at("error", "confidence").real("error");
  if (!(temperature > 0)) refuse("confidence: temperature must be positive, not " + std::to_string(temperature));
  if (!(error >= 0 && error <= 1)) refuse("confidence: error must be from 0 to 1, not " + std::to_string(error));
  return temperature;
}

// Whether the text is a day, as 2026-11-16.
bool is_date(const std::string& text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  for (const std::size_t place : {0u, 1u, 2u, 3u, 5u, 6u, 8u, 9u}) {
    if (text[place] < '0' || text[place] > '9') return false;
  }
  const int month = std::stoi(text.substr(5, 2)), day = std::stoi(text.substr(8, 2));
  return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

// How often the network was wrong on test images: for people, so it is checked and not kept.
void check_measured(const Json& json) {
  if (json.is_null()) return;
  json.check_entries({"data", "date", "splits"}, "measured");
  if (plain_text(json.at("data", "measured"), "measured: data").empty()) refuse("measured: data must have a name");
  const std::string& date = json.at("date", "measured").text("measured: date");
  if (!is_date(date)) refuse("measured: a date is written as 2026-11-16, not " + quoted(date));
  const JsonList& splits = json.at("splits", "measured").list("measured: splits");
  if (splits.empty()) refuse("measured: there must be a split that was measured on");
  for (const Json& split : splits) {
    split.check_entries({"split", "images", "wrong", "calibration_error"}, "a split of 'measured'");
    const auto entry = [&](const char* name) -> const Json& { return split.at(name, "a split of 'measured'"); };
    if (plain_text(entry("split"), "the name of a split").empty()) refuse("measured: a split has an empty name");
    const std::int64_t images = entry("images").integer("images", 1, kMaxBytes);
    entry("wrong").integer("wrong", 0, images);
    const double error = entry("calibration_error").real("calibration_error");
    if (!(error >= 0 && error <= 1)) {
      refuse("measured: a calibration error is from 0 to 1, not " + std::to_string(error));
    }
  }
}

// The shape of images before pre-processing.
void parse_image(const Json& json, const Signature& signature, Preprocessing& spec) {
  const std::vector<int> image = counts(json, "image");
  if (image.size() != 3) refuse("image must be [channels, height, width]");
  for (const int side : {image[1], image[2], spec.resize.value_or(1)}) {
    if (side > kMaxSide) refuse("images have at most " + std::to_string(kMaxSide) + " pixels a side");
  }
  const std::optional<int> side = spec.crop ? spec.crop : spec.resize;
  const std::vector<int> seen = {image[0], side.value_or(image[1]), side.value_or(image[2])};
  if (seen != std::vector<int>{signature.channels, signature.height, signature.width}) {
    refuse("pre-processing does not make of 'image' what the network takes as its input");
  }
  if (spec.crop && *spec.crop > std::min(spec.resize.value_or(image[1]), spec.resize.value_or(image[2]))) {
    refuse("preprocessing: a crop of " + std::to_string(*spec.crop) + " pixels is larger than the image");
  }
  if (!spec.by_image && spec.mean.size() != static_cast<std::size_t>(image[0])) {
    refuse(std::to_string(spec.mean.size()) + " means for " + std::to_string(image[0]) + " channels");
  }
  if (spec.by_image && !spec.mean.empty()) {
    refuse("preprocessing: mean and std must be empty where images are standardised by their own");
  }
  spec.stored.channels = image[0], spec.stored.height = image[1], spec.stored.width = image[2];
}

void check_source(const Json& json) {
  json.check_entries({"sha256", "model", "checkpoint", "epoch", "data", "data_sha256"}, "source");
  for (const char* name : {"sha256", "model", "checkpoint", "data", "data_sha256"})
    json.at(name, "source").text("source");
  json.at("epoch", "source").integer("epoch", std::numeric_limits<std::int64_t>::min(), kMaxBytes);
}

// Whether the text is nothing but letters, digits, '.', '_' and '-', and does not begin with '.'.
bool is_plain_name(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !text.empty() && text[0] != '.' && std::all_of(text.begin(), text.end(), plain);
}

// The file of each format; * is the precision: nothing for fp32, .fp16, .bf16, .int8. Engines have NAMEs of their own.
const std::map<std::string, std::string> FILES = {
    {"native", "weights.safetensors"},
    {"golden", "golden.safetensors"},
    {"web", "page.html"},
    {"onnx", "model*.onnx"},
    {"onnx-fused", "model.fused*.onnx"},
    {"onnx-tensorrt", "model.tensorrt*.onnx"},
    {"torchscript", "model*.ts"},
    {"pt2", "model*.pt2"},
    {"executorch", "model*.pte"},
    {"openvino", "model*.xml"},
    {"openvino-weights", "model*.bin"},
    {"triton", "triton*.tar"},
    {"trt", "engines/NAME.engine"},
};

std::vector<std::string> formats() {
  std::vector<std::string> found;
  for (const auto& [format, file] : FILES) found.push_back(format);
  return found;
}

// Every format has its own file name, so no manifest leads a reader out of its bundle.
void check_file(const Artefact& artefact) {
  const std::string &file = artefact.file, &format = artefact.format;
  if (format == "trt") {
    const std::string folder = "engines/", ending = ".engine";
    const bool long_enough = file.size() > folder.size() + ending.size();
    if (long_enough && file.compare(0, folder.size(), folder) == 0 &&
        file.compare(file.size() - ending.size(), ending.size(), ending) == 0 &&
        is_plain_name(file.substr(folder.size(), file.size() - folder.size() - ending.size()))) {
      return;
    }
    refuse("a file of the format trt must be named " + FILES.at(format) + ", not " + quoted(file));
  }
  const std::string part = artefact.precision == "fp32" ? "" : "." + artefact.precision;
  std::string expected = FILES.at(format);
  if (const size_t star = expected.find('*'); star != std::string::npos) expected.replace(star, 1, part);
  if (file != expected)
    refuse("a file of the format " + format + " in " + artefact.precision + " must be named " + expected + ", not " +
           quoted(file));
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// A text among the facts, "" where there is none.
std::string fact(const Artefact& artefact, const Json& facts, const char* name) {
  const Json* found = facts.find(name);
  if (!found || found->is_null()) return "";
  const std::string& text = found->text(artefact.file + ": the fact '" + name + "'");
  return printable(text) ? text : "";
}

// A truth among the facts, false where there is none.
bool truth(const Artefact& artefact, const Json& facts, const char* name) {
  const Json* found = facts.find(name);
  return found && !found->is_null() && found->boolean(artefact.file + ": the fact '" + name + "'");
}

Tolerance parse_tolerance(const Json& json, const Artefact& artefact, const Signature& signature) {
  const std::string what = artefact.file + ": tolerance";
  Tolerance tolerance;
  if (artefact.format == "golden") {
    if (!json.is_null()) refuse(what + " must be null: the golden answers have none");
    return tolerance;
  }
  std::vector<std::string_view> outputs = {"activation"};
  if (signature.poses) outputs.push_back("pose");
  json.check_entries(outputs, what);
  const auto read = [&](const char* output) {
    const double found = json.at(output, what).real(what);
    if (!(found > 0)) refuse(what + " must be positive, not " + std::to_string(found));
    return found;
  };
  tolerance.activation = read("activation");
  if (signature.poses) tolerance.pose = read("pose");
  return tolerance;
}

Artefact parse_artefact(const Json& json, const Signature& signature) {
  const std::string what = "an entry of 'files'";
  json.check_entries(
      {"file", "format", "sha256", "bytes", "precision", "found", "batch", "rebuild", "plugin", "tolerance", "facts"},
      what);
  const auto entry = [&](const char* name) -> const Json& { return json.at(name, what); };
  Artefact artefact;
  artefact.file = plain_text(entry("file"), "file");
  artefact.format = one_of(entry("format"), formats(), artefact.file + ": format");
  artefact.precision =
      one_of(entry("precision"), {"fp64", "fp32", "fp16", "bf16", "int8"}, artefact.file + ": precision");
  if ((artefact.format == "golden") != (artefact.precision == "fp64") ||
      ((artefact.format == "native" || artefact.format == "web") && artefact.precision == "bf16") ||
      (artefact.format == "executorch" && artefact.precision != "fp32")) {
    refuse(artefact.file + ": a file of the format " + artefact.format + " is not in " + artefact.precision);
  }
  check_file(artefact);
  if (const Json& found = entry("found"); !found.is_null()) {
    const std::string& text = found.text(artefact.file + ": found");
    if (text != artefact.precision) {
      refuse(artefact.file + ": found must be null or the precision, " + artefact.precision + ", not " + quoted(text));
    }
  }
  artefact.sha256 = entry("sha256").text(artefact.file + ": sha256");
  if (!is_sha256(artefact.sha256)) refuse(artefact.file + ": " + quoted(artefact.sha256) + " is not a sha256");
  artefact.bytes = static_cast<std::uint64_t>(entry("bytes").integer(artefact.file + ": bytes", 0, kMaxBytes));
  if (const Json& batch = entry("batch"); !batch.is_null()) {
    batch.check_entries({"min", "opt", "max"}, "batch");
    const auto size = [&](const char* name) { return count(batch.at(name, "batch"), "a batch size"); };
    artefact.min_batch = size("min"), artefact.opt_batch = size("opt"), artefact.max_batch = size("max");
    if (artefact.min_batch > artefact.opt_batch || artefact.opt_batch > artefact.max_batch) {
      refuse(artefact.file + ": a batch range goes upwards");
    }
  }
  artefact.rebuild = plain_text(entry("rebuild"), artefact.file + ": rebuild");
  if (artefact.rebuild.rfind("qcn export ", 0) != 0 && artefact.rebuild.rfind("qcn calibrate ", 0) != 0) {
    refuse(artefact.file + ": rebuild must be a command of `qcn export` or `qcn calibrate`, not " +
           quoted(artefact.rebuild));
  }
  artefact.plugin = entry("plugin").boolean(artefact.file + ": plugin");
  if (artefact.plugin && artefact.format != "trt") refuse(artefact.file + ": only engines need the TensorRT plugin");
  artefact.tolerance = parse_tolerance(entry("tolerance"), artefact, signature);
  // What else the facts are, only the backend of this format knows.
  const Json& facts = entry("facts");
  facts.object(artefact.file + ": facts");
  fact(artefact, facts, "precision");
  if (const Json* batch = facts.find("batch"); batch && !batch->is_null()) {
    const std::vector<int> sizes = counts(*batch, artefact.file + ": the fact 'batch'");
    if (sizes.size() != 3 || sizes[0] > sizes[1] || sizes[1] > sizes[2]) {
      refuse(artefact.file + ": the fact 'batch' must be [min, opt, max], upwards");
    }
  }
  artefact.flavour = fact(artefact, facts, "flavour");
  artefact.version = fact(artefact, facts, "version");
  artefact.gpu = fact(artefact, facts, "gpu");
  if (const Json* sm = facts.find("sm"); sm && !sm->is_null()) {
    const std::int64_t number =
        sm->integer(artefact.file + ": the fact 'sm'", std::numeric_limits<std::int64_t>::min(), kMaxBytes);
    artefact.sm = number > 0 && number < kMaxCount ? static_cast<int>(number) : 0;
  }
  artefact.hardware_compatible = truth(artefact, facts, "hardware_compatible");
  artefact.stripped = truth(artefact, facts, "stripped");
  return artefact;
}

std::vector<std::string> parse_classes(const Json& json) {
  std::vector<std::string> classes;
  std::set<std::string> seen;
  for (const Json& name : json.list("classes")) {
    classes.push_back(plain_text(name, "the name of a class"));
    if (classes.back().empty()) refuse("a class has an empty name");
    if (!seen.insert(classes.back()).second) refuse("two classes have the name " + quoted(classes.back()));
  }
  if (classes.empty() || classes.size() > static_cast<std::size_t>(kMaxCount)) {
    refuse("there must be 1 to " + std::to_string(kMaxCount) + " classes, not " + std::to_string(classes.size()));
  }
  return classes;
}

// What Python says too (export/bundle/manifest.py).
std::string of_a_newer_qcn(std::int64_t schema, const Json* tools) {
  const Json* qcn = tools ? tools->find("qcn") : nullptr;
  const auto made = qcn ? std::get_if<std::string>(&qcn->value) : nullptr;
  const bool known = made && printable(*made);
  return "it has schema " + std::to_string(schema) + ", of " + (known ? "qcn " + *made : "a newer qcn") + "; libqcn " +
         qcn_version() + " reads schema " + std::to_string(kSchema) + ": update libqcn" +
         (known ? " to " + *made + " or newer" : "") + ", with pip install --upgrade qcn-toolkit";
}

void check_schema(const Json& json) {
  const Json& schema = json.at("schema", "the manifest");
  const auto number = std::get_if<std::int64_t>(&schema.value);
  if (number && *number == kSchema) return;
  if (number && *number > kSchema) throw NewerBundle(of_a_newer_qcn(*number, json.find("tools")));
  refuse((number ? "it has schema " + std::to_string(*number) : "its schema is not a whole number") +
         "; this version of libqcn, " + qcn_version() + ", reads " + std::to_string(kSchema));
}

}  // namespace

Preprocessing parse_preprocessing(const Json& json) {
  json.check_entries({"fit", "resize", "crop", "standardise", "mean", "std"}, "preprocessing");
  const auto entry = [&](const char* name) -> const Json& { return json.at(name, "preprocessing"); };
  Preprocessing spec;
  const std::string fit = one_of(entry("fit"), {"crop", "letterbox", "stretch"}, "fit");
  spec.stored.fit = fit == "crop" ? Fit::kCrop : fit == "letterbox" ? Fit::kLetterbox : Fit::kStretch;
  spec.resize = count_or_null(entry("resize"), "resize");
  spec.crop = count_or_null(entry("crop"), "crop");
  spec.by_image = one_of(entry("standardise"), {"dataset", "image"}, "standardise") == "image";
  for (const Json& mean : entry("mean").list("mean")) spec.mean.push_back(mean.real("mean"));
  for (const Json& std : entry("std").list("std")) {
    spec.std.push_back(std.real("std"));
    if (!(spec.std.back() > 0)) refuse("preprocessing: std must be positive, not " + std::to_string(spec.std.back()));
  }
  if (spec.mean.size() != spec.std.size()) refuse("preprocessing: there must be as many means as deviations");
  return spec;
}

std::string Artefact::rebuild_in(const std::string& folder) const {
  const std::string placeholder = "{bundle}", path = shell_word(folder);
  std::string command = rebuild;
  for (std::size_t at = 0; (at = command.find(placeholder, at)) != std::string::npos; at += path.size()) {
    command.replace(at, placeholder.size(), path);
  }
  return command;
}

Manifest parse_manifest(const std::string& text) {
  const Json json = Json::parse(text);
  check_schema(json);
  json.check_entries({"name", "classes", "image", "preprocessing", "confidence", "measured", "input", "outputs",
                      "source", "tools", "files", "schema"},
                     "the manifest");
  const auto entry = [&](const char* name) -> const Json& { return json.at(name, "the manifest"); };
  Manifest manifest;
  manifest.digest = sha256(text.data(), text.size());
  manifest.name = plain_text(entry("name"), "name");
  manifest.classes = parse_classes(entry("classes"));
  manifest.preprocessing = parse_preprocessing(entry("preprocessing"));
  manifest.signature =
      parse_signature(entry("input"), entry("outputs").list("outputs"), static_cast<int>(manifest.classes.size()));
  parse_image(entry("image"), manifest.signature, manifest.preprocessing);
  manifest.temperature = parse_temperature(entry("confidence"));
  check_measured(entry("measured"));
  check_source(entry("source"));
  for (const JsonEntry& tool : entry("tools").object("tools")) {
    if (!printable(tool.name)) refuse("tools must be printable text, not " + quoted(tool.name));
    plain_text(tool.value, "a version in 'tools'");
  }
  std::set<std::string> seen;
  for (const Json& file : entry("files").list("files")) {
    manifest.files.push_back(parse_artefact(file, manifest.signature));
    if (!seen.insert(manifest.files.back().file).second) refuse(quoted(manifest.files.back().file) + " is named twice");
  }
  return manifest;
}

}  // namespace qcn

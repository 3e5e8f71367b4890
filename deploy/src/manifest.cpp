#include "manifest.h"

#include <algorithm>
#include <set>

#include "error.h"
#include "json.h"
#include "sha256.h"
#include "text.h"

namespace qcn {
namespace {

constexpr int kSchema = 4;
constexpr std::int64_t kMaxPixels = std::int64_t{1} << 26;

std::optional<int> size_or_null(const Json& json, const char* what) {
  if (json.is_null()) return std::nullopt;
  return json.size(what);
}

void check_share(const Json& json, const char* what) {
  const double found = json.real(what);
  if (!(found >= 0 && found <= 1)) refuse_bundle(what + (" must be from 0 to 1, not " + std::to_string(found)));
}

// The shape of an input or output of this name and layout.
std::vector<int> parse_port(const Json& json, const char* name, const char* layout) {
  const std::string what = std::string("the input or output '") + name + "'";
  json.check_entries({"name", "shape", "layout", "dtype"}, what);
  const auto check = [&](const char* key, const char* expected) {
    const std::string& found = json[key].text(what + ": " + key);
    if (found != expected) refuse_bundle(what + ": " + key + " must be " + quoted(expected) + ", not " + quoted(found));
  };
  check("name", name), check("layout", layout), check("dtype", "float32");
  return json["shape"].sizes("the shape of " + what);
}

Signature parse_signature(const Json& input, const JsonList& outputs, int classes) {
  Signature signature;
  const std::vector<int> image = parse_port(input, "image", "NCHW");
  if (image.size() != 3) refuse_bundle("the input 'image' must be [channels, height, width]");
  signature.channels = image[0], signature.height = image[1], signature.width = image[2];
  if (std::int64_t{image[0]} * image[1] * image[2] > kMaxPixels) {
    refuse_bundle("the network's input is too large: " + std::to_string(image[0]) + " channels of " +
                  std::to_string(image[1]) + "×" + std::to_string(image[2]));
  }
  if (outputs.empty() || outputs.size() > 2) {
    refuse_bundle("outputs must be logit and, where the network has poses, pose; " + std::to_string(outputs.size()) +
                  " are given");
  }
  signature.classes = classes;
  signature.poses = outputs.size() == 2;
  const auto check = [](const std::vector<int>& found, const std::vector<int>& expected, const char* name) {
    if (found != expected) {
      refuse_bundle(std::string("the shape of the output '") + name + "' does not fit " + std::to_string(expected[0]) +
                    " classes");
    }
  };
  check(parse_port(outputs[0], "logit", "NK"), {classes}, "logit");
  if (signature.poses) check(parse_port(outputs[1], "pose", "NKP"), {classes, 3}, "pose");
  return signature;
}

// What makes probabilities of logits: 1 where it was not fitted.
double parse_temperature(const Json& json) {
  if (json.is_null()) return 1;
  json.check_entries({"temperature", "error"}, "confidence");
  const double temperature = json["temperature"].real("temperature");
  if (!(temperature > 0)) refuse_bundle("confidence: temperature must be positive, not " + std::to_string(temperature));
  check_share(json["error"], "confidence: error");
  return temperature;
}

// How an image is told from what is like nothing in training. How well that works is for people: checked, and not kept.
std::optional<Known> parse_known(const Json& json) {
  if (json.is_null()) return std::nullopt;
  json.check_entries({"score", "threshold", "keep", "auroc", "false_positives"}, "known");
  Known known;
  const std::string score = json["score"].one_of({"probability", "logit", "energy"}, "known: score");
  known.score = score == "probability" ? Score::kProbability : score == "logit" ? Score::kLogit : Score::kEnergy;
  known.threshold = json["threshold"].real("known: threshold");
  const double keep = json["keep"].real("known: keep");
  if (!(keep > 0 && keep < 1)) refuse_bundle("known: keep must be between 0 and 1, not " + std::to_string(keep));
  check_share(json["auroc"], "known: auroc");
  check_share(json["false_positives"], "known: false_positives");
  return known;
}

// How poses tell from where an object is seen (qcn/direction.py).
std::optional<Directions> parse_directions(const Json& json, const Signature& signature) {
  if (json.is_null()) return std::nullopt;
  json.check_entries({"symmetry", "elevation", "lengths", "spreads"}, "direction");
  if (!signature.poses) refuse_bundle("direction: it is made of poses, which this network does not have");
  Directions directions;
  for (const Json& fold : json["symmetry"].list("direction: symmetry")) {
    directions.symmetry.push_back(static_cast<int>(fold.integer("direction: symmetry", kRound, 360)));
  }
  if (directions.symmetry.size() != static_cast<std::size_t>(signature.classes)) {
    refuse_bundle("direction: " + std::to_string(directions.symmetry.size()) + " symmetries for " +
                  std::to_string(signature.classes) + " classes");
  }
  directions.elevation = json["elevation"].boolean("direction: elevation");
  double below = 0;
  for (const Json& limit : json["lengths"].list("direction: lengths")) {
    directions.lengths.push_back(limit.real("direction: lengths"));
    if (!(directions.lengths.back() > below)) refuse_bundle("direction: lengths must be positive and rise");
    below = directions.lengths.back();
  }
  for (const Json& spread : json["spreads"].list("direction: spreads")) {
    directions.spreads.push_back(spread.real("direction: spreads"));
    if (!(directions.spreads.back() >= 0 && directions.spreads.back() <= 180)) {
      refuse_bundle("direction: a spread is from 0 to 180 degrees, not " + std::to_string(directions.spreads.back()));
    }
  }
  if (directions.spreads.size() != directions.lengths.size() + 1) {
    refuse_bundle("direction: " + std::to_string(directions.lengths.size()) +
                  " limits of pose length need one spread more, not " + std::to_string(directions.spreads.size()));
  }
  return directions;
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
  if (json["data"].printable_text("measured: data").empty()) refuse_bundle("measured: data must have a name");
  const std::string& date = json["date"].text("measured: date");
  if (!is_date(date)) refuse_bundle("measured: a date is written as 2026-11-16, not " + quoted(date));
  const JsonList& splits = json["splits"].list("measured: splits");
  if (splits.empty()) refuse_bundle("measured: there must be a split that was measured on");
  for (const Json& split : splits) {
    split.check_entries({"split", "images", "wrong", "calibration_error"}, "a split of 'measured'");
    if (split["split"].printable_text("the name of a split").empty())
      refuse_bundle("measured: a split has an empty name");
    split["wrong"].integer("wrong", 0, split["images"].integer("images", 1));
    check_share(split["calibration_error"], "measured: calibration_error");
  }
}

// The shape of images before pre-processing.
void parse_image(const Json& json, const Signature& signature, Preprocessing& spec) {
  const std::vector<int> image = json.sizes("image");
  if (image.size() != 3) refuse_bundle("image must be [channels, height, width]");
  for (const int side : {image[1], image[2], spec.resize.value_or(1)}) {
    if (side > kMaxSide) refuse_bundle("images have at most " + std::to_string(kMaxSide) + " pixels a side");
  }
  const std::optional<int> side = spec.crop ? spec.crop : spec.resize;
  const std::vector<int> seen = {image[0], side.value_or(image[1]), side.value_or(image[2])};
  if (seen != std::vector<int>{signature.channels, signature.height, signature.width}) {
    refuse_bundle("pre-processing does not make of 'image' what the network takes as its input");
  }
  if (spec.crop && *spec.crop > std::min(spec.resize.value_or(image[1]), spec.resize.value_or(image[2]))) {
    refuse_bundle("preprocessing: a crop of " + std::to_string(*spec.crop) + " pixels is larger than the image");
  }
  if (!spec.by_image && spec.mean.size() != static_cast<std::size_t>(image[0])) {
    refuse_bundle(std::to_string(spec.mean.size()) + " means for " + std::to_string(image[0]) + " channels");
  }
  if (spec.by_image && !spec.mean.empty()) {
    refuse_bundle("preprocessing: mean and std must be empty where images are standardised by their own");
  }
  spec.stored.channels = image[0], spec.stored.height = image[1], spec.stored.width = image[2];
}

// Checked, and its sha256 given.
std::string parse_source(const Json& json) {
  json.check_entries({"sha256", "model", "checkpoint", "epoch", "data", "data_sha256"}, "source");
  for (const char* name : {"sha256", "model", "checkpoint", "data", "data_sha256"}) json[name].text("source");
  json["epoch"].integer("epoch");
  return json["sha256"].text("source");
}

std::vector<std::string> parse_classes(const Json& json) {
  std::vector<std::string> classes;
  std::set<std::string> seen;
  for (const Json& name : json.list("classes")) {
    classes.push_back(name.printable_text("the name of a class"));
    if (classes.back().empty()) refuse_bundle("a class has an empty name");
    if (!seen.insert(classes.back()).second) refuse_bundle("two classes have the name " + quoted(classes.back()));
  }
  if (classes.empty() || classes.size() > std::size_t{Json::kMaxSize}) {
    refuse_bundle("there must be 1 to " + std::to_string(Json::kMaxSize) + " classes, not " +
                  std::to_string(classes.size()));
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
  refuse_bundle((number ? "it has schema " + std::to_string(*number) : "its schema is not an integer") +
                "; this version of libqcn, " + qcn_version() + ", reads " + std::to_string(kSchema));
}

}  // namespace

Preprocessing parse_preprocessing(const Json& json) {
  json.check_entries({"fit", "resize", "crop", "standardise", "mean", "std"}, "preprocessing");
  Preprocessing spec;
  const std::string fit = json["fit"].one_of({"crop", "letterbox", "stretch"}, "fit");
  spec.stored.fit = fit == "crop" ? Fit::kCrop : fit == "letterbox" ? Fit::kLetterbox : Fit::kStretch;
  spec.resize = size_or_null(json["resize"], "resize");
  spec.crop = size_or_null(json["crop"], "crop");
  spec.by_image = json["standardise"].one_of({"dataset", "image"}, "standardise") == "image";
  for (const Json& mean : json["mean"].list("mean")) spec.mean.push_back(mean.real("mean"));
  for (const Json& std : json["std"].list("std")) {
    spec.std.push_back(std.real("std"));
    if (!(spec.std.back() > 0))
      refuse_bundle("preprocessing: std must be positive, not " + std::to_string(spec.std.back()));
  }
  if (spec.mean.size() != spec.std.size()) refuse_bundle("preprocessing: there must be as many means as deviations");
  return spec;
}

Manifest parse_manifest(const std::string& text) {
  const Json json = Json::parse(text);
  check_schema(json);
  json.check_entries({"name", "classes", "image", "preprocessing", "confidence", "known", "direction", "measured",
                      "input", "outputs", "source", "tools", "files", "schema"},
                     "the manifest");
  Manifest manifest;
  manifest.digest = sha256(text.data(), text.size());
  manifest.name = json["name"].printable_text("name");
  manifest.classes = parse_classes(json["classes"]);
  manifest.preprocessing = parse_preprocessing(json["preprocessing"]);
  manifest.signature =
      parse_signature(json["input"], json["outputs"].list("outputs"), static_cast<int>(manifest.classes.size()));
  parse_image(json["image"], manifest.signature, manifest.preprocessing);
  manifest.temperature = parse_temperature(json["confidence"]);
  manifest.known = parse_known(json["known"]);
  manifest.direction = parse_directions(json["direction"], manifest.signature);
  check_measured(json["measured"]);
  manifest.source_sha256 = parse_source(json["source"]);
  for (const JsonEntry& tool : json["tools"].object("tools")) {
    if (!printable(tool.name)) refuse_bundle("tools must be printable text, not " + quoted(tool.name));
    tool.value.printable_text("a version in 'tools'");
  }
  std::set<std::string> seen;
  for (const Json& file : json["files"].list("files")) {
    manifest.files.push_back(parse_artefact(file, manifest.signature));
    if (!seen.insert(manifest.files.back().file).second)
      refuse_bundle(quoted(manifest.files.back().file) + " is named twice");
  }
  return manifest;
}

}  // namespace qcn

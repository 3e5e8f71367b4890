#include "manifest.h"

#include <algorithm>
#include <limits>
#include <set>

#include "error.h"
#include "json.h"
#include "text.h"

namespace qcn {
namespace {

constexpr int kSchema = 1;
constexpr int kMaxIterations = 5;
// Far above any network there is, and low enough that the sizes of its maps are sure to fit their types.
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

std::string one_of(const Json& json, std::initializer_list<const char*> choices, const std::string& what) {
  const std::string& text = json.text(what);
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
  std::string known;
  for (const char* choice : choices) known += (known.empty() ? "" : ", ") + std::string(choice);
  refuse(what + " must be one of " + known + ", not " + quoted(text));
}

std::int64_t product(const std::vector<int>& factors) {
  std::int64_t all = 1;
  for (const int factor : factors) {
    all *= factor;
    if (all > kMaxPixels) refuse("the strides of the network's structure are too large");
  }
  return all;
}

Preprocessing parse_preprocessing(const Json& json) {
  json.check_entries({"resize", "crop", "standardise", "mean", "std"}, "preprocessing");
  const auto entry = [&](const char* name) -> const Json& { return json.at(name, "preprocessing"); };
  Preprocessing spec;
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

// Names, layouts and shapes of the input and outputs are the structure's, and are there for readers that know only
// ONNX.
void check_port(const Json& json, const char* name, const char* layout, const std::vector<int>& shape) {
  const std::string what = std::string("the port '") + name + "'";
  json.check_entries({"name", "shape", "layout", "dtype"}, what);
  const auto entry = [&](const char* key) -> const Json& { return json.at(key, what); };
  if (entry("name").text(what) != name || entry("layout").text(what) != layout ||
      entry("dtype").text(what) != "float32" || counts(entry("shape"), what) != shape) {
    refuse(what + " is not that of the network's structure");
  }
}

void check_image(const Json& json, const Preprocessing& spec, const Structure& structure) {
  const std::vector<int> image = counts(json, "image");
  if (image.size() != 3) refuse("image must be [channels, height, width]");
  const std::optional<int> side = spec.crop ? spec.crop : spec.resize;
  const std::vector<int> seen = {image[0], side.value_or(image[1]), side.value_or(image[2])};
  if (seen != std::vector<int>{structure.channels, structure.height, structure.width}) {
    refuse("images become other than the network takes, by the pre-processing that is given");
  }
  if (!spec.by_image && spec.mean.size() != static_cast<std::size_t>(image[0])) {
    refuse(std::to_string(spec.mean.size()) + " means for " + std::to_string(image[0]) + " channels");
  }
}

void check_source(const Json& json) {
  json.check_entries({"sha256", "model", "checkpoint", "epoch", "data", "data_sha256"}, "source");
  for (const char* name : {"sha256", "model", "checkpoint", "data", "data_sha256"})
    json.at(name, "source").text("source");
  json.at("epoch", "source").integer("epoch", std::numeric_limits<std::int64_t>::min(), kMaxBytes);
}

void check_place(const std::string& file) {
  bool plain = !file.empty() && file != "manifest.json" && printable(file) && file.find('\\') == std::string::npos;
  for (std::size_t begin = 0; plain && begin <= file.size();) {
    const std::size_t end = std::min(file.find('/', begin), file.size());
    plain = end > begin && file[begin] != '.';  // no empty part, none that is hidden or leads up
    begin = end + 1;
  }
  if (!plain) refuse(quoted(file) + " is not a place for a file of a bundle: a plain path below it is wanted");
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string fact(const Json& facts, const char* name) {
  const Json* found = facts.find(name);
  const std::string* text = found ? std::get_if<std::string>(&found->value) : nullptr;
  return text && printable(*text) ? *text : "";
}

Artefact parse_artefact(const Json& json) {
  json.check_entries({"file", "format", "sha256", "bytes", "precision", "found", "batch", "facts"},
                     "an entry of 'files'");
  const auto entry = [&](const char* name) -> const Json& { return json.at(name, "an entry of 'files'"); };
  Artefact artefact;
  artefact.file = entry("file").text("file");
  check_place(artefact.file);
  artefact.format =
      one_of(entry("format"), {"native", "golden", "torchscript", "pt2", "onnx", "onnx-fused", "onnx-trt", "trt"},
             artefact.file + ": format");
  artefact.sha256 = entry("sha256").text(artefact.file + ": sha256");
  if (!is_sha256(artefact.sha256)) refuse(artefact.file + ": " + quoted(artefact.sha256) + " is not a sha256");
  artefact.bytes = static_cast<std::uint64_t>(entry("bytes").integer(artefact.file + ": bytes", 0, kMaxBytes));
  const auto precision = [&](const char* name) {
    return one_of(entry(name), {"fp64", "fp32", "fp16", "bf16", "int8"}, artefact.file + ": " + name);
  };
  artefact.precision = precision("precision");
  if (!entry("found").is_null()) precision("found");
  if (const Json& batch = entry("batch"); !batch.is_null()) {
    batch.check_entries({"min", "opt", "max"}, "batch");
    const auto size = [&](const char* name) { return count(batch.at(name, "batch"), "a batch size"); };
    artefact.min_batch = size("min"), artefact.opt_batch = size("opt"), artefact.max_batch = size("max");
    if (artefact.min_batch > artefact.opt_batch || artefact.opt_batch > artefact.max_batch) {
      refuse(artefact.file + ": a batch range goes upwards");
    }
  }
  // What else the facts are, only the backend of this format knows: absent or odd ones are left empty here.
  const Json& facts = entry("facts");
  facts.object(artefact.file + ": facts");
  artefact.flavour = fact(facts, "flavour");
  artefact.version = fact(facts, "version");
  artefact.gpu = fact(facts, "gpu");
  if (const Json* sm = facts.find("sm")) {
    const auto number = std::get_if<std::int64_t>(&sm->value);
    artefact.sm = number && *number > 0 && *number < kMaxCount ? static_cast<int>(*number) : 0;
  }
  return artefact;
}

void check_schema(const Json& json) {
  const Json& schema = json.at("schema", "the manifest");
  const auto number = std::get_if<std::int64_t>(&schema.value);
  if (number && *number == kSchema) return;
  refuse("it has schema " + (number ? std::to_string(*number) : std::string("of another kind")) +
         "; this version of libqcn, " + qcn_version() + ", reads " + std::to_string(kSchema) +
         (number && *number > kSchema ? ": a newer libqcn is needed" : ""));
}

}  // namespace

bool operator==(const Structure& a, const Structure& b) {
  const auto same_layer = [](const Capsules& x, const Capsules& y) {
    return x.name == y.name && x.kernel == y.kernel && x.stride == y.stride;
  };
  return a.channels == b.channels && a.height == b.height && a.width == b.width && a.classes == b.classes &&
         a.stem == b.stem && a.pose == b.pose && a.activation == b.activation &&
         std::equal(a.capsules.begin(), a.capsules.end(), b.capsules.begin(), b.capsules.end(), same_layer) &&
         a.iterations == b.iterations && a.unit == b.unit && a.variance_floor == b.variance_floor &&
         a.mass_floor == b.mass_floor;
}

Structure parse_structure(const Json& json) {
  const auto entry = [&](const char* name) -> const Json& { return json.at(name, "structure"); };
  Structure structure;
  structure.channels = count(entry("channels"), "channels");
  structure.height = count(entry("height"), "height");
  structure.width = count(entry("width"), "width");
  structure.classes = count(entry("classes"), "classes");
  if (std::int64_t{structure.channels} * structure.height * structure.width > kMaxPixels) {
    refuse("the network's input is too large: " + std::to_string(structure.channels) + " channels of " +
           std::to_string(structure.height) + "×" + std::to_string(structure.width));
  }
  structure.stem = counts(entry("stem"), "stem");
  structure.pose = counts(entry("pose"), "pose");
  structure.activation = counts(entry("activation"), "activation");
  if (product(structure.pose) != product(structure.activation)) {
    refuse("the branches of the network's structure end on maps of different sizes");
  }
  for (const Json& layer : entry("capsules").list("capsules")) {
    layer.check_entries({"name", "kernel", "stride"}, "a capsule layer");
    const auto part = [&](const char* name) -> const Json& { return layer.at(name, "a capsule layer"); };
    structure.capsules.push_back({plain_text(part("name"), "the name of a capsule layer"),
                                  count_or_null(part("kernel"), "kernel"), count(part("stride"), "stride")});
  }
  for (std::size_t i = 0; i < structure.capsules.size(); ++i) {
    const bool last = i + 1 == structure.capsules.size();
    if (structure.capsules[i].kernel.has_value() == last) refuse("the last capsule layer alone must have no kernel");
  }
  if (structure.capsules.empty()) refuse("the network's structure has no capsule layer");
  structure.iterations = static_cast<int>(entry("iterations").integer("iterations", 1, kMaxIterations));
  structure.unit = one_of(entry("mode"), {"logistic", "unit"}, "mode") == "unit";
  structure.variance_floor = entry("variance_floor").real("variance_floor");
  structure.mass_floor = entry("mass_floor").real("mass_floor");
  if (!(structure.variance_floor > 0 && structure.mass_floor > 0)) refuse("the floors must be positive");
  return structure;
}

Manifest parse_manifest(const std::string& text) {
  const Json json = Json::parse(text);
  check_schema(json);
  json.check_entries({"name", "classes", "image", "preprocessing", "input", "outputs", "structure", "source", "tools",
                      "files", "schema"},
                     "the manifest");
  const auto entry = [&](const char* name) -> const Json& { return json.at(name, "the manifest"); };
  Manifest manifest;
  manifest.name = plain_text(entry("name"), "name");
  for (const Json& name : entry("classes").list("classes")) manifest.classes.push_back(plain_text(name, "a class"));
  manifest.preprocessing = parse_preprocessing(entry("preprocessing"));
  manifest.structure = parse_structure(entry("structure"));
  const Structure& structure = manifest.structure;
  if (manifest.classes.size() != static_cast<std::size_t>(structure.classes)) {
    refuse(std::to_string(manifest.classes.size()) + " classes are named, but the network has " +
           std::to_string(structure.classes));
  }
  check_port(entry("input"), "image", "NCHW", {structure.channels, structure.height, structure.width});
  const JsonList& outputs = entry("outputs").list("outputs");
  if (outputs.size() != 2) refuse("there must be two outputs, not " + std::to_string(outputs.size()));
  check_port(outputs[0], "activation", "NK", {structure.classes});
  check_port(outputs[1], "pose", "NKP", {structure.classes, 3});
  check_image(entry("image"), manifest.preprocessing, structure);
  check_source(entry("source"));
  for (const JsonEntry& tool : entry("tools").object("tools")) {
    if (!printable(tool.name)) refuse("tools must be printable text, not " + quoted(tool.name));
    plain_text(tool.value, "a version in 'tools'");
  }
  std::set<std::string> seen;
  for (const Json& file : entry("files").list("files")) {
    manifest.files.push_back(parse_artefact(file));
    if (!seen.insert(manifest.files.back().file).second) refuse(quoted(manifest.files.back().file) + " is named twice");
  }
  return manifest;
}

}  // namespace qcn

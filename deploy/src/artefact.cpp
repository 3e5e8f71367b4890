#include "artefact.h"

#include <algorithm>
#include <map>
#include <set>

#include "error.h"
#include "json.h"
#include "text.h"

namespace qcn {
namespace {

// Whether the text is nothing but letters, digits, '.', '_' and '-', and does not begin with '.'.
bool is_plain_name(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !text.empty() && text[0] != '.' && std::all_of(text.begin(), text.end(), plain);
}

// The files that libqcn itself opens have names of their own. Of any other format it knows nothing but what the manifest
// says; its file lies in the bundle's own folder and is none of these.
const std::map<std::string, std::string> kFiles = {
    {"native", "weights.safetensors"}, {"golden", "golden.safetensors"}, {"trt", "engines/NAME.engine"}};
const std::set<std::string> kReserved = {"weights.safetensors", "golden.safetensors", "manifest.json",
                                         "manifest.sha256", "manifest.sig"};

bool is_engine_name(const std::string& file) {
  const std::string folder = "engines/", ending = ".engine";
  return file.size() > folder.size() + ending.size() && file.compare(0, folder.size(), folder) == 0 &&
         file.compare(file.size() - ending.size(), ending.size(), ending) == 0 &&
         is_plain_name(file.substr(folder.size(), file.size() - folder.size() - ending.size()));
}

// So that no manifest leads a reader out of its bundle.
void check_file(const Artefact& artefact) {
  const std::string &file = artefact.file, &format = artefact.format;
  const auto known = kFiles.find(format);
  if (known == kFiles.end()) {
    if (!is_plain_name(file) || kReserved.count(file)) {
      refuse_bundle("a file of the format " + format + " must have a plain name of its own, not " + quoted(file));
    }
  } else if (format == "trt" ? !is_engine_name(file) : file != known->second) {
    refuse_bundle("a file of the format " + format + " must be named " + known->second + ", not " + quoted(file));
  }
}

Tolerance parse_tolerance(const Json& json, const Artefact& artefact, const Signature& signature) {
  const std::string what = artefact.file + ": tolerance";
  Tolerance tolerance;
  if (artefact.format == "golden") {
    if (!json.is_null()) refuse_bundle(what + " must be null: the golden answers have none");
    return tolerance;
  }
  std::vector<std::string_view> outputs = {"logit"};
  if (signature.poses) outputs.push_back("pose");
  json.check_entries(outputs, what);
  const auto read = [&](const char* output) {
    const double found = json[output].real(what);
    if (!(found > 0)) refuse_bundle(what + " must be positive, not " + std::to_string(found));
    return found;
  };
  tolerance.logit = read("logit");
  if (signature.poses) tolerance.pose = read("pose");
  return tolerance;
}

void parse_batch(const Json& json, Artefact& artefact) {
  json.check_entries({"min", "opt", "max"}, "batch");
  const auto size = [&](const char* name) { return json[name].size("a batch size"); };
  artefact.min_batch = size("min"), artefact.opt_batch = size("opt"), artefact.max_batch = size("max");
  if (artefact.min_batch > artefact.opt_batch || artefact.opt_batch > artefact.max_batch) {
    refuse_bundle(artefact.file + ": a batch range goes upwards");
  }
}

// Facts may be missing or null. What else they are, only the backend of this format knows.
void parse_facts(const Json& json, Artefact& artefact) {
  json.object(artefact.file + ": facts");
  const auto what = [&](const char* name) { return artefact.file + ": the fact '" + name + "'"; };
  const auto find = [&](const char* name) {
    const Json* found = json.find(name);
    return found && !found->is_null() ? found : nullptr;
  };
  const auto text = [&](const char* name) {
    const Json* found = find(name);
    return found && printable(found->text(what(name))) ? found->text(what(name)) : "";
  };
  const auto truth = [&](const char* name) { return find(name) && find(name)->boolean(what(name)); };
  text("precision");
  artefact.flavour = text("flavour"), artefact.version = text("version"), artefact.gpu = text("gpu");
  artefact.hardware_compatible = truth("hardware_compatible"), artefact.stripped = truth("stripped");
  if (const Json* batch = find("batch")) {
    const std::vector<int> sizes = batch->sizes(what("batch"));
    if (sizes.size() != 3 || sizes[0] > sizes[1] || sizes[1] > sizes[2]) {
      refuse_bundle(what("batch") + " must be [min, opt, max], upwards");
    }
  }
  if (const Json* sm = find("sm")) {
    const std::int64_t number = sm->integer(what("sm"));
    artefact.sm = number > 0 && number < Json::kMaxSize ? static_cast<int>(number) : 0;
  }
}

}  // namespace

Artefact parse_artefact(const Json& json, const Signature& signature) {
  json.check_entries(
      {"file", "format", "sha256", "bytes", "precision", "found", "batch", "rebuild", "plugin", "tolerance", "facts"},
      "an entry of 'files'");
  Artefact artefact;
  artefact.file = json["file"].printable_text("file");
  const std::string of = artefact.file + ": ";
  artefact.format = json["format"].text(of + "format");
  if (!is_plain_name(artefact.format)) refuse_bundle(of + quoted(artefact.format) + " is not a format");
  artefact.precision = json["precision"].one_of({"fp64", "fp32", "fp16", "bf16", "int8"}, of + "precision");
  if ((artefact.format == "golden") != (artefact.precision == "fp64") ||
      (artefact.format == "native" && artefact.precision == "bf16")) {
    refuse_bundle(of + "a file of the format " + artefact.format + " is not in " + artefact.precision);
  }
  check_file(artefact);
  if (const Json& found = json["found"]; !found.is_null() && found.text(of + "found") != artefact.precision) {
    refuse_bundle(of + "found must be null or the precision, " + artefact.precision + ", not " +
                  quoted(found.text(of + "found")));
  }
  artefact.sha256 = json["sha256"].text(of + "sha256");
  if (artefact.sha256.size() != 64 || artefact.sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
    refuse_bundle(of + quoted(artefact.sha256) + " is not a sha256");
  }
  artefact.bytes = static_cast<std::uint64_t>(json["bytes"].integer(of + "bytes", 0));
  if (!json["batch"].is_null()) parse_batch(json["batch"], artefact);
  artefact.rebuild = json["rebuild"].printable_text(of + "rebuild");
  if (artefact.rebuild.rfind("qcn export ", 0) != 0 && artefact.rebuild.rfind("qcn calibrate ", 0) != 0) {
    refuse_bundle(of + "rebuild must be a command of `qcn export` or `qcn calibrate`, not " + quoted(artefact.rebuild));
  }
  artefact.plugin = json["plugin"].boolean(of + "plugin");
  if (artefact.plugin && artefact.format != "trt") refuse_bundle(of + "only engines need the TensorRT plugin");
  artefact.tolerance = parse_tolerance(json["tolerance"], artefact, signature);
  parse_facts(json["facts"], artefact);
  return artefact;
}

std::string Artefact::rebuild_in(const std::string& word) const {
  const std::string placeholder = "{bundle}";
  std::string command = rebuild;
  for (std::size_t at = 0; (at = command.find(placeholder, at)) != std::string::npos; at += word.size()) {
    command.replace(at, placeholder.size(), word);
  }
  return command;
}

}  // namespace qcn

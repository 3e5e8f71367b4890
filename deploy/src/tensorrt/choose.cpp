// Which engine of a bundle to run. A plan belongs to one TensorRT version, and to one kind of GPU or to all from Ampere
// on: any other is refused here, in words, before TensorRT does so in its own.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "../error.h"
#include "library.h"

namespace qcn {
namespace {

constexpr int kAmpere = 80;  // the oldest GPU that hardware-compatible engines run on

std::string described(const Artefact& engine) {
  const std::string sm = (engine.sm ? "sm" + std::to_string(engine.sm) : "any GPU") +
                         (engine.hardware_compatible ? ", and all from sm80 on" : "") +
                         (engine.stripped ? ", without weights: see `qcn export --refit`" : "");
  return engine.file + ": " + engine.precision + ", TensorRT" + (engine.flavour == "rtx" ? "-RTX " : " ") +
         engine.version + ", " + (engine.gpu.empty() ? sm : engine.gpu + " (" + sm + ")");
}

bool fits(const Artefact& engine, const Machine& machine) {
  const bool gpu = engine.sm == machine.sm || (engine.hardware_compatible && machine.sm >= kAmpere);
  return engine.flavour == machine.flavour && engine.version == machine.version && gpu && !engine.stripped;
}

// Smaller is better: routing by the plugin before precision, since it is most of the time; what was built for one kind
// of GPU before what runs on many.
std::array<int, 4> rank(const Artefact& engine) {
  static const std::array<std::string, 3> fastest = {"fp16", "bf16", "fp32"};
  const auto precision = std::find(fastest.begin(), fastest.end(), engine.precision) - fastest.begin();
  return {engine.plugin ? 0 : 1, static_cast<int>(precision), engine.hardware_compatible ? 1 : 0, -engine.max_batch};
}

}  // namespace

const Artefact& choose_engine(const Manifest& manifest, const Machine& machine, const TensorrtRequest& request) {
  const Artefact *best = nullptr, *like = nullptr;  // like: what a new one should be like
  std::string found;
  for (const Artefact& file : manifest.files) {
    if (file.format != "trt") continue;
    found += "\n  " + described(file);
    if (!request.precision.empty() && file.precision != request.precision) continue;
    if (!like || rank(file) < rank(*like)) like = &file;
    if (fits(file, machine) && (!best || rank(file) < rank(*best))) best = &file;
  }
  if (best) return *best;
  const std::string asked = request.precision.empty() ? "" : " --precision " + request.precision;
  const std::string command =
      like ? like->rebuild_in(request.files->word) : "qcn export " + request.files->word + " --format trt" + asked;
  if (found.empty()) {
    throw Error(QCN_NO_BACKEND, request.files->where + " has no TensorRT engine; build one: `" + command + "`");
  }
  throw Error(QCN_BAD_ENGINE, request.files->where + " has no " +
                                  (request.precision.empty() ? "" : request.precision + " ") + "engine for TensorRT " +
                                  machine.version + " on " + machine.gpu + " (sm" + std::to_string(machine.sm) +
                                  "), but" + found + "\nbuild one here: `" + command + "`");
}

}  // namespace qcn

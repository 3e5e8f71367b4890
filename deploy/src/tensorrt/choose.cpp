// Which engine of a bundle to run. A plan belongs to one TensorRT version and one kind of GPU: any other is refused
// here, in words, before TensorRT does so in its own.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "../error.h"
#include "library.h"

namespace qcn {
namespace {

std::string batches(const Artefact& engine) {
  const std::string least = std::to_string(engine.min_batch), most = std::to_string(engine.max_batch);
  return engine.min_batch == engine.max_batch ? most : least + ":" + std::to_string(engine.opt_batch) + ":" + most;
}

// Names of engines are made by export/tensorrt.py, file_name.
bool fused(const Artefact& engine) { return engine.file.find("-fused-") != std::string::npos; }

std::string described(const Artefact& engine) {
  const std::string sm = engine.sm ? "sm" + std::to_string(engine.sm) : "any GPU";
  return engine.file + ": " + engine.precision + ", TensorRT" + (engine.flavour == "rtx" ? "-RTX " : " ") +
         engine.version + ", " + (engine.gpu.empty() ? sm : engine.gpu + " (" + sm + ")");
}

bool fits(const Artefact& engine, const Machine& machine) {
  return engine.flavour == machine.flavour && engine.version == machine.version && engine.sm == machine.sm;
}

// Smaller is better: routing by the plugin before precision, since it is most of the time.
std::array<int, 3> rank(const Artefact& engine) {
  static const std::array<std::string, 4> fastest = {"int8", "fp16", "bf16", "fp32"};
  const auto precision = std::find(fastest.begin(), fastest.end(), engine.precision) - fastest.begin();
  return {fused(engine) ? 0 : 1, static_cast<int>(precision), -engine.max_batch};
}

}  // namespace

const Artefact& choose_engine(const Manifest& manifest, const Machine& machine, const TensorrtRequest& request) {
  const Artefact *best = nullptr, *like = nullptr;  // like: what a new one should be like
  std::string found;
  for (const Artefact& file : manifest.files) {
    if (file.format != "trt") continue;
    found += "\n  " + described(file);
    const bool precise = request.precision.empty() || file.precision == request.precision;
    if (!like || (precise && like->precision != request.precision)) like = &file;
    if (precise && fits(file, machine) && (!best || rank(file) < rank(*best))) best = &file;
  }
  if (best) return *best;
  const std::string precision = !request.precision.empty() ? request.precision
                                : like                     ? like->precision
                                                           : std::string("fp32");
  const std::string command = "qcn export " + request.folder + " --format trt --precision " + precision + " --batch " +
                              (like ? batches(*like) : "1:8:64") + (like && fused(*like) ? " --routing fused" : "");
  if (!like) throw Error(QCN_NO_BACKEND, request.folder + " has no TensorRT engine; build one: `" + command + "`");
  throw Error(QCN_BAD_ENGINE, request.folder + " has no " + (request.precision.empty() ? "" : request.precision + " ") +
                                  "engine for TensorRT " + machine.version + " on " + machine.gpu + " (sm" +
                                  std::to_string(machine.sm) + "), but" + found + "\nbuild one here: `" + command +
                                  "`");
}

}  // namespace qcn

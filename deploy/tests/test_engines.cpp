// Which engine of a bundle is run, and what is said where there is none. No TensorRT, no GPU.
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "tensorrt/library.h"

namespace {

using qcn::Artefact;
using qcn::Manifest;

Artefact engine(const std::string& file, const std::string& precision, const std::string& version, int sm) {
  Artefact made;
  made.file = "engines/" + file, made.format = "trt", made.precision = precision;
  made.flavour = "tensorrt", made.version = version, made.sm = sm, made.gpu = sm == 90 ? "NVIDIA H200" : "Orin";
  made.min_batch = 1, made.opt_batch = 8, made.max_batch = 64;
  made.rebuild = "qcn export {bundle} --format trt --precision " + precision + " --batch 1:8:64";
  return made;
}

Manifest bundle(const std::vector<Artefact>& files) {
  Manifest manifest;
  manifest.files = files;
  Artefact weights;
  weights.file = "weights.safetensors", weights.format = "native", weights.precision = "fp32";
  manifest.files.push_back(weights);
  return manifest;
}

// A bundle for messages, without files.
class Nowhere final : public qcn::Files {
 public:
  Nowhere() : Files("bundle", "bundle") {}
  std::unique_ptr<qcn::File> open(const std::string&, const std::string&) const override { return nullptr; }
  std::string path(const std::string& name) const override { return name; }
};

const auto kNowhere = std::make_shared<const Nowhere>();
const qcn::Machine kHere = {"tensorrt", "8.6.0", "NVIDIA H200", 90};

std::string chosen(const Manifest& manifest, const std::string& precision = "") {
  return qcn::choose_engine(manifest, kHere, {kNowhere, precision, 0, {}}).file;
}

void test_choice() {
  const Artefact full = engine("fp32-b1-8-64-sm90-trt8.6.0.engine", "fp32", "8.6.0", 90);
  const Artefact half = engine("fp16-b1-8-64-sm90-trt8.6.0.engine", "fp16", "8.6.0", 90);
  Artefact fused = engine("any-name.engine", "fp32", "8.6.0", 90);
  fused.plugin = true;
  const Artefact other = engine("fp16-b1-8-64-sm87-trt10.3.0.engine", "fp16", "10.3.0", 87);
  Artefact rtx = half;
  rtx.flavour = "rtx";
  check(chosen(bundle({full, half})) == half.file, "the faster precision is taken");
  check(chosen(bundle({full, half}), "fp32") == full.file, "unless another is asked for");
  check(chosen(bundle({half, fused, full})) == fused.file, "routing by the plugin comes first");
  check(chosen(bundle({half, fused}), "fp16") == half.file, "but not before what is asked for");
  check(chosen(bundle({other, rtx, full})) == full.file, "engines of other machines are passed over");
  Artefact one = half;
  one.file = "engines/fp16-b1-sm90-trt8.6.0.engine", one.min_batch = one.opt_batch = one.max_batch = 1;
  check(chosen(bundle({one, half})) == half.file, "of two alike, the one of larger batches");
  Artefact anywhere = engine("fp16-ampere-plus.engine", "fp16", "8.6.0", 80), bare = half;
  anywhere.hardware_compatible = true, bare.stripped = true;
  check(chosen(bundle({anywhere})) == anywhere.file, "a hardware-compatible engine of another GPU is run");
  check(chosen(bundle({anywhere, half})) == half.file, "but not where there is one of this GPU");
  check(chosen(bundle({bare, full})) == full.file, "an engine without weights is passed over");
}

void test_refusals() {
  const Manifest none = bundle({});
  refused("no engine", QCN_NO_BACKEND, [&] { chosen(none); }, {"`qcn export bundle --format trt`"});

  Artefact other = engine("fp16-b1-8-64-sm87-trt10.3.0.engine", "fp16", "10.3.0", 87);
  other.rebuild += " --routing fused";
  const Manifest foreign = bundle({other, engine("fp32-b1-8-64-sm87-trt10.3.0.engine", "fp32", "10.3.0", 87)});
  refused("a foreign engine", QCN_BAD_ENGINE, [&] { chosen(foreign); },
          {"no engine for TensorRT 8.6.0 on NVIDIA H200 (sm90)", "fp16, TensorRT 10.3.0, Orin (sm87)",
           "`qcn export bundle --format trt --precision fp16 --batch 1:8:64 --routing fused`"});

  const Manifest full = bundle({engine("fp32-b1-8-64-sm90-trt8.6.0.engine", "fp32", "8.6.0", 90)});
  refused("another precision", QCN_BAD_ENGINE, [&] { chosen(full, "fp16"); },
          {"no fp16 engine", "`qcn export bundle --format trt --precision fp16`"});
}

// Without an engine nothing is loaded; with one and no libqcn_tensorrt.so, or no GPU, it is said.
void test_loading() {
  refused("a bundle without engines", QCN_NO_BACKEND, [] { qcn::tensorrt_backend(bundle({}), {kNowhere, "", 0, {}}); });
  const Manifest one = bundle({engine("fp32-b1-8-64-sm99-trt0.0.0.engine", "fp32", "0.0.0", 99)});
  try {
    qcn::tensorrt_backend(one, {kNowhere, "", 0, {}});
    check(false, "an engine of no machine was loaded");
  } catch (const qcn::Error& error) {
    const bool known = error.status == QCN_NO_BACKEND || error.status == QCN_BAD_ENGINE;
    check(known, std::string("loading: ") + qcn_status_name(error.status) + ", " + error.what());
    std::printf("here: %s\n", error.what());
  }
}

}  // namespace

int main() {
  test_choice();
  test_refusals();
  test_loading();
  return verdict();
}

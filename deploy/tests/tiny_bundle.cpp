#include "tiny_bundle.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend.h"
#include "golden.h"
#include "preprocess.h"
#include "program.h"
#include "sha256.h"
#include "tolerance.h"

namespace tiny {
namespace {

using networks::quoted;

// An image before pre-processing, and what that is, as the manifest has them.
constexpr int kHeight = 10, kWidth = 12, kPixels = kChannels * kHeight * kWidth;
qcn::Preprocessing preprocessing() {
  return {{kChannels, kHeight, kWidth, qcn::Fit::kCrop}, std::nullopt, kSide, false, {0.5}, {0.25}};
}

std::string entry(const std::string& file, const std::string& format, const std::string& precision,
                  const std::string& tolerance, const std::string& content) {
  return "{\"file\": " + quoted(file) + ", \"format\": " + quoted(format) +
         ", \"sha256\": " + quoted(qcn::sha256(content.data(), content.size())) +
         ", \"bytes\": " + std::to_string(content.size()) + ", \"precision\": " + quoted(precision) +
         ", \"found\": null, \"batch\": null, \"rebuild\": \"qcn export RUN --format native --out {bundle}\", " +
         "\"plugin\": false, \"tolerance\": " + tolerance + ", \"facts\": {}}";
}

std::string manifest_text(const std::string& weights_file, const std::string& golden_file, bool poses,
                          const qcn::Tolerance& allowed) {
  const std::string pose = R"(,
  {"name": "pose", "shape": [3, 3], "layout": "NKP", "dtype": "float32"})";
  char tolerance[96];
  std::snprintf(tolerance, sizeof tolerance, poses ? R"({"logit": %.17g, "pose": %.17g})" : R"({"logit": %.17g})",
                allowed.logit, allowed.pose);
  return R"({"name": "tiny", "classes": ["cat", "dog", "é"], "image": [1, 10, 12],
 "preprocessing": {"fit": "crop", "resize": null, "crop": 8, "standardise": "dataset", "mean": [0.5], "std": [0.25]},
 "confidence": null, "known": null, "direction": null, "measured": null, "input": {"name": "image", "shape": [1, 8, 8], "layout": "NCHW", "dtype": "float32"},
 "outputs": [{"name": "logit", "shape": [3], "layout": "NK", "dtype": "float32"})" +
         (poses ? pose : "") + R"(],
 "source": {"sha256": "", "model": "qcn", "checkpoint": "best", "epoch": 4, "data": "", "data_sha256": ""},
 "tools": {"qcn": "0.1.0"},
 "files": [)" +
         entry("golden.safetensors", "golden", "fp64", "null", golden_file) + ", " +
         entry("weights.safetensors", "native", "fp32", tolerance, weights_file) + "],\n \"schema\": 4}\n";
}

}  // namespace

networks::Network network(bool poses) {
  networks::Builder b({kChannels, kSide, kSide}, 5);
  if (!poses) {
    const std::string pooled = b.pool("pool1", b.convolution("conv1", {{"image", 5, 1, 2}}, 4), "max", 2, 2);
    return b.network(b.linear("classes", b.linear("hidden", pooled, 6, "relu"), kClasses, "none"));
  }
  // One after the other: compilers differ in which argument's random numbers they would draw first.
  const std::string activation = b.blocks("activation", "image", {{4, 2}}), pose = b.blocks("pose", "image", {{4, 2}});
  auto capsules = b.project(pose, activation, 2);
  capsules = b.route("capsules1", capsules, 3, 3, 1, 2, {});
  capsules = b.route_whole("classes", capsules, kClasses, {});
  return b.network(capsules.activation, capsules.pose);
}

std::string golden(const networks::Network& network, float wrong) {
  using networks::array;
  qcn::program::Program program(network.file());
  const qcn::Signature signature = program.signature;
  const auto backend = qcn::native_backend(std::move(program));
  std::mt19937 generator(77);
  std::vector<unsigned char> image(kRows * kPixels);
  for (unsigned char& pixel : image) pixel = static_cast<unsigned char>(generator());
  std::vector<float> input(kRows * signature.image_floats());
  for (std::size_t row = 0; row < kRows; ++row) {
    qcn::preprocess(preprocessing(), qcn_image_planar(&image[row * kPixels], kWidth, kHeight, kChannels),
                    &input[row * signature.image_floats()]);
  }
  for (std::size_t i = 3 * signature.image_floats(); i < input.size(); ++i) input[i] = 1e-40f;  // of 'four', see below
  std::vector<float> logit(kRows * signature.logit_floats()), pose(kRows * signature.pose_floats());
  backend->runner(nullptr)->run(input.data(), kRows, logit.data(), signature.poses ? pose.data() : nullptr);
  logit[0] += wrong;
  const std::vector<double> exact(logit.begin(), logit.end()), exact_pose(pose.begin(), pose.end());
  networks::Arrays arrays = {{"image", array("U8", {kRows, kChannels, kHeight, kWidth}, image)},
                             {"label", array("I64", {kRows}, std::vector<std::int64_t>{0, 2, -1, -1})},
                             {"input", array("F32", {kRows, kChannels, kSide, kSide}, input)},
                             {"logit", array("F64", {kRows, kClasses}, exact)},
                             {"logit.float32", array("F32", {kRows, kClasses}, logit)}};
  if (signature.poses) {
    arrays["pose"] = array("F64", {kRows, kClasses, 3}, exact_pose);
    arrays["pose.float32"] = array("F32", {kRows, kClasses, 3}, pose);
  }
  return networks::safetensors(arrays, R"({"schema": "3", "rows": "[\"one\", \"two\", \"three\", \"four\"]",)"
                                       R"( "inputs_only": "[\"four\"]", "classes": "[\"cat\", \"dog\", \"é\"]",)"
                                       R"( "preprocessing": "{\"fit\": \"crop\", \"resize\": null, \"crop\": 8,)"
                                       R"( \"standardise\": \"dataset\", \"mean\": [0.5], \"std\": [0.25]}"})");
}

std::string manifest(const std::string& weights_file, const std::string& golden_file, bool poses) {
  qcn::Manifest made;
  made.classes = {"cat", "dog", "é"}, made.preprocessing = preprocessing();
  made.signature = {kChannels, kSide, kSide, kClasses, poses};
  const qcn::TensorFile file(networks::bytes(golden_file), qcn::kGoldenSchema);
  return manifest_text(weights_file, golden_file, poses,
                       qcn::tolerance_of(qcn::read_golden(file, made), made.signature, "fp32"));
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) std::abort();
}

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_bundle(const std::string& folder, bool poses) {
  std::filesystem::create_directories(folder);
  const networks::Network made = network(poses);
  const std::string weights_file = made.weights(), golden_file = golden(made);
  write(folder + "/weights.safetensors", weights_file);
  write(folder + "/golden.safetensors", golden_file);
  write_manifest(folder, manifest(weights_file, golden_file, poses));
}

void write_manifest(const std::string& folder, const std::string& text) {
  write(folder + "/manifest.json", text);
  write(folder + "/manifest.sha256", qcn::sha256(text.data(), text.size()) + "  manifest.json\n");
}

}  // namespace tiny

#include "tiny_bundle.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>

#include "backend.h"
#include "json.h"
#include "sha256.h"

namespace tiny {
namespace {

std::vector<float> random_floats(std::size_t count, unsigned seed, float scale) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  // Not a distribution of the standard library, which may differ from one library to another.
  for (float& value : values) value = scale * (static_cast<float>(generator() >> 8) / (1 << 23) - 1);
  return values;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '\n' ? "\\n" : (c == '"' || c == '\\' ? "\\" : "") + std::string(1, c);
  return out + "\"";
}

std::string entry(const std::string& file, const std::string& format, const std::string& content) {
  return "{\"file\": " + quoted(file) + ", \"format\": " + quoted(format) +
         ", \"sha256\": " + quoted(qcn::sha256(content.data(), content.size())) +
         ", \"bytes\": " + std::to_string(content.size()) +
         ", \"precision\": \"fp32\", \"found\": null, \"batch\": null, \"facts\": {}}";
}

}  // namespace

std::string structure() {
  return R"({"channels": 1, "height": 8, "width": 8, "classes": 3, "stem": [], "pose": [2], "activation": [2],
 "capsules": [{"name": "capsules1", "kernel": 3, "stride": 1}, {"name": "classes", "kernel": null, "stride": 1}],
 "iterations": 2, "mode": "logistic", "variance_floor": 0.0001, "mass_floor": 1e-06})";
}

std::string safetensors(const Arrays& arrays, const std::string& texts) {
  std::string header = "{\"__metadata__\": {\"qcn\": " + quoted(texts) + "}", data;
  // The largest elements first, as the safetensors library does, so that all are aligned.
  for (const char* type : {"F64", "I64", "F32", "U8"}) {
    for (const auto& [name, array] : arrays) {
      if (array.type != type) continue;
      header += ", " + quoted(name) + ": {\"dtype\": \"" + array.type + "\", \"shape\": [";
      for (std::size_t i = 0; i < array.shape.size(); ++i) header += (i ? ", " : "") + std::to_string(array.shape[i]);
      header += "], \"data_offsets\": [" + std::to_string(data.size()) + ", ";
      data += array.bytes;
      header += std::to_string(data.size()) + "]}";
    }
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(header.size() >> 8 * i & 0xFF);
  return prefix + header + data;
}

std::string weights() {
  Arrays arrays;
  unsigned seed = 0;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape, float scale = 0.5f) {
    std::size_t count = 1;
    for (const std::int64_t side : shape) count *= static_cast<std::size_t>(side);
    arrays[name] = array("F32", shape, random_floats(count, ++seed, scale));
  };
  for (const auto& [branch, out] : {std::pair<std::string, int>("pose", 6), {"activation", 2}}) {
    add(branch + ".scale", {1});
    add(branch + ".shift", {1});
    add(branch + ".0.conv1.weight", {4, 1, 3, 3});
    add(branch + ".0.conv1.bias", {4});
    add(branch + ".0.conv2.weight", {4, 4, 3, 3});
    add(branch + ".0.conv2.bias", {4});
    add(branch + ".0.skip.weight", {4, 1, 1, 1}, 2);
    add(branch + ".projection.weight", {out, 4, 1, 1}, 2);
    add(branch + ".projection.bias", {out});
  }
  add("capsules1.rotation", {3, 3, 2, 2, 3, 3}, 1);
  add("capsules1.beta_u", {2});
  add("capsules1.beta_a", {2});
  add("classes.rotation", {1, 1, 2, 3, 3, 3}, 1);
  add("classes.beta_u", {3});
  add("classes.beta_a", {3});
  return safetensors(arrays, "{\"schema\": \"1\", \"structure\": " + quoted(structure()) + "}");
}

std::string golden(float wrong) {
  const auto file = std::make_shared<const qcn::TensorFile>(bytes(weights()));
  const qcn::Structure network = qcn::parse_structure(qcn::Json::parse(structure()));
  const auto backend = qcn::native_backend(network, file);
  const std::vector<float> input = random_floats(kRows * kChannels * kSide * kSide, 77, 2);
  std::vector<float> activation(kRows * kClasses), pose(kRows * kClasses * 3);
  backend->runner(nullptr)->run(input.data(), kRows, activation.data(), pose.data());
  activation[0] += wrong;
  const std::vector<double> exact(activation.begin(), activation.end()), exact_pose(pose.begin(), pose.end());
  const Arrays arrays = {{"input", array("F32", {kRows, kChannels, kSide, kSide}, input)},
                         {"activation", array("F64", {kRows, kClasses}, exact)},
                         {"pose", array("F64", {kRows, kClasses, 3}, exact_pose)},
                         {"activation.float32", array("F32", {kRows, kClasses}, activation)},
                         {"pose.float32", array("F32", {kRows, kClasses, 3}, pose)}};
  return safetensors(arrays, R"({"schema": "1", "rows": "[\"one\", \"two\", \"three\", \"four\"]"})");
}

std::string manifest(const std::string& weights_file, const std::string& golden_file) {
  return R"({"name": "tiny", "classes": ["cat", "dog", "é"], "image": [1, 10, 10],
 "preprocessing": {"resize": null, "crop": 8, "standardise": "dataset", "mean": [0.5], "std": [0.25]},
 "input": {"name": "image", "shape": [1, 8, 8], "layout": "NCHW", "dtype": "float32"},
 "outputs": [{"name": "activation", "shape": [3], "layout": "NK", "dtype": "float32"},
  {"name": "pose", "shape": [3, 3], "layout": "NKP", "dtype": "float32"}],
 "structure": )" +
         structure() + R"(,
 "source": {"sha256": "", "model": "qcn", "checkpoint": "best", "epoch": 4, "data": "", "data_sha256": ""},
 "tools": {"qcn": "0.1.0"},
 "files": [)" +
         entry("golden.safetensors", "golden", golden_file) + ", " +
         entry("weights.safetensors", "native", weights_file) + "],\n \"schema\": 1}\n";
}

std::vector<std::byte> bytes(const std::string& text) {
  std::vector<std::byte> copy(text.size());
  if (!text.empty()) std::memcpy(copy.data(), text.data(), text.size());
  return copy;
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

void write_bundle(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const std::string weights_file = weights(), golden_file = golden();
  write(folder + "/weights.safetensors", weights_file);
  write(folder + "/golden.safetensors", golden_file);
  write(folder + "/manifest.json", manifest(weights_file, golden_file));
}

}  // namespace tiny

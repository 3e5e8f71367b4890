// A TorchScript model in a program without Python: its outputs for golden images, one by one and all together, must be
// the golden outputs within their tolerances.
//
//     run_golden MODEL.ts GOLDEN         prints the model's metadata and each output's largest error
//
// GOLDEN, little-endian:  int64 batch, channels, height, width, outputs;  float image[batch][channels][height][width];
// then for each output:   int64 numbers of one image;  float tolerance, expected[batch][numbers]
//
// Exit status: 0 all right, 1 an output differs, 2 wrong usage or files.
#include <torch/script.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Output {
  float tolerance;
  at::Tensor expected;  // [batch, numbers]
};

struct Golden {
  at::Tensor image;
  std::vector<Output> outputs;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path, std::ios::binary), path_(path) {}

  template <class T>
  T one() {
    T value;
    read(&value, sizeof value);
    return value;
  }

  at::Tensor floats(at::IntArrayRef shape) {
    at::Tensor tensor = at::empty(shape, at::kFloat);
    read(tensor.data_ptr<float>(), static_cast<std::streamsize>(tensor.nbytes()));
    return tensor;
  }

 private:
  void read(void* into, std::streamsize size) {
    if (!file_.read(static_cast<char*>(into), size))
      throw std::runtime_error(path_ + " cannot be read, or is too short");
  }

  std::ifstream file_;
  std::string path_;
};

Golden read_golden(const std::string& path) {
  Reader reader(path);
  int64_t shape[4];
  for (int64_t& side : shape) side = reader.one<int64_t>();
  int64_t outputs = reader.one<int64_t>();
  Golden golden{reader.floats(shape), {}};
  for (int64_t i = 0; i < outputs; ++i) {
    int64_t numbers = reader.one<int64_t>();
    float tolerance = reader.one<float>();
    golden.outputs.push_back({tolerance, reader.floats({shape[0], numbers})});
  }
  return golden;
}

// Whether the model answers images [first, first + count) as it should.
bool agrees(torch::jit::Module& model, const Golden& golden, int64_t first, int64_t count) {
  at::Tensor image = golden.image.narrow(0, first, count);
  c10::IValue answer = model.forward({image});
  const auto& outputs = answer.toTupleRef().elements();
  if (outputs.size() != golden.outputs.size()) {
    std::printf("FAILED: %zu outputs, not %zu\n", outputs.size(), golden.outputs.size());
    return false;
  }
  bool good = true;
  for (size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor found = outputs[i].toTensor().flatten(1);
    at::Tensor expected = golden.outputs[i].expected.narrow(0, first, count);
    if (found.sizes() != expected.sizes() || found.scalar_type() != at::kFloat) {
      std::printf("FAILED: output %zu does not have the golden one's shape or type\n", i);
      good = false;
      continue;
    }
    float error = (found - expected).abs().max().item<float>(), tolerance = golden.outputs[i].tolerance;
    bool within = error <= tolerance;  // not so when it is NaN
    std::printf("%s: output %zu, images %lld to %lld: error %.3g, tolerance %.3g\n", within ? "ok" : "FAILED", i,
                static_cast<long long>(first), static_cast<long long>(first + count - 1), error, tolerance);
    good = good && within;
  }
  return good;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: run_golden MODEL.ts GOLDEN\n");
    return 2;
  }
  try {
    c10::InferenceMode no_gradients;
    torch::jit::ExtraFilesMap extra{{"metadata.json", ""}};
    torch::jit::Module model = torch::jit::load(arguments[1], at::kCPU, extra);
    std::printf("%s\n", extra["metadata.json"].c_str());
    Golden golden = read_golden(arguments[2]);
    int64_t batch = golden.image.size(0);
    bool good = agrees(model, golden, 0, batch);
    for (int64_t i = 0; i < batch; ++i) good = agrees(model, golden, i, 1) && good;
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}

// Any bytes as a safetensors file: as weights with a program, which then runs, and as golden answers to it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "backend.h"
#include "em_routing.h"
#include "error.h"
#include "golden.h"
#include "program.h"
#include "self_test.h"
#include "sha256.h"

namespace {

// Small enough that a fuzzer runs it often: a small file can ask for large maps, by padding.
bool small(const qcn::program::Program& program) {
  std::size_t floats = 0;
  for (const auto& shape : program.shapes) floats += qcn::program::count(shape);
  for (const auto& operation : program.operations) {
    const auto convolution = std::get_if<qcn::program::Convolution>(&operation.body);
    for (std::size_t s = 0; convolution && s < convolution->sources.size(); ++s) {
      if (convolution->sources[s].padding > 16) return false;
    }
  }
  return floats <= 10000;
}

template <typename Body>
void refused_or_done(const Body& body) {
  try {
    body();
  } catch (const qcn::Error& error) {
    if (error.status != QCN_BAD_BUNDLE && error.status != QCN_WRONG_ANSWER) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool one_thread = (qcn_set_threads(1), true);
  (void)one_thread;
  const auto first = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> bytes(first, first + size);
  refused_or_done([&] {
    const qcn::TensorFile file(bytes, qcn::kGoldenSchema);
    // Reads what there is said to be.
    for (const auto& [name, tensor] : file.all()) qcn::sha256(tensor.data, tensor.count());
    for (const bool poses : {true, false}) {
      qcn::Manifest manifest;  // as deploy/tests/tiny_bundle.cpp has it
      manifest.classes = {"cat", "dog", "é"};
      manifest.preprocessing = {{1, 10, 12, qcn::Fit::kCrop}, std::nullopt, 8, false, {0.5}, {0.25}};
      manifest.signature = {1, 8, 8, 3, poses};
      refused_or_done([&] { qcn::check_preprocessing(manifest, qcn::read_golden(file, manifest)); });
    }
  });
  refused_or_done([&] {
    qcn::program::Program program(std::make_shared<const qcn::TensorFile>(bytes, qcn::kWeightsSchema));
    if (!small(program)) return;
    const qcn::Signature signature = program.signature;
    const auto backend = qcn::native_backend(std::move(program));
    std::vector<float> input(signature.image_floats(), 0.5f);
    std::vector<float> logit(signature.logit_floats()), pose(signature.pose_floats());
    backend->runner(nullptr)->run(input.data(), 1, logit.data(), signature.poses ? pose.data() : nullptr);
  });
  return 0;
}

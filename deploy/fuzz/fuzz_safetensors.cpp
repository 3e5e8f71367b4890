// Any bytes as a safetensors file: as weights of a network, which then runs, and as golden answers to it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "backend.h"
#include "em_routing.h"
#include "error.h"
#include "golden.h"
#include "json.h"
#include "sha256.h"

namespace {

// Small enough that a fuzzer runs it often.
bool small(const qcn::Structure& structure) {
  return structure.channels <= 4 && structure.height <= 16 && structure.width <= 16 && structure.classes <= 16;
}

template <typename Body>
void refused_or_done(const Body& body) {
  try {
    body();
  } catch (const qcn::Error& error) {
    if (error.status != QCN_BAD_BUNDLE) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool one_thread = (qcn_set_threads(1), true);
  (void)one_thread;
  refused_or_done([&] {
    const auto bytes = reinterpret_cast<const std::byte*>(data);
    const auto file = std::make_shared<const qcn::TensorFile>(std::vector<std::byte>(bytes, bytes + size));
    for (const auto& [name, tensor] : file->all())
      qcn::sha256(tensor.data, tensor.count());  // reads what there is said to be
    refused_or_done([&] {
      qcn::Structure structure;
      structure.channels = 1, structure.height = structure.width = 8, structure.classes = 3;
      qcn::read_golden(*file, structure);
    });
    const qcn::Structure structure = qcn::parse_structure(qcn::Json::parse(file->text("structure")));
    if (!small(structure)) return;
    const auto backend = qcn::native_backend(structure, file);
    std::vector<float> input(static_cast<std::size_t>(structure.channels * structure.height * structure.width), 0.5f);
    std::vector<float> activation(static_cast<std::size_t>(structure.classes)), pose(activation.size() * 3);
    backend->runner(nullptr)->run(input.data(), 1, activation.data(), pose.data());
  });
  return 0;
}

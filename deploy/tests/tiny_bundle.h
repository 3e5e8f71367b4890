// A whole bundle of a tiny random network, for tests that take bundles apart.
#ifndef QCN_TESTS_TINY_BUNDLE_H
#define QCN_TESTS_TINY_BUNDLE_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tiny {

constexpr int kChannels = 1, kSide = 8, kClasses = 3, kRows = 4;

struct Array {
  std::string type;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

using Arrays = std::map<std::string, Array>;

template <typename T>
Array array(const char* type, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {type, std::move(shape), {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}};
}

std::string structure();                                                  // in JSON
std::string safetensors(const Arrays& arrays, const std::string& texts);  // texts: JSON, of "qcn" in the metadata
std::string weights();
std::string golden(float wrong = 0);  // wrong: added to the first answer
std::string manifest(const std::string& weights, const std::string& golden);

std::vector<std::byte> bytes(const std::string& text);
void write(const std::string& path, const std::string& text);
std::string read(const std::string& path);
void write_bundle(const std::string& folder);  // makes the folder

}  // namespace tiny

#endif

// Tensors of a safetensors file, which is kept in memory as a whole.
#ifndef QCN_SRC_TENSORS_H
#define QCN_SRC_TENSORS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace qcn {

struct Tensor {
  std::string type;  // "F32", "F64", "F16", "U8", "I8", "I32", "I64", as safetensors names them
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;  // aligned for its type

  std::size_t count() const;  // of elements
};

constexpr const char* kWeightsSchema = "2";  // of weights.safetensors
constexpr const char* kGoldenSchema = "2";   // of golden.safetensors

class TensorFile {
 public:
  // `schema`: what the file must say of itself. Throws Error(QCN_BAD_BUNDLE).
  TensorFile(std::vector<std::byte> bytes, const std::string& schema);
  TensorFile(const TensorFile&) = delete;  // tensors point into the bytes
  TensorFile& operator=(const TensorFile&) = delete;

  const Tensor& at(const std::string& name) const;  // throws Error(QCN_BAD_BUNDLE)
  // The same, refused unless it is of this type and shape.
  const float* floats(const std::string& name, const std::vector<std::int64_t>& shape) const;
  const double* doubles(const std::string& name, const std::vector<std::int64_t>& shape) const;
  const unsigned char* bytes(const std::string& name, const std::vector<std::int64_t>& shape) const;
  const std::int64_t* integers(const std::string& name, const std::vector<std::int64_t>& shape) const;
  const std::int8_t* small_integers(const std::string& name, const std::vector<std::int64_t>& shape) const;   // I8
  const std::int32_t* short_integers(const std::string& name, const std::vector<std::int64_t>& shape) const;  // I32
  const std::uint16_t* halves(const std::string& name, const std::vector<std::int64_t>& shape) const;         // F16
  const std::map<std::string, Tensor>& all() const { return tensors_; }
  // One of the texts that export/bundle/arrays.py puts beside the tensors; throws Error(QCN_BAD_BUNDLE).
  const std::string& text(const std::string& name) const;

 private:
  std::vector<std::byte> bytes_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> texts_;
};

}  // namespace qcn

#endif

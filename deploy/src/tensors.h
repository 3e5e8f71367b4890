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

constexpr const char* kWeightsSchema = "3";  // of weights.safetensors
constexpr const char* kGoldenSchema = "3";   // of golden.safetensors

class TensorFile {
 public:
  // `schema`: what the file must say of itself. Throws Error(QCN_BAD_BUNDLE).
  TensorFile(std::vector<std::byte> bytes, const std::string& schema);
  TensorFile(const TensorFile&) = delete;  // tensors point into the bytes
  TensorFile& operator=(const TensorFile&) = delete;

  const Tensor& at(const std::string& name) const;  // throws Error(QCN_BAD_BUNDLE)
  // Its numbers, refused unless it is of this type and shape. T: float, double, unsigned char, std::int8_t,
  // std::int32_t, std::int64_t, or std::uint16_t for the bits of float16.
  template <typename T>
  const T* array(const std::string& name, const std::vector<std::int64_t>& shape) const {
    return reinterpret_cast<const T*>(checked(name, type_name(T()), shape));
  }
  const std::map<std::string, Tensor>& all() const { return tensors_; }
  bool has_text(const std::string& name) const { return texts_.count(name) > 0; }
  // One of the texts that export/bundle/arrays.py puts beside the tensors; throws Error(QCN_BAD_BUNDLE).
  const std::string& text(const std::string& name) const;

 private:
  static const char* type_name(float) { return "F32"; }
  static const char* type_name(double) { return "F64"; }
  static const char* type_name(unsigned char) { return "U8"; }
  static const char* type_name(std::int8_t) { return "I8"; }
  static const char* type_name(std::int32_t) { return "I32"; }
  static const char* type_name(std::int64_t) { return "I64"; }
  static const char* type_name(std::uint16_t) { return "F16"; }
  const std::byte* checked(const std::string& name, const char* type, const std::vector<std::int64_t>& shape) const;

  std::vector<std::byte> bytes_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> texts_;
};

}  // namespace qcn

#endif

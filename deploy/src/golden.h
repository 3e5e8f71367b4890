// golden.safetensors: inputs of the network and its right answers (export/bundle/golden.py), as far as a backend is
// tested against them.
#ifndef QCN_SRC_GOLDEN_H
#define QCN_SRC_GOLDEN_H

#include <string>
#include <vector>

#include "signature.h"
#include "tensors.h"

namespace qcn {

// The pointers are into the file.
struct Golden {
  std::vector<std::string> rows;       // what each is: "familiar 0: animal", "zeros"
  const float* input = nullptr;        // [rows, channels, height, width]
  const double* activation = nullptr;  // [rows, classes], by the reference in float64
  const double* pose = nullptr;        // [rows, classes, 3]; null for a network without poses
};

Golden read_golden(const TensorFile& file, const Signature& signature);  // throws Error(QCN_BAD_BUNDLE)

}  // namespace qcn

#endif

// golden.safetensors: inputs of the network and its right answers (export/golden.py), as far as a backend is tested
// against them.
#ifndef QCN_SRC_GOLDEN_H
#define QCN_SRC_GOLDEN_H

#include <string>
#include <vector>

#include "manifest.h"
#include "tensors.h"

namespace qcn {

// One of the network's two outputs, [rows, width].
struct Answers {
  const double* exact;    // by the reference in float64
  const float* rounded;   // by the same in float32
  std::size_t width = 0;  // numbers a row
  double noise = 0;       // the largest difference of the two: what rounding in float32 does to this output
  double scale = 0;       // the largest magnitude
};

// The pointers are into the file.
struct Golden {
  std::vector<std::string> rows;  // what each is: "familiar 0: animal", "zeros"
  const float* input = nullptr;   // [rows, channels, height, width]
  Answers activation, pose;       // [rows, classes], [rows, classes · 3]
};

Golden read_golden(const TensorFile& file, const Structure& structure);  // throws Error(QCN_BAD_BUNDLE)

}  // namespace qcn

#endif

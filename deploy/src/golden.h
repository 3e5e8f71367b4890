// golden.safetensors: images, inputs of the network and its right answers (export/bundle/golden.py), as far as
// pre-processing and a backend are tested against them.
#ifndef QCN_SRC_GOLDEN_H
#define QCN_SRC_GOLDEN_H

#include <map>
#include <string>
#include <vector>

#include "manifest.h"
#include "tensors.h"

namespace qcn {

// The pointers are into the file.
struct Golden {
  std::vector<std::string> rows;         // what each is: "familiar 0: animal", "zeros"
  std::vector<bool> has_image;           // false: its input is of numbers that no image gives
  const unsigned char* image = nullptr;  // [rows, channels, height, width], before pre-processing
  const float* input = nullptr;          // [rows, channels, height, width], after it
  const double* logit = nullptr;         // [rows, classes], by the reference in float64
  const double* pose = nullptr;          // [rows, classes, 3]; null for a network without poses
  // What tolerances are computed from (tolerance.h): the same answers in float32, and the noise floors of half
  // precisions, by precision and output. The answers of a calibrated network are those of its plan.
  const float *logit_float32 = nullptr, *pose_float32 = nullptr;
  std::map<std::string, std::map<std::string, double>> floors;
  bool plan = false;
};

// Throws Error(QCN_BAD_BUNDLE) for what is not of the network that the manifest describes: of other shapes, or with
// other names for its classes.
Golden read_golden(const TensorFile& file, const Manifest& manifest);

}  // namespace qcn

#endif

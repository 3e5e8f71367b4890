// What a bundle's manifest.json says, as far as a program that runs the network needs it (export/manifest.py writes
// it; export/network.py says what a structure means).
#ifndef QCN_SRC_MANIFEST_H
#define QCN_SRC_MANIFEST_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace qcn {

class Json;

// Resize, centre crop, standardise, in this order, on pixels scaled to [0, 1]: qcn/data/preprocess.py.
struct Preprocessing {
  std::optional<int> resize, crop;  // sides in pixels
  bool by_image = false;            // standardise each channel of each image by its own mean and deviation,
  std::vector<double> mean, std;    // else by these, one pair a channel
};

struct Capsules {
  std::string name;           // the prefix of its arrays
  std::optional<int> kernel;  // none: the whole map
  int stride = 1;
};

// How the arrays of weights.safetensors make a network.
struct Structure {
  int channels = 0, height = 0, width = 0, classes = 0;
  std::vector<int> stem, pose, activation;  // stacks of residual blocks, by the strides of their blocks
  std::vector<Capsules> capsules;
  int iterations = 0;
  bool unit = false;  // mode "unit", else "logistic"
  double variance_floor = 0, mass_floor = 0;
};

struct Artefact {
  std::string file, format, sha256, precision;
  std::uint64_t bytes = 0;
  int min_batch = 0, opt_batch = 0, max_batch = 0;  // 0: any
  // Of a TensorRT engine.
  std::string flavour, version, gpu;
  int sm = 0;
};

struct Manifest {
  std::string name;
  std::vector<std::string> classes;
  Preprocessing preprocessing;
  Structure structure;
  std::vector<Artefact> files;
};

// Refuse what export/manifest.py would refuse. Both throw Error(QCN_BAD_BUNDLE) with what is wrong.
Manifest parse_manifest(const std::string& text);
Structure parse_structure(const Json& json);

bool operator==(const Structure& a, const Structure& b);

}  // namespace qcn

#endif

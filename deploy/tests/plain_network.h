// Random networks in deployment form, and the plainest loops in double precision that run one (export/network.py).
#ifndef QCN_TESTS_PLAIN_NETWORK_H
#define QCN_TESTS_PLAIN_NETWORK_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "manifest.h"
#include "tensors.h"

namespace plain {

struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

struct Network {
  qcn::Structure structure;
  std::map<std::string, Array> arrays;
};

struct Widths {
  std::vector<int> stem, pose, activation;  // channels of the blocks
  int capsules = 0;                         // types of primary capsules
  std::vector<int> parents;                 // of the capsule layers but the last
};

// `structure` says all but the widths. Its capsule layers must be named.
Network random_network(const qcn::Structure& structure, const Widths& widths, unsigned seed);

std::shared_ptr<const qcn::TensorFile> file_of(const Network& network);  // through the bytes of a safetensors file

struct Answers {
  std::vector<double> activation, pose;
};

Answers run(const Network& network, const std::vector<float>& images, int batch);

}  // namespace plain

#endif

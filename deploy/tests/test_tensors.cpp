// Files of safetensors: what is right is read, and no header leads out of its file.
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "random_network.h"
#include "tensors.h"
#include "tiny_bundle.h"

namespace {

using std::string;

const string kWeights = tiny::network().weights();

void test_reading() {
  const qcn::TensorFile file(networks::bytes(kWeights), qcn::kWeightsSchema);
  check(file.at("capsules1.rotation").count() == 324 && file.all().size() == 24, "tensors are read");
  check(file.array<float>("classes.beta_u", {3}) != nullptr, "floats are read");
  const auto other_shape = [&] { file.array<float>("classes.beta_u", {4}); };
  refused("another shape", QCN_BAD_BUNDLE, other_shape, {"[4], not F32 [3]"});
  refused("another type", QCN_BAD_BUNDLE, [&] { file.array<double>("classes.beta_u", {3}); });
  refused("no such array", QCN_BAD_BUNDLE, [&] { file.at("none"); });
}

// The entry of an array in a header.
string array(const char* name, const char* type, const string& sides, const string& offsets) {
  return string(", \"") + name + "\": {\"dtype\": \"" + type + "\", \"shape\": [" + sides + "], \"data_offsets\": [" +
         offsets + "]}";
}

// A file with these entries, and so many bytes of data.
qcn::TensorFile read(const string& entries, std::size_t data) {
  string header = R"({"__metadata__": {"qcn": "{\"schema\": \"1\"}"})" + entries + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  string prefix(8, '\0');
  prefix[0] = static_cast<char>(header.size() & 0xFF), prefix[1] = static_cast<char>(header.size() >> 8);
  return qcn::TensorFile(networks::bytes(prefix + header + string(data, 'x')), "1");
}

void test_headers() {
  read("", 0);
  check(read(array("a", "F32", "2, 0, 5", "0, 0"), 0).at("a").count() == 0, "an empty array");
  check(read(array("a", "F32", "", "0, 4"), 4).at("a").count() == 1, "a scalar");
  const std::vector<std::pair<string, std::size_t>> wrong = {
      {"", 1},                              // a byte of no array
      {array("a", "F32", "2", "0, 8"), 7},  // out of range
      {array("a", "F32", "2", "0, 8"), 9},  // a byte left over
      {array("a", "F32", "2", "8, 0"), 8},  // backwards
      {array("a", "F32", "2", "-8, 0"), 8},
      {array("a", "F32", "3", "0, 8"), 8},  // not its shape
      {array("a", "F32", "-2", "0, 8"), 8},
      {array("a", "F32", "2.0", "0, 8"), 8},
      {array("a", "F32", "4611686018427387904", "0, 8"), 8},  // overflow of bytes
      {array("a", "F32", "4294967296, 4294967296", "0, 0"), 0},
      {array("a", "F32", "4294967296, 4294967296, 0", "0, 0"), 0},
      {array("a", "U8", "9223372036854775807", "0, 9223372036854775807"), 8},
      {array("a", "F32", "99999999999999999999", "0, 8"), 8},
      {array("a", "F32", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "0, 4"), 4},  // axes
      {array("a", "F32", "2", "0"), 8},
      {array("a", "F32", "2", "0, 8, 8"), 8},
      {array("a", "F33", "2", "0, 8"), 8},                                   // type
      {array("a", "F32", "2", "0, 8") + array("b", "F32", "2", "0, 8"), 8},  // overlap
      {array("a", "F32", "2", "0, 8") + array("b", "F32", "2", "4, 12"), 12},
      {array("a", "F32", "2", "0, 8") + array("b", "F32", "2", "12, 20"), 20},  // gap
      {array("a", "U8", "1", "0, 1") + array("b", "F32", "1", "1, 5"), 5},      // not aligned
      {array("a", "F32", "2", "0, 8") + array("a", "F32", "2", "0, 8"), 8},     // twice
      {", \"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8], \"more\": 1}", 8},
      {", \"a\": 3", 0},
  };
  for (const auto& [entries, data] : wrong) {
    refused("safetensors " + entries, QCN_BAD_BUNDLE, [&, e = entries, d = data] { read(e, d); });
  }
  for (const char* prefix :
       {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", "\xF8\xFF\xFF\xFF\xFF\xFF\xFF\xFF"}) {
    refused("a huge header", QCN_BAD_BUNDLE,
            [&] { qcn::TensorFile(networks::bytes(string(prefix, 8) + kWeights.substr(8)), "1"); });
  }
}

}  // namespace

int main() {
  test_reading();
  test_headers();
  return verdict();
}

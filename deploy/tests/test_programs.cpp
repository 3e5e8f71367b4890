// Programs and arrays that do not fit each other: all are refused, and none leads the native backend out of bounds.
#include <string>
#include <utility>
#include <vector>

#include "backend.h"
#include "check.h"
#include "em_routing.h"
#include "json.h"
#include "program.h"
#include "sample_networks.h"
#include "tiny_bundle.h"

namespace {

using namespace networks;
using std::string;
using std::to_string;

void refuse(const Network& network, const string& what) {
  refused(what, QCN_BAD_BUNDLE, [&] { qcn::native_backend(qcn::program::Program(network.file())); });
}

void test_arrays_that_do_not_fit() {
  for (const Network& good : {branched(false, 2, 9), cnn(9), mixed(false, 2, 9), inverted_residuals(9)}) {
    for (const auto& [name, array] : good.arrays) {
      Network network = good;
      network.arrays.erase(name);
      refuse(network, "no " + name);
      network = good;
      network.arrays[name].shape.push_back(1);
      refuse(network, name + " of one dimension too many");
      network.arrays[name] = {{0}, {}};
      refuse(network, "an empty " + name);
      if (array.shape.size() > 1 && array.shape[0] != array.shape[1]) {
        network = good;
        std::swap(network.arrays[name].shape[0], network.arrays[name].shape[1]);
        refuse(network, name + " transposed");
      }
    }
    Network more = good;
    more.arrays["more"] = {{1}, {0.0f}};
    refuse(more, "an array too many");
  }
}

string in_double_quotes(string text) {
  for (char& c : text) c = c == '\'' ? '"' : c;
  return text;
}

// Refused with one place of its program replaced.
void altered(Network network, const string& from, const string& to) {
  const std::size_t place = network.program.find(in_double_quotes(from));
  check(place != string::npos, "the test replaces what is not there: " + from);
  if (place == string::npos) return;
  network.program.replace(place, from.size(), in_double_quotes(to));
  refuse(network, from + " made " + to);
}

// Values of an entry that do not fit where `right` does.
struct Wrong {
  string key, right;
  std::vector<string> wrong;
};

void altered(const Network& network, const Wrong& entry) {
  const string key = "'" + entry.key + "': ";
  for (const string& value : entry.wrong) altered(network, key + entry.right, key + value);
}

void test_programs_that_do_not_fit() {
  const Network capsules = branched(false, 2, 9), rival = cnn(9), odd = odd_extractor(9);
  for (const string size : {"0", "-1", "65537", "2147483647", "9223372036854775807", "1.0", "'1'", "null", "[1]"}) {
    altered(capsules, {"shape", "[2, 17, 19]", {"[2, 17, " + size + "]"}});
    altered(capsules, {"strides", "[1]", {"[" + size + "]"}});
    altered(capsules, {"window", "[3, 3]", {"[3, " + size + "]"}});
    altered(capsules, {"stride", "2", {size}});
    altered(capsules, {"iterations", "2", {size}});
    altered(capsules, {"shape", "[5]", {"[" + size + "]"}});
    altered(rival, {"kernel", "2", {size}});
    altered(rival, {"stride", "2", {size}});
    altered(rival, {"shape", "[70]", {"[" + size + "]"}});
    if (size != "0") altered(rival, {"paddings", "[2]", {"[" + size + "]"}});
  }
  const Wrong of_capsules[] = {
      {"name", "'image'", {"'picture'"}},
      {"shape", "[2, 17, 19]", {"[2, 17]", "[3, 17, 19]", "[65536, 65536, 65536]"}},
      {"precision", "'fp32'", {"'fp16'", "'int8'"}},
      {"op", "'affine'", {"'norm'", "'linear'", "'affine', 'more': 1", "'affine', 'op': 'affine'"}},
      {"input",
       "'image'",
       {"'later'", "'pose.0.conv1'", "'pose.entry'"}},  // the second is made after it, the third by it
      {"name", "'pose.0.conv1'", {"'pose.entry'", "'image'", "''", "'a\\nb'"}},
      {"name", "'capsules2'", {"'capsules1'"}},
      {"ending", "'relu'", {"'softmax'", "'tanh'"}},
      {"inputs",
       "['pose.0.conv1', 'pose.entry']",
       {"[]", "['pose.0.conv1']", "['pose.0.conv1', 'pose.entry', 'pose.entry']"}},
      {"strides", "[1, 1]", {"[1, 2]", "[1]"}},
      {"paddings", "[1, 0]", {"[1, 1]", "[0, 0]"}},
      {"pose", "'pose.projection'", {"'activation.projection'"}},
      {"activation", "'activation.projection'", {"'pose.projection'"}},
      {"activation", "'capsules1.activation'", {"'capsules1.pose'", "'capsules1'"}},
      {"window", "[3, 3]", {"[3]", "[10, 3]", "[2, 3]"}},
      {"iterations", "2", {"6"}},
      {"mode", "'logistic'", {"'linear'"}},
      {"ending", "'sigmoid', 'shape': [9", {"'none', 'shape': [9", "'relu', 'shape': [9", "null, 'shape': [9"}},
      {"shape", "[9, 4, 4]", {"[9, 4, 5]", "[9, 4]"}},
      {"value", "'classes.logit'", {"'capsules2.activation'", "'classes'", "'classes.activation'"}},
      {"name", "'logit'", {"'probability'", "'activation'"}},
      {"name", "'pose'", {"'logit'"}},
      {"shape", "[5, 3]", {"[3, 5]", "[15]"}},
      {"outputs", "[", {"[], 'more': ["}},
      {"operations", "[", {"[], 'more': ["}},
  };
  for (const Wrong& wrong : of_capsules) altered(capsules, wrong);
  altered(capsules, "'op': 'affine', ", "");
  const Wrong of_rival[] = {
      {"kind", "'max'", {"'min'"}},
      {"kernel", "2", {"13"}},
      {"paddings", "[2]", {"[1]", "[65536]"}},
      {"input", "'hidden'", {"'pool2'"}},
      {"shape", "[70]", {"[70, 1]", "[71]"}},
      {"inputs", "['pool1']", {"['conv1']"}},
  };
  for (const Wrong& wrong : of_rival) altered(rival, wrong);
  const Wrong of_blocks[] = {
      {"depthwise", "true", {"false", "null", "1", "'true'", "true, 'depthwise': true"}},
      {"inputs", "['block0.expand']", {"['block0.expand', 'block0.expand']", "['stem']", "[]"}},
      {"inputs", "['stem', 'block0.project']", {"['stem']", "['stem', 'block0.expand']", "['stem', 'stem', 'stem']"}},
      {"inputs", "['stem', 'block0.project']", {"['stem', 'block0.project'], 'ending': 'none'", "'stem'"}},
      {"op", "'sum'", {"'add'", "'pool'"}},
  };
  for (const Wrong& wrong : of_blocks) altered(inverted_residuals(9), wrong);
  altered(odd, {"input", "'mean'", {"'scaled'"}});
  altered(odd, {"kind", "'average'", {"1"}});
  for (const char* text : {"", "{}", "[]", "null", "{\"input\": 1, \"operations\": 1, \"outputs\": 1}"}) {
    refuse({text, rival.arrays}, text);
  }
}

void test_networks_that_are_too_large() {
  // More parents than routing has room for.
  Builder b({3, 4, 4}, 1);
  const auto crowd = b.route_whole("classes", b.project("image", "image", 2), QCN_ROUTING_MAX_PARENTS + 1, {});
  refuse(b.network(crowd.activation, crowd.pose), "65 classes");
  // Small arrays, but maps that would fill all memory: by padding, and by many of them.
  Builder huge({1, 4, 4}, 1);
  const string wide = huge.convolution("wide", {{"image", 1, 1, 30000}}, 1);
  refuse(huge.network(huge.linear("classes", huge.pool("one", wide, "max", 60004, 1), 2, "none")), "a huge border");
  Builder many({1, 4, 4}, 1);
  const string first = many.convolution("wide", {{"image", 1, 1, 10000}}, 1);
  string last = first;
  for (int i = 0; i < 3; ++i) last = many.affine("copy" + to_string(i), last);
  last = many.sum("sum", many.sum("both", "copy0", "copy1"), last);
  refuse(many.network(many.linear("classes", many.pool("one", last, "max", 20004, 1), 2, "none")), "many huge maps");
}

// The cases of tests/programs.json, which Python is tested on as well.
void test_outputs(const string& path) {
  const qcn::Json json = qcn::Json::parse(tiny::read(path));
  const qcn::JsonList& cases = json.at("cases", "the file").list("cases");
  check(cases.size() >= 19, "there are cases");
  for (const qcn::Json& one : cases) {
    Network network{one["program"].text("program"), {}};
    for (const qcn::JsonEntry& array : one["arrays"].object("arrays")) {
      Floats& floats = network.arrays[array.name];
      std::size_t count = 1;
      for (const int side : array.value.sizes("a shape")) {
        floats.shape.push_back(side);
        count *= static_cast<std::size_t>(side);
      }
      floats.values.assign(count, 0.5f);
    }
    const string name = one["name"].text("name");
    const bool taken = accepted_or_refused(name, [&] { qcn::program::Program{network.file()}; });
    check(taken == one["taken"].boolean("taken"), name);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  test_outputs(arguments[1]);
  test_arrays_that_do_not_fit();
  test_programs_that_do_not_fit();
  test_networks_that_are_too_large();
  return verdict();
}

// From logits to answers, as a program gets them: qcn.hpp on the cases of tests/answers.json, which Python and the page
// are held to as well. Each case is a bundle in memory with its own classes, temperature and threshold.
//
//     test_answers answers.json
#include <cmath>
#include <cstdio>
#include <fstream>
#include <qcn/qcn.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "json.h"
#include "random_network.h"
#include "sha256.h"

namespace {

using std::string;

int failures = 0;

void check(bool good, const string& what) {
  if (good) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

string known_text(const qcn::Json& known) {
  if (known.is_null()) return "null";
  return "{\"score\": " + networks::quoted(known["score"].text("score")) +
         ", \"threshold\": " + number(known["threshold"].real("threshold")) +
         ", \"keep\": 0.95, \"auroc\": 0.9, \"false_positives\": 0.25}";
}

string manifest_text(const string& weights, std::size_t classes, double temperature, const string& known) {
  string names;
  for (std::size_t i = 0; i < classes; ++i) names += (i ? ", \"class" : "\"class") + std::to_string(i) + "\"";
  return "{\"name\": \"case\", \"classes\": [" + names +
         R"(], "image": [1, 2, 2], "preprocessing": {"fit": "crop", "resize": null, "crop": null, )"
         R"("standardise": "dataset", "mean": [0.5], "std": [0.25]}, "confidence": {"temperature": )" +
         number(temperature) + R"(, "error": 0.01}, "known": )" + known +
         R"(, "direction": null, "measured": null, "input": {"name": "image", "shape": [1, 2, 2], )"
         R"("layout": "NCHW", "dtype": "float32"}, )"
         R"("outputs": [{"name": "logit", "shape": [)" +
         std::to_string(classes) +
         R"(], "layout": "NK", "dtype": "float32"}], "source": {"sha256": "", "model": "cnn", "checkpoint": "best", )"
         R"("epoch": 1, "data": "", "data_sha256": ""}, "tools": {}, "files": [{"file": "weights.safetensors", )"
         R"("format": "native", "sha256": ")" +
         qcn::sha256(weights.data(), weights.size()) + "\", \"bytes\": " + std::to_string(weights.size()) +
         R"(, "precision": "fp32", "found": null, "batch": null, "rebuild": "qcn export RUN --out {bundle}", )"
         R"("plugin": false, "tolerance": {"logit": 1e-5}, "facts": {}}], "schema": 4})";
}

qcn::Model model_of(std::size_t classes, double temperature, const string& known) {
  networks::Builder b({1, 2, 2}, 1);
  const string weights = b.network(b.linear("classes", "image", static_cast<int>(classes), "none")).weights();
  const string manifest = manifest_text(weights, classes, temperature, known);
  const string sums = qcn::sha256(manifest.data(), manifest.size()) + "  manifest.json\n";
  qcn_model_params params = qcn_model_default_params();
  params.self_test = 0;
  return qcn::Model::from_memory({{"manifest.json", manifest.data(), manifest.size()},
                                  {"manifest.sha256", sums.data(), sums.size()},
                                  {"weights.safetensors", weights.data(), weights.size()}},
                                 params);
}

void test_case(const qcn::Json& json) {
  const string name = json["name"].text("name");
  qcn::Answer answer;
  for (const qcn::Json& logit : json["logit"].list("logit")) {
    answer.logit.push_back(static_cast<float>(logit.real("logit")));
    check(static_cast<double>(answer.logit.back()) == logit.real("logit"), name + ": a logit is not a float");
  }
  const qcn::Model model =
      model_of(answer.logit.size(), json["temperature"].real("temperature"), known_text(json["known"]));
  check(model.info().temperature == json["temperature"].real("temperature"), name + ": its temperature");
  check(model.info().says_unknown == !json["known"].is_null(), name + ": whether it can say unknown");

  const std::vector<int> order = json["order"].sizes("order", 0);
  check(answer.order() == order, name + ": order");
  const std::vector<double> probability = model.probabilities(answer.logit);
  for (std::size_t i = 0; i < probability.size(); ++i) {
    const double expected = json["probability"].list("probability")[i].real("probability");
    check(std::fabs(probability[i] - expected) < 1e-12, name + ": probability " + number(probability[i]));
  }
  const auto best = static_cast<std::size_t>(order[0]);
  const qcn_answer decided = model.decide(answer.logit)[0];
  check(decided.index == order[0] && decided.label == "class" + std::to_string(order[0]), name + ": label");
  check(std::fabs(decided.probability - probability[best]) < 1e-15, name + ": the answer's probability");
  check(decided.known == json["is_known"].boolean("is_known"), name + ": known");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::ostringstream text;
  text << std::ifstream(arguments[1], std::ios::binary).rdbuf();
  const qcn::Json json = qcn::Json::parse(text.str());
  const qcn::JsonList& cases = json.at("cases", "the file").list("cases");
  check(cases.size() >= 14, "there are cases");
  for (const qcn::Json& one : cases) test_case(one);
  std::printf("%zu cases, %d failures\n", cases.size(), failures);
  return failures ? 1 : 0;
}

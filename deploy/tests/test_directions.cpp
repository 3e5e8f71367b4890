// From poses to directions of view: answer.h on the cases of tests/directions.json, which Python and the page are held
// to as well.
//
//     test_directions directions.json
#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "answer.h"
#include "check.h"
#include "json.h"

namespace {

using std::string;

std::vector<double> numbers(const qcn::Json& json, const string& what) {
  std::vector<double> all;
  for (const qcn::Json& one : json.list(what)) all.push_back(one.real(what));
  return all;
}

void test_direction(const qcn::Json& json) {
  const string name = json["name"].text("name");
  const qcn::Json& record = json["direction"];
  qcn::Manifest manifest;
  manifest.direction.emplace();
  manifest.direction->symmetry = record["symmetry"].sizes("symmetry", 0);
  manifest.direction->elevation = record["elevation"].boolean("elevation");
  manifest.direction->lengths = numbers(record["lengths"], "lengths");
  manifest.direction->spreads = numbers(record["spreads"], "spreads");
  const std::size_t classes = manifest.direction->symmetry.size();
  const auto label = static_cast<std::size_t>(json["label"].integer("label"));
  std::vector<float> logit(classes, -1), pose(3 * classes, 7);
  logit[label] = 1;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    pose[3 * label + axis] = static_cast<float>(numbers(json["pose"], "pose")[axis]);
    check(static_cast<double>(pose[3 * label + axis]) == numbers(json["pose"], "pose")[axis], name + ": not a float");
  }
  manifest.classes.resize(classes);
  const std::optional<qcn::Direction> found = qcn::decide(manifest, logit.data(), pose.data()).direction;
  check(!qcn::decide(manifest, logit.data(), nullptr).direction, name + ": a direction without a pose");
  manifest.known = {qcn::Score::kLogit, 2};
  check(!qcn::decide(manifest, logit.data(), pose.data()).direction, name + ": a direction of an unknown answer");
  const qcn::Json& expected = json["expected"];
  check(found.has_value() == !expected.is_null(), name + ": whether there is one");
  if (!found || expected.is_null()) return;
  const auto close = [](double a, double b) { return std::fabs(a - b) <= 1e-12 * std::max(1.0, std::fabs(b)); };
  check(close(found->azimuth, expected["azimuth"].real("azimuth")),
        name + ": azimuth " + std::to_string(found->azimuth));
  check(expected["elevation"].is_null() ? std::isnan(found->elevation)
                                        : close(found->elevation, expected["elevation"].real("elevation")),
        name + ": elevation " + std::to_string(found->elevation));
  check(found->spread == expected["spread"].real("spread"), name + ": spread " + std::to_string(found->spread));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::ostringstream text;
  text << std::ifstream(arguments[1], std::ios::binary).rdbuf();
  const qcn::Json json = qcn::Json::parse(text.str());
  const qcn::JsonList& cases = json.at("cases", "the file").list("cases");
  check(cases.size() >= 25, "there are cases");
  for (const qcn::Json& one : cases) test_direction(one);
  return verdict();
}

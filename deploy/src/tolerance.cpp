#include "tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "error.h"

namespace qcn {
namespace {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon(), kSmallest = std::numeric_limits<float>::min();

// So many noise floors are allowed: FLOORS in export/bundle/tolerance.py.
double allowed_floors(const Golden& golden, const std::string& precision) {
  if (golden.plan || precision == "fp16" || precision == "bf16") return 8;
  if (precision == "fp32" || precision == "fp64") return 16;
  refuse_bundle("its answers are not of a calibrated network, so they do not say what is allowed in " + precision);
}

// What rounding to half precision does to an output; 0 where nothing is rounded to it.
double half_floor(const Golden& golden, const std::string& name, const std::string& precision) {
  if (golden.plan || (precision != "fp16" && precision != "bf16")) return 0;
  const auto floors = golden.floors.find(precision);
  if (floors == golden.floors.end() || !floors->second.count(name)) {
    refuse_bundle("it has no noise floor for " + precision + ": export the bundle again");
  }
  return floors->second.at(name);
}

double tolerance(const double* exact, const float* single, std::size_t count, double least_floor, double floors) {
  double largest = 0, error = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(exact[i]));
    error = std::max(error, std::abs(single[i] - exact[i]));
  }
  const double last_place = largest * kEpsilon > 0 ? largest * kEpsilon : kSmallest;
  const double floor = std::max({error, last_place, least_floor});
  return std::max(std::min(floors * floor, largest / 4), kSmallest);
}

std::string text(const Tolerance& tolerance, bool poses) {
  char numbers[80];
  std::snprintf(numbers, sizeof numbers, poses ? "logit %.9g, pose %.9g" : "logit %.9g", tolerance.logit,
                tolerance.pose);
  return numbers;
}

}  // namespace

Tolerance tolerance_of(const Golden& golden, const Signature& signature, const std::string& precision) {
  const double floors = allowed_floors(golden, precision);
  const std::size_t rows = golden.rows.size();
  Tolerance allowed;
  allowed.logit = tolerance(golden.logit, golden.logit_float32, rows * signature.logit_floats(),
                            half_floor(golden, "logit", precision), floors);
  if (signature.poses) {
    allowed.pose = tolerance(golden.pose, golden.pose_float32, rows * signature.pose_floats(),
                             half_floor(golden, "pose", precision), floors);
  }
  return allowed;
}

void check_tolerances(const Manifest& manifest, const Golden& golden) {
  const bool poses = manifest.signature.poses;
  for (const Artefact& artefact : manifest.files) {
    if (artefact.format == "golden") continue;
    const Tolerance expected = tolerance_of(golden, manifest.signature, artefact.precision), found = artefact.tolerance;
    if (found.logit != expected.logit || (poses && found.pose != expected.pose)) {
      refuse_bundle(artefact.file + " has other tolerances in manifest.json (" + text(found, poses) +
                    ") than these answers imply (" + text(expected, poses) + ")");
    }
  }
}

}  // namespace qcn

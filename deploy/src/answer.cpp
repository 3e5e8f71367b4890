#include "answer.h"

#include <algorithm>
#include <cmath>

#include "error.h"

namespace qcn {
namespace {

void check_finite(const Manifest& manifest, const float* logit) {
  for (std::size_t i = 0; i < manifest.classes.size(); ++i) {
    if (std::isfinite(logit[i])) continue;
    throw Error(QCN_WRONG_ANSWER, manifest.name + " returned NaN or an infinite number, not an answer");
  }
}

// exp(logit / temperature), over that of the largest: at most 1, so that nothing overflows.
double power(float logit, double largest, double temperature) {
  return std::exp((static_cast<double>(logit) - largest) / temperature);
}

double sum_of_powers(const Manifest& manifest, const float* logit, double largest, double temperature) {
  double sum = 0;
  for (std::size_t i = 0; i < manifest.classes.size(); ++i) sum += power(logit[i], largest, temperature);
  return sum;
}

}  // namespace

void probabilities(const Manifest& manifest, const float* logit, double* probability) {
  check_finite(manifest, logit);
  const std::size_t classes = manifest.classes.size();
  const double temperature = manifest.temperature;
  const auto largest = static_cast<double>(*std::max_element(logit, logit + classes));
  const double sum = sum_of_powers(manifest, logit, largest, temperature);
  for (std::size_t i = 0; i < classes; ++i) probability[i] = power(logit[i], largest, temperature) / sum;
}

std::optional<Direction> direction_of(const Directions& directions, const float* pose, std::size_t label) {
  constexpr double kDegrees = 180 / 3.14159265358979323846;
  const auto x = static_cast<double>(pose[0]), y = static_cast<double>(pose[1]);
  const double z = directions.elevation ? static_cast<double>(pose[2]) : 0;
  const double length = std::sqrt(x * x + y * y + z * z);
  const int symmetry = directions.symmetry[label];
  if (symmetry == kRound || !(length > 0) || !std::isfinite(length)) return std::nullopt;
  const double period = 360.0 / symmetry;
  Direction direction;
  direction.azimuth = std::fmod(kDegrees * std::atan2(y, x), period);
  if (direction.azimuth < 0) direction.azimuth += period;
  if (direction.azimuth >= period || direction.azimuth == 0) direction.azimuth = 0;  // rounded up, or -0
  direction.elevation = directions.elevation ? kDegrees * std::atan2(z, std::hypot(x, y)) : std::nan("");
  const auto& lengths = directions.lengths;
  const auto above = std::upper_bound(lengths.begin(), lengths.end(), length);
  direction.spread = directions.spreads[static_cast<std::size_t>(above - lengths.begin())];
  return direction;
}

Decision decide(const Manifest& manifest, const float* logit, const float* pose) {
  check_finite(manifest, logit);
  const float* const best = std::max_element(logit, logit + manifest.classes.size());  // the first of equal ones
  const auto largest = static_cast<double>(*best);
  Decision decision;
  decision.index = static_cast<std::size_t>(best - logit);
  decision.probability = 1 / sum_of_powers(manifest, logit, largest, manifest.temperature);
  if (manifest.known) {
    double score = decision.probability;
    if (manifest.known->score == Score::kLogit) score = largest;
    if (manifest.known->score == Score::kEnergy) score = largest + std::log(sum_of_powers(manifest, logit, largest, 1));
    decision.known = score >= manifest.known->threshold;
  }
  if (manifest.direction && pose && decision.known) {
    decision.direction = direction_of(*manifest.direction, pose + 3 * decision.index, decision.index);
  }
  return decision;
}

}  // namespace qcn

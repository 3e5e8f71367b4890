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

Decision decide(const Manifest& manifest, const float* logit) {
  check_finite(manifest, logit);
  const float* const best = std::max_element(logit, logit + manifest.classes.size());  // the first of equal ones
  const auto largest = static_cast<double>(*best);
  Decision decision;
  decision.index = static_cast<std::size_t>(best - logit);
  decision.probability = 1 / sum_of_powers(manifest, logit, largest, manifest.temperature);
  if (!manifest.known) return decision;
  double score = decision.probability;
  if (manifest.known->score == Score::kLogit) score = largest;
  if (manifest.known->score == Score::kEnergy) score = largest + std::log(sum_of_powers(manifest, logit, largest, 1));
  decision.known = score >= manifest.known->threshold;
  return decision;
}

}  // namespace qcn

#include "self_test.h"

#include <algorithm>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "error.h"
#include "text.h"

namespace qcn {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// The largest error of these rows of an output; the first that is too large is refused.
double compare(const char* output, const Answers& answers, const Golden& golden, const std::vector<std::size_t>& rows,
               const std::vector<float>& found, const Backend& backend) {
  const double allowed = tolerance(answers, backend.precision());
  double worst = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t k = 0; k < answers.width; ++k) {
      const double seen = found[i * answers.width + k], expected = answers.exact[rows[i] * answers.width + k];
      const double error = std::abs(seen - expected);
      if (!(error <= allowed)) {  // a NaN too
        throw Error(QCN_WRONG_ANSWER, backend.name() + " gives a wrong answer to the golden image " +
                                          quoted(golden.rows[rows[i]]) + ": " + output + "[" + std::to_string(k) +
                                          "] is " + number(seen) + ", expected " + number(expected) + " within " +
                                          number(allowed) + " (" + backend.precision() + ")");
      }
      worst = std::max(worst, error);
    }
  }
  return worst;
}

}  // namespace

double tolerance(const Answers& answers, const std::string& precision) {
  double floors = 16;
  if (precision == "fp16") floors = 4 * std::exp2(13);
  if (precision == "bf16" || precision == "int8") floors = 4 * std::exp2(16);
  const double floor = std::max(answers.noise, double{FLT_EPSILON} * answers.scale);
  return std::min(floors * floor, answers.scale / 4);
}

std::string self_test(const Backend& backend, const Golden& golden, const Structure& structure, bool all) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; all && i < golden.rows.size(); ++i) rows.push_back(i);
  if (!all) rows = {0, golden.rows.size() / 2, golden.rows.size() - 1};
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());

  const std::size_t pixels = static_cast<std::size_t>(structure.channels) * static_cast<std::size_t>(structure.height) *
                             static_cast<std::size_t>(structure.width);
  const std::size_t at_once = std::min(rows.size(), std::size_t(backend.max_batch() > 0 ? backend.max_batch() : 8));
  std::vector<float> input(at_once * pixels);
  std::vector<float> activation(rows.size() * golden.activation.width), pose(rows.size() * golden.pose.width);
  const std::unique_ptr<Runner> runner = backend.runner(nullptr);
  for (std::size_t begin = 0; begin < rows.size(); begin += at_once) {
    const std::size_t count = std::min(at_once, rows.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(golden.input + rows[begin + i] * pixels, pixels,
                  input.begin() + static_cast<std::ptrdiff_t>(i * pixels));
    }
    runner->run(input.data(), static_cast<int>(count), activation.data() + begin * golden.activation.width,
                pose.data() + begin * golden.pose.width);
  }
  const double activation_error = compare("activation", golden.activation, golden, rows, activation, backend);
  const double pose_error = compare("pose", golden.pose, golden, rows, pose, backend);

  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  char text[256];
  std::snprintf(text, sizeof text,
                "self-test: %zu of %zu golden images in %.1f ms; largest error of an activation %.1e (allowed %.1e), "
                "of a pose %.1e (%.1e)",
                rows.size(), golden.rows.size(), elapsed.count(), activation_error,
                tolerance(golden.activation, backend.precision()), pose_error,
                tolerance(golden.pose, backend.precision()));
  return text;
}

}  // namespace qcn

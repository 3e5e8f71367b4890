#include "self_test.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "error.h"
#include "preprocess.h"
#include "text.h"

namespace qcn {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// An output of the network: what is expected of it, and what was found for some rows.
struct Output {
  const char* name;
  const double* golden;  // [rows of golden, width]
  double allowed;
  std::size_t width;  // numbers per row
  std::vector<float> found;
};

// The largest error; the first that is too large is refused.
double compare(const Output& output, const Golden& golden, const std::vector<std::size_t>& rows,
               const Backend& backend) {
  double worst = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t k = 0; k < output.width; ++k) {
      const double seen = output.found[i * output.width + k], expected = output.golden[rows[i] * output.width + k];
      const double error = std::abs(seen - expected);
      if (!(error <= output.allowed)) {  // a NaN too
        throw Error(QCN_WRONG_ANSWER, backend.name() + " gives a wrong answer to the golden image " +
                                          quoted(golden.rows[rows[i]]) + ": " + output.name + "[" + std::to_string(k) +
                                          "] is " + number(seen) + ", expected " + number(expected) + " within " +
                                          number(output.allowed) + " (" + backend.precision() + ")");
      }
      worst = std::max(worst, error);
    }
  }
  return worst;
}

}  // namespace

void check_preprocessing(const Manifest& manifest, const Golden& golden) {
  const Signature& signature = manifest.signature;
  const std::size_t pixels = signature.image_floats();
  const Stored& stored = manifest.preprocessing.stored;
  const std::size_t bytes = static_cast<std::size_t>(stored.channels) * static_cast<std::size_t>(stored.height) *
                            static_cast<std::size_t>(stored.width);
  std::vector<float> seen(pixels);
  for (std::size_t row = 0; row < golden.rows.size(); ++row) {
    if (!golden.has_image[row]) continue;
    preprocess(manifest.preprocessing,
               qcn_image_planar(golden.image + row * bytes, stored.width, stored.height, stored.channels), seen.data());
    const float* const expected = golden.input + row * pixels;
    if (std::memcmp(seen.data(), expected, pixels * sizeof(float)) == 0) continue;
    std::size_t at = 0;
    while (std::memcmp(&seen[at], expected + at, sizeof(float)) == 0) ++at;
    throw Error(QCN_WRONG_ANSWER,
                "pre-processing makes of the golden image " + quoted(golden.rows[row]) +
                    " another input than in training: number " + std::to_string(at) + " is " + number(seen[at]) +
                    ", expected " + number(expected[at]) +
                    "; pre-processing in manifest.json was altered, or this libqcn computes it wrongly");
  }
}

std::string self_test(const Backend& backend, const Tolerance& tolerance, const Golden& golden,
                      const Signature& signature, bool all) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; all && i < golden.rows.size(); ++i) rows.push_back(i);
  if (!all) rows = {0, golden.rows.size() / 2, golden.rows.size() - 1};
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());

  const auto output = [&](const char* name, const double* answers, double allowed, std::size_t width) {
    return Output{name, answers, allowed, width, std::vector<float>(rows.size() * width)};
  };
  Output logit = output("logit", golden.logit, tolerance.logit, signature.logit_floats());
  Output pose = output("pose", golden.pose, tolerance.pose, signature.pose_floats());
  const std::size_t pixels = signature.image_floats();
  const std::size_t at_once = std::min(rows.size(), std::size_t(backend.max_batch() > 0 ? backend.max_batch() : 8));
  std::vector<float> input(at_once * pixels);
  const std::unique_ptr<Runner> runner = backend.runner(nullptr);
  for (std::size_t begin = 0; begin < rows.size(); begin += at_once) {
    const std::size_t count = std::min(at_once, rows.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(golden.input + rows[begin + i] * pixels, pixels,
                  input.begin() + static_cast<std::ptrdiff_t>(i * pixels));
    }
    runner->run(input.data(), static_cast<int>(count), logit.found.data() + begin * logit.width,
                signature.poses ? pose.found.data() + begin * pose.width : nullptr);
  }
  const double logit_error = compare(logit, golden, rows, backend);
  const double pose_error = compare(pose, golden, rows, backend);

  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  char text[256];
  std::snprintf(text, sizeof text,
                "self-test: %zu of %zu golden images in %.1f ms; largest error of a logit %.1e (allowed %.1e)",
                rows.size(), golden.rows.size(), elapsed.count(), logit_error, tolerance.logit);
  if (!signature.poses) return text;
  char poses[64];
  std::snprintf(poses, sizeof poses, ", of a pose %.1e (%.1e)", pose_error, tolerance.pose);
  return std::string(text) + poses;
}

}  // namespace qcn

// Percentiles as trtexec computes them, so that the figures can be compared with trtexec's.
#ifndef QCN_PROGRAMS_STATISTICS_H
#define QCN_PROGRAMS_STATISTICS_H

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace qcn_programs {

// The value below which this percentage of the runs lie; sorted must not be empty.
inline double percentile(const std::vector<double>& sorted, double percent) {
  const auto excluded = static_cast<std::size_t>((1 - percent / 100) * static_cast<double>(sorted.size()));
  return sorted[sorted.size() - 1 - std::min(excluded, sorted.size() - 1)];
}

// The mean of the two middle values if their number is even: trtexec's "median". (Its percentile 50 is the upper one.)
inline double median(const std::vector<double>& sorted) {
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

inline double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace qcn_programs

#endif

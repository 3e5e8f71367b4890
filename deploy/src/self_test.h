// Does a backend, on this machine, give the answers that the trained network gave?
#ifndef QCN_SRC_SELF_TEST_H
#define QCN_SRC_SELF_TEST_H

#include <string>

#include "backend.h"
#include "golden.h"

namespace qcn {

// How far an answer may be from the exact one: 16 times the noise that float32 rounding was seen to make in this output
// of this network (another order of summation gives other noise of the same size), and 8 units in the last place of the
// output's scale for where that noise happens to be zero. Of a coarser precision each rounding, and so the noise, is
// coarser by the ratio of their units: 2^13 for fp16, 2^16 for bf16. int8 is calibrated, and has no such bound: it is
// taken as bf16, whose 8 bits it has. No tolerance exceeds a quarter of the output's scale: above it nothing would be
// tested.
double tolerance(const Answers& answers, const std::string& precision);

// Runs the first, the middle and the last row of golden, or all of them. Throws Error(QCN_WRONG_ANSWER) with the row,
// the output, what was found and what was expected. Returns what to log.
std::string self_test(const Backend& backend, const Golden& golden, const Structure& structure, bool all);

}  // namespace qcn

#endif

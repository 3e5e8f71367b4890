// Does a backend, on this machine, give the answers that the trained network gave?
#ifndef QCN_SRC_SELF_TEST_H
#define QCN_SRC_SELF_TEST_H

#include <string>

#include "backend.h"
#include "golden.h"

namespace qcn {

// How far an answer may be from the exact one: the rule of `qcn verify-parity`, whose reasons are in
// qcn/verify/compare.py. The noise floor is the largest error that float32 was seen to make in this output of this
// network, at least one unit in the last place of the output's scale. fp32 may be off by 16 of them, fp16 by 4 * 2^13,
// bf16 by 4 * 2^16. int8 is calibrated, and has no such bound: it is taken as bf16, whose 8 bits it has. No
// tolerance exceeds a quarter of the output's scale.
double tolerance(const Answers& answers, const std::string& precision);

// Runs the first, the middle and the last row of golden, or all of them. Throws Error(QCN_WRONG_ANSWER) with the row,
// the output, what was found and what was expected. Returns what to log.
std::string self_test(const Backend& backend, const Golden& golden, const Structure& structure, bool all);

}  // namespace qcn

#endif

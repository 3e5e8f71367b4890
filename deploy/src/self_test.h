// Does a backend, on this machine, give the answers that the trained network gave?
#ifndef QCN_SRC_SELF_TEST_H
#define QCN_SRC_SELF_TEST_H

#include <string>

#include "backend.h"
#include "golden.h"

namespace qcn {

// Every golden image must become its golden input, to the last bit. Throws Error(QCN_WRONG_ANSWER) otherwise.
void check_preprocessing(const Manifest& manifest, const Golden& golden);

// Runs the first, the middle and the last row of golden, or all of them. `tolerance`: that of the file that the backend
// runs. Throws Error(QCN_WRONG_ANSWER) with the row, the output, what was found and what was expected. Returns what to
// log.
std::string self_test(const Backend& backend, const Tolerance& tolerance, const Golden& golden,
                      const Signature& signature, bool all);

}  // namespace qcn

#endif

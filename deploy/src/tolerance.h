// How far answers may be from the golden ones, computed from the golden file as export/bundle/tolerance.py does. Both
// are tested on tests/tolerances.json.
#ifndef QCN_SRC_TOLERANCE_H
#define QCN_SRC_TOLERANCE_H

#include <string>

#include "golden.h"

namespace qcn {

// Of a file in this precision. Throws Error(QCN_BAD_BUNDLE) where the golden file has no noise floor for it.
Tolerance tolerance_of(const Golden& golden, const Signature& signature, const std::string& precision);

// Throws Error(QCN_BAD_BUNDLE) if the manifest allows another error of one of its files than the golden file implies.
void check_tolerances(const Manifest& manifest, const Golden& golden);

}  // namespace qcn

#endif

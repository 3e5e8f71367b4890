// The files of a bundle, as `qcn export` writes it: read whole, and handed out after their hash was checked.
#ifndef QCN_SRC_BUNDLE_H
#define QCN_SRC_BUNDLE_H

#include <cstddef>
#include <string>
#include <vector>

#include "manifest.h"

namespace qcn {

// Throws Error(QCN_NO_FILE) where there is no folder, Error(QCN_BAD_BUNDLE) where it is not a bundle.
Manifest read_manifest(const std::string& folder);

// The first file of this format; null if the bundle has none.
const Artefact* find_artefact(const Manifest& manifest, const std::string& format);

// The file's bytes. Throws Error(QCN_NO_FILE) when it is gone, Error(QCN_BAD_BUNDLE) when it was altered or is a link
// that leads out of the bundle, both with the command that rebuilds it.
std::vector<std::byte> read_artefact(const std::string& folder, const Artefact& artefact);

}  // namespace qcn

#endif

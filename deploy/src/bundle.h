// The files of a bundle, as `qcn export` writes it: read whole, and handed out after their hash was checked.
#ifndef QCN_SRC_BUNDLE_H
#define QCN_SRC_BUNDLE_H

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ed25519.h"
#include "files.h"
#include "manifest.h"

namespace qcn {

// manifest.json, whose sha256 must be in manifest.sha256 beside it and, if there is a key, whose signature by that key
// in manifest.sig. Throws Error(QCN_NO_FILE) where it may not be read, Error(QCN_BAD_BUNDLE) where this is not a
// bundle, Error(QCN_BAD_SIGNATURE) where it is not signed, or not by this key.
Manifest read_manifest(const Files& files, const std::optional<PublicKey>& key = std::nullopt);

// Throws Error(QCN_BAD_BUNDLE) unless the digest is in one of the one or two lines "SHA256  manifest.json" of
// manifest.sha256. There are two while the manifest is being replaced: of the old one, and of the new one.
void check_digest(const std::string& digest, std::string_view sums);

// The first file of this format; null if the bundle has none.
const Artefact* find_artefact(const Manifest& manifest, const std::string& format);

// The file's bytes; those kept in .kept/SHA256 where another file has just taken its place. Throws Error(QCN_NO_FILE)
// when it is gone or may not be read, Error(QCN_BAD_BUNDLE) when it was altered or is a symbolic link, with the command
// that helps.
std::vector<std::byte> read_artefact(const Files& files, const Artefact& artefact);

}  // namespace qcn

#endif

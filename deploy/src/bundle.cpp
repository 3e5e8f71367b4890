#include "bundle.h"

#include <cstdint>

#include "error.h"
#include "sha256.h"

namespace qcn {
namespace {

constexpr const char *kManifest = "manifest.json", *kSums = "manifest.sha256", *kSignature = "manifest.sig";
constexpr std::uint64_t kLargestManifest = std::uint64_t{1} << 20, kLargestSums = 4096;

// One of the bundle's own small files: its text, or nothing where there is no such file.
std::optional<std::string> read_own(const Files& files, const char* name, std::uint64_t most) {
  const std::unique_ptr<File> file = files.open(name, "");
  if (!file) return std::nullopt;
  const std::int64_t size = file->size();
  if (size < 0) refuse_bundle(files.path(name) + " is not a file");
  if (static_cast<std::uint64_t>(size) > most) {
    refuse_bundle(files.path(name) + " has " + std::to_string(size) + " bytes, where at most " + std::to_string(most) +
                  " are read");
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  text.resize(file->read(text.data(), text.size()));
  return text;
}

void check_signature(const Files& files, const std::string& manifest, const PublicKey& key) {
  const std::optional<std::string> signature = read_own(files, kSignature, kLargestSums);
  if (!signature) {
    throw Error(QCN_BAD_SIGNATURE, files.where + " is not signed: it has no " + kSignature +
                                       "; who has the private key signs it: qcn sign " + files.word + " --key KEY.pem");
  }
  if (!verify_ed25519(key, manifest, *signature)) {
    throw Error(QCN_BAD_SIGNATURE, files.path(kSignature) + " is not a signature of its " + kManifest +
                                       " by the given key: the bundle was altered, or somebody else signed it");
  }
}

Manifest read_manifest_once(const Files& files, const std::optional<PublicKey>& key) {
  const std::string path = files.path(kManifest), make = "qcn export RUN --out " + files.word;
  const std::optional<std::string> text = read_own(files, kManifest, kLargestManifest);
  if (!text) refuse_bundle(files.where + " is not a bundle: it has no " + kManifest + " (`" + make + "` makes one)");
  const std::optional<std::string> sums = read_own(files, kSums, kLargestSums);
  try {
    if (!sums) refuse_bundle(std::string(kSums) + ", which has its sha256, is missing");
    check_digest(sha256(text->data(), text->size()), *sums);
    if (key) check_signature(files, *text, *key);
    return parse_manifest(*text);
  } catch (const NewerBundle& error) {  // it is whole
    throw NewerBundle(path + " cannot be read: " + error.what());
  } catch (const Error& error) {
    if (error.status == QCN_BAD_SIGNATURE) throw;
    throw Error(error.status,
                path + " cannot be read: " + error.what() + "; remove the bundle and make it again: " + make);
  }
}

// The bytes of the file of this name, if they are what the entry says.
std::vector<std::byte> read_checked(const Files& files, const std::string& name, const Artefact& artefact) {
  const std::string fix = "; rebuild it: " + artefact.rebuild_in(files.word);
  const auto altered = [&](const std::string& how) {
    return Error(QCN_BAD_BUNDLE, files.path(name) + " was altered: " + how + fix);
  };
  const std::unique_ptr<File> file = files.open(name, fix);
  if (!file) {
    throw Error(QCN_NO_FILE, files.where + " has no " + name + ", which its " + kManifest + " names" + fix);
  }
  // The size first: no more is read, nor memory taken, than the manifest and the file agree on.
  const std::int64_t size = file->size();
  if (size < 0) throw altered("it is not a file");
  if (static_cast<std::uint64_t>(size) != artefact.bytes) {
    throw altered("it has " + std::to_string(size) + " bytes, " + kManifest + " says " +
                  std::to_string(artefact.bytes));
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  if (file->read(bytes.data(), bytes.size()) != bytes.size()) throw altered("it could not be read to its end");
  const std::string found = sha256(bytes.data(), bytes.size());
  if (found != artefact.sha256) {
    throw altered("its sha256 is " + found.substr(0, 12) + "…, " + kManifest + " says " +
                  artefact.sha256.substr(0, 12) + "…");
  }
  return bytes;
}

}  // namespace

void check_digest(const std::string& digest, std::string_view sums) {
  const std::string_view after = "  manifest.json\n";
  const std::size_t line = digest.size() + after.size();
  bool found = false;
  for (std::size_t at = 0; at < sums.size(); at += line) {
    const std::string_view hash = sums.substr(at, digest.size());
    if (at >= 2 * line || hash.find_first_not_of("0123456789abcdef") != std::string_view::npos ||
        sums.substr(at + hash.size(), after.size()) != after) {
      refuse_bundle(std::string(kSums) + " must have one or two lines 'SHA256  " + kManifest + "'");
    }
    found |= hash == digest;
  }
  if (!found) {
    refuse_bundle("it was altered: its sha256 is " + digest.substr(0, 12) + "…, " + kSums + " says " +
                  std::string(sums.substr(0, 12)) + "…");
  }
}

Manifest read_manifest(const Files& files, const std::optional<PublicKey>& key) {
  // What is read of a bundle while its manifest is replaced may be of both: then what is read next is of one.
  for (int attempts = 3;; --attempts) {
    try {
      return read_manifest_once(files, key);
    } catch (const Error& error) {
      if (attempts == 1 || error.status == QCN_NO_FILE) throw;
    }
  }
}

const Artefact* find_artefact(const Manifest& manifest, const std::string& format) {
  for (const Artefact& artefact : manifest.files) {
    if (artefact.format == format) return &artefact;
  }
  return nullptr;
}

std::vector<std::byte> read_artefact(const Files& files, const Artefact& artefact) {
  try {
    return read_checked(files, artefact.file, artefact);
  } catch (const Error& in_place) {
    try {
      return read_checked(files, ".kept/" + artefact.sha256, artefact);
    } catch (const Error&) {
      throw in_place;
    }
  }
}

}  // namespace qcn

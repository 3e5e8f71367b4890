#include "bundle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "error.h"
#include "sha256.h"
#include "text.h"

namespace qcn {
namespace {

constexpr const char *kManifest = "manifest.json", *kSums = "manifest.sha256", *kSignature = "manifest.sig";
constexpr const char* kLink = " is, or lies behind, a symbolic link: nothing in a bundle may be one";
constexpr std::uint64_t kLargestManifest = std::uint64_t{1} << 20, kLargestSums = 4096;

// A file of a bundle, by its name in it, which may be in a folder there. No symbolic link is followed: so nothing is
// read that lies elsewhere, even if somebody moves files meanwhile.
class File {
 public:
  File(const std::string& folder, const std::string& name) {
    const int root = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::size_t slash = name.find('/');
    const int inside = slash == std::string::npos
                           ? root
                           : opened(root, name.substr(0, slash), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    // O_NONBLOCK: a pipe in the place of a file must not stop the program.
    descriptor_ = opened(inside, name.substr(slash + 1), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  bool is_open() const { return descriptor_ >= 0; }
  int error() const { return error_; }  // why not

  // Its size; -1: it is not a plain file.
  std::int64_t size() const {
    struct stat status;
    return fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode) ? std::int64_t{status.st_size} : -1;
  }

  // As many bytes as there are, up to `size`.
  std::size_t read(void* data, std::size_t size) const {
    std::size_t done = 0;
    while (done < size) {
      const ssize_t got = ::read(descriptor_, static_cast<char*>(data) + done, size - done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  // A descriptor of what lies in the folder of this descriptor, which is closed.
  int opened(int folder, const std::string& name, int flags) {
    if (folder < 0) {
      if (error_ == 0) error_ = errno;
      return -1;
    }
    const int found = openat(folder, name.c_str(), flags);
    if (found < 0) error_ = is_link(folder, name) ? ELOOP : errno;
    close(folder);
    return found;
  }

  static bool is_link(int folder, const std::string& name) {
    const int before = errno;
    struct stat status;
    const bool link = fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
    errno = before;
    return link;
  }

  int descriptor_ = -1, error_ = 0;
};

std::string because(int error) {
  char text[128];
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
  return strerror_r(error, text, sizeof text);
#else
  return strerror_r(error, text, sizeof text) == 0 ? text : "error " + std::to_string(error);
#endif
}

// That a file cannot be opened and why, with the command that allows it where it is not allowed; else with another fix.
std::string not_opened(int error, const std::string& allowed, const std::string& other_fix = "") {
  const bool denied = error == EACCES || error == EPERM;
  return " cannot be opened: " + because(error) + (denied ? "; allow it with: chmod " + allowed : other_fix);
}

std::string how_to_make(const std::string& folder) {
  return "`qcn export RUN --out " + shell_word(folder) + "` makes one";
}

// One of the bundle's own small files, which is no link: its text, or nothing where there is no such file.
std::optional<std::string> read_own(const std::string& folder, const char* name, std::uint64_t most) {
  const std::string path = folder + "/" + name;
  const File file(folder, name);
  if (file.error() == ENOENT) return std::nullopt;
  if (file.error() == ELOOP) refuse_bundle(path + kLink);
  if (!file.is_open()) throw Error(QCN_NO_FILE, path + not_opened(file.error(), "-R a+rX " + shell_word(folder)));
  const std::int64_t size = file.size();
  if (size < 0) refuse_bundle(path + " is not a file");
  if (static_cast<std::uint64_t>(size) > most) {
    refuse_bundle(path + " has " + std::to_string(size) + " bytes, where at most " + std::to_string(most) +
                  " are read");
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  text.resize(file.read(text.data(), text.size()));
  return text;
}

void check_signature(const std::string& folder, const std::string& manifest, const PublicKey& key) {
  const std::optional<std::string> signature = read_own(folder, kSignature, kLargestSums);
  if (!signature) {
    throw Error(QCN_BAD_SIGNATURE, folder + " is not signed: it has no " + kSignature +
                                       "; who has the private key signs it: qcn sign " + shell_word(folder) +
                                       " --key KEY.pem");
  }
  if (!verify_ed25519(key, manifest, *signature)) {
    throw Error(QCN_BAD_SIGNATURE, folder + "/" + kSignature + " is not a signature of its " + kManifest +
                                       " by the given key: the bundle was altered, or somebody else signed it");
  }
}

Manifest read_manifest_once(const std::string& folder, const std::optional<PublicKey>& key) {
  const std::string path = folder + "/" + kManifest;
  const std::optional<std::string> text = read_own(folder, kManifest, kLargestManifest);
  if (!text) {
    refuse_bundle(folder + " is not a bundle: it has no " + kManifest + " (" + how_to_make(folder) + ")");
  }
  const std::optional<std::string> sums = read_own(folder, kSums, kLargestSums);
  try {
    if (!sums) refuse_bundle(std::string(kSums) + ", which has its sha256, is missing");
    check_digest(sha256(text->data(), text->size()), *sums);
    if (key) check_signature(folder, *text, *key);
    return parse_manifest(*text);
  } catch (const NewerBundle& error) {  // it is whole
    throw NewerBundle(path + " cannot be read: " + error.what());
  } catch (const Error& error) {
    if (error.status == QCN_BAD_SIGNATURE) throw;
    throw Error(error.status, path + " cannot be read: " + error.what() +
                                  "; remove the bundle and make it again: qcn export RUN --out " + shell_word(folder));
  }
}

std::string rebuilt(const std::string& folder, const Artefact& artefact) {
  return "; rebuild it: " + artefact.rebuild_in(folder);
}

// The bytes of the file of this name, if they are what the entry says.
std::vector<std::byte> read_checked(const std::string& folder, const std::string& name, const Artefact& artefact) {
  const std::string path = folder + "/" + name;
  const auto altered = [&](const std::string& how) {
    return Error(QCN_BAD_BUNDLE, path + " was altered: " + how + rebuilt(folder, artefact));
  };
  const File file(folder, name);
  if (file.error() == ELOOP) refuse_bundle(path + kLink + rebuilt(folder, artefact));
  if (!file.is_open()) {
    throw Error(QCN_NO_FILE, path + ", which " + kManifest + " names," +
                                 not_opened(file.error(), "a+rX " + shell_word(path), rebuilt(folder, artefact)));
  }
  // The size first: no more is read, nor memory taken, than the manifest and the file agree on.
  const std::int64_t size = file.size();
  if (size < 0) throw altered("it is not a file");
  if (static_cast<std::uint64_t>(size) != artefact.bytes) {
    throw altered("it has " + std::to_string(size) + " bytes, " + kManifest + " says " +
                  std::to_string(artefact.bytes));
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  if (file.read(bytes.data(), bytes.size()) != bytes.size()) throw altered("it could not be read to its end");
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

Manifest read_manifest(const std::string& folder, const std::optional<PublicKey>& key) {
  struct stat status;
  if (stat(folder.c_str(), &status) != 0) {
    throw Error(QCN_NO_FILE, folder + " cannot be opened: " + because(errno));
  }
  if (!S_ISDIR(status.st_mode)) {
    refuse_bundle(folder + " is not a bundle, which is a folder: " + how_to_make(folder));
  }
  // What is read of a bundle while its manifest is replaced may be of both: then what is read next is of one.
  for (int attempts = 3;; --attempts) {
    try {
      return read_manifest_once(folder, key);
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

std::vector<std::byte> read_artefact(const std::string& folder, const Artefact& artefact) {
  try {
    return read_checked(folder, artefact.file, artefact);
  } catch (const Error& in_place) {
    try {
      return read_checked(folder, ".kept/" + artefact.sha256, artefact);
    } catch (const Error&) {
      throw in_place;
    }
  }
}

}  // namespace qcn

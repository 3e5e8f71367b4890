#include "bundle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "error.h"
#include "sha256.h"
#include "text.h"

namespace qcn {
namespace {

constexpr const char* kManifest = "manifest.json";
constexpr std::uint64_t kLargestManifest = std::uint64_t{1} << 20;

class File {
 public:
  // O_NONBLOCK: a pipe in the place of a file must not stop the program.
  File(const std::string& path, int flags)
      : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  bool is_open() const { return descriptor_ >= 0; }

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
  const int descriptor_;
};

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> found(realpath(path.c_str(), nullptr), &std::free);
  return found ? found.get() : "";
}

bool leads_out(const std::string& folder, const std::string& path) {
  const std::string root = real_path(folder) + "/", real = real_path(path);
  return !real.empty() && root != "//" && real.compare(0, root.size(), root) != 0;
}

std::string because(int error) {
  char text[128];
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
  return strerror_r(error, text, sizeof text);
#else
  return strerror_r(error, text, sizeof text) == 0 ? text : "error " + std::to_string(error);
#endif
}

std::string rebuilt(const std::string& folder, const Artefact& artefact) {
  return "; rebuild it: " + artefact.rebuild_in(folder);
}

}  // namespace

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifest, make = "`qcn export RUN --out " + folder + "` makes one";
  struct stat status;
  if (stat(folder.c_str(), &status) != 0) {
    throw Error(QCN_NO_FILE, folder + " cannot be opened: " + because(errno));
  }
  if (!S_ISDIR(status.st_mode)) throw Error(QCN_BAD_BUNDLE, folder + " is not a bundle, which is a folder: " + make);
  const File file(path, O_NOFOLLOW);
  if (!file.is_open() && errno == ENOENT) {
    throw Error(QCN_BAD_BUNDLE, folder + " is not a bundle: it has no " + kManifest + " (" + make + ")");
  }
  if (!file.is_open() && errno == ELOOP) {
    throw Error(QCN_BAD_BUNDLE, path + " is a symbolic link: a bundle has its manifest in itself");
  }
  if (!file.is_open()) throw Error(QCN_NO_FILE, path + " cannot be opened: " + because(errno));
  try {
    const std::int64_t size = file.size();
    if (size < 0) throw Error(QCN_BAD_BUNDLE, "it is not a file");
    if (static_cast<std::uint64_t>(size) > kLargestManifest) {
      throw Error(QCN_BAD_BUNDLE, "it has " + std::to_string(size) + " bytes, where at most " +
                                      std::to_string(kLargestManifest) + " are read");
    }
    std::string text(static_cast<std::size_t>(size), '\0');
    text.resize(file.read(text.data(), text.size()));
    return parse_manifest(text);
  } catch (const Error& error) {
    throw Error(error.status, path + " cannot be read: " + error.what() +
                                  "; remove the bundle and make it again: qcn export RUN --out " + folder);
  }
}

const Artefact* find_artefact(const Manifest& manifest, const std::string& format) {
  for (const Artefact& artefact : manifest.files) {
    if (artefact.format == format) return &artefact;
  }
  return nullptr;
}

std::vector<std::byte> read_artefact(const std::string& folder, const Artefact& artefact) {
  const std::string path = folder + "/" + artefact.file;
  const auto altered = [&](const std::string& how) {
    return Error(QCN_BAD_BUNDLE, path + " was altered: " + how + rebuilt(folder, artefact));
  };
  if (leads_out(folder, path)) {
    throw Error(QCN_BAD_BUNDLE, path + " leads out of the bundle, to " + real_path(path) + ": remove that link");
  }
  const File file(path, 0);
  if (!file.is_open()) {
    const std::string why = because(errno);
    throw Error(QCN_NO_FILE,
                path + ", which " + kManifest + " names, cannot be opened: " + why + rebuilt(folder, artefact));
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

}  // namespace qcn

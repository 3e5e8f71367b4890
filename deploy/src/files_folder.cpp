#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "error.h"
#include "files.h"
#include "text.h"

namespace qcn {
namespace {

// A file of a bundle, by its name in it, which may be in a folder there. No symbolic link is followed: so nothing is
// read that lies elsewhere, even if somebody moves files meanwhile.
class FolderFile final : public File {
 public:
  FolderFile(const std::string& folder, const std::string& name) {
    const int root = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::size_t slash = name.find('/');
    const int inside = slash == std::string::npos
                           ? root
                           : opened(root, name.substr(0, slash), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    // O_NONBLOCK: a pipe in the place of a file must not stop the program.
    descriptor_ = opened(inside, name.substr(slash + 1), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  }
  FolderFile(const FolderFile&) = delete;
  FolderFile& operator=(const FolderFile&) = delete;
  ~FolderFile() override {
    if (descriptor_ >= 0) close(descriptor_);
  }

  bool is_open() const { return descriptor_ >= 0; }
  int error() const { return error_; }  // why not

  std::int64_t size() const override {
    struct stat status;
    return fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode) ? std::int64_t{status.st_size} : -1;
  }

  std::size_t read(void* data, std::size_t size) const override {
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

class FolderFiles final : public Files {
 public:
  explicit FolderFiles(const std::string& folder) : Files(folder, shell_word(folder)) {}

  std::unique_ptr<File> open(const std::string& name, const std::string& fix) const override {
    auto file = std::make_unique<FolderFile>(where, name);
    if (file->is_open()) return file;
    const int error = file->error();
    if (error == ENOENT) return nullptr;
    if (error == ELOOP) {
      refuse_bundle(path(name) + " is, or lies behind, a symbolic link: nothing in a bundle may be one" + fix);
    }
    const bool denied = error == EACCES || error == EPERM;
    throw Error(QCN_NO_FILE, path(name) + " cannot be opened: " + because(error) +
                                 (denied ? "; allow it with: chmod -R a+rX " + word : fix));
  }

  std::string path(const std::string& name) const override { return where + "/" + name; }
};

}  // namespace

std::shared_ptr<const Files> files_in_folder(const std::string& folder) {
  struct stat status;
  if (stat(folder.c_str(), &status) != 0) {
    throw Error(QCN_NO_FILE, folder + " cannot be opened: " + because(errno));
  }
  if (!S_ISDIR(status.st_mode)) {
    refuse_bundle(folder + " is not a bundle, which is a folder: `qcn export RUN --out " + shell_word(folder) +
                  "` makes one");
  }
  return std::make_shared<FolderFiles>(folder);
}

}  // namespace qcn

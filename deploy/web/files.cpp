// A page has no files, but the bytes of a bundle. These are the calls by which libqcn (src/bundle.cpp) reads files,
// answered from memory; they take the place of the C library's.
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <vector>

namespace {

struct Open {
  std::string path;
  std::size_t at = 0;
};

constexpr int kFirst = 3;  // descriptors; those before are of the standard streams

std::map<std::string, std::string> files;
std::vector<Open> opened;  // a folder too; an empty path is free

bool is_folder(const std::string& path) {
  const auto next = files.lower_bound(path + "/");
  return next != files.end() && next->first.compare(0, path.size() + 1, path + "/") == 0;
}

int failed(int error) {
  errno = error;
  return -1;
}

Open* at(int descriptor) {
  const auto place = static_cast<std::size_t>(descriptor - kFirst);
  return place < opened.size() && !opened[place].path.empty() ? &opened[place] : nullptr;
}

int open_path(const std::string& path) {
  if (!files.count(path) && !is_folder(path)) return failed(ENOENT);
  auto free = std::find_if(opened.begin(), opened.end(), [](const Open& one) { return one.path.empty(); });
  if (free == opened.end()) free = opened.insert(free, Open{});
  *free = {path};
  return kFirst + static_cast<int>(free - opened.begin());
}

int describe(const std::string& path, struct stat* status) {
  const auto file = files.find(path);
  if (file == files.end() && !is_folder(path)) return failed(ENOENT);
  memset(status, 0, sizeof *status);
  status->st_mode = file == files.end() ? S_IFDIR : S_IFREG;
  status->st_size = file == files.end() ? 0 : static_cast<off_t>(file->second.size());
  return 0;
}

}  // namespace

namespace qcn::web {

void add_file(const std::string& path, std::string bytes) { files[path] = std::move(bytes); }
void forget_files() { files.clear(); }

}  // namespace qcn::web

extern "C" {

int open(const char* path, int, ...) { return open_path(path); }

int openat(int folder, const char* name, int, ...) {
  const Open* in = at(folder);
  return in ? open_path(in->path + "/" + name) : failed(EBADF);
}

int stat(const char* path, struct stat* status) { return describe(path, status); }

int fstat(int descriptor, struct stat* status) {
  const Open* one = at(descriptor);
  return one ? describe(one->path, status) : failed(EBADF);
}

int fstatat(int folder, const char* name, struct stat* status, int) {
  const Open* in = at(folder);
  return in ? describe(in->path + "/" + name, status) : failed(EBADF);
}

ssize_t read(int descriptor, void* data, size_t size) {
  Open* one = at(descriptor);
  if (!one || !files.count(one->path)) return failed(EBADF);
  const std::string& bytes = files[one->path];
  const std::size_t count = std::min(size, bytes.size() - one->at);
  memcpy(data, bytes.data() + one->at, count);
  one->at += count;
  return static_cast<ssize_t>(count);
}

int close(int descriptor) {
  Open* one = at(descriptor);
  if (!one) return failed(EBADF);
  one->path.clear();
  return 0;
}

}  // extern "C"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "error.h"
#include "files.h"
#include "text.h"

namespace qcn {
namespace {

class MemoryFile final : public File {
 public:
  explicit MemoryFile(const qcn_file& file) : file_(file) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(file_.bytes); }
  std::size_t read(void* data, std::size_t size) const override {
    const std::size_t count = std::min(size, file_.bytes);
    if (count > 0) std::memcpy(data, file_.data, count);
    return count;
  }

 private:
  const qcn_file& file_;
};

class MemoryFiles final : public Files {
 public:
  MemoryFiles(const qcn_file* files, std::size_t count) : Files("the list of files", "BUNDLE") {
    for (std::size_t i = 0; i < count; ++i) {
      const qcn_file& file = files[i];
      const auto refuse = [&](const std::string& why) {
        throw Error(QCN_BAD_ARGUMENT, "file " + std::to_string(i) + " of " + std::to_string(count) + why);
      };
      if (!file.name) refuse(": name is NULL");
      if (!file.data && file.bytes > 0) refuse(", " + quoted(file.name) + ": data is NULL");
      if (!files_.emplace(file.name, file).second) refuse(", " + quoted(file.name) + ", is in the list twice");
    }
  }

  std::unique_ptr<File> open(const std::string& name, const std::string&) const override {
    const auto found = files_.find(name);
    return found == files_.end() ? nullptr : std::make_unique<MemoryFile>(found->second);
  }

  std::string path(const std::string& name) const override { return name + " in the list of files"; }

 private:
  std::map<std::string, qcn_file> files_;
};

}  // namespace

std::shared_ptr<const Files> files_in_memory(const qcn_file* files, std::size_t count) {
  return std::make_shared<MemoryFiles>(files, count);
}

}  // namespace qcn

// Where the files of a bundle are: in a folder (files_folder.cpp) or in memory (files_memory.cpp).
#ifndef QCN_SRC_FILES_H
#define QCN_SRC_FILES_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "qcn/qcn.h"

namespace qcn {

class File {
 public:
  virtual ~File() = default;
  virtual std::int64_t size() const = 0;                             // -1: it is not a plain file
  virtual std::size_t read(void* data, std::size_t size) const = 0;  // as many bytes as there are, up to `size`
};

class Files {
 public:
  virtual ~Files() = default;

  // The file of this name; null where there is none. Throws Error(QCN_NO_FILE) if it may not be read, and
  // Error(QCN_BAD_BUNDLE) if it is a symbolic link; the message ends with `fix`, or with what allows to read it.
  virtual std::unique_ptr<File> open(const std::string& name, const std::string& fix) const = 0;

  virtual std::string path(const std::string& name) const = 0;  // of a file, for messages

  // For messages: all of it; and the word for it in a command, as "bundle" in `qcn export bundle`.
  const std::string where, word;

 protected:
  Files(std::string described, std::string in_commands) : where(std::move(described)), word(std::move(in_commands)) {}
};

// Throws Error(QCN_NO_FILE) where there is no folder, Error(QCN_BAD_BUNDLE) where it is not one.
std::shared_ptr<const Files> files_in_folder(const std::string& folder);

// The bytes are not copied. Throws Error(QCN_BAD_ARGUMENT) for NULL and for two files of one name.
std::shared_ptr<const Files> files_in_memory(const qcn_file* files, std::size_t count);

}  // namespace qcn

#endif

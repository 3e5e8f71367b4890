// The structures of qcn.h that begin with their size, from programs built against an older or newer header.
#ifndef QCN_SRC_STRUCTURES_H
#define QCN_SRC_STRUCTURES_H

#include <cstddef>
#include <cstring>
#include <string>

#include "error.h"

namespace qcn {

// Larger than any structure will be: a size above it was never set.
constexpr std::size_t kLargestStructure = 4096;

// Refuse a size that no version of the structure has. A smaller one than ours ends on the boundary of a field, since
// the sizes of structures are multiples of their alignment.
template <typename T>
void check_size(std::size_t size, const char* what, const char* maker, std::size_t least = 2 * sizeof(std::size_t)) {
  if (size >= least && size <= kLargestStructure && size % alignof(T) == 0) return;
  throw Error(QCN_BAD_ARGUMENT, std::string(what) + " has size " + std::to_string(size) + ", where this library's is " +
                                    std::to_string(sizeof(T)) + ": " + maker);
}

// What the caller gave, over our defaults. What a newer header has beyond ours must be zero: we could not obey it.
template <typename T>
T read_structure(const T* given, const T& defaults, const char* what, const char* maker,
                 std::size_t least = 2 * sizeof(std::size_t)) {
  std::size_t size;
  std::memcpy(&size, given, sizeof size);
  check_size<T>(size, what, maker, least);
  T ours = defaults;
  std::memcpy(&ours, given, size < sizeof(T) ? size : sizeof(T));
  const auto bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      throw Error(QCN_BAD_ARGUMENT, std::string(what) + " asks for what only a newer libqcn than " + qcn_version() +
                                        " knows: update the library");
    }
  }
  ours.size = sizeof(T);
  return ours;
}

// Into a structure of the caller's, whose `size` is set and checked.
template <typename T>
void write_structure(const T& ours, T* theirs) {
  const std::size_t size = theirs->size, shared = size < sizeof ours ? size : sizeof ours;
  const std::size_t after = sizeof size;
  std::memset(reinterpret_cast<char*>(theirs) + shared, 0, size - shared);  // facts that only a newer library has
  std::memcpy(reinterpret_cast<char*>(theirs) + after, reinterpret_cast<const char*>(&ours) + after, shared - after);
}

// An enumeration as the number that it is: C lets a program put any there.
template <typename Enum>
int number_of(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

}  // namespace qcn

#endif

// JSON as RFC 8259 has it and no more: a manifest may come from anywhere.
//
// Refused beside what is not JSON: two entries of one name, text that is not Unicode, numbers that a double does not
// hold, more than 64 levels, more than 1 MiB. The last two bound what a hostile file can make the reader use.
#ifndef QCN_SRC_JSON_H
#define QCN_SRC_JSON_H

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace qcn {

class Json;
struct JsonEntry;

using JsonList = std::vector<Json>;
using JsonObject = std::vector<JsonEntry>;  // by name

// A value. The functions that take `what` say it in the message when the value is of another kind.
class Json {
 public:
  // A whole number is one written without '.' or exponent that fits 64 bits: 1.0 is not one, as in Python.
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, JsonList, JsonObject>;

  static Json parse(std::string_view text);  // throws Error(QCN_BAD_BUNDLE)

  bool is_null() const { return std::holds_alternative<std::monostate>(value); }
  const Json* find(std::string_view name) const;  // null: it is not an object, or has no such entry

  // Refuse what is not an object of exactly these entries.
  void check_entries(const std::vector<std::string_view>& names, const std::string& what) const;
  // An entry of an object, refused if it is not there; [] is for objects that check_entries has passed.
  const Json& at(std::string_view name, const std::string& what) const;
  const Json& operator[](std::string_view name) const { return at(name, "an object"); }

  const JsonList& list(const std::string& what) const&;
  const JsonObject& object(const std::string& what) const&;
  const std::string& text(const std::string& what) const&;
  const std::string& printable_text(const std::string& what) const&;  // text.h
  const std::string& one_of(const std::vector<std::string_view>& choices, const std::string& what) const&;
  // What these return is part of the value: not to be taken from one that is gone at the end of the line.
  const JsonList& list(const std::string& what) && = delete;
  const JsonObject& object(const std::string& what) && = delete;
  const std::string& text(const std::string& what) && = delete;
  const std::string& printable_text(const std::string& what) && = delete;
  const std::string& one_of(const std::vector<std::string_view>& choices, const std::string& what) && = delete;
  bool boolean(const std::string& what) const;
  double real(const std::string& what) const;  // a number of either kind
  // A whole number from `least` to `most`.
  std::int64_t integer(const std::string& what, std::int64_t least = INT64_MIN, std::int64_t most = INT64_MAX) const;
  // A side or a count of something in a network, and a list of them. kMaxSize is far above that of any network, and
  // low enough that products of three sizes fit 64 bits.
  static constexpr int kMaxSize = 1 << 16;
  int size(const std::string& what, int least = 1, int most = kMaxSize) const;
  std::vector<int> sizes(const std::string& what, int least = 1) const;

  Value value;
};

struct JsonEntry {
  std::string name;
  Json value;
};

}  // namespace qcn

#endif

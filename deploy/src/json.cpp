#include "json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "error.h"
#include "text.h"

namespace qcn {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 20;
constexpr int kDeepest = 64;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Json whole() {
    Json value = any(0);
    skip_space();
    if (place_ != text_.size()) fail("there is more after the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    refuse_bundle("it is not JSON: " + why + ", at byte " + std::to_string(place_));
  }

  char peek() const { return place_ < text_.size() ? text_[place_] : '\0'; }
  bool take(char wanted) {
    if (place_ >= text_.size() || text_[place_] != wanted) return false;
    ++place_;
    return true;
  }
  void skip_space() {
    while (place_ < text_.size() && std::string_view(" \t\n\r").find(text_[place_]) != std::string_view::npos) ++place_;
  }
  void word(std::string_view wanted) {
    if (text_.substr(place_, wanted.size()) != wanted) fail("no value");
    place_ += wanted.size();
  }

  Json any(int depth) {
    if (depth > kDeepest) fail("it is nested more than " + std::to_string(kDeepest) + " levels deep");
    skip_space();
    switch (peek()) {
      case '{':
        return {object(depth)};
      case '[':
        return {list(depth)};
      case '"':
        return {text()};
      case 't':
        word("true");
        return {true};
      case 'f':
        word("false");
        return {false};
      case 'n':
        word("null");
        return {std::monostate()};
      default:
        return {number()};
    }
  }

  JsonObject object(int depth) {
    JsonObject entries;
    take('{');
    skip_space();
    if (take('}')) return entries;
    do {
      skip_space();
      if (peek() != '"') fail("a name in quotation marks is expected");
      std::string name = text();
      skip_space();
      if (!take(':')) fail("':' is expected");
      entries.push_back({std::move(name), any(depth + 1)});
      skip_space();
    } while (take(','));
    if (!take('}')) fail("',' or '}' is expected");
    const auto by_name = [](const JsonEntry& a, const JsonEntry& b) { return a.name < b.name; };
    const auto same_name = [](const JsonEntry& a, const JsonEntry& b) { return a.name == b.name; };
    std::sort(entries.begin(), entries.end(), by_name);
    const auto twice = std::adjacent_find(entries.begin(), entries.end(), same_name);
    if (twice != entries.end()) fail("an object has two entries " + quoted(twice->name));
    return entries;
  }

  JsonList list(int depth) {
    JsonList values;
    take('[');
    skip_space();
    if (take(']')) return values;
    do {
      values.push_back(any(depth + 1));
      skip_space();
    } while (take(','));
    if (!take(']')) fail("',' or ']' is expected");
    return values;
  }

  std::string text() {
    std::string out;
    take('"');
    while (!take('"')) {
      if (place_ >= text_.size()) fail("a string does not end");
      const char c = text_[place_];
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
      ++place_;
      if (c == '\\') {
        escape(out);
      } else {
        out += c;
      }
    }
    return out;
  }

  void escape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (take('u')) return code_point(out);
    const std::size_t which = place_ < text_.size() ? kLetters.find(text_[place_]) : std::string_view::npos;
    if (which == std::string_view::npos) fail("an unknown escape");
    ++place_;
    out += kMeant[which];
  }

  void code_point(std::string& out) {
    unsigned code = hex();
    if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair
      const unsigned low = take('\\') && take('u') ? hex() : 0;
      if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
      fail("half of a surrogate pair");
    }
    const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xC0 | code >> 6);
    } else if (code < 0x10000) {
      put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F));
    } else {
      put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F));
    }
    if (code >= 0x80) put(0x80 | (code & 0x3F));
  }

  unsigned hex() {
    unsigned code = 0;
    const std::string_view digits = text_.substr(place_, 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc() || end != digits.data() + 4) fail("\\u needs four hexadecimal digits");
    place_ += 4;
    return code;
  }

  bool digits() {
    const std::size_t begin = place_;
    while (peek() >= '0' && peek() <= '9') ++place_;
    return place_ > begin;
  }

  Json::Value number() {
    const std::size_t begin = place_;
    take('-');
    if (!take('0') && !digits()) fail("no value");
    bool whole = true;
    if (take('.')) {
      whole = false;
      if (!digits()) fail("no digit after '.'");
    }
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      if (!digits()) fail("no digit in an exponent");
    }
    const char* const first = text_.data() + begin;
    const char* const last = text_.data() + place_;
    std::int64_t integer = 0;
    if (whole && std::from_chars(first, last, integer).ec == std::errc()) return integer;
    double real = 0;
#if defined(__EMSCRIPTEN__)  // whose C++ library lacks the other, and whose programs have one locale
    real = std::strtod(std::string(first, last).c_str(), nullptr);
    if (!std::isfinite(real)) fail("a number out of range");
#else
    // Not strtod, which reads '.' as the program's locale has it.
    if (std::from_chars(first, last, real).ec != std::errc()) fail("a number out of range");
#endif
    return real;
  }

  const std::string_view text_;
  std::size_t place_ = 0;
};

const char* kind(const Json& json) {
  constexpr const char* kKinds[] = {"null",     "true or false", "an integer", "a number",
                                    "a string", "a list",        "an object"};
  return kKinds[json.value.index()];
}

template <typename T>
const T& as(const Json& json, const std::string& what, const char* wanted) {
  if (const T* value = std::get_if<T>(&json.value)) return *value;
  refuse_bundle(what + " must be " + wanted + ", not " + kind(json));
}

}  // namespace

Json Json::parse(std::string_view text) {
  if (text.size() > kLargest) {
    refuse_bundle("it has " + std::to_string(text.size()) + " bytes of JSON; at most " + std::to_string(kLargest) +
                  " are read");
  }
  if (!valid_utf8(text)) refuse_bundle("it is not JSON: it is not UTF-8");
  return Reader(text).whole();
}

const Json* Json::find(std::string_view name) const {
  const JsonObject* entries = std::get_if<JsonObject>(&value);
  if (!entries) return nullptr;
  const auto found =
      std::lower_bound(entries->begin(), entries->end(), name,
                       [](const JsonEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return found != entries->end() && found->name == name ? &found->value : nullptr;
}

const Json& Json::at(std::string_view name, const std::string& what) const {
  object(what);
  if (const Json* entry = find(name)) return *entry;
  refuse_bundle(what + " has no " + quoted(name));
}

void Json::check_entries(const std::vector<std::string_view>& names, const std::string& what) const {
  for (const std::string_view name : names) at(name, what);
  for (const JsonEntry& entry : object(what)) {
    if (std::find(names.begin(), names.end(), entry.name) == names.end()) {
      refuse_bundle(what + " has an unknown entry " + quoted(entry.name));
    }
  }
}

const JsonList& Json::list(const std::string& what) const& { return as<JsonList>(*this, what, "a list"); }
const JsonObject& Json::object(const std::string& what) const& { return as<JsonObject>(*this, what, "an object"); }
const std::string& Json::text(const std::string& what) const& { return as<std::string>(*this, what, "a string"); }

const std::string& Json::printable_text(const std::string& what) const& {
  const std::string& found = text(what);
  if (!printable(found)) refuse_bundle(what + " must be printable text, not " + quoted(found));
  return found;
}

const std::string& Json::one_of(const std::vector<std::string_view>& choices, const std::string& what) const& {
  const std::string& found = text(what);
  if (std::find(choices.begin(), choices.end(), found) != choices.end()) return found;
  std::string known;
  for (const std::string_view choice : choices) known.append(known.empty() ? "" : ", ").append(choice);
  refuse_bundle(what + " must be one of " + known + ", not " + quoted(found));
}

bool Json::boolean(const std::string& what) const { return as<bool>(*this, what, "true or false"); }
double Json::real(const std::string& what) const {
  if (const auto whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  return as<double>(*this, what, "a number");
}

std::int64_t Json::integer(const std::string& what, std::int64_t least, std::int64_t most) const {
  const std::int64_t number = as<std::int64_t>(*this, what, "an integer");
  if (number >= least && number <= most) return number;
  refuse_bundle(what + " must be from " + std::to_string(least) + " to " + std::to_string(most) + ", not " +
                std::to_string(number));
}

int Json::size(const std::string& what, int least, int most) const {
  return static_cast<int>(integer(what, least, most));
}

std::vector<int> Json::sizes(const std::string& what, int least) const {
  std::vector<int> found;
  for (const Json& entry : list(what)) found.push_back(entry.size("an entry of " + what, least));
  return found;
}

}  // namespace qcn

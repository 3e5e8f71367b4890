#include "text.h"

#include <cstdint>

namespace qcn {
namespace {

constexpr std::uint32_t kInvalid = 0xFFFFFFFF;

// The code point that begins at `place`, which moves past it; kInvalid, and one byte further, where the bytes are not
// UTF-8.
std::uint32_t next_code_point(std::string_view text, std::size_t& place) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(place++);
  if (first < 0x80) return first;
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  if (first < 0xC2 || first > 0xF4 || text.size() - place < static_cast<std::size_t>(more)) return kInvalid;
  std::uint32_t code = first & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) {
    const unsigned next = byte(place + static_cast<std::size_t>(i));
    if ((next & 0xC0) != 0x80) return kInvalid;
    code = code << 6 | (next & 0x3F);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[more] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return kInvalid;
  place += static_cast<std::size_t>(more);
  return code;
}

bool printable(std::uint32_t code) {
  struct Range {
    std::uint32_t first, last;
  };
  // Control and format characters, spaces but the plain one, line and paragraph separators, private use.
  constexpr Range kHidden[] = {
      {0, 0x1F},          {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},   {0x61C, 0x61C},   {0x6DD, 0x6DD},
      {0x70F, 0x70F},     {0x1680, 0x1680},   {0x180E, 0x180E},   {0x2000, 0x200F}, {0x2028, 0x202F}, {0x205F, 0x206F},
      {0x3000, 0x3000},   {0xE000, 0xF8FF},   {0xFDD0, 0xFDEF},   {0xFEFF, 0xFEFF}, {0xFFF0, 0xFFFB}, {0xFFFE, 0xFFFF},
      {0x1D173, 0x1D17A}, {0xE0000, 0xE00FF}, {0xF0000, kInvalid}};
  for (const Range& range : kHidden) {
    if (code >= range.first && code <= range.last) return false;
  }
  return true;
}

}  // namespace

bool valid_utf8(std::string_view text) {
  for (std::size_t place = 0; place < text.size();) {
    if (next_code_point(text, place) == kInvalid) return false;
  }
  return true;
}

bool printable(std::string_view text) {
  for (std::size_t place = 0; place < text.size();) {
    if (!printable(next_code_point(text, place))) return false;
  }
  return true;
}

std::size_t whole_characters(std::string_view text, std::size_t most) {
  std::size_t place = 0;
  for (std::size_t next = 0; next < text.size();) {
    next_code_point(text, next);
    if (next > most) break;
    place = next;
  }
  return place;
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kSafe) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\"'\"'" : std::string(1, c);
  return word + "'";
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::string out = "'";
  for (std::size_t place = 0; place < text.size();) {
    if (place >= kLongest) {
      out += "…";
      break;
    }
    const std::size_t begin = place;
    if (printable(next_code_point(text, place))) {
      out += text.substr(begin, place - begin);
    } else {
      out += '?';
    }
  }
  return out += '\'';
}

}  // namespace qcn

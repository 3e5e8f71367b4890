// Text that came from a file: is it what it should be, and how is it shown in a message?
#ifndef QCN_SRC_TEXT_H
#define QCN_SRC_TEXT_H

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace qcn {

bool valid_utf8(std::string_view text);

// No control character, no invisible or direction-changing one, no odd space: what a terminal shows is what it is.
// Close to Python's str.isprintable, by which Python judges manifests; valid UTF-8 only.
bool printable(std::string_view text);

// The length of the longest beginning that has at most `most` bytes and cuts no character in two.
std::size_t whole_characters(std::string_view text, std::size_t most);

// As one word of a shell's command line, as Python's shlex.quote has it.
std::string shell_word(const std::string& text);

// "[2, 3]"
template <typename Number>
std::string shape_text(const std::vector<Number>& shape) {
  std::string text;
  for (const Number side : shape) text += (text.empty() ? "" : ", ") + std::to_string(side);
  return "[" + text + "]";
}

// In quotation marks, for a message: long text is cut, and what is not printable becomes '?'.
std::string quoted(std::string_view text);

}  // namespace qcn

#endif

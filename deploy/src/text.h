// Text that came from a file: is it what it should be, and how is it shown in a message?
#ifndef QCN_SRC_TEXT_H
#define QCN_SRC_TEXT_H

#include <string>
#include <string_view>

namespace qcn {

bool valid_utf8(std::string_view text);

// No control character, no invisible or direction-changing one, no odd space: what a terminal shows is what it is.
// Close to Python's str.isprintable, which export/manifest.py asks; valid UTF-8 only.
bool printable(std::string_view text);

// In quotation marks, for a message: long text is cut, and what is not printable becomes '?'.
std::string quoted(std::string_view text);

}  // namespace qcn

#endif

// Reads PGM, PPM (binary and text) and PAM. Files are not trusted: memory is allocated only for pixels that are in the
// file.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "image.h"

namespace qcn_programs {
namespace {

class Reader {
 public:
  Reader(const unsigned char* bytes, std::size_t size) : at_(bytes), end_(bytes + size) {}

  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  unsigned char byte() { return at_ == end_ ? throw std::runtime_error("it ends too early") : *at_++; }

  // Skips white space, and comments from # to the end of the line.
  void skip_blank() {
    while (at_ != end_ && (is_space(*at_) || *at_ == '#')) {
      if (*at_ == '#') {
        while (at_ != end_ && *at_ != '\n') ++at_;
      } else {
        ++at_;
      }
    }
  }

  int number(int most, const char* what) {
    skip_blank();
    if (at_ == end_ || *at_ < '0' || *at_ > '9')
      throw std::runtime_error(std::string("its ") + what + " is not a number");
    int value = 0;
    for (; at_ != end_ && *at_ >= '0' && *at_ <= '9'; ++at_) {
      value = value * 10 + (*at_ - '0');
      if (value > most) {
        throw std::runtime_error(std::string("its ") + what + " is more than " + std::to_string(most));
      }
    }
    return value;
  }

  std::string word() {
    skip_blank();
    std::string text;
    while (at_ != end_ && !is_space(*at_) && text.size() < 16) text += static_cast<char>(*at_++);
    return text;
  }

  void skip_line() {
    while (at_ != end_ && *at_++ != '\n') {
    }
  }

 private:
  static bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

  const unsigned char *at_, *end_;
};

struct Header {
  int width = 0, height = 0, channels = 0, most = 0;
  bool text = false;
};

Header read_pam(Reader& reader) {
  Header header;
  for (;;) {
    const std::string word = reader.word();
    if (word == "ENDHDR") break;
    if (word.empty()) throw std::runtime_error("its header has no ENDHDR");
    if (word == "WIDTH") {
      header.width = reader.number(kMaxSide, "width");
    } else if (word == "HEIGHT") {
      header.height = reader.number(kMaxSide, "height");
    } else if (word == "DEPTH") {
      header.channels = reader.number(4, "depth");
    } else if (word == "MAXVAL") {
      header.most = reader.number(65535, "largest value");
    } else {
      reader.skip_line();  // TUPLTYPE
    }
  }
  reader.skip_line();
  return header;
}

}  // namespace

Picture parse_netpbm(const unsigned char* bytes, std::size_t size) {
  Reader reader(bytes, size);
  if (size < 2 || reader.byte() != 'P') throw std::runtime_error("it is not a PGM, PPM or PAM file");
  const int kind = reader.byte();
  Header header;
  if (kind == '7') {
    header = read_pam(reader);
  } else if (kind == '2' || kind == '3' || kind == '5' || kind == '6') {
    header.width = reader.number(kMaxSide, "width");
    header.height = reader.number(kMaxSide, "height");
    header.most = reader.number(65535, "largest value");
    header.channels = kind == '2' || kind == '5' ? 1 : 3;
    header.text = kind < '5';
    if (!header.text) reader.byte();  // the one white space before the pixels
  } else {
    throw std::runtime_error("it is a Netpbm file of type P" +
                             std::string(1, static_cast<char>(kind >= ' ' && kind < 127 ? kind : '?')) +
                             "; only PGM (P2, P5), PPM (P3, P6) and PAM (P7) can be read");
  }
  if (header.width < 1 || header.height < 1 || header.channels < 1 || header.most < 1) {
    throw std::runtime_error("its width, height, depth or largest value is 0 or missing");
  }
  const std::size_t count = static_cast<std::size_t>(header.width) * static_cast<std::size_t>(header.height) *
                            static_cast<std::size_t>(header.channels);
  const std::size_t each = header.text ? 1 : header.most > 255 ? 2 : 1;  // bytes per number in the file, at least
  if (reader.left() / each < count) throw std::runtime_error("it ends too early");
  Picture picture{header.width, header.height, header.channels, std::vector<unsigned char>(count)};
  for (auto& pixel : picture.pixels) {
    int value;
    if (header.text) {
      value = reader.number(header.most, "pixel");
    } else {
      value = reader.byte();
      if (each == 2) value = value * 256 + reader.byte();
    }
    value = std::min(value, header.most);
    pixel = static_cast<unsigned char>(header.most == 255 ? value : (value * 255 + header.most / 2) / header.most);
  }
  return picture;
}

}  // namespace qcn_programs

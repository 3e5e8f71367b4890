// Reads PBM, PGM, PPM (binary and text) and PAM. Files are not trusted: memory is allocated only for pixels that are in the
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

constexpr int kMostDigits = 99'999'999;  // of a number that is looked at further

struct Header {
  int width = 0, height = 0, channels = 0, most = 0;
  bool text = false, bits = false;
};

Header read_pam(Reader& reader) {
  Header header;
  for (;;) {
    const std::string word = reader.word();
    if (word == "ENDHDR") break;
    if (word.empty()) throw std::runtime_error("its header has no ENDHDR");
    if (word == "WIDTH") {
      header.width = reader.number(kMostDigits, "width");
    } else if (word == "HEIGHT") {
      header.height = reader.number(kMostDigits, "height");
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

// PBM: a 1 is black. In text a digit needs no space around it; else eight pixels are a byte, and a row begins with one.
Picture read_bits(Reader& reader, const Header& header) {
  const std::size_t width = static_cast<std::size_t>(header.width), height = static_cast<std::size_t>(header.height);
  const std::size_t needed = header.text ? width * height : (width + 7) / 8 * height;
  if (reader.left() < needed) throw std::runtime_error("it ends too early");
  Picture picture{header.width, header.height, 1, {}};
  picture.pixels.reserve(width * height);
  for (std::size_t y = 0; y < height; ++y) {
    int byte = 0;
    for (std::size_t x = 0; x < width; ++x) {
      if (header.text) {
        reader.skip_blank();
        byte = reader.byte();
        if (byte != '0' && byte != '1') throw std::runtime_error("its pixel is not 0 or 1");
      } else {
        byte = x % 8 ? byte << 1 : reader.byte();
      }
      const bool black = header.text ? byte == '1' : (byte & 0x80) != 0;
      picture.pixels.push_back(black ? 0 : 255);
    }
  }
  return picture;
}

}  // namespace

Picture parse_netpbm(const unsigned char* bytes, std::size_t size) {
  Reader reader(bytes, size);
  if (size < 2 || reader.byte() != 'P') throw std::runtime_error("it is not a PBM, PGM, PPM or PAM file");
  const int kind = reader.byte();
  Header header;
  if (kind == '7') {
    header = read_pam(reader);
  } else if (kind >= '1' && kind <= '6') {
    header.width = reader.number(kMostDigits, "width");
    header.height = reader.number(kMostDigits, "height");
    header.bits = kind == '1' || kind == '4';
    header.most = header.bits ? 1 : reader.number(65535, "largest value");
    header.channels = kind == '3' || kind == '6' ? 3 : 1;
    header.text = kind < '4';
    if (!header.text) reader.byte();  // the one white space before the pixels
  } else {
    throw std::runtime_error("it is a Netpbm file of type P" +
                             std::string(1, static_cast<char>(kind >= ' ' && kind < 127 ? kind : '?')) +
                             "; only PBM (P1, P4), PGM (P2, P5), PPM (P3, P6) and PAM (P7) can be read");
  }
  if (header.width < 1 || header.height < 1 || header.channels < 1 || header.most < 1) {
    throw std::runtime_error("its width, height, depth or largest value is 0 or missing");
  }
  check_size(static_cast<std::size_t>(header.width), static_cast<std::size_t>(header.height));
  if (header.bits) return read_bits(reader, header);
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

// The one entry of EXIF that changes the pixels of a picture: which way is up. Files are not trusted: nothing is read
// without a look at where the entry ends.
#include <cstdint>
#include <cstring>

#include "image.h"

namespace qcn_programs {
namespace {

constexpr unsigned kOrientation = 0x0112, kShort = 3, kLong = 4;

class Tiff {
 public:
  Tiff(const unsigned char* bytes, std::size_t size, bool big) : bytes_(bytes), size_(size), big_(big) {}

  bool has(std::size_t at, std::size_t count) const { return at <= size_ && size_ - at >= count; }

  unsigned number(std::size_t at, std::size_t count) const {  // has(at, count)
    unsigned value = 0;
    for (std::size_t i = 0; i < count; ++i) value = value << 8 | bytes_[at + (big_ ? i : count - 1 - i)];
    return value;
  }

 private:
  const unsigned char* bytes_;
  std::size_t size_;
  bool big_;
};

}  // namespace

int exif_orientation(const unsigned char* bytes, std::size_t size) {
  if (size < 8) return 1;
  const bool little = std::memcmp(bytes, "II*\0", 4) == 0, big = std::memcmp(bytes, "MM\0*", 4) == 0;
  if (!little && !big) return 1;
  const Tiff tiff(bytes, size, big);
  const std::size_t directory = tiff.number(4, 4);
  if (!tiff.has(directory, 2)) return 1;
  unsigned found = 1;
  const std::size_t entries = tiff.number(directory, 2);
  for (std::size_t i = 0, at = directory + 2; i < entries && tiff.has(at, 12); ++i, at += 12) {
    const unsigned tag = tiff.number(at, 2), type = tiff.number(at + 2, 2), count = tiff.number(at + 4, 4);
    if (tag != kOrientation || count != 1) continue;
    if (type == kShort) found = tiff.number(at + 8, 2);
    if (type == kLong) found = tiff.number(at + 8, 4);
  }
  return found >= 1 && found <= 8 ? static_cast<int>(found) : 1;
}

Picture turned(Picture picture, int orientation) {
  if (orientation <= 1) return picture;
  const std::size_t width = static_cast<std::size_t>(picture.width), height = static_cast<std::size_t>(picture.height);
  const std::size_t channels = static_cast<std::size_t>(picture.channels);
  const bool lies = orientation >= 5;  // rows become columns
  const bool down = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool mirrored = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  Picture out{lies ? picture.height : picture.width, lies ? picture.width : picture.height, picture.channels,
              std::vector<unsigned char>(picture.pixels.size())};
  unsigned char* to = out.pixels.data();
  for (std::size_t y = 0; y < static_cast<std::size_t>(out.height); ++y) {
    for (std::size_t x = 0; x < static_cast<std::size_t>(out.width); ++x, to += channels) {
      const std::size_t row = lies ? x : y, column = lies ? y : x;
      const std::size_t from = (down ? height - 1 - row : row) * width + (mirrored ? width - 1 - column : column);
      std::memcpy(to, &picture.pixels[from * channels], channels);
    }
  }
  return out;
}

}  // namespace qcn_programs

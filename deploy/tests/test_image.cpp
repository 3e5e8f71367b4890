// The picture readers of the programs, with files as they should be and as they should not.
#include <cstdio>
#include <stdexcept>
#include <string>

#include "image.h"

namespace {

using namespace qcn_programs;

int failures = 0;

void check(bool good, const std::string& what) {
  if (good) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

Picture parse(const std::string& file) {
  return parse_picture(reinterpret_cast<const unsigned char*>(file.data()), file.size());
}

void gives(const std::string& file, int width, int height, int channels, const std::vector<unsigned char>& pixels) {
  const Picture picture = parse(file);
  check(picture.width == width && picture.height == height && picture.channels == channels && picture.pixels == pixels,
        file);
}

void refused(const std::string& file, const std::string& message) {
  try {
    parse(file);
  } catch (const std::runtime_error& error) {
    check(std::string(error.what()).find(message) != std::string::npos, file + ": " + error.what());
    return;
  }
  check(false, "read: " + file);
}

}  // namespace

int main() {
  const std::string zero(1, '\0');
  gives("P5\n2 1\n255\nab", 2, 1, 1, {'a', 'b'});
  gives("P6 1 2 255\nabcdef", 1, 2, 3, {'a', 'b', 'c', 'd', 'e', 'f'});
  gives("P5# made by hand\n#\n 2#x\n\t1\r255\nab and more", 2, 1, 1, {'a', 'b'});
  gives("P5 1 1 65535 " + std::string("\x80\x00", 2), 1, 1, 1, {128});
  gives("P5 2 1 1 " + zero + "\x01", 2, 1, 1, {0, 255});
  gives("P5 1 1 100 \xff", 1, 1, 1, {255});  // more than the largest value
  gives("P2 3 1 10 0 5 10", 3, 1, 1, {0, 128, 255});
  gives("P3 1 1 255 1 2\n3", 1, 1, 3, {1, 2, 3});
  gives("P7\nWIDTH 1\nHEIGHT 1\nDEPTH 2\nMAXVAL 255\nTUPLTYPE GRAYSCALE_ALPHA\nENDHDR\nab", 1, 1, 2, {'a', 'b'});

  refused("", "not a PGM");
  refused("P", "not a PGM");
  refused("GIF89a", "not a PGM");
  refused("P4 8 1 \xff", "type P4");
  refused("P5", "width is not a number");
  refused("P5 -1 1 255 a", "width is not a number");
  refused("P5 0 1 255 a", "0 or missing");
  refused("P5 1 1 0 a", "0 or missing");
  refused("P5 2 2 255 abc", "ends too early");
  refused("P5 2 1 256 abc", "ends too early");
  refused("P5 1 1 255", "ends too early");
  refused("P5 32768 32768 255 a", "ends too early");
  refused("P5 32769 1 255 a", "more than 32768");
  refused("P5 99999999999999999999 1 255 a", "more than");
  refused("P5 1 1 65536 a", "more than 65535");
  refused("P2 9 1 255 1", "ends too early");
  refused("P2 2 1 255 1", "pixel is not a number");
  refused("P2 1 1 255 256", "pixel is more than 255");
  refused("P7\nWIDTH 1\nHEIGHT 1\nDEPTH 5\nMAXVAL 255\nENDHDR\nabcde", "depth is more than 4");
  refused("P7\nWIDTH 1\nHEIGHT 1\nMAXVAL 255\nENDHDR\na", "0 or missing");
  refused("P7\nWIDTH 1\n", "no ENDHDR");
  refused("\x89PNG\r\n\x1a\n", "PNG");
  refused("\xff\xd8\xff", "JPEG");

  const Picture colours{2, 1, 4, {255, 0, 0, 9, 10, 10, 10, 9}};
  check(with_channels(colours, 1).pixels == std::vector<unsigned char>{76, 10}, "grey as Pillow has it");
  check(with_channels(colours, 3).pixels == std::vector<unsigned char>{255, 0, 0, 10, 10, 10}, "alpha is left out");
  const Picture beside{4, 1, 1, {1, 2, 3, 4}};
  check(split_beside(beside, 2).pixels == std::vector<unsigned char>{1, 3, 2, 4}, "two views");
  check(is_picture_name("a/b.JPG") && !is_picture_name("png") && !is_picture_name("a.txt"), "names");
  std::puts(failures ? "FAILED" : "ok");
  return failures ? 1 : 0;
}

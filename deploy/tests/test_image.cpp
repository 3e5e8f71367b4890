// The picture readers of the programs, with files as they should be and as they should not.
#include <stdexcept>
#include <string>

#include "check.h"
#include "image.h"

namespace {

using namespace qcn_programs;

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
    check(contains(error.what(), message), file + ": " + error.what());
    return;
  }
  check(false, "read: " + file);
}

// What EXIF is, cut short anywhere and with any byte changed.
void orientations() {
  const auto of = [](const std::string& exif) {
    return exif_orientation(reinterpret_cast<const unsigned char*>(exif.data()), exif.size());
  };
  const std::string entry("\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00", 12);
  const std::string other(
      "\x0f\x01\x02\x00\x04\x00\x00\x00"
      "abcd",
      12);
  const std::string little = std::string("II*\0\x08\0\0\0\x02\0", 10) + other + entry;
  const std::string big("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0", 22);
  check(of(little) == 6 && of(big) == 8, "both orders of bytes");
  for (std::size_t cut = 0; cut < little.size(); ++cut) check(of(little.substr(0, cut)) == 1, "cut short");
  for (std::size_t at = 0; at < little.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = little;
      changed[at] = static_cast<char>(value);
      check(of(changed) >= 1 && of(changed) <= 8, "changed");
    }
  }
  std::string far = little;
  far.replace(4, 4, "\xff\xff\xff\xff");
  check(of(far) == 1, "entries beyond the end");
  far = little;
  far.replace(8, 2, "\xff\xff");
  check(of(far) == 6, "more entries than there are");
  const Picture picture{3, 2, 1, {1, 2, 3, 4, 5, 6}};
  const std::vector<unsigned char> expected[] = {{1, 2, 3, 4, 5, 6}, {3, 2, 1, 6, 5, 4}, {6, 5, 4, 3, 2, 1},
                                                 {4, 5, 6, 1, 2, 3}, {1, 4, 2, 5, 3, 6}, {4, 1, 5, 2, 6, 3},
                                                 {6, 3, 5, 2, 4, 1}, {3, 6, 2, 5, 1, 4}};
  for (int up = 1; up <= 8; ++up) {
    const Picture found = turned(picture, up);
    check(found.pixels == expected[up - 1] && found.width == (up < 5 ? 3 : 2) && found.height == (up < 5 ? 2 : 3),
          "turned as " + std::to_string(up));
  }
}

}  // namespace

int main() {
  orientations();
  const std::string zero(1, '\0');
  gives("P5\n2 1\n255\nab", 2, 1, 1, {'a', 'b'});
  gives("P6 1 2 255\nabcdef", 1, 2, 3, {'a', 'b', 'c', 'd', 'e', 'f'});
  gives("P5# made by hand\n#\n 2#x\n\t1\r255\nab and more", 2, 1, 1, {'a', 'b'});
  gives("P5 1 1 65535 " + std::string("\x80\x00", 2), 1, 1, 1, {128});
  gives("P5 2 1 1 " + zero + "\x01", 2, 1, 1, {0, 255});
  gives("P5 1 1 100 \xff", 1, 1, 1, {255});  // more than the largest value
  gives("P2 3 1 10 0 5 10", 3, 1, 1, {0, 128, 255});
  gives("P3 1 1 255 1 2\n3", 1, 1, 3, {1, 2, 3});
  gives("P1 3 2 010\n#\n1 0 1", 3, 2, 1, {255, 0, 255, 0, 255, 0});
  gives("P4 9 2 \x40\x80\x01" + zero, 9, 2, 1,
        {255, 0, 255, 255, 255, 255, 255, 255, 0, 255, 255, 255, 255, 255, 255, 255, 0, 255});
  gives("P7\nWIDTH 1\nHEIGHT 1\nDEPTH 2\nMAXVAL 255\nTUPLTYPE GRAYSCALE_ALPHA\nENDHDR\nab", 1, 1, 2, {'a', 'b'});

  refused("", "not a PBM");
  refused("P", "not a PBM");
  refused("GIF89a", "not a PBM");
  refused("P8 8 1 \xff", "type P8");
  refused("P4 9 1 \xff", "ends too early");
  refused("P1 2 1 0 2", "not 0 or 1");
  refused("P1 2 1 0", "ends too early");
  refused("P5", "width is not a number");
  refused("P5 -1 1 255 a", "width is not a number");
  refused("P5 0 1 255 a", "0 or missing");
  refused("P5 1 1 0 a", "0 or missing");
  refused("P5 2 2 255 abc", "ends too early");
  refused("P5 2 1 256 abc", "ends too early");
  refused("P5 1 1 255", "ends too early");
  refused("P5 16384 10000 255 a", "ends too early");
  refused("P5 16384 16384 255 a", "at most 178956970 can be read");
  refused("P5 16385 1 255 a", "at most 16384×16384 pixels, not 16385×1");
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

  check(grey({2, 1, 3, {255, 0, 0, 10, 10, 10}}).pixels == std::vector<unsigned char>{76, 10}, "grey as Pillow has it");
  check(grey({3, 1, 4, {255, 0, 0, 255, 9, 9, 9, 0, 0, 0, 0, 128}}).pixels == std::vector<unsigned char>{76, 255, 127},
        "transparent colours lie on white");
  check(grey({2, 1, 2, {7, 255, 0, 128}}).pixels == std::vector<unsigned char>{7, 127}, "and so does grey");
  const Picture beside{4, 1, 1, {1, 2, 3, 4}};
  check(split_beside(beside, 2).pixels == std::vector<unsigned char>{1, 3, 2, 4}, "two views");
  check(is_picture_name("a/b.JPG") && !is_picture_name("png") && !is_picture_name("a.txt"), "names");
  return verdict();
}

// Reads pictures from files: PBM, PGM, PPM and PAM always, PNG and JPEG where CMake found libpng and libjpeg. Pixels are
// those that qcn/data/fit.py decodes, turned as EXIF says; libqcn makes of them what a network takes.
#ifndef QCN_PROGRAMS_IMAGE_H
#define QCN_PROGRAMS_IMAGE_H

#include <cstddef>
#include <string>
#include <vector>

namespace qcn_programs {

// Packed uint8 pixels, the channels of a pixel next to each other. Channels: 1 grey, 2 grey and alpha (or two views),
// 3 RGB, 4 RGB and alpha.
struct Picture {
  int width = 0, height = 0, channels = 0;
  std::vector<unsigned char> pixels;
};

// As qcn/data/fit.py has them: Python and the programs read and refuse the same pictures.
constexpr std::size_t kMaxSide = 1 << 14;
constexpr std::size_t kMaxPixels = 178956970;
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;  // of a file

// These throw std::runtime_error, which says what is wrong with the file.
Picture read_picture(const std::string& path);
Picture parse_picture(const unsigned char* bytes, std::size_t size);  // the first bytes tell the format

Picture parse_netpbm(const unsigned char* bytes, std::size_t size);
Picture parse_png(const unsigned char* bytes, std::size_t size);
Picture parse_jpeg(const unsigned char* bytes, std::size_t size);

void check_size(std::size_t width, std::size_t height);  // refuses pictures that are too large
// Memory for the pixels of a file, `row` bytes per row. Refuses pictures that are too large.
Picture blank(std::size_t width, std::size_t height, int channels, std::size_t row);

bool is_picture_name(const std::string& path);                    // by its extension
std::vector<std::string> pictures_in(const std::string& folder);  // their paths, sorted; no hidden ones

// Which way is up in an EXIF entry, from its TIFF header on: 1 (as it is) to 8. What cannot be read is 1.
int exif_orientation(const unsigned char* bytes, std::size_t size);
Picture turned(Picture picture, int orientation);

// The picture in grey, as in JPEG; transparent pixels are laid on white.
Picture grey(Picture picture);

// One picture from several grey views of the same size: each view becomes a channel.
Picture stacked(const std::vector<Picture>& views);
// The same from one picture that shows the views side by side, as many stereo cameras do.
Picture split_beside(const Picture& picture, int views);

}  // namespace qcn_programs

#endif

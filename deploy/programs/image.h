// Reading pictures from files: PGM, PPM and PAM by itself, PNG and JPEG where CMake found libpng and libjpeg.
#ifndef QCN_PROGRAMS_IMAGE_H
#define QCN_PROGRAMS_IMAGE_H

#include <cstddef>
#include <string>
#include <vector>

namespace qcn_programs {

// Packed uint8 pixels, their channels together: 1 grey, 2 grey and alpha (or two views), 3 RGB, 4 RGB and alpha.
struct Picture {
  int width = 0, height = 0, channels = 0;
  std::vector<unsigned char> pixels;
};

constexpr int kMaxSide = 1 << 15;
constexpr std::size_t kMaxBytes = std::size_t{1} << 28;  // of a file, and of its pixels

// Throw std::runtime_error with what is wrong with the file.
Picture read_picture(const std::string& path);
Picture parse_picture(const unsigned char* bytes, std::size_t size);  // what kind it is, its first bytes say

Picture parse_netpbm(const unsigned char* bytes, std::size_t size);
Picture parse_png(const unsigned char* bytes, std::size_t size);
Picture parse_jpeg(const unsigned char* bytes, std::size_t size);

bool is_picture_name(const std::string& path);  // by its ending: for the files of a folder

// With as many channels as a network of 1 or 3 takes: colours become grey as in JPEG, grey becomes colours, alpha is
// left out. Any other number must be the picture's own.
Picture with_channels(Picture picture, int channels);

// The views of one thing, equal in size, as the channels of one picture.
Picture stacked(const std::vector<Picture>& views);
// One picture that shows `views` views beside each other, as many stereo cameras give them.
Picture split_beside(const Picture& picture, int views);

}  // namespace qcn_programs

#endif

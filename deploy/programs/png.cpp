// Reads PNG with libpng's simplified interface, which needs no setjmp. A build without libpng says so when it meets a
// PNG.
#include <stdexcept>

#include "image.h"

#ifdef QCN_HAS_PNG
#include <png.h>

#include <cstring>
#endif

namespace qcn_programs {

#ifdef QCN_HAS_PNG

Picture parse_png(const unsigned char* bytes, std::size_t size) {
  png_image png;
  std::memset(&png, 0, sizeof png);
  png.version = PNG_IMAGE_VERSION;
  const auto fail = [&png] {
    const std::string message = png.message;
    png_image_free(&png);
    throw std::runtime_error("the PNG cannot be read: " + message);
  };
  if (!png_image_begin_read_from_memory(&png, bytes, size)) fail();
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // like all other files
  const bool colour = png.format & PNG_FORMAT_FLAG_COLOR, alpha = png.format & PNG_FORMAT_FLAG_ALPHA;
  png.format = colour ? (alpha ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB) : (alpha ? PNG_FORMAT_GA : PNG_FORMAT_GRAY);
  const int channels = (colour ? 3 : 1) + (alpha ? 1 : 0);
  if (png.width > kMaxSide || png.height > kMaxSide || PNG_IMAGE_SIZE(png) > kMaxBytes) {
    png_image_free(&png);
    throw std::runtime_error("the PNG has " + std::to_string(png.width) + "×" + std::to_string(png.height) +
                             " pixels, which is too large");
  }
  Picture picture{static_cast<int>(png.width), static_cast<int>(png.height), channels,
                  std::vector<unsigned char>(PNG_IMAGE_SIZE(png))};
  if (!png_image_finish_read(&png, nullptr, picture.pixels.data(), 0, nullptr)) fail();
  return picture;
}

#else

Picture parse_png(const unsigned char*, std::size_t) {
  throw std::runtime_error(
      "it is a PNG, which this program was built without: apt install libpng-dev and build again, or convert it "
      "(pngtopnm in.png > out.ppm)");
}

#endif

}  // namespace qcn_programs

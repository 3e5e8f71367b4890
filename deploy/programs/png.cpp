// Reads PNG with libpng, without its corrections of colour: the numbers in the file are the pixels. A build without
// libpng says so when it meets a PNG.
#include <stdexcept>

#include "image.h"

#ifdef QCN_HAS_PNG
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#endif

namespace qcn_programs {

#ifdef QCN_HAS_PNG

namespace {

struct Source {
  const unsigned char* at;
  std::size_t left;
  std::jmp_buf back;
  char message[128];
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* source = static_cast<Source*>(png_get_error_ptr(png));
  std::snprintf(source->message, sizeof source->message, "%s", message);
  std::longjmp(source->back, 1);
}

void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (count > source->left) png_error(png, "it ends too early");
  std::memcpy(to, source->at, count);
  source->at += count, source->left -= count;
}

// 1, 2, 4 and 16 bits become 8, a palette its colours, and the colour that a file calls transparent a channel. Grey of
// 16 bits is rounded, (v + 128) / 257; of colours and transparency of 16 bits the high byte is taken: as Pillow has it.
void choose_pixels(png_structp png, png_infop info) {
  const int bits = png_get_bit_depth(png, info), colours = png_get_color_type(png, info);
  if (bits == 16) {
    colours == PNG_COLOR_TYPE_GRAY ? png_set_scale_16(png) : png_set_strip_16(png);
  } else {
    png_set_expand(png);
  }
  png_set_interlace_handling(png);
}

// longjmp must not skip destructors, hence two functions. They return false on failure: see source.message.
bool begin(png_structp png, png_infop info, Source& source) {
  if (setjmp(source.back)) return false;
  png_set_read_fn(png, &source, read_bytes);
  png_read_info(png, info);
  choose_pixels(png, info);
  png_read_update_info(png, info);
  return true;
}

bool finish(png_structp png, png_infop info, Source& source, unsigned char** rows, int& orientation) {
  if (setjmp(source.back)) return false;
  png_read_image(png, rows);
  png_read_end(png, info);
#ifdef PNG_eXIf_SUPPORTED
  png_bytep exif = nullptr;
  png_uint_32 size = 0;
  if (png_get_eXIf_1(png, info, &size, &exif)) orientation = exif_orientation(exif, size);
#endif
  return true;
}

}  // namespace

Picture parse_png(const unsigned char* bytes, std::size_t size) {
  Source source{bytes, size, {}, "there is no memory"};
  struct Owner {
    png_structp png;
    png_infop info;
    ~Owner() { png_destroy_read_struct(&png, &info, nullptr); }
  } owner{png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, on_error, on_warning), nullptr};
  png_structp png = owner.png;
  png_infop info = owner.info = png ? png_create_info_struct(png) : nullptr;
  const auto require = [&](bool good) {
    if (!good) throw std::runtime_error(std::string("the PNG cannot be read: ") + source.message);
  };
  require(info && begin(png, info, source));
  const std::size_t height = png_get_image_height(png, info), row = png_get_rowbytes(png, info);
  Picture picture = blank(png_get_image_width(png, info), height, png_get_channels(png, info), row);
  std::vector<unsigned char*> rows;
  for (std::size_t y = 0; y < height; ++y) rows.push_back(picture.pixels.data() + y * row);
  int orientation = 1;
  require(finish(png, info, source, rows.data(), orientation));
  return turned(std::move(picture), orientation);
}

#else

Picture parse_png(const unsigned char*, std::size_t) {
  throw std::runtime_error(
      "it is a PNG, which this program was built without: apt install libpng-dev and build again, or convert it "
      "(pngtopnm in.png > out.ppm)");
}

#endif

}  // namespace qcn_programs

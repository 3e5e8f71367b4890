// Reads JPEG with libjpeg. A build without libjpeg says so when it meets a JPEG.
#include <memory>
#include <stdexcept>

#include "image.h"

#ifdef QCN_HAS_JPEG
#include <csetjmp>
#include <cstdio>
#include <cstring>

// After <cstdio>, which it needs but does not include.
#include <jpeglib.h>
#endif

namespace qcn_programs {

#ifdef QCN_HAS_JPEG

namespace {

constexpr int kExif = JPEG_APP0 + 1;

struct Failure {
  jpeg_error_mgr manager;
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

void on_error(j_common_ptr jpeg) {
  auto* failure = reinterpret_cast<Failure*>(jpeg->err);  // its first member
  failure->manager.format_message(jpeg, failure->message);
  std::longjmp(failure->back, 1);
}

void on_message(j_common_ptr jpeg, int level) {
  if (level < 0) on_error(jpeg);  // a warning: the file is damaged, and the rest would come out grey
}

// longjmp must not skip destructors, hence two functions. They return false on failure: see failure.message.
bool begin(jpeg_decompress_struct& jpeg, Failure& failure, const unsigned char* bytes, std::size_t size) {
  jpeg.err = jpeg_std_error(&failure.manager);
  failure.manager.error_exit = on_error;
  failure.manager.emit_message = on_message;
  if (setjmp(failure.back)) return false;
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, bytes, static_cast<unsigned long>(size));
  jpeg_save_markers(&jpeg, kExif, 0xFFFF);
  jpeg_read_header(&jpeg, TRUE);
  const bool ink = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
  jpeg.out_color_space = ink ? JCS_CMYK : jpeg.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_calc_output_dimensions(&jpeg);
  return true;
}

bool finish(jpeg_decompress_struct& jpeg, Failure& failure, unsigned char* pixels, std::size_t row) {
  if (setjmp(failure.back)) return false;
  jpeg_start_decompress(&jpeg);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW to = pixels + jpeg.output_scanline * row;
    jpeg_read_scanlines(&jpeg, &to, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

int orientation(const jpeg_decompress_struct& jpeg) {
  for (const jpeg_marker_struct* marker = jpeg.marker_list; marker; marker = marker->next) {
    if (marker->marker == kExif && marker->data_length >= 6 && std::memcmp(marker->data, "Exif\0", 6) == 0) {
      return exif_orientation(marker->data + 6, marker->data_length - 6);
    }
  }
  return 1;
}

// The colours of a printer (CMYK) as those of a screen, by Pillow's arithmetic. JPEGs store ink inverted: 255 is none.
Picture from_ink(const Picture& picture) {
  Picture out{picture.width, picture.height, 3, {}};
  out.pixels.reserve(picture.pixels.size() / 4 * 3);
  for (std::size_t i = 0; i + 4 <= picture.pixels.size(); i += 4) {
    const int light = picture.pixels[i + 3];  // that black ink leaves
    for (std::size_t c = 0; c < 3; ++c) {
      const int product = (255 - picture.pixels[i + c]) * light + 128;
      out.pixels.push_back(static_cast<unsigned char>(light - ((product + (product >> 8)) >> 8)));
    }
  }
  return out;
}

}  // namespace

Picture parse_jpeg(const unsigned char* bytes, std::size_t size) {
  jpeg_decompress_struct jpeg{};
  Failure failure{};
  const std::unique_ptr<jpeg_decompress_struct, void (*)(j_decompress_ptr)> owner(&jpeg, jpeg_destroy_decompress);
  const auto require = [&](bool good) {
    if (!good) throw std::runtime_error(std::string("the JPEG cannot be read: ") + failure.message);
  };
  require(begin(jpeg, failure, bytes, size));
  const std::size_t row = std::size_t{jpeg.output_width} * static_cast<std::size_t>(jpeg.output_components);
  Picture picture = blank(jpeg.output_width, jpeg.output_height, jpeg.output_components, row);
  const int up = orientation(jpeg);  // before `finish`, which frees the markers
  require(finish(jpeg, failure, picture.pixels.data(), row));
  return turned(picture.channels == 4 ? from_ink(picture) : std::move(picture), up);
}

#else

Picture parse_jpeg(const unsigned char*, std::size_t) {
  throw std::runtime_error(
      "it is a JPEG, which this program was built without: apt install libjpeg-dev and build again, or convert it "
      "(djpeg in.jpg > out.ppm)");
}

#endif

}  // namespace qcn_programs

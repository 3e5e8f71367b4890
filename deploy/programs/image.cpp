#include "image.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>

namespace qcn_programs {

Picture parse_picture(const unsigned char* bytes, std::size_t size) {
  if (size >= 8 && std::memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0) return parse_png(bytes, size);
  if (size >= 3 && std::memcmp(bytes, "\xff\xd8\xff", 3) == 0) return parse_jpeg(bytes, size);
  if (size >= 2 && bytes[0] == 'P') return parse_netpbm(bytes, size);
  throw std::runtime_error("it is not a PBM, PGM, PPM, PAM, PNG or JPEG file");
}

Picture read_picture(const std::string& path) {
  // A pipe, a socket or a device may never send anything: it is not waited for.
  const char* const refusal = "it is not a plain file: a pipe, socket or device is not read";
  const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) throw std::runtime_error(errno == ENXIO ? refusal : std::strerror(errno));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(fdopen(descriptor, "rb"), std::fclose);
  if (!file) throw std::runtime_error(std::strerror(errno));
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) throw std::runtime_error(std::strerror(errno));
  if (S_ISDIR(facts.st_mode)) throw std::runtime_error(std::strerror(EISDIR));
  if (!S_ISREG(facts.st_mode)) throw std::runtime_error(refusal);
  std::vector<unsigned char> bytes;
  std::array<unsigned char, 1 << 16> part;
  while (const std::size_t read = std::fread(part.data(), 1, part.size(), file.get())) {
    bytes.insert(bytes.end(), part.data(), part.data() + read);
    if (bytes.size() > kMaxBytes) throw std::runtime_error("it is larger than 1 GiB");
  }
  if (std::ferror(file.get())) throw std::runtime_error(std::strerror(errno));
  return parse_picture(bytes.data(), bytes.size());
}

void check_size(std::size_t width, std::size_t height) {
  const auto by = [](std::size_t x, std::size_t y) { return std::to_string(x) + "×" + std::to_string(y); };
  if (width > kMaxSide || height > kMaxSide) {
    throw std::runtime_error("a picture has at most " + by(kMaxSide, kMaxSide) + " pixels, not " + by(width, height));
  }
  if (width * height > kMaxPixels) {
    throw std::runtime_error("it has " + by(width, height) + " pixels, and at most " + std::to_string(kMaxPixels) +
                             " can be read: make it smaller");
  }
}

Picture blank(std::size_t width, std::size_t height, int channels, std::size_t row) {
  check_size(width, height);
  return {static_cast<int>(width), static_cast<int>(height), channels, std::vector<unsigned char>(row * height)};
}

bool is_picture_name(const std::string& path) {
  std::string ending = path.substr(std::min(path.rfind('.'), path.size()));
  for (char& c : ending) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  const auto known = {".pbm", ".pgm", ".ppm", ".pnm", ".pam", ".png", ".jpg", ".jpeg"};
  return std::find(known.begin(), known.end(), ending) != known.end();
}

std::vector<std::string> pictures_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name[0] != '.' && is_picture_name(name)) files.push_back(entry.path().string());
  }
  if (error) throw std::runtime_error(folder + ": " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

Picture grey(Picture picture) {
  if (picture.channels == 1) return picture;
  Picture out{picture.width, picture.height, 1, {}};
  const std::size_t step = static_cast<std::size_t>(picture.channels);
  const bool colour = step >= 3, transparent = step % 2 == 0;
  out.pixels.reserve(picture.pixels.size() / step);
  for (std::size_t i = 0; i + step <= picture.pixels.size(); i += step) {
    const unsigned char* const pixel = &picture.pixels[i];
    const int alpha = transparent ? pixel[step - 1] : 255;
    const auto on_white = [&](std::size_t c) { return (alpha * pixel[c] + 255 * (255 - alpha) + 127) / 255; };
    out.pixels.push_back(static_cast<unsigned char>(
        colour ? (on_white(0) * 19595 + on_white(1) * 38470 + on_white(2) * 7471 + 0x8000) >> 16 : on_white(0)));
  }
  return out;
}

Picture stacked(const std::vector<Picture>& views) {
  const std::size_t channels = views.size(), count = views.at(0).pixels.size();
  Picture out{views[0].width, views[0].height, static_cast<int>(channels),
              std::vector<unsigned char>(count * channels)};
  for (std::size_t c = 0; c < channels; ++c) {
    const Picture& view = views[c];
    if (view.channels != 1) throw std::logic_error("a view has several channels");
    if (view.width != out.width || view.height != out.height) {
      throw std::runtime_error("the views differ in size: " + std::to_string(out.width) + "×" +
                               std::to_string(out.height) + " and " + std::to_string(view.width) + "×" +
                               std::to_string(view.height));
    }
    for (std::size_t i = 0; i < count; ++i) out.pixels[i * channels + c] = view.pixels[i];
  }
  return out;
}

Picture split_beside(const Picture& picture, int views) {
  if (picture.width % views) {
    throw std::runtime_error("its width of " + std::to_string(picture.width) + " pixels does not divide into " +
                             std::to_string(views) + " views side by side");
  }
  const int width = picture.width / views;
  std::vector<Picture> parts;
  for (int view = 0; view < views; ++view) {
    Picture part{width, picture.height, picture.channels, {}};
    for (int y = 0; y < picture.height; ++y) {
      const auto from =
          picture.pixels.begin() + (static_cast<std::ptrdiff_t>(y) * picture.width + view * width) * picture.channels;
      part.pixels.insert(part.pixels.end(), from, from + width * picture.channels);
    }
    parts.push_back(grey(std::move(part)));
  }
  return stacked(parts);
}

}  // namespace qcn_programs

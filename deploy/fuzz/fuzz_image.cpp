// libFuzzer on the picture readers of the programs: whatever a file holds, they give a picture or an exception.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace qcn_programs;
  Picture picture;
  try {
    picture = parse_picture(bytes, size);
  } catch (const std::runtime_error&) {
    return 0;
  }
  const auto count = [](const Picture& p) {
    return static_cast<std::size_t>(p.width) * static_cast<std::size_t>(p.height) *
           static_cast<std::size_t>(p.channels);
  };
  if (picture.width < 1 || picture.height < 1 || picture.channels < 1 || count(picture) != picture.pixels.size()) {
    std::abort();
  }
  const std::size_t pixels = count(grey(picture));
  if (pixels * static_cast<std::size_t>(picture.channels) != count(picture)) std::abort();
  if (picture.width % 2 == 0 && count(split_beside(picture, 2)) != pixels) std::abort();
  return 0;
}

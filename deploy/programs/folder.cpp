// A folder of pictures instead of a camera: for tests and for recordings.
#include <stdexcept>
#include <vector>

#include "frames.h"
#include "image.h"

namespace {

using qcn_programs::Picture;

class Folder : public Frames {
 public:
  Folder(const std::string& folder, bool grey) : grey_(grey), files_(qcn_programs::pictures_in(folder)) {
    if (files_.empty()) throw std::runtime_error(folder + ": there are no pictures in it");
  }

  std::optional<Frame> next(const volatile std::sig_atomic_t& stop) override {
    if (stop || at_ == files_.size()) return std::nullopt;
    const std::string& file = files_[at_++];
    try {
      picture_ = qcn_programs::read_picture(file);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(file + ": " + error.what());
    }
    if (grey_ || picture_.channels == 2) picture_ = qcn_programs::grey(std::move(picture_));
    const Frame::Format format = picture_.channels == 1   ? Frame::kGrey
                                 : picture_.channels == 3 ? Frame::kRgb
                                                          : Frame::kRgba;
    return Frame{format, picture_.pixels.data(), picture_.width, picture_.height, picture_.width * picture_.channels};
  }

 private:
  bool grey_;
  std::vector<std::string> files_;
  std::size_t at_ = 0;
  Picture picture_;
};

}  // namespace

std::unique_ptr<Frames> open_folder(const std::string& folder, bool grey) {
  return std::make_unique<Folder>(folder, grey);
}

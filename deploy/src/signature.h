// What goes into a network and what comes out of it.
#ifndef QCN_SRC_SIGNATURE_H
#define QCN_SRC_SIGNATURE_H

#include <cstddef>
#include <string>

namespace qcn {

struct Signature {
  int channels = 0, height = 0, width = 0;  // of an input image
  int classes = 0;                          // a logit for each
  bool poses = false;                       // and a pose of three numbers

  std::size_t image_floats() const {
    return static_cast<std::size_t>(channels) * static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
  }
  std::size_t logit_floats() const { return static_cast<std::size_t>(classes); }
  std::size_t pose_floats() const { return poses ? 3 * logit_floats() : 0; }

  bool operator==(const Signature& other) const {
    return channels == other.channels && height == other.height && width == other.width && classes == other.classes &&
           poses == other.poses;
  }

  std::string text() const {
    return "images of " + std::to_string(channels) + "×" + std::to_string(height) + "×" + std::to_string(width) +
           " to " + std::to_string(classes) + " classes, " + (poses ? "with poses" : "without poses");
  }
};

}  // namespace qcn

#endif

// Frames for camera.cpp: of a camera, or of a folder of pictures in its place.
#ifndef QCN_EXAMPLES_FRAMES_H
#define QCN_EXAMPLES_FRAMES_H

#include <csignal>
#include <memory>
#include <optional>
#include <string>

// One frame as it lies in memory. It holds until the next is asked for.
struct Frame {
  enum Format { kGrey, kYuyv, kRgb } format;
  const unsigned char* data;
  int width, height;
  int row_stride;  // bytes
};

class Frames {
 public:
  virtual ~Frames() = default;
  // None when they are at an end, or when `stop` has become other than 0. Throws std::runtime_error.
  virtual std::optional<Frame> next(const volatile std::sig_atomic_t& stop) = 0;
};

// A V4L2 camera, such as /dev/video0. It is asked for this size, and may give another.
std::unique_ptr<Frames> open_camera(const std::string& device, int width, int height);
// The pictures of a folder, by name, in grey or in colours.
std::unique_ptr<Frames> open_folder(const std::string& folder, bool grey);

#endif

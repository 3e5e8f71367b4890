// Frames for camera.cpp: from a camera, or from a folder of pictures instead.
#ifndef QCN_PROGRAMS_FRAMES_H
#define QCN_PROGRAMS_FRAMES_H

#include <csignal>
#include <memory>
#include <optional>
#include <string>

// One frame in memory. It is valid until the next one is asked for.
struct Frame {
  enum Format { kGrey, kYuyv, kRgb, kRgba } format;
  const unsigned char* data;
  int width, height;
  int row_stride;  // bytes
};

class Frames {
 public:
  virtual ~Frames() = default;
  // The next frame; nothing after the last one, or once `stop` is not 0. Throws std::runtime_error.
  virtual std::optional<Frame> next(const volatile std::sig_atomic_t& stop) = 0;
};

// A V4L2 camera, such as /dev/video0. It is asked for this size, but may choose another; and for colours, or for grey,
// but gives what it has.
std::unique_ptr<Frames> open_camera(const std::string& device, int width, int height, bool colour);
// The pictures of a folder, sorted by name, as they are or all in grey.
std::unique_ptr<Frames> open_folder(const std::string& folder, bool grey);

#endif

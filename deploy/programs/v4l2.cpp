// A camera through Video4Linux. The driver writes frames into buffers that are mapped here, so no frame is copied.
//
// Only YUYV and GREY, the raw formats of webcams and of grey machine-vision cameras. MJPEG would need a decoder. CSI
// cameras on a Jetson give raw Bayer, which needs the image processor behind libargus: see jetson/README.md.
#include <fcntl.h>
#include <linux/videodev2.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "frames.h"

namespace {

constexpr unsigned kBuffers = 4;
constexpr int kTimeout = 5000;  // milliseconds without a frame

class Camera : public Frames {
 public:
  Camera(const std::string& device, int width, int height, bool colour) : device_(device) {
    file_ = open(device.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (file_ < 0) fail("cannot be opened (--camera names another device, `v4l2-ctl --list-devices` shows all)");
    try {
      start(width, height, colour);
    } catch (...) {
      close_all();
      throw;
    }
  }
  ~Camera() override { close_all(); }
  Camera(const Camera&) = delete;
  Camera& operator=(const Camera&) = delete;

  std::optional<Frame> next(const volatile std::sig_atomic_t& stop) override {
    give_back();
    for (int waited = 0; !stop; waited += 100) {
      if (waited >= kTimeout) throw std::runtime_error(device_ + ": no frame for 5 seconds");
      pollfd wait{file_, POLLIN, 0};
      if (poll(&wait, 1, 100) < 0 && errno != EINTR) fail("poll");
      v4l2_buffer buffer = empty();
      if (!control(VIDIOC_DQBUF, &buffer)) {
        if (errno == EAGAIN) continue;
        fail("has gone");  // usually it was unplugged
      }
      held_ = buffer;
      if (buffer.flags & V4L2_BUF_FLAG_ERROR || buffer.index >= maps_.size() || buffer.bytesused < bytes_) {
        give_back();  // a damaged frame: skip it
        continue;
      }
      return Frame{format_, static_cast<unsigned char*>(maps_[buffer.index].data), width_, height_, row_stride_};
    }
    return std::nullopt;
  }

 private:
  struct Map {
    void* data;
    std::size_t size;
  };

  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error(device_ + ": " + what + ": " + std::strerror(errno));
  }

  bool control(unsigned long request, void* argument) const {
    int result;
    do {
      result = ioctl(file_, request, argument);
    } while (result < 0 && errno == EINTR);
    return result >= 0;
  }

  static v4l2_buffer empty() {
    v4l2_buffer buffer{};
    buffer.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    buffer.memory = V4L2_MEMORY_MMAP;
    return buffer;
  }

  void start(int width, int height, bool colour) {
    v4l2_capability can{};
    if (!control(VIDIOC_QUERYCAP, &can)) fail("is not a video device");
    const unsigned caps = can.capabilities & V4L2_CAP_DEVICE_CAPS ? can.device_caps : can.capabilities;
    if (!(caps & V4L2_CAP_VIDEO_CAPTURE) || !(caps & V4L2_CAP_STREAMING)) {
      throw std::runtime_error(device_ + " is not a camera that streams: `v4l2-ctl --list-devices` lists the cameras");
    }
    choose_format(width, height, colour);

    v4l2_requestbuffers request{};
    request.count = kBuffers;
    request.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    request.memory = V4L2_MEMORY_MMAP;
    if (!control(VIDIOC_REQBUFS, &request)) fail("gives no buffers");
    for (unsigned i = 0; i < request.count; ++i) {
      v4l2_buffer buffer = empty();
      buffer.index = i;
      if (!control(VIDIOC_QUERYBUF, &buffer)) fail("gives no buffer");
      void* data = mmap(nullptr, buffer.length, PROT_READ | PROT_WRITE, MAP_SHARED, file_, buffer.m.offset);
      if (data == MAP_FAILED) fail("gives no memory");
      maps_.push_back({data, buffer.length});
      if (buffer.length < bytes_) throw std::runtime_error(device_ + ": its buffers are smaller than its frames");
      if (!control(VIDIOC_QBUF, &buffer)) fail("takes no buffer");
    }
    int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    if (!control(VIDIOC_STREAMON, &type)) fail("does not start");
  }

  void choose_format(int width, int height, bool colour) {
    const auto first = colour ? V4L2_PIX_FMT_YUYV : V4L2_PIX_FMT_GREY;
    for (const auto pixel : {first, V4L2_PIX_FMT_YUYV, V4L2_PIX_FMT_GREY}) {
      v4l2_format format{};
      format.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
      format.fmt.pix.width = static_cast<unsigned>(width);
      format.fmt.pix.height = static_cast<unsigned>(height);
      format.fmt.pix.pixelformat = pixel;
      format.fmt.pix.field = V4L2_FIELD_NONE;
      // A driver that does not know the format offers another one instead of an error.
      if (!control(VIDIOC_S_FMT, &format) || format.fmt.pix.pixelformat != pixel) continue;
      format_ = pixel == V4L2_PIX_FMT_GREY ? Frame::kGrey : Frame::kYuyv;
      const unsigned each = format_ == Frame::kGrey ? 1 : 2;
      if (format.fmt.pix.width > 1 << 14 || format.fmt.pix.height > 1 << 14 || format.fmt.pix.width < 2 ||
          format.fmt.pix.height < 1) {
        throw std::runtime_error(device_ + ": its frames are smaller than 2×1 or larger than 16384×16384 pixels");
      }
      width_ = static_cast<int>(format.fmt.pix.width - format.fmt.pix.width % each);  // YUYV comes in pairs
      height_ = static_cast<int>(format.fmt.pix.height);
      const unsigned stride = std::max(format.fmt.pix.bytesperline, format.fmt.pix.width * each);
      if (stride > 1 << 20) throw std::runtime_error(device_ + ": its rows are longer than 1 MiB");
      row_stride_ = static_cast<int>(stride);
      bytes_ = static_cast<std::size_t>(stride) * (format.fmt.pix.height - 1) + format.fmt.pix.width * each;
      return;
    }
    throw std::runtime_error(device_ + " gives neither GREY nor YUYV: `v4l2-ctl -d " + device_ +
                             " --list-formats-ext` lists its formats");
  }

  void give_back() {
    if (!held_) return;
    v4l2_buffer buffer = *held_;
    held_.reset();
    if (!control(VIDIOC_QBUF, &buffer)) fail("takes no buffer");
  }

  void close_all() {
    int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    control(VIDIOC_STREAMOFF, &type);
    for (const Map& map : maps_) munmap(map.data, map.size);
    close(file_);
  }

  std::string device_;
  int file_ = -1;
  std::vector<Map> maps_;
  std::optional<v4l2_buffer> held_;
  Frame::Format format_ = Frame::kGrey;
  int width_ = 0, height_ = 0, row_stride_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Frames> open_camera(const std::string& device, int width, int height, bool colour) {
  return std::make_unique<Camera>(device, width, height, colour);
}

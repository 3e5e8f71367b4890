// Classifies the frames of a camera, one after the other, until Ctrl-C.
//
//     ./camera BUNDLE                    frames of /dev/video0
//     ./camera BUNDLE --folder frames    pictures of a folder instead of a camera
//
// A network of one channel gets the brightness of a frame, and a network of three channels its colours. A network of
// two channels gets the left and the right half: stereo cameras on USB show both views side by side. Grey and YUYV
// frames are not copied: the library reads them in the driver's memory, by strides.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <vector>

#include "frames.h"
#include "program.h"

namespace {

using namespace qcn_programs;

volatile std::sig_atomic_t stop = 0;

void on_signal(int) { stop = 1; }

unsigned char clamped(int value) { return static_cast<unsigned char>(std::clamp(value, 0, 255)); }

// ITU-R 601 in the range that webcams use: brightness from 16 to 235, colours around 128.
void yuyv_to_rgb(const Frame& frame, std::vector<unsigned char>& rgb) {
  rgb.resize(static_cast<std::size_t>(frame.width) * static_cast<std::size_t>(frame.height) * 3);
  unsigned char* out = rgb.data();
  for (int row = 0; row < frame.height; ++row) {
    const unsigned char* in = frame.data + static_cast<std::ptrdiff_t>(row) * frame.row_stride;
    for (int x = 0; x < frame.width; ++x) {
      const unsigned char* pair = in + (x & ~1) * 2;  // y0 u y1 v
      const int y = 298 * (in[2 * x] - 16), u = pair[1] - 128, v = pair[3] - 128;
      *out++ = clamped((y + 409 * v + 128) >> 8);
      *out++ = clamped((y - 100 * u - 208 * v + 128) >> 8);
      *out++ = clamped((y + 516 * u + 128) >> 8);
    }
  }
}

// The frame as an image for a network of `channels` channels. `rgb` is memory for the colours of a YUYV frame.
qcn_image image_of(const Frame& frame, int channels, std::vector<unsigned char>& rgb) {
  const int step = frame.format == Frame::kGrey ? 1 : frame.format == Frame::kYuyv ? 2 : 3;
  qcn_image image = qcn_image_default(frame.data, frame.width, frame.height, channels);
  image.row_stride = frame.row_stride;
  image.column_stride = step;
  if (channels == 3 && frame.format == Frame::kYuyv) {
    yuyv_to_rgb(frame, rgb);
    return qcn_image_default(rgb.data(), frame.width, frame.height, 3);
  }
  if (channels == 3) {
    image.channel_stride = frame.format == Frame::kGrey ? 0 : 1;  // grey: the same pixel three times
  } else if (channels > 1) {                                      // views side by side
    image.width = frame.width / channels;
    image.channel_stride = static_cast<std::ptrdiff_t>(image.width) * step;
  }
  return image;
}

int watch(int argc, char** argv) {
  ModelOptions options;
  std::string device = "/dev/video0", folder;
  int width = 640, height = 480, most = 0;
  double least = 0;
  Arguments arguments("camera BUNDLE [options]", "Prints the class of each frame of a camera.");
  arguments.text("--camera", "V4L2 device (default: /dev/video0)", device);
  arguments.text("--folder", "read the pictures of this folder instead of a camera", folder);
  arguments.number("--width", "to ask of the camera (default: 640)", 16, 8192, width);
  arguments.number("--height", "to ask of the camera (default: 480)", 16, 8192, height);
  arguments.number("--frames", "stop after this many (default: at Ctrl-C)", 1, 1 << 30, most);
  arguments.number("--least", "print only answers with at least this activation (default: 0)", 0.0, 1.0, least);
  options.add_to(arguments);
  const auto rest = arguments.parse(argc, argv);
  if (rest.size() != 1) throw UsageError("needs one bundle: see --help");

  const qcn::Model model = options.load(rest[0]);
  qcn::Session session(model);
  const auto frames =
      folder.empty() ? open_camera(device, width, height) : open_folder(folder, model.info().channels != 3);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // write each line at once, into a pipe or a journal too
  std::printf("%s on %s\n", model.info().name, model.info().backend_name);

  std::vector<float> activation(model.classes());  // kept from frame to frame
  std::vector<unsigned char> rgb;
  for (int count = 1; most == 0 || count <= most; ++count) {
    const std::optional<Frame> frame = frames->next(stop);
    if (!frame) break;
    const auto start = std::chrono::steady_clock::now();
    const qcn_image image = image_of(*frame, model.info().channels, rgb);
    session.classify(&image, 1, activation.data());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    const int best = qcn_best(activation.data(), model.info().classes);
    if (best >= 0 && static_cast<double>(activation[static_cast<std::size_t>(best)]) >= least) {
      std::printf("frame %d: %s %.4f, %.2f ms\n", count, model.class_name(best).c_str(),
                  static_cast<double>(activation[static_cast<std::size_t>(best)]), took.count());
    }
  }
  return kDone;
}

}  // namespace

int main(int argc, char** argv) { return guarded_main("camera", watch, argc, argv); }

// What a camera sees, frame by frame, until Ctrl-C: the loop of a robot's eye around libqcn.
//
//     ./camera BUNDLE                    /dev/video0
//     ./camera BUNDLE --folder frames    pictures in place of a camera
//
// A network of one channel is shown the brightness, one of three the colours, and one of two the left and right half of
// the frame: stereo cameras on USB give both views beside each other. Grey and YUYV frames go to the library as they
// lie in the driver's memory, by strides.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <vector>

#include "frames.h"
#include "model.h"

namespace {

using namespace qcn_programs;

volatile std::sig_atomic_t stop = 0;

void on_signal(int) { stop = 1; }

unsigned char clamped(int value) { return static_cast<unsigned char>(std::clamp(value, 0, 255)); }

// ITU-R 601 as webcams use it: brightness from 16 to 235, colours around 128.
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

// The frame as the network is to see it. `rgb` is where colours go that the frame does not have as such.
qcn_image seen_by(int channels, const Frame& frame, std::vector<unsigned char>& rgb) {
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
  } else if (channels > 1) {                                      // views beside each other
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
  Arguments arguments("camera BUNDLE [options]", "Prints what the network sees in each frame of a camera.");
  arguments.text("--camera", "V4L2 device; /dev/video0", device);
  arguments.text("--folder", "of pictures, in place of a camera", folder);
  arguments.number("--width", "asked of the camera; 640", 16, 8192, width);
  arguments.number("--height", "asked of the camera; 480", 16, 8192, height);
  arguments.number("--frames", "how many; until Ctrl-C", 1, 1 << 30, most);
  arguments.number("--least", "print only answers with at least this activation; 0", 0.0, 1.0, least);
  options.add_to(arguments);
  const auto rest = arguments.parse(argc, argv);
  if (rest.size() != 1) throw UsageError("needs one bundle: see --help");

  const Model model(rest[0], options);
  const Session session(model.get());
  const auto frames =
      folder.empty() ? open_camera(device, width, height) : open_folder(folder, model.info().channels != 3);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a line at a time, into a pipe or a journal too
  std::printf("%s on %s\n", model.info().name, model.info().backend_name);

  std::vector<float> activation(static_cast<std::size_t>(model.info().classes));
  std::vector<unsigned char> rgb;
  for (int count = 1; most == 0 || count <= most; ++count) {
    const std::optional<Frame> frame = frames->next(stop);
    if (!frame) break;
    const auto start = std::chrono::steady_clock::now();
    const qcn_image image = seen_by(model.info().channels, *frame, rgb);
    succeed(qcn_classify(session.get(), &image, 1, activation.data(), nullptr));
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

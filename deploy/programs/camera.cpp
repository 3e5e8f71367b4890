// Classifies the frames of a camera, one after the other, until Ctrl-C.
//
//     qcn-camera BUNDLE                    frames of /dev/video0
//     qcn-camera BUNDLE --folder frames    pictures of a folder instead of a camera
//     qcn-camera BUNDLE --beside           frames of a stereo camera on USB, which shows both views side by side
//
// Frames have any size: the library brings them to that of the network's images. A network of one channel gets the
// brightness of a frame, and a network of three channels its colours. A network of two channels takes the two views of
// a stereo camera, which are never guessed. Grey frames, and the brightness of YUYV frames, are not copied: the library
// reads them in the driver's memory, by strides.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "frames.h"
#include "program.h"

namespace {

using namespace qcn_programs;

constexpr int kViews = 2;  // of a stereo camera

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

// The left and the right half of a grey or YUYV frame, as two channels.
qcn_image halves(const Frame& frame) {
  if (frame.width % kViews) {
    throw std::runtime_error("a frame of " + std::to_string(frame.width) + " pixels across has no two equal halves");
  }
  const int step = frame.format == Frame::kYuyv ? 2 : 1, width = frame.width / kViews;
  qcn_image image = qcn_image_default(frame.data, width, frame.height, kViews);
  image.row_stride = frame.row_stride;
  image.column_stride = step;
  image.channel_stride = static_cast<std::ptrdiff_t>(width) * step;
  return image;
}

// The frame as an image for a network of `channels` channels. `rgb` is memory for the colours of a YUYV frame.
qcn_image image_of(const Frame& frame, int channels, std::vector<unsigned char>& rgb) {
  if (channels == kViews) return halves(frame);
  if (frame.format == Frame::kYuyv && channels != 1) {
    yuyv_to_rgb(frame, rgb);
    return qcn_image_default(rgb.data(), frame.width, frame.height, 3);
  }
  const int colours = frame.format == Frame::kRgb ? 3 : frame.format == Frame::kRgba ? 4 : 1;
  qcn_image image = qcn_image_default(frame.data, frame.width, frame.height, colours);
  image.row_stride = frame.row_stride;
  image.column_stride = frame.format == Frame::kYuyv ? 2 : colours;
  return image;
}

void check_views(const qcn_model_info& info, bool beside) {
  if (info.channels == kViews && !beside) {
    throw UsageError("this network takes two views; --beside takes the left and right half of a frame");
  }
  if (info.channels != kViews && beside) throw UsageError("--beside: this network takes one view; leave out --beside");
}

int watch(int argc, char** argv) {
  ModelOptions options;
  std::string device = "/dev/video0", folder;
  int width = 640, height = 480, most = 0;
  double least = 0;
  bool beside = false;
  Arguments arguments("qcn-camera BUNDLE [options]",
                      "Prints what is on each frame of a camera, and how likely that is right.");
  arguments.text("--camera", "V4L2 device (default: /dev/video0)", device);
  arguments.text("--folder", "read the pictures of this folder instead of a camera", folder);
  arguments.number("--width", "frame width to request (default: 640)", 16, 8192, width);
  arguments.number("--height", "frame height to request (default: 480)", 16, 8192, height);
  arguments.flag("--beside", "frames show two views side by side, for a stereo network", beside);
  arguments.number("--frames", "stop after this many frames (default: at Ctrl-C)", 1, 1 << 30, most);
  arguments.number("--least", "print only answers with at least this probability (default: 0)", 0.0, 1.0, least);
  options.add_to(arguments);
  options.add_field_to(arguments);
  const auto rest = arguments.parse(argc, argv);
  if (rest.size() != 1) throw UsageError("needs one bundle: see --help");

  const qcn::Model model = options.load(rest[0]);
  check_views(model.info(), beside);
  qcn::Session session(model);
  const bool colour = model.info().channels == 3;
  const auto frames = folder.empty() ? open_camera(device, width, height, colour) : open_folder(folder, beside);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // write each line at once, into a pipe or a journal too
  std::printf("%s on %s\n", readable(model.info().name).c_str(), readable(model.info().backend_name).c_str());

  qcn_answer answer = qcn_answer_default();  // kept from frame to frame
  std::vector<unsigned char> rgb;
  for (int count = 1; most == 0 || count <= most; ++count) {
    const std::optional<Frame> frame = frames->next(stop);
    if (!frame) break;
    const auto start = std::chrono::steady_clock::now();
    const qcn_image image = image_of(*frame, model.info().channels, rgb);
    session.classify(&image, 1, &answer);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (answer.probability >= least) {
      std::string said = words(answer.label, answer.probability, answer.known);
      if (answer.has_direction) said += seen_from(answer.azimuth, answer.elevation, answer.spread);
      std::printf("frame %d: %s, %.2f ms\n", count, said.c_str(), took.count());
    }
  }
  return kDone;
}

}  // namespace

int main(int argc, char** argv) { return guarded_main("qcn-camera", watch, argc, argv); }

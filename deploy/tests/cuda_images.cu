// Images that the GPU pre-processes, from host memory and from its own, against the CPU's pre-processing and qcn_infer,
// by a bundle's engine for this machine:
//   cuda_images BUNDLE [PRECISION]
// Bytes must give the same bits. Floats may differ by one unit in the last place of the network's input (their sums are
// taken in another order), so their answers may differ by what that makes of them.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <qcn/qcn.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

int failures = 0;

void check(bool good, const std::string& what) {
  std::printf("%s: %s\n", good ? "good" : "FAILED", what.c_str());
  failures += !good;
}

void succeed(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

enum Layout { kInterleaved, kPlanar, kPaddedRows, kUpsideDown, kMirrored, kSpacedPixels, kLayouts };

// An image of its own, in host and in device memory.
struct Picture {
  std::vector<unsigned char> bytes;
  std::ptrdiff_t offset = 0;  // of the upper left pixel
  unsigned char* device = nullptr;
  qcn_image host{};

  Picture(int width, int height, int channels, bool floats, std::mt19937& generator, Layout layout = kInterleaved) {
    const std::ptrdiff_t pixel = floats ? sizeof(float) : 1;
    host = layout == kPlanar ? qcn_image_planar(nullptr, width, height, channels)
                             : qcn_image_default(nullptr, width, height, channels);
    if (layout == kSpacedPixels) ++host.column_stride, host.row_stride += width, host.reverse_channels = 1;
    host.column_stride *= pixel, host.row_stride *= pixel, host.channel_stride *= pixel;
    if (layout == kPaddedRows) host.row_stride += 5;
    bytes.resize(static_cast<std::size_t>(host.row_stride) * height * (layout == kPlanar ? channels : 1));
    if (layout == kUpsideDown) offset = host.row_stride * (height - 1), host.row_stride *= -1;
    if (layout == kMirrored) offset = host.column_stride * (width - 1), host.column_stride *= -1;
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        for (int channel = 0; channel < channels; ++channel) {
          const auto value = static_cast<unsigned char>(generator());
          const float real = static_cast<float>(value) / 255;
          const void* const from = floats ? static_cast<const void*>(&real) : &value;
          std::memcpy(&bytes[offset + y * host.row_stride + x * host.column_stride + channel * host.channel_stride],
                      from, static_cast<std::size_t>(pixel));
        }
      }
    }
    host.pixel = floats ? QCN_FLOAT32 : QCN_UINT8;
    host.data = bytes.data() + offset;
    succeed(cudaMalloc(&device, bytes.size()));
    succeed(cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    succeed(cudaDeviceSynchronize());  // a session's stream does not wait for such a copy's end
  }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
  ~Picture() { cudaFree(device); }

  qcn_image on_device() const {
    qcn_image image = host;
    image.data = device + offset, image.on_device = 1;
    return image;
  }
};

float distance(const std::vector<qcn::Answer>& a, const std::vector<qcn::Answer>& b) {
  float worst = a.size() == b.size() ? 0.0F : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const auto larger = [&](float x, float y) {
      worst = std::isnan(x - y) ? INFINITY : std::fmax(worst, std::fabs(x - y));
    };
    for (std::size_t k = 0; k < a[i].logit.size(); ++k) larger(a[i].logit[k], b[i].logit[k]);
    for (std::size_t k = 0; k < a[i].pose.size(); ++k) larger(a[i].pose[k], b[i].pose[k]);
  }
  return worst;
}

// An image of the data set's size.
std::unique_ptr<Picture> image_of(const qcn_model_info& info, bool floats, std::mt19937& generator,
                                  Layout layout = kInterleaved) {
  return std::make_unique<Picture>(info.image_width, info.image_height, info.channels, floats, generator, layout);
}

// Bytes of that size and of others; in grey, in colour and with transparency where the network takes one of these.
std::unique_ptr<Picture> any_picture(const qcn_model_info& info, int index, Layout layout, std::mt19937& generator) {
  if (index % 4 == 0) return image_of(info, false, generator, layout);
  const int channels = info.channels != 1 && info.channels != 3 ? info.channels
                       : index % 3 == 2                         ? 4
                                                                : 1 + index % 3 * 2;
  const int width = index % 4 == 1 ? 640 : 33 + index, height = index % 4 == 1 ? 480 : 57 + 2 * index;
  return std::make_unique<Picture>(width, height, channels, false, generator, layout);
}

// By the CPU's pre-processing.
std::vector<qcn::Answer> reference(qcn::Session& session, const std::vector<qcn_image>& images) {
  const qcn_model_info info = session.model().info();
  const std::size_t classes = static_cast<std::size_t>(info.classes), poses = info.poses ? 3 * classes : 0;
  std::vector<float> input, logit(images.size() * classes), pose(images.size() * poses);
  for (const qcn_image& image : images) {
    const std::vector<float> one = session.model().preprocess(image);
    input.insert(input.end(), one.begin(), one.end());
  }
  session.infer(input.data(), static_cast<int>(images.size()), logit.data(), poses ? pose.data() : nullptr);
  std::vector<qcn::Answer> answers(images.size());
  for (std::size_t i = 0; i < images.size(); ++i) {
    answers[i].logit.assign(&logit[i * classes], &logit[i * classes] + classes);
    if (poses) answers[i].pose.assign(&pose[i * poses], &pose[i * poses] + poses);
  }
  return answers;
}

enum Kind { kSameSize, kAnySize, kFloats };

// As many images as make the engine run twice, of one layout or of all. In host memory, on the device, and every second
// one there.
void compare(const qcn::Model& model, qcn::Session& session, Kind kind, Layout layout, float allowed,
             const std::string& what) {
  std::mt19937 generator(1);
  const qcn_model_info info = model.info();
  const int count = info.max_batch + 3;
  std::vector<std::unique_ptr<Picture>> pictures;
  std::vector<qcn_image> host, device, mixed;
  for (int i = 0; i < count; ++i) {
    const Layout its = layout == kLayouts ? static_cast<Layout>(i % kLayouts) : layout;
    pictures.push_back(kind == kAnySize ? any_picture(info, i, its, generator)
                                        : image_of(info, kind == kFloats, generator, its));
    host.push_back(pictures.back()->host), device.push_back(pictures.back()->on_device());
    mixed.push_back(i % 2 ? host.back() : device.back());
  }
  const std::vector<qcn::Answer> expected = reference(session, host);
  const std::pair<const char*, const std::vector<qcn_image>&> ways[] = {
      {"in host memory", host}, {"on the device", device}, {"every second one on the device", mixed}};
  for (int again = 0; again < 2; ++again) {  // with staging memory that grows, and as it is
    for (const auto& [where, images] : ways) {
      const float worst = distance(expected, session.classify(images));
      check(worst <= allowed, what + ", " + where + ": answers differ by at most " + std::to_string(worst));
    }
  }
}

// More bytes than are copied at once.
void compare_large(const qcn::Model& model, qcn::Session& session) {
  std::mt19937 generator(4);
  const qcn_model_info info = model.info();
  const Picture large(6000, 5000, info.channels, false, generator), small(41, 43, info.channels, false, generator);
  const std::vector<qcn_image> images{small.host, large.host, small.host, large.host, large.on_device(), large.host};
  check(distance(reference(session, images), session.classify(images)) == 0, "photographs of 30 million pixels");
}

// An image that is still being copied when the call is made, on the session's stream.
void compare_on_stream(const qcn::Model& model) {
  std::mt19937 generator(2);
  const qcn_model_info info = model.info();
  cudaStream_t stream;
  succeed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    qcn_session_params params = qcn_session_default_params();
    params.stream = stream;
    qcn::Session session(model, params);
    const auto last = image_of(info, false, generator);
    bool same = true;
    for (int i = 0; i < 50; ++i) {
      const auto next = image_of(info, false, generator);
      const qcn::Answer expected = reference(session, {next->host})[0];
      succeed(cudaMemcpyAsync(last->device, next->device, next->bytes.size(), cudaMemcpyDeviceToDevice, stream));
      same &= distance({expected}, {session.classify(last->on_device())}) == 0;
    }
    check(same, "images written on the caller's stream, 50 times");
  }
  succeed(cudaStreamDestroy(stream));
}

// A pointer of the host's is refused, and CUDA goes on working.
void refuse(const qcn::Model& model, qcn::Session& session) {
  std::mt19937 generator(3);
  const qcn_model_info info = model.info();
  const auto picture = image_of(info, false, generator);
  qcn_image wrong = picture->host;
  wrong.on_device = 1;
  std::vector<float> logit(static_cast<std::size_t>(info.classes));
  const qcn_status status = qcn_classify(session.get(), &wrong, 1, nullptr, logit.data(), nullptr);
  check(status == QCN_BAD_ARGUMENT, std::string("host memory given as the device's: ") + qcn_last_error());
  const qcn_image right = picture->on_device();
  check(qcn_classify(session.get(), &right, 1, nullptr, logit.data(), nullptr) == QCN_OK, "and the next is answered");
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  const std::string precision = count > 2 ? arguments[2] : "fp32";
  qcn_model_params params = qcn_model_default_params();
  params.backend = QCN_BACKEND_TENSORRT, params.precision = precision.c_str();
  try {
    const qcn::Model model(arguments[1], params);
    qcn::Session session(model);
    std::printf("%s, %s\n", model.info().backend_name, model.info().precision);
    const float of_floats = precision == "fp32" ? 1e-5F : 1e-2F;
    const char* const names[] = {"interleaved", "planar", "padded rows", "upside down", "mirrored", "spaced pixels"};
    for (int layout = 0; layout < kLayouts; ++layout) {
      compare(model, session, kSameSize, static_cast<Layout>(layout), 0, names[layout]);
    }
    compare(model, session, kAnySize, kLayouts, 0, "bytes of any size and layout");
    compare(model, session, kFloats, kInterleaved, of_floats, "floats");
    compare(model, session, kFloats, kLayouts, of_floats, "floats of any layout");
    compare_large(model, session);
    compare_on_stream(model);
    refuse(model, session);
  } catch (const qcn::Error& error) {
    std::printf("%s\n", error.what());
    return error.status() == QCN_NO_BACKEND || error.status() == QCN_BAD_ENGINE ? 3 : 1;
  }
  return failures ? 1 : 0;
}

// Images in device memory against the same in host memory, through qcn.h and a bundle's engine for this machine:
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

// An image of its own, in host and in device memory.
struct Picture {
  std::vector<unsigned char> bytes;
  unsigned char* device = nullptr;
  qcn_image host{};

  Picture(int width, int height, int channels, bool floats, std::mt19937& generator) {
    const std::size_t numbers = static_cast<std::size_t>(width) * height * channels;
    bytes.resize(numbers * (floats ? sizeof(float) : 1));
    for (std::size_t i = 0; i < numbers; ++i) {
      const auto value = static_cast<unsigned char>(generator());
      const float real = static_cast<float>(value) / 255;
      floats ? static_cast<void>(std::memcpy(&bytes[i * sizeof real], &real, sizeof real))
             : static_cast<void>(bytes[i] = value);
    }
    host = qcn_image_default(bytes.data(), width, height, channels);
    if (floats) {
      host.pixel = QCN_FLOAT32;
      host.column_stride *= sizeof(float), host.row_stride *= sizeof(float), host.channel_stride *= sizeof(float);
    }
    succeed(cudaMalloc(&device, bytes.size()));
    succeed(cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    succeed(cudaDeviceSynchronize());  // a session's stream does not wait for such a copy's end
  }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
  ~Picture() { cudaFree(device); }

  qcn_image on_device() const {
    qcn_image image = host;
    image.data = device, image.on_device = 1;
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
std::unique_ptr<Picture> image_of(const qcn_model_info& info, bool floats, std::mt19937& generator) {
  return std::make_unique<Picture>(info.image_width, info.image_height, info.channels, floats, generator);
}

// Bytes of that size and of others; in grey, in colour and with transparency where the network takes one of these.
std::unique_ptr<Picture> any_picture(const qcn_model_info& info, int index, std::mt19937& generator) {
  if (index % 4 == 0) return image_of(info, false, generator);
  const int channels = info.channels != 1 && info.channels != 3 ? info.channels
                       : index % 3 == 2                         ? 4
                                                                : 1 + index % 3 * 2;
  const int width = index % 4 == 1 ? 640 : 33 + index, height = index % 4 == 1 ? 480 : 57 + 2 * index;
  return std::make_unique<Picture>(width, height, channels, false, generator);
}

// As many images as make the engine run twice. All on the device, and every second one.
void compare(const qcn::Model& model, qcn::Session& session, bool floats, float allowed, const std::string& what) {
  std::mt19937 generator(1);
  const qcn_model_info info = model.info();
  const int count = info.max_batch + 3;
  std::vector<std::unique_ptr<Picture>> pictures;
  std::vector<qcn_image> host, device, mixed;
  for (int i = 0; i < count; ++i) {
    pictures.push_back(floats ? image_of(info, true, generator) : any_picture(info, i, generator));
    host.push_back(pictures.back()->host), device.push_back(pictures.back()->on_device());
    mixed.push_back(i % 2 ? host.back() : device.back());
  }
  const std::vector<qcn::Answer> expected = session.classify(host);
  for (int again = 0; again < 2; ++again) {  // by the engine's first run, and by its CUDA graph
    const float all = distance(expected, session.classify(device)), some = distance(expected, session.classify(mixed));
    check(all <= allowed, what + ", on the device: answers differ by at most " + std::to_string(all));
    check(some <= allowed, what + ", every second one on the device: by at most " + std::to_string(some));
  }
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
      const qcn::Answer expected = session.classify(next->host);
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
    compare(model, session, false, 0, "bytes");
    compare(model, session, true, precision == "fp32" ? 1e-5F : 1e-2F, "floats");
    compare_on_stream(model);
    refuse(model, session);
  } catch (const qcn::Error& error) {
    std::printf("%s\n", error.what());
    return error.status() == QCN_NO_BACKEND || error.status() == QCN_BAD_ENGINE ? 3 : 1;
  }
  return failures ? 1 : 0;
}

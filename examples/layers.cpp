// Where an answer comes from: every capsule layer of the network, and what the library logs. Uses nothing but qcn.hpp.
//
//     ./layers BUNDLE WIDTH HEIGHT CHANNELS < pixels
//
// The pixels are packed bytes, with the channels of a pixel next to each other. Only the native backend shows layers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <qcn/qcn.hpp>
#include <vector>

namespace {

// How strongly a layer's capsules respond, and the mass that the last iteration of its routing gave to the strongest.
// The layer of the classes has logits, all others have activations, from 0 to 1.
void print_layer(const qcn_layer& layer) {
  const std::size_t places = static_cast<std::size_t>(layer.height) * static_cast<std::size_t>(layer.width);
  const std::size_t parents = static_cast<std::size_t>(layer.parents);
  const float* const response = layer.logit ? layer.logit : layer.activation;  // [parents, height, width]
  const float* const strongest = std::max_element(response, response + parents * places);
  const auto index = static_cast<std::size_t>(strongest - response);
  // statistics are [iterations, 7, parents, images, height, width], the first of the seven is the mass.
  const std::size_t last = static_cast<std::size_t>(layer.iterations - 1) * 7 * parents * places;
  std::printf("%s: %d capsules at %d×%d places; the strongest is number %zu, %s %.4f, mass %.3f\n", layer.name,
              layer.parents, layer.width, layer.height, index / places, layer.logit ? "logit" : "activation",
              static_cast<double>(*strongest), static_cast<double>(layer.statistics[last + index]));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s BUNDLE WIDTH HEIGHT CHANNELS < pixels\n", argv[0]);
    return 2;
  }
  const int width = std::atoi(argv[2]), height = std::atoi(argv[3]), channels = std::atoi(argv[4]);
  if (width < 1 || height < 1 || channels < 1 || width > 16384 || height > 16384 || channels > 16) {
    std::fprintf(stderr, "WIDTH and HEIGHT must be 1 to 16384, CHANNELS 1 to 16\n");
    return 2;
  }
  std::vector<unsigned char> pixels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) *
                                    static_cast<std::size_t>(channels));
  if (std::fread(pixels.data(), 1, pixels.size(), stdin) != pixels.size()) {
    std::fprintf(stderr, "standard input has fewer than %zu bytes\n", pixels.size());
    return 1;
  }
  try {
    qcn_model_params params = qcn_model_default_params();
    params.backend = QCN_BACKEND_NATIVE;
    const qcn::Model model(argv[1], params, [](qcn_log_level, const std::string& message) {
      std::fprintf(stderr, "%s\n", message.c_str());
    });
    qcn::Session session(model, qcn_session_default_params(), print_layer);
    const qcn::Answer answer = session.classify(qcn_image_default(pixels.data(), width, height, channels));
    std::printf("%s%s %.1f %%", answer.known ? "" : "unknown, most like ", answer.label.c_str(),
                100 * answer.probability);
    for (std::size_t i = 0; i < 3 && !answer.pose.empty(); ++i) {
      std::printf("%s%.4f", i ? ", " : ", pose ",
                  static_cast<double>(answer.pose[3 * static_cast<std::size_t>(answer.index) + i]));
    }
    std::printf("\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

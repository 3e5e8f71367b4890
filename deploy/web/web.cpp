// libqcn's C interface as JavaScript calls it (libqcn.js): numbers and addresses only, no structures.
#include <iterator>

#include "error.h"
#include "qcn/qcn.h"
#include "tensorrt/tensorrt_backend.h"

#define QCN_WEB(name) extern "C" __attribute__((export_name(#name)))

// What JavaScript gives: it is told of every capsule layer of an inference that was asked to show them.
extern "C" __attribute__((import_module("page"), import_name("qcn_layer"))) void qcn_web_layer(
    const char* name, int images, int parents, int height, int width, int iterations, const float* pose,
    const float* activation, const float* logit, const float* statistics);

namespace qcn {

LoadedBackend tensorrt_backend(const Manifest&, const TensorrtRequest&) {
  throw Error(QCN_NO_BACKEND, "there is no TensorRT in a page");
}

}  // namespace qcn

namespace {

struct Network {
  qcn_model* model = nullptr;
  qcn_session *session = nullptr, *showing = nullptr;
  ~Network() {
    qcn_session_free(showing);
    qcn_session_free(session);
    qcn_model_free(model);
  }
};

void show(const qcn_layer* layer, void*) {
  qcn_web_layer(layer->name, layer->images, layer->parents, layer->height, layer->width, layer->iterations, layer->pose,
                layer->activation, layer->logit, layer->statistics);
}

qcn_status load(const qcn_file* files, std::size_t count, Network& network) {
  qcn_model_params params = qcn_model_default_params();
  params.backend = QCN_BACKEND_NATIVE;
  params.self_test = 0;  // the golden images stay where the page was made
  if (const qcn_status status = qcn_model_load_memory(files, count, &params, &network.model)) return status;
  qcn_session_params showing = qcn_session_default_params();
  showing.layer = show;
  if (const qcn_status status = qcn_session_create(network.model, nullptr, &network.session)) return status;
  return qcn_session_create(network.model, &showing, &network.showing);
}

}  // namespace

// The network of these files, which are copied; NULL: qcn_web_error says why.
QCN_WEB(qcn_web_load)
Network* qcn_web_load(const char* manifest, std::size_t manifest_bytes, const char* sums, std::size_t sums_bytes,
                      const char* weights, std::size_t weights_bytes) {
  const qcn_file files[] = {{"manifest.json", manifest, manifest_bytes},
                            {"manifest.sha256", sums, sums_bytes},
                            {"weights.safetensors", weights, weights_bytes}};
  Network* network = new Network;
  if (load(files, std::size(files), *network) == QCN_OK) return network;
  delete network;
  return nullptr;
}

QCN_WEB(qcn_web_free)
void qcn_web_free(Network* network) { delete network; }

QCN_WEB(qcn_web_error)
const char* qcn_web_error() { return qcn_last_error(); }

QCN_WEB(qcn_web_version)
const char* qcn_web_version() { return qcn_version(); }

QCN_WEB(qcn_web_backend)
const char* qcn_web_backend(const Network* network) {
  qcn_model_info info;
  info.size = sizeof info;
  return qcn_model_describe(network->model, &info) ? qcn_last_error() : info.backend_name;
}

// Packed bytes, of 1 to 4 channels, as `input` for qcn_web_infer.
QCN_WEB(qcn_web_preprocess)
int qcn_web_preprocess(const Network* network, const unsigned char* pixels, int width, int height, int channels,
                       float* input) {
  const qcn_image image = qcn_image_default(pixels, width, height, channels);
  return qcn_preprocess(network->model, &image, input);
}

QCN_WEB(qcn_web_infer)
int qcn_web_infer(const Network* network, const float* input, int count, int show_layers, float* logit, float* pose) {
  return qcn_infer(show_layers ? network->showing : network->session, input, count, logit, pose);
}

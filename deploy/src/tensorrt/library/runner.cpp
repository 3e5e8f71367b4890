// One session's way through an engine: pixels to pinned memory, to the device, a CUDA graph, answers back.
#include <algorithm>
#include <cstring>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "../../preprocess_cuda.h"
#include "cuda.h"
#include "engine.h"
#include "voice.h"

namespace qcn {
namespace {

constexpr std::size_t kMostLanes = 16;

// A batch size and what it takes to run it. A captured graph is good for the sizes it was captured with, and a context
// for the last it was given: so each batch size has a context of its own. Their working memory is shared.
struct Lane {
  int batch = 0;
  std::unique_ptr<nvinfer1::IExecutionContext> context;
  GraphExec graph;
  bool seen = false;  // has run, so that TensorRT is done with setting up, and a graph was tried
};

class EngineRunner final : public DeviceRunner {
 public:
  EngineRunner(std::shared_ptr<Engine> engine, void* stream) : engine_(std::move(engine)) {
    const OnDevice on(engine_->device);
    own_stream_ = new_stream();
    stream_ = stream ? static_cast<cudaStream_t>(stream) : own_stream_.get();
    const auto most = static_cast<std::size_t>(engine_->max_batch);
    working_ = device_memory(engine_->working_memory());
    const std::size_t input_bytes = most * engine_->pixels * sizeof(float);
    input_ = device_memory(input_bytes), pinned_input_ = pinned_memory(input_bytes);
    // A batch smaller than the engine's smallest is filled up with what lies there.
    cuda(cudaMemset(input_.get(), 0, input_bytes), "cudaMemset");
    for (const Engine::Output& output : engine_->outputs) {
      outputs_.push_back(device_memory(most * output.floats * sizeof(float)));
    }
    activation_ = pinned_memory(most * engine_->classes * sizeof(float));
    pose_ = pinned_memory(most * 3 * engine_->classes * sizeof(float));
    cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  ~EngineRunner() override {
    cudaStreamSynchronize(stream_);  // nothing may be freed that still runs
  }

  void run(const float* input, int count, float* activation, float* pose) override {
    check(count);
    const OnDevice on(engine_->device);
    copy(input, 0, count);
    answer(count, activation, pose);
  }

  void put_image(const Preprocessing& spec, const qcn_image& image, int index) override {
    check(index + 1);
    const OnDevice on(engine_->device);
    check_memory(image);
    preprocess_cuda(spec, image, device_input(index), stream_);
  }

  void put_input(const float* input, int index) override {
    check(index + 1);
    const OnDevice on(engine_->device);
    copy(input, index, 1);
  }

  void run_put(int count, float* activation, float* pose) override {
    check(count);
    const OnDevice on(engine_->device);
    answer(count, activation, pose);
  }

 private:
  void check(int count) const {
    if (count >= 1 && count <= engine_->max_batch) return;
    throw Error(QCN_BAD_ARGUMENT,
                std::to_string(count) + " images: the engine takes 1 to " + std::to_string(engine_->max_batch));
  }

  // A kernel that reads what is no memory of the device's leaves CUDA unusable for the whole program.
  void check_memory(const qcn_image& image) const {
    cudaPointerAttributes found{};
    cuda(cudaPointerGetAttributes(&found, image.data), "cudaPointerGetAttributes");
    if (found.type == cudaMemoryTypeUnregistered) {
      throw Error(QCN_BAD_ARGUMENT, "the image says on_device, but its data is not memory that CUDA gave out");
    }
    if (found.type == cudaMemoryTypeDevice && found.device != engine_->device) {
      throw Error(QCN_BAD_ARGUMENT, "the image is in the memory of CUDA device " + std::to_string(found.device) +
                                        ", the model on device " + std::to_string(engine_->device));
    }
  }

  float* device_input(int index) const {
    return static_cast<float*>(input_.get()) + static_cast<std::size_t>(index) * engine_->pixels;
  }

  // By way of pinned memory, each image in a place of its own, so that the call need not wait for the device.
  void copy(const float* input, int index, int count) {
    const std::size_t offset = static_cast<std::size_t>(index) * engine_->pixels;
    const std::size_t bytes = static_cast<std::size_t>(count) * engine_->pixels * sizeof(float);
    float* pinned = static_cast<float*>(pinned_input_.get()) + offset;
    std::memcpy(pinned, input, bytes);
    cuda(cudaMemcpyAsync(device_input(index), pinned, bytes, cudaMemcpyHostToDevice, stream_), "copying images");
  }

  void answer(int count, float* activation, float* pose) {
    const Listening listening(engine_->log);
    Lane& lane = lane_for(std::max(count, engine_->min_batch));
    if (lane.graph) {
      cuda(cudaGraphLaunch(lane.graph.get(), stream_), "launching the graph");
    } else {
      enqueue(lane, stream_, listening);
    }
    cuda(cudaStreamSynchronize(stream_), "running the engine");
    if (!lane.seen) capture(lane, listening);
    const std::size_t numbers = static_cast<std::size_t>(count) * engine_->classes;
    std::memcpy(activation, activation_.get(), numbers * sizeof(float));
    if (pose) std::memcpy(pose, pose_.get(), 3 * numbers * sizeof(float));
  }

  Lane& lane_for(int batch) {
    for (Lane& lane : lanes_) {
      if (lane.batch == batch) return lane;
    }
    Lane lane;
    lane.batch = batch;
    lane.context = engine_->context(batch);
    lane.context->setDeviceMemory(working_.get());
    bool set = lane.context->setTensorAddress(Engine::kInput, input_.get());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      set &= lane.context->setTensorAddress(engine_->outputs[i].name.c_str(), outputs_[i].get());
    }
    if (!set) throw Error(QCN_DEVICE_ERROR, "TensorRT does not take the memory it is given");
    if (lanes_.size() == kMostLanes) lanes_.pop_front();  // the oldest; nothing runs on it now
    lanes_.push_back(std::move(lane));
    return lanes_.back();
  }

  void enqueue(Lane& lane, cudaStream_t stream, const Listening& listening) {
    if (!lane.context->enqueueV3(stream)) {
      throw Error(QCN_DEVICE_ERROR, "TensorRT does not run the engine" + listening.said());
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const Engine::Output& output = engine_->outputs[i];
      void* to = output.name == Engine::kActivation ? activation_.get()
                 : output.name == Engine::kPose     ? pose_.get()
                                                    : nullptr;
      const std::size_t bytes = static_cast<std::size_t>(lane.batch) * output.floats * sizeof(float);
      if (to) cuda(cudaMemcpyAsync(to, outputs_[i].get(), bytes, cudaMemcpyDeviceToHost, stream), "copying answers");
    }
  }

  // On the runner's own stream: the caller's may be one that cannot be captured. Without a graph it is slower, not
  // wrong.
  void capture(Lane& lane, const Listening& listening) {
    lane.seen = true;
    cudaStream_t stream = own_stream_.get();
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return without(lane);
    bool whole = true;
    try {
      enqueue(lane, stream, listening);
    } catch (const Error&) {
      whole = false;
    }
    cudaGraph_t recorded = nullptr;
    whole &= cudaStreamEndCapture(stream, &recorded) == cudaSuccess;
    const Graph graph(recorded);
    cudaGraphExec_t ready = nullptr;
    whole = whole && cudaGraphInstantiateWithFlags(&ready, recorded, 0) == cudaSuccess;
    lane.graph.reset(whole ? ready : nullptr);
    // The first launch uploads it.
    if (!whole || cudaGraphUpload(ready, stream) != cudaSuccess) return without(lane);
    cuda(cudaStreamSynchronize(stream), "uploading the graph");
  }

  void without(Lane& lane) {
    const cudaError_t error = cudaGetLastError();  // and forget it
    lane.graph.reset();
    if (!engine_->log) return;
    engine_->log(QCN_LOG_WARNING, "the engine runs without a CUDA graph at batch " + std::to_string(lane.batch) + ": " +
                                      cudaGetErrorString(error));
  }

  const std::shared_ptr<Engine> engine_;
  Stream own_stream_;
  cudaStream_t stream_ = nullptr;
  DeviceMemory working_, input_;
  PinnedMemory pinned_input_, activation_, pose_;
  std::vector<DeviceMemory> outputs_;  // as engine_->outputs
  std::list<Lane> lanes_;
};

}  // namespace

std::unique_ptr<Runner> engine_runner(std::shared_ptr<Engine> engine, void* stream) {
  return std::make_unique<EngineRunner>(std::move(engine), stream);
}

}  // namespace qcn

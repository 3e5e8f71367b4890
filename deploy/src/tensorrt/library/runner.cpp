// Runs an engine for one session: copies images through pinned memory to the device, pre-processes them there, launches
// a CUDA graph, copies the answers back.
#include <algorithm>
#include <cstring>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "../../preprocess_cuda.h"
#include "cuda.h"
#include "engine.h"
#include "logger.h"
#include "pack.h"

namespace qcn {
namespace {

constexpr std::size_t kMaxContexts = 16;
constexpr std::size_t kMostStaged = std::size_t{64} << 20;  // bytes of images in pinned memory, or one larger image

// What runs batches of one size. A captured graph works only for the sizes that it was captured with, and an execution
// context only for the last size that it was given, so each batch size has its own. All share their working memory.
struct BatchContext {
  int batch = 0;
  std::unique_ptr<nvinfer1::IExecutionContext> execution;
  GraphExec graph;
  bool has_run = false;  // then TensorRT has set itself up, and capturing a graph was tried
};

class EngineRunner final : public Runner {
 public:
  EngineRunner(std::shared_ptr<Engine> engine, void* stream) : engine_(std::move(engine)) {
    const OnDevice on(engine_->device);
    own_stream_ = new_stream();
    stream_ = stream ? static_cast<cudaStream_t>(stream) : own_stream_.get();
    const auto most = static_cast<std::size_t>(engine_->max_batch);
    working_ = device_memory(engine_->working_memory());
    const std::size_t input_bytes = most * engine_->pixels * sizeof(float);
    input_ = device_memory(input_bytes), pinned_input_ = pinned_memory(input_bytes);
    // A batch smaller than the engine's smallest is padded with what this memory holds.
    cuda(cudaMemset(input_.get(), 0, input_bytes), "cudaMemset");
    for (const Engine::Output& output : engine_->outputs) {
      outputs_.push_back(device_memory(most * output.floats * sizeof(float)));
    }
    logit_ = pinned_memory(most * engine_->classes * sizeof(float));
    if (engine_->signature.poses) pose_ = pinned_memory(most * engine_->signature.pose_floats() * sizeof(float));
    cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  ~EngineRunner() override {
    cudaStreamSynchronize(stream_);  // nothing may be freed while it is in use
  }

  void run(const float* input, int count, float* logit, float* pose) override {
    check(count);
    const OnDevice on(engine_->device);
    wait();
    queued_ = true;
    const std::size_t bytes = static_cast<std::size_t>(count) * engine_->pixels * sizeof(float);
    std::memcpy(pinned_input_.get(), input, bytes);
    copy(input_.get(), pinned_input_.get(), bytes);
    answer(count, logit, pose);
  }

  bool takes_images() const override { return true; }

  void run_images(const Preprocessing& spec, const qcn_image* images, int count, float* logit, float* pose) override {
    check(count);
    const OnDevice on(engine_->device);
    for (int i = 0; i < count; ++i) {
      if (images[i].on_device) check_memory(images[i]);
    }
    images_.assign(images, images + count);
    for (int first = 0, end; first < count; first = end) {
      wait();
      queued_ = true;
      end = stage(first);
      preprocess_cuda(spec, images_.data() + first, end - first, device_input(first), stream_);
    }
    answer(count, logit, pose);
  }

 private:
  void check(int count) const {
    if (count >= 1 && count <= engine_->max_batch) return;
    throw Error(QCN_BAD_ARGUMENT,
                std::to_string(count) + " images: the engine takes 1 to " + std::to_string(engine_->max_batch));
  }

  // A kernel that reads memory outside of the device makes CUDA unusable for the whole program.
  void check_memory(const qcn_image& image) const {
    cudaPointerAttributes found{};
    cuda(cudaPointerGetAttributes(&found, image.data), "cudaPointerGetAttributes");
    if (found.type == cudaMemoryTypeUnregistered) {
      throw Error(QCN_BAD_ARGUMENT, "the image has on_device set, but its data was not allocated by CUDA");
    }
    if (found.type == cudaMemoryTypeDevice && found.device != engine_->device) {
      throw Error(QCN_BAD_ARGUMENT, "the image is in the memory of CUDA device " + std::to_string(found.device) +
                                        ", but the model is on device " + std::to_string(engine_->device));
    }
  }

  float* device_input(int index) const {
    return static_cast<float*>(input_.get()) + static_cast<std::size_t>(index) * engine_->pixels;
  }

  void copy(void* device, const void* pinned, std::size_t bytes) {
    cuda(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream_), "copying images");
  }

  // Until the stream no longer uses the pinned memory: a call that failed may have left work there.
  void wait() {
    if (queued_) cuda(cudaStreamSynchronize(stream_), "running the engine");
    queued_ = false;
  }

  // Moves the host's images, from `first` on, to the device by one copy. Returns the index after the last that is
  // there: very large pictures take several turns, since pinned memory is scarce.
  int stage(int first) {
    const int count = static_cast<int>(images_.size());
    std::size_t bytes = 0;
    int end = first;
    for (; end < count; ++end) {
      const qcn_image& image = images_[static_cast<std::size_t>(end)];
      const std::size_t more = image.on_device ? 0 : packed_bytes(image);
      if (bytes > 0 && bytes + more > kMostStaged) break;
      bytes += more;
    }
    if (bytes == 0) return end;
    reserve(bytes);
    char *pinned = static_cast<char*>(pinned_images_.get()), *device = static_cast<char*>(device_images_.get());
    for (int i = first; i < end; ++i) {
      qcn_image& image = images_[static_cast<std::size_t>(i)];
      if (image.on_device) continue;
      image = pack(image, pinned);
      image.data = device, image.on_device = 1;
      pinned += packed_bytes(image), device += packed_bytes(image);
    }
    copy(device_images_.get(), pinned_images_.get(), bytes);
    return end;
  }

  void reserve(std::size_t bytes) {
    if (bytes <= staged_bytes_) return;
    staged_bytes_ = 0;
    pinned_images_.reset(), device_images_.reset();
    pinned_images_ = pinned_memory(bytes), device_images_ = device_memory(bytes);
    staged_bytes_ = bytes;
  }

  void answer(int count, float* logit, float* pose) {
    const LogScope log_scope(engine_->log);
    BatchContext& context = context_for(std::max(count, engine_->min_batch));
    if (context.graph) {
      cuda(cudaGraphLaunch(context.graph.get(), stream_), "launching the graph");
    } else {
      enqueue(context, stream_, log_scope);
    }
    wait();
    if (!context.has_run) capture(context, log_scope);
    const std::size_t numbers = static_cast<std::size_t>(count) * engine_->classes;
    std::memcpy(logit, logit_.get(), numbers * sizeof(float));
    if (pose) std::memcpy(pose, pose_.get(), 3 * numbers * sizeof(float));
  }

  BatchContext& context_for(int batch) {
    for (BatchContext& known : contexts_) {
      if (known.batch == batch) return known;
    }
    BatchContext added;
    added.batch = batch;
    added.execution = engine_->context(batch);
    added.execution->setDeviceMemory(working_.get());
    bool set = added.execution->setTensorAddress(Engine::kInput, input_.get());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      set &= added.execution->setTensorAddress(engine_->outputs[i].name.c_str(), outputs_[i].get());
    }
    if (!set) throw Error(QCN_DEVICE_ERROR, "TensorRT refuses the memory for its inputs and outputs");
    if (contexts_.size() == kMaxContexts) contexts_.pop_front();  // the oldest; nothing runs on it now
    contexts_.push_back(std::move(added));
    return contexts_.back();
  }

  void enqueue(BatchContext& context, cudaStream_t stream, const LogScope& log_scope) {
    if (!context.execution->enqueueV3(stream)) {
      throw Error(QCN_DEVICE_ERROR, "TensorRT cannot run the engine" + log_scope.errors());
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const Engine::Output& output = engine_->outputs[i];
      void* to = output.name == Engine::kLogit ? logit_.get() : output.name == Engine::kPose ? pose_.get() : nullptr;
      const std::size_t bytes = static_cast<std::size_t>(context.batch) * output.floats * sizeof(float);
      if (to) cuda(cudaMemcpyAsync(to, outputs_[i].get(), bytes, cudaMemcpyDeviceToHost, stream), "copying answers");
    }
  }

  // On the runner's own stream, since the caller's stream may not allow capturing. Without a graph the answers are the
  // same, only slower.
  void capture(BatchContext& context, const LogScope& log_scope) {
    context.has_run = true;
    cudaStream_t stream = own_stream_.get();
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return drop_graph(context);
    bool captured = true;
    try {
      enqueue(context, stream, log_scope);
    } catch (const Error&) {
      captured = false;
    }
    cudaGraph_t recorded = nullptr;
    captured &= cudaStreamEndCapture(stream, &recorded) == cudaSuccess;
    const Graph graph(recorded);
    cudaGraphExec_t ready = nullptr;
    captured = captured && cudaGraphInstantiateWithFlags(&ready, recorded, 0) == cudaSuccess;
    context.graph.reset(captured ? ready : nullptr);
    // The first launch uploads it.
    if (!captured || cudaGraphUpload(ready, stream) != cudaSuccess) return drop_graph(context);
    cuda(cudaStreamSynchronize(stream), "uploading the graph");
  }

  void drop_graph(BatchContext& context) {
    const cudaError_t error = cudaGetLastError();  // also clears it
    context.graph.reset();
    if (!engine_->log) return;
    engine_->log(QCN_LOG_WARNING, "the engine runs without a CUDA graph at batch " + std::to_string(context.batch) +
                                      ": " + cudaGetErrorString(error));
  }

  const std::shared_ptr<Engine> engine_;
  Stream own_stream_;
  cudaStream_t stream_ = nullptr;
  DeviceMemory working_, input_;
  PinnedMemory pinned_input_, logit_, pose_;
  std::vector<qcn_image> images_;  // of one run: first where the caller has them, then on the device
  PinnedMemory pinned_images_;     // both of staged_bytes_, grown to the largest batch
  DeviceMemory device_images_;
  std::size_t staged_bytes_ = 0;
  bool queued_ = false;                // the stream may use the pinned memory
  std::vector<DeviceMemory> outputs_;  // as engine_->outputs
  std::list<BatchContext> contexts_;
};

}  // namespace

std::unique_ptr<Runner> engine_runner(std::shared_ptr<Engine> engine, void* stream) {
  return std::make_unique<EngineRunner>(std::move(engine), stream);
}

}  // namespace qcn

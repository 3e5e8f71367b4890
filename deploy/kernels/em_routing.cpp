// Routing on CPUs behind the C interface: checks what it is given, picks the kernels for this CPU, hands out their
// work.
#include "em_routing.h"

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "em_routing_cpu.h"
#include "for_this_cpu.h"
#include "half.h"
#include "threads.h"

namespace qcn {
namespace {

const RoutingKernels& kernels() {
  static const RoutingKernels& chosen = QCN_FOR_THIS_CPU(kernels);
  return chosen;
}

// Null: this CPU, or the compiler, has no arithmetic of float16.
const HalfRoutingKernels* half_kernels() {
#if defined(QCN_HAS_HALF)
  static const HalfRoutingKernels* chosen = QCN_CPU_HAS_HALF ? &QCN_HALF_BODY : nullptr;
  return chosen;
#else
  return nullptr;
#endif
}

// No array, nor any product of sizes here, may have more elements than this: so none overflows, nor do its bytes.
constexpr std::size_t kMostElements = std::size_t{1} << (sizeof(std::size_t) == 8 ? 40 : 26);

bool too_large(std::initializer_list<std::size_t> sizes) {
  std::size_t product = 1;
  for (std::size_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product) || product > kMostElements) return true;
  }
  return false;
}

int check(const qcn_routing_shape& s) {
  for (int size : {s.batch, s.channels, s.height, s.width, s.window_height, s.window_width, s.stride}) {
    if (size < 1) return QCN_ROUTING_BAD_SIZE;
  }
  if (s.window_height > s.height || s.window_width > s.width) return QCN_ROUTING_BAD_WINDOW;
  if (s.parents < 1 || s.parents > QCN_ROUTING_MAX_PARENTS) return QCN_ROUTING_BAD_PARENTS;
  if (s.iterations < 1 || s.iterations > QCN_ROUTING_MAX_ITERATIONS) return QCN_ROUTING_BAD_ITERATIONS;
  for (int flag : {s.shared, s.unit, s.logit}) {
    if (flag != 0 && flag != 1) return QCN_ROUTING_BAD_FLAG;
  }
  return QCN_ROUTING_OK;
}

// Checks the shape and fills in what follows from it.
int prepare(const qcn_routing_shape* shape, Routing* r) {
  if (!shape) return QCN_ROUTING_NULL_ARRAY;
  int status = check(*shape);
  if (status != QCN_ROUTING_OK) return status;
  auto size = [](int x) { return static_cast<std::size_t>(x); };
  *r = Routing{};
  r->batch = size(shape->batch);
  r->channels = size(shape->channels);
  r->height = size(shape->height);
  r->width = size(shape->width);
  r->window_height = size(shape->window_height);
  r->window_width = size(shape->window_width);
  r->stride = size(shape->stride);
  r->parents = size(shape->parents);
  r->iterations = size(shape->iterations);
  r->shared = shape->shared == 1;
  r->unit = shape->unit == 1;
  r->logit = shape->logit == 1;
  std::size_t rows = (r->height - r->window_height) / r->stride + 1;
  r->columns = (r->width - r->window_width) / r->stride + 1;
  r->positions = rows * r->columns;
  r->places = r->window_height * r->window_width;
  if (too_large({r->batch, r->channels, 3, r->height, r->width}) ||
      too_large({r->places, r->channels, r->parents, 9}) ||
      too_large({r->batch, r->positions, r->parents, r->iterations, 17})) {
    return QCN_ROUTING_TOO_LARGE;
  }
  r->windows = r->batch * r->positions;
  r->children = r->places * r->channels;
  // Shared rotations repeat from place to place, if a place is whole groups of children.
  const bool repeats = r->shared && half_kernels() && r->channels % half_kernels()->layout.children == 0;
  r->half_period = repeats ? r->channels : r->children;
  return QCN_ROUTING_OK;
}

bool any_null(std::initializer_list<const void*> arrays) {
  for (const void* array : arrays) {
    if (!array) return true;
  }
  return false;
}

// Rotations that are prepared for half precision: float32 numbers, rounded to float16, and behind them the same as the
// kernels have them.
std::size_t rotation_count(const Routing& r) { return (r.shared ? r.channels : r.children) * r.parents * 9; }

std::size_t whole(std::size_t count, std::size_t group) { return (count + group - 1) / group * group; }

std::size_t half_rotation_count(const Routing& r) {
  if (!half_kernels()) return 0;
  const HalfRotationLayout& to = half_kernels()->layout;
  return whole(r.half_period, to.children) * whole(r.parents, to.parents) * 9;
}

void prepare_half(const Routing& r, const float* rotation, void* prepared) {
  const std::size_t count = rotation_count(r);
  auto* rounded = static_cast<float*>(prepared);
  for (std::size_t i = 0; i < count; ++i) rounded[i] = float_of_half(half_of_float(rotation[i]));
  if (!half_kernels()) return;
  const HalfRotationLayout& to = half_kernels()->layout;
  auto* halves = reinterpret_cast<std::uint16_t*>(rounded + count);
  std::memset(halves, 0, half_rotation_count(r) * sizeof *halves);
  const std::size_t vectors = whole(r.parents, to.parents) / to.parents;
  for (std::size_t i = 0; i < r.half_period; ++i) {
    const float* from = rotation + (r.shared ? i % r.channels : i) * r.parents * 9;
    for (std::size_t j = 0; j < r.parents; ++j) {
      std::uint16_t* vector = halves + (i / to.children * vectors + j / to.parents) * 9 * to.children * to.parents;
      for (std::size_t entry = 0; entry < 9; ++entry) {
        vector[i % to.children * to.child_step + entry * to.entry_step + j % to.parents] =
            half_of_float(from[9 * j + entry]);
      }
    }
  }
}

std::size_t tiles_of(const Routing& r) { return (r.windows + kernels().lanes - 1) / kernels().lanes; }

bool forward(const Routing& r) {
  const RoutingKernels& k = kernels();
  return parallel_for(tiles_of(r), k.forward_scratch_floats(r),
                      [&](std::size_t tile, float* scratch) { k.forward_tile(r, tile, scratch); });
}

bool half_forward(const Routing& r) {
  const HalfRoutingKernels* k = half_kernels();
  if (!k) return forward(r);
  return parallel_for((r.windows + k->windows - 1) / k->windows, k->scratch_floats(r),
                      [&](std::size_t tile, float* scratch) { k->forward_tile(r, tile, scratch); });
}

bool backward(Routing& r, float* grad_beta_u, float* grad_beta_a) {
  const RoutingKernels& k = kernels();
  thread_local Memory steps, grad_beta;
  std::size_t tiles = tiles_of(r);
  r.steps = static_cast<float*>(steps.get(tiles * r.iterations * r.parents * k.step_floats * sizeof(float)));
  r.grad_beta = static_cast<double*>(grad_beta.get(tiles * 2 * r.parents * sizeof(double)));
  if (!r.steps || !r.grad_beta) return false;

  if (!parallel_for(tiles, k.backward_tile_scratch_floats(r),
                    [&](std::size_t tile, float* scratch) { k.backward_tile(r, tile, scratch); })) {
    return false;
  }
  for (std::size_t j = 0; j < r.parents; ++j) {
    double by_u = 0, by_a = 0;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      by_u += r.grad_beta[(tile * 2) * r.parents + j];
      by_a += r.grad_beta[(tile * 2 + 1) * r.parents + j];
    }
    grad_beta_u[j] = static_cast<float>(by_u);
    grad_beta_a[j] = static_cast<float>(by_a);
  }
  return parallel_for(r.channels, k.backward_channel_scratch_floats(r),
                      [&](std::size_t channel, float* scratch) { k.backward_channel(r, channel, scratch); });
}

}  // namespace
}  // namespace qcn

const char* qcn_routing_status(int status) {
  switch (status) {
    case QCN_ROUTING_OK:
      return "done";
    case QCN_ROUTING_BAD_SIZE:
      return "batch, channels, height, width, window and stride must be at least 1";
    case QCN_ROUTING_BAD_WINDOW:
      return "the window is larger than the map";
    case QCN_ROUTING_BAD_PARENTS:
      return "parents must be from 1 to 64";
    case QCN_ROUTING_BAD_ITERATIONS:
      return "iterations must be from 1 to 5";
    case QCN_ROUTING_BAD_FLAG:
      return "shared, unit and logit must be 0 or 1";
    case QCN_ROUTING_TOO_LARGE:
      return "the arrays would have more than 2^40 elements";
    case QCN_ROUTING_NULL_ARRAY:
      return "the shape or an array is NULL";
    case QCN_ROUTING_NO_MEMORY:
      return "out of memory";
    default:
      return "no such status";
  }
}

namespace {

int route(const qcn_routing_shape* shape, const float* pose, const float* activation, const float* rotation, bool half,
          const float* beta_u, const float* beta_a, float* out_pose, float* out_activation, float* statistics) {
  qcn::Routing r;
  int status = qcn::prepare(shape, &r);
  if (status != QCN_ROUTING_OK) return status;
  if (qcn::any_null({pose, activation, rotation, beta_u, beta_a, out_pose, out_activation})) {
    return QCN_ROUTING_NULL_ARRAY;
  }
  r.pose = pose;
  r.activation = activation;
  r.rotation = rotation;
  r.beta_u = beta_u;
  r.beta_a = beta_a;
  r.out_pose = out_pose;
  r.out_activation = out_activation;
  r.statistics = statistics;
  if (half) r.half_rotation = reinterpret_cast<const std::uint16_t*>(rotation + qcn::rotation_count(r));
  return (half ? qcn::half_forward(r) : qcn::forward(r)) ? QCN_ROUTING_OK : QCN_ROUTING_NO_MEMORY;
}

}  // namespace

int qcn_routing_forward(const qcn_routing_shape* shape, const float* pose, const float* activation,
                        const float* rotation, const float* beta_u, const float* beta_a, float* out_pose,
                        float* out_activation, float* statistics) {
  return route(shape, pose, activation, rotation, false, beta_u, beta_a, out_pose, out_activation, statistics);
}

size_t qcn_routing_half_bytes(const qcn_routing_shape* shape) {
  qcn::Routing r;
  if (qcn::prepare(shape, &r) != QCN_ROUTING_OK) return 0;
  return qcn::rotation_count(r) * sizeof(float) + qcn::half_rotation_count(r) * sizeof(std::uint16_t);
}

int qcn_routing_half_prepare(const qcn_routing_shape* shape, const float* rotation, void* prepared) {
  qcn::Routing r;
  int status = qcn::prepare(shape, &r);
  if (status != QCN_ROUTING_OK) return status;
  if (qcn::any_null({rotation, prepared})) return QCN_ROUTING_NULL_ARRAY;
  qcn::prepare_half(r, rotation, prepared);
  return QCN_ROUTING_OK;
}

int qcn_routing_half_forward(const qcn_routing_shape* shape, const float* pose, const float* activation,
                             const void* prepared, const float* beta_u, const float* beta_a, float* out_pose,
                             float* out_activation, float* statistics) {
  return route(shape, pose, activation, static_cast<const float*>(prepared), true, beta_u, beta_a, out_pose,
               out_activation, statistics);
}

int qcn_routing_backward(const qcn_routing_shape* shape, const float* pose, const float* activation,
                         const float* rotation, const float* beta_u, const float* beta_a, const float* statistics,
                         const float* grad_out_pose, const float* grad_out_activation, float* grad_pose,
                         float* grad_activation, float* grad_rotation, float* grad_beta_u, float* grad_beta_a) {
  qcn::Routing r;
  int status = qcn::prepare(shape, &r);
  if (status != QCN_ROUTING_OK) return status;
  if (qcn::any_null({pose, activation, rotation, beta_u, beta_a, statistics, grad_out_pose, grad_out_activation,
                     grad_pose, grad_activation, grad_rotation, grad_beta_u, grad_beta_a})) {
    return QCN_ROUTING_NULL_ARRAY;
  }
  r.pose = pose;
  r.activation = activation;
  r.rotation = rotation;
  r.beta_u = beta_u;
  r.beta_a = beta_a;
  r.saved_statistics = statistics;
  r.grad_out_pose = grad_out_pose;
  r.grad_out_activation = grad_out_activation;
  r.grad_pose = grad_pose;
  r.grad_activation = grad_activation;
  r.grad_rotation = grad_rotation;
  return qcn::backward(r, grad_beta_u, grad_beta_a) ? QCN_ROUTING_OK : QCN_ROUTING_NO_MEMORY;
}

void qcn_set_threads(int threads) { qcn::set_threads(threads); }

const char* qcn_instruction_set(void) { return qcn::kernels().instruction_set; }

const char* qcn_half_instruction_set(void) {
  return qcn::half_kernels() ? qcn::half_kernels()->instruction_set : qcn_instruction_set();
}

int qcn_half_arithmetic(void) { return qcn::half_kernels() != nullptr; }

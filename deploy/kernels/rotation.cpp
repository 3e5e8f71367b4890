#include "rotation.h"

#include <algorithm>
#include <cmath>

#include "threads.h"

namespace {

constexpr float kShortest = 1e-12f;  // an axis below this length is divided by this instead
constexpr size_t kChunk = 512;       // rotors that a thread takes at a time

struct Rotor {
  float x, y, z;          // n
  float inverse, length;  // of the axis
  float sine, k;          // sin 2θ, 1 − cos 2θ
};

Rotor load(const float* theta, const float* axis, size_t i) {
  const float x = axis[3 * i], y = axis[3 * i + 1], z = axis[3 * i + 2];
  const float length = std::sqrt(x * x + y * y + z * z), inverse = 1 / std::max(length, kShortest);
  const float s = std::sin(theta[i]), c = std::cos(theta[i]);
  return {x * inverse, y * inverse, z * inverse, inverse, length, 2 * s * c, 2 * s * s};
}

template <typename Function>
int for_each_rotor(size_t rotors, const Function& function) {
  const bool done = qcn::parallel_for((rotors + kChunk - 1) / kChunk, 0, [&](size_t chunk, float*) {
    for (size_t i = chunk * kChunk; i < std::min(rotors, (chunk + 1) * kChunk); ++i) function(i);
  });
  return done ? QCN_ROUTING_OK : QCN_ROUTING_NO_MEMORY;
}

}  // namespace

int qcn_rotation_forward(size_t rotors, const float* theta, const float* axis, float* rotation) {
  if (!theta || !axis || !rotation) return QCN_ROUTING_NULL_ARRAY;
  return for_each_rotor(rotors, [=](size_t i) {
    const Rotor r = load(theta, axis, i);
    const float xy = r.k * r.x * r.y, xz = r.k * r.x * r.z, yz = r.k * r.y * r.z;
    float* out = rotation + 9 * i;
    out[0] = 1 - r.k * (r.y * r.y + r.z * r.z);
    out[1] = xy - r.sine * r.z;
    out[2] = xz + r.sine * r.y;
    out[3] = xy + r.sine * r.z;
    out[4] = 1 - r.k * (r.x * r.x + r.z * r.z);
    out[5] = yz - r.sine * r.x;
    out[6] = xz - r.sine * r.y;
    out[7] = yz + r.sine * r.x;
    out[8] = 1 - r.k * (r.x * r.x + r.y * r.y);
  });
}

int qcn_rotation_backward(size_t rotors, const float* theta, const float* axis, const float* grad_rotation,
                          float* grad_theta, float* grad_axis) {
  if (!theta || !axis || !grad_rotation || !grad_theta || !grad_axis) return QCN_ROUTING_NULL_ARRAY;
  return for_each_rotor(rotors, [=](size_t i) {
    const Rotor r = load(theta, axis, i);
    const float* g = grad_rotation + 9 * i;
    // The gradient's antisymmetric part goes with sin 2θ [n]×; its symmetric part, on n, with n nᵀ.
    const float ax = g[7] - g[5], ay = g[2] - g[6], az = g[3] - g[1];
    const float bx = 2 * g[0] * r.x + (g[1] + g[3]) * r.y + (g[2] + g[6]) * r.z;
    const float by = (g[1] + g[3]) * r.x + 2 * g[4] * r.y + (g[5] + g[7]) * r.z;
    const float bz = (g[2] + g[6]) * r.x + (g[5] + g[7]) * r.y + 2 * g[8] * r.z;
    const float along = r.x * ax + r.y * ay + r.z * az;
    const float within = 0.5f * (r.x * bx + r.y * by + r.z * bz);
    const float trace = (r.x * r.x + r.y * r.y + r.z * r.z) * (g[0] + g[4] + g[8]);
    grad_theta[i] = 2 * (r.sine * (within - trace) + (1 - r.k) * along);
    const float gx = r.sine * ax + r.k * bx, gy = r.sine * ay + r.k * by, gz = r.sine * az + r.k * bz;
    const float radial = r.length > kShortest ? r.x * gx + r.y * gy + r.z * gz : 0;
    grad_axis[3 * i] = (gx - radial * r.x) * r.inverse;
    grad_axis[3 * i + 1] = (gy - radial * r.y) * r.inverse;
    grad_axis[3 * i + 2] = (gz - radial * r.z) * r.inverse;
  });
}

// The backward pass by tile: gradients of the parents' moments, iteration by iteration. See em_routing_backward.h.
#include "em_routing_backward.h"

namespace qcn::QCN_INSTRUCTION_SET {
namespace {

void load_moments(const Routing& r, const Tile& tile, size_t iteration, Moments* moments) {
  for (size_t j = 0; j < r.parents; ++j) {
    float values[QCN_ROUTING_STATISTICS][kLanes];
    for (size_t s = 0; s < QCN_ROUTING_STATISTICS; ++s) {
      size_t row = (iteration * QCN_ROUTING_STATISTICS + s) * r.parents + j;
      const float* from = r.saved_statistics + row * r.windows + tile.first;
      for (size_t lane = 0; lane < kLanes; ++lane) values[s][lane] = from[lane < tile.valid ? lane : tile.valid - 1];
    }
    memcpy(&moments[j], values, sizeof values);
  }
}

// Carries the gradient of the activation before the sigmoid, z_grad (in unit mode: after the division), into those of
// mass, variance and both betas.
void activation_backward(const Routing& r, const Moments* moments, const Vec* z, const Vec* log_spread, Vec norm,
                         const Vec* z_grad, Moments* grads, double* grad_beta) {
  float scale = 2.0f * static_cast<float>(r.parents) / static_cast<float>(r.children);
  Vec along{};
  if (r.unit) {
    for (size_t j = 0; j < r.parents; ++j) along += z_grad[j] * z[j];
    along = select(norm > 1e-12f, along, Vec{});  // at the floor the norm is a constant
  }
  for (size_t j = 0; j < r.parents; ++j) {
    Vec g = r.unit ? (z_grad[j] - z[j] * along) / norm : z_grad[j];
    Vec by_cost = -g * moments[j].mass * scale;
    for (size_t h = 0; h < 3; ++h) grads[j].variance[h] += 0.5f * by_cost / moments[j].variance[h];
    grads[j].mass -= g * scale * (3.0f * r.beta_u[j] + log_spread[j]);
    grad_beta[j] += sum_of_lanes(3.0f * by_cost);
    grad_beta[r.parents + j] += sum_of_lanes(g);
  }
}

// The part of a Step that is the M-step's gradient.
void m_step_backward(const Moments& m, const Moments& grads, Step* step) {
  Vec inverse = 1.0f / (m.mass + kMassFloor);
  step->by_mass = grads.mass;
  for (size_t h = 0; h < 3; ++h) {
    // The variance depends on the mean as well, since sum r (vote - mean) = kMassFloor * mean.
    Vec mean_grad = grads.mean[h] - 2.0f * kMassFloor * m.mean[h] * inverse * grads.variance[h];
    step->by_d[h] = mean_grad * inverse;
    step->by_d2[h] = grads.variance[h] * inverse;
    step->by_mass -= step->by_d2[h] * (m.variance[h] - kVarianceFloor);
  }
}

// Sums of the logits' gradients, about the mean before.
void e_step_backward(const Routing& r, const Child* children, const Step* before, const Step* after, Sums* block,
                     Sums* sums, Vote (*votes)[kGroup], Vec (*p)[kGroup]) {
  for (size_t j = 0; j < r.parents; ++j) block[j] = sums[j] = Sums{};
  for (size_t i = 0; i < padded_children(r); i += kGroup) {
    Vec pose[kGroup][3], largest[kGroup], weight[kGroup], expected[kGroup];
    const float* rotation[kGroup];
    for (size_t k = 0; k < kGroup; ++k) {
      for (size_t h = 0; h < 3; ++h) pose[k][h] = children[i + k].pose[h];
      rotation[k] = rotations_of(r, i + k);
      largest[k] = broadcast(-__builtin_inff());
    }
    for (size_t j = 0; j < r.parents; ++j) {
#pragma GCC unroll 4
      for (size_t k = 0; k < kGroup; ++k) {
        p[j][k] = vote_backward(rotation[k] + 9 * j, pose[k], before[j].gaussian, after[j], &votes[j][k]);
        largest[k] = max(largest[k], p[j][k]);
      }
    }
    softmax(p, largest, r.parents, weight);
    expected_gradient(votes, p, r.parents, weight, expected);
    for (size_t k = 0; k < kGroup; ++k) weight[k] *= children[i + k].activation;
    for (size_t j = 0; j < r.parents; ++j) {
      Sums group{};
      for (size_t k = 0; k < kGroup; ++k) {
        const Vote& v = votes[j][k];
        Vec logit_grad = p[j][k] * weight[k] * (v.by_responsibility - expected[k]);
        group.zeroth += logit_grad;
        for (size_t h = 0; h < 3; ++h) {
          Vec weighted = logit_grad * v.d[h];
          group.first[h] += weighted;
          group.second[h] += weighted * v.d[h];
        }
      }
      block[j].add(group);
    }
    if ((i + kGroup) % kBlock == 0) end_block(r.parents, block, sums);
  }
  end_block(r.parents, block, sums);
}

struct Arrays {
  Child* children;
  Moments *moments, *moments_before;
  Moments* grads;
  Sums *block, *sums;
  Vec *z, *log_spread, *z_grad;
  Vote (*votes)[kGroup];
  Vec (*p)[kGroup];

  Arrays(const Routing& r, Scratch& scratch)
      : children(scratch.take<Child>(padded_children(r))),
        moments(scratch.take<Moments>(r.parents)),
        moments_before(scratch.take<Moments>(r.parents)),
        grads(scratch.take<Moments>(r.parents)),
        block(scratch.take<Sums>(r.parents)),
        sums(scratch.take<Sums>(r.parents)),
        z(scratch.take<Vec>(r.parents)),
        log_spread(scratch.take<Vec>(r.parents)),
        z_grad(scratch.take<Vec>(r.parents)),
        votes(scratch.take<Vote[kGroup]>(r.parents)),
        p(scratch.take<Vec[kGroup]>(r.parents)) {}
};

}  // namespace

size_t backward_tile_scratch_floats(const Routing& r) {
  Scratch count;
  Arrays(r, count);
  return count.floats();
}

void backward_tile(const Routing& r, size_t index, float* memory) {
  Tile tile(r, index);
  Scratch scratch(memory);
  auto [children, moments, moments_before, grads, block, sums, z, log_spread, z_grad, votes, p] = Arrays(r, scratch);
  Step* steps = reinterpret_cast<Step*>(r.steps) + index * r.iterations * r.parents;
  double* grad_beta = r.grad_beta + index * 2 * r.parents;

  pack_children(r, tile, children);
  for (size_t j = 0; j < 2 * r.parents; ++j) grad_beta[j] = 0;
  size_t iteration = r.iterations - 1;
  load_moments(r, tile, iteration, moments);
  Vec norm = activations(r, moments, z, log_spread);
  for (size_t j = 0; j < r.parents; ++j) {
    grads[j] = Moments{};
    for (size_t h = 0; h < 3; ++h) {
      const float* map = r.grad_out_pose + (j * 3 + h) * r.positions;
      grads[j].mean[h] = tile.parents(map, r.parents * 3 * r.positions);
    }
    z_grad[j] = tile.parents(r.grad_out_activation + j * r.positions, r.parents * r.positions);
    if (!r.logit) z_grad[j] *= sigmoid(z[j]) * sigmoid(-z[j]);
  }
  for (;; --iteration) {
    Step* step = steps + iteration * r.parents;
    activation_backward(r, moments, z, log_spread, norm, z_grad, grads, grad_beta);
    for (size_t j = 0; j < r.parents; ++j) {
      step[j].gaussian = gaussian_of(moments[j], z[j], log_spread[j]);
      m_step_backward(moments[j], grads[j], &step[j]);
    }
    if (iteration == 0) break;

    load_moments(r, tile, iteration - 1, moments_before);
    norm = activations(r, moments_before, z, log_spread);
    Step* step_before = step - r.parents;
    for (size_t j = 0; j < r.parents; ++j) {
      step_before[j].gaussian = gaussian_of(moments_before[j], z[j], log_spread[j]);
      for (size_t h = 0; h < 3; ++h) step[j].moved[h] = moments_before[j].mean[h] - moments[j].mean[h];
    }
    e_step_backward(r, children, step_before, step, block, sums, votes, p);
    for (size_t j = 0; j < r.parents; ++j) {
      z_grad[j] = sums[j].zeroth * sigmoid(-z[j]);
      grads[j].mass = Vec{};
      for (size_t h = 0; h < 3; ++h) {
        Vec inverse = 1.0f / moments_before[j].variance[h];
        grads[j].mean[h] = sums[j].first[h] * inverse;
        grads[j].variance[h] = 0.5f * inverse * (sums[j].second[h] * inverse - sums[j].zeroth);
      }
    }
    Moments* swapped = moments;
    moments = moments_before;
    moments_before = swapped;
  }
}

}  // namespace qcn::QCN_INSTRUCTION_SET

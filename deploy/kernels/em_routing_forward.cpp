// Routing of one tile of windows, forward. See em_routing.h for the shapes, qcn/routing.py for the formula.
//
// A sweep goes over the children once and adds up, per parent, the moments of its votes about a shift m:
//     S = sum r      D = sum r d      Q = sum r d^2       with d = vote - m = R u - m
// from which the M-step follows whatever m is. So an E-step and the M-step after it are one sweep, about the mean
// before.
#include "em_routing_tile.h"

namespace qcn::QCN_INSTRUCTION_SET {
namespace {

// r = activation / parents. The root of the activation is put into the pose: root * d = R (root * u) - root * m.
template <bool kShifted>
void uniform_sweep(const Routing& r, const Child* children, const Vec (*minus_shift)[3], Sums* block, Sums* sums) {
  for (size_t j = 0; j < r.parents; ++j) block[j] = sums[j] = Sums{};
  for (size_t i = 0; i < padded_children(r); i += kGroup) {
    Vec root[kGroup], pose[kGroup][3], mass{};
    const float* rotation[kGroup];
    for (size_t k = 0; k < kGroup; ++k) {
      mass += children[i + k].activation;
      root[k] = sqrt(children[i + k].activation);
      for (size_t h = 0; h < 3; ++h) pose[k][h] = root[k] * children[i + k].pose[h];
      rotation[k] = rotations_of(r, i + k);
    }
    block[0].zeroth += mass;  // the same for all parents
    for (size_t j = 0; j < r.parents; ++j) {
      Sums group{};
      for (size_t k = 0; k < kGroup; ++k) {
        for (size_t h = 0; h < 3; ++h) {
          Vec start = kShifted ? minus_shift[j][h] * root[k] : Vec{};
          Vec d = vote(Row(rotation[k] + 9 * j, h), pose[k], start);
          group.first[h] += root[k] * d;
          group.second[h] += d * d;
        }
      }
      block[j].add(group);
    }
    if ((i + kGroup) % kBlock == 0) end_block(r.parents, block, sums);
  }
  end_block(r.parents, block, sums);
  float share = 1.0f / static_cast<float>(r.parents);
  Vec mass = sums[0].zeroth;
  for (size_t j = 0; j < r.parents; ++j) {
    sums[j].zeroth = share * mass;
    for (size_t h = 0; h < 3; ++h) {
      sums[j].first[h] *= share;
      sums[j].second[h] *= share;
    }
  }
}

// r = activation * softmax of the Gaussians' logits. The shift is the Gaussians' mean, unless kShifted.
template <bool kShifted>
void weighted_sweep(const Routing& r, const Child* children, const Gaussian* gaussians, const Vec (*minus_shift)[3],
                    Sums* block, Sums* sums, Vec (*votes)[kGroup][3], Vec (*p)[kGroup]) {
  for (size_t j = 0; j < r.parents; ++j) block[j] = sums[j] = Sums{};
  for (size_t i = 0; i < padded_children(r); i += kGroup) {
    Vec pose[kGroup][3], largest[kGroup], weight[kGroup];
    const float* rotation[kGroup];
    for (size_t k = 0; k < kGroup; ++k) {
      for (size_t h = 0; h < 3; ++h) pose[k][h] = children[i + k].pose[h];
      rotation[k] = rotations_of(r, i + k);
      largest[k] = broadcast(-__builtin_inff());
    }
    for (size_t j = 0; j < r.parents; ++j) {
      const Gaussian& g = gaussians[j];
      const Vec* start = kShifted ? minus_shift[j] : g.minus_mean;
      Vec logit[kGroup];
      for (size_t k = 0; k < kGroup; ++k) logit[k] = reload(&g.prior);
      for (size_t h = 0; h < 3; ++h) {
        for (size_t k = 0; k < kGroup; ++k) {
          Vec d = vote(Row(rotation[k] + 9 * j, h), pose[k], reload(&start[h]));
          votes[j][k][h] = d;
          if (kShifted) d += g.minus_mean[h] - minus_shift[j][h];
          logit[k] -= g.precision[h] * (d * d);
        }
      }
      for (size_t k = 0; k < kGroup; ++k) {
        p[j][k] = logit[k];
        largest[k] = max(largest[k], logit[k]);
      }
    }
    softmax(p, largest, r.parents, weight);
    for (size_t k = 0; k < kGroup; ++k) weight[k] *= children[i + k].activation;
    for (size_t j = 0; j < r.parents; ++j) {
      Sums group{};
      for (size_t k = 0; k < kGroup; ++k) {
        Vec responsibility = p[j][k] * weight[k];
        group.zeroth += responsibility;
        for (size_t h = 0; h < 3; ++h) {
          Vec weighted = responsibility * votes[j][k][h];
          group.first[h] += weighted;
          group.second[h] += weighted * votes[j][k][h];
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
  Vec (*minus_shift)[3];
  Sums *block, *sums;
  Moments* moments;
  Gaussian* gaussians;
  Vec *z, *log_spread;
  Vec (*votes)[kGroup][3];
  Vec (*p)[kGroup];

  Arrays(const Routing& r, Scratch& scratch)
      : children(scratch.take<Child>(padded_children(r))),
        minus_shift(scratch.take<Vec[3]>(r.parents)),
        block(scratch.take<Sums>(r.parents)),
        sums(scratch.take<Sums>(r.parents)),
        moments(scratch.take<Moments>(r.parents)),
        gaussians(scratch.take<Gaussian>(r.parents)),
        z(scratch.take<Vec>(r.parents)),
        log_spread(scratch.take<Vec>(r.parents)),
        votes(scratch.take<Vec[kGroup][3]>(r.parents)),
        p(scratch.take<Vec[kGroup]>(r.parents)) {}
};

}  // namespace

size_t forward_scratch_floats(const Routing& r) {
  Scratch count;
  Arrays(r, count);
  return count.floats();
}

void forward_tile(const Routing& r, size_t index, float* memory) {
  Tile tile(r, index);
  Scratch scratch(memory);
  auto [children, minus_shift, block, sums, moments, gaussians, z, log_spread, votes, p] = Arrays(r, scratch);

  pack_children(r, tile, children);
  memset(minus_shift, 0, r.parents * sizeof *minus_shift);
  uniform_sweep<false>(r, children, minus_shift, block, sums);
  if (m_step(r, sums, minus_shift, moments)) {
    set_minus_shift(r, moments, minus_shift);
    uniform_sweep<true>(r, children, minus_shift, block, sums);
    m_step(r, sums, minus_shift, moments);
  }
  for (size_t iteration = 0;; ++iteration) {
    if (r.statistics) save_moments(r, tile, iteration, moments);
    activations(r, moments, z, log_spread);
    if (iteration + 1 == r.iterations) break;
    for (size_t j = 0; j < r.parents; ++j) gaussians[j] = gaussian_of(moments[j], z[j], log_spread[j]);
    set_minus_shift(r, moments, minus_shift);
    weighted_sweep<false>(r, children, gaussians, minus_shift, block, sums, votes, p);
    if (m_step(r, sums, minus_shift, moments)) {
      set_minus_shift(r, moments, minus_shift);
      weighted_sweep<true>(r, children, gaussians, minus_shift, block, sums, votes, p);
      m_step(r, sums, minus_shift, moments);
    }
  }
  set_outputs(r, tile, moments, z);
}

}  // namespace qcn::QCN_INSTRUCTION_SET

// The backward pass by channel: gradients of the children and their rotations. See em_routing_backward.h.
//
// A channel's thread alone writes to the channel's arrays: no atomic, and one order of sums.
#include "em_routing_backward.h"

namespace qcn::QCN_INSTRUCTION_SET {
namespace {

// kGroup tiles of windows, and in each the child of one channel at one place: they share their rotations.
struct Group {
  Tile tiles[kGroup];
  const Step* steps[kGroup];
};

struct Arrays {
  Vote (*votes)[kGroup];
  Vec (*p)[kGroup];
  Vec (*vote_grad)[kGroup][3];
  Vec (*rotation_grad)[9];  // [places, or 1 if shared][parents], a vector of windows each

  Arrays(const Routing& r, Scratch& scratch)
      : votes(scratch.take<Vote[kGroup]>(r.parents)),
        p(scratch.take<Vec[kGroup]>(r.parents)),
        vote_grad(scratch.take<Vec[kGroup][3]>(r.parents)),
        rotation_grad(scratch.take<Vec[9]>((r.shared ? 1 : r.places) * r.parents)) {}
};

// The children of a group at one place, and their gradients.
struct Children {
  const float* rotation;  // [parents, 3, 3]
  Child child[kGroup];
  Vec activation_grad[kGroup], pose_grad[kGroup][3];
};

// The votes' part of M-step t and of the E-step before it. Leaves the votes about the mean before.
void step_backward(const Routing& r, const Group& group, size_t t, Children& c, const Arrays& s) {
  Vec largest[kGroup], inverse_sum[kGroup], expected[kGroup], weight[kGroup];
  for (size_t k = 0; k < kGroup; ++k) largest[k] = broadcast(-__builtin_inff());
  for (size_t j = 0; j < r.parents; ++j) {
#pragma GCC unroll 4
    for (size_t k = 0; k < kGroup; ++k) {
      const Step* after = group.steps[k] + t * r.parents + j;
      const Gaussian& before = (after - r.parents)->gaussian;
      s.p[j][k] = vote_backward(c.rotation + 9 * j, c.child[k].pose, before, *after, &s.votes[j][k]);
      largest[k] = max(largest[k], s.p[j][k]);
    }
  }
  softmax(s.p, largest, r.parents, inverse_sum);
  expected_gradient(s.votes, s.p, r.parents, inverse_sum, expected);
  for (size_t k = 0; k < kGroup; ++k) {
    c.activation_grad[k] += expected[k];
    weight[k] = c.child[k].activation * inverse_sum[k];
  }
  for (size_t j = 0; j < r.parents; ++j) {
#pragma GCC unroll 4
    for (size_t k = 0; k < kGroup; ++k) {
      const Vote& v = s.votes[j][k];
      const Step* after = group.steps[k] + t * r.parents + j;
      const Gaussian& before = (after - r.parents)->gaussian;
      Vec responsibility = s.p[j][k] * weight[k];
      Vec logit_grad = responsibility * (v.by_responsibility - expected[k]) * (2.0f * kLn2);  // precision: base 2
      for (size_t h = 0; h < 3; ++h) {
        Vec d_after = v.d[h] + after->moved[h];
        Vec g = responsibility * (after->by_d[h] + 2.0f * after->by_d2[h] * d_after);
        g -= before.precision[h] * v.d[h] * logit_grad;
        s.vote_grad[j][k][h] = t + 1 == r.iterations ? g : s.vote_grad[j][k][h] + g;
      }
    }
  }
}

// With one iteration there is no E-step: the votes about their mean, and no gradient yet.
void votes_of_one_step(const Routing& r, const Group& group, const Children& c, const Arrays& s) {
  for (size_t j = 0; j < r.parents; ++j) {
    for (size_t k = 0; k < kGroup; ++k) {
      for (size_t h = 0; h < 3; ++h) {
        Vec start = group.steps[k][j].gaussian.minus_mean[h];
        s.votes[j][k].d[h] = vote(Row(c.rotation + 9 * j, h), c.child[k].pose, start);
        s.vote_grad[j][k][h] = Vec{};
      }
    }
  }
}

// The votes' part of the first M-step, about whose mean they are; then from votes to poses and rotations.
void first_step_backward(const Routing& r, const Group& group, Children& c, const Arrays& s, Vec (*rotation_grad)[9]) {
  float share = 1.0f / static_cast<float>(r.parents);
  Vec responsibility[kGroup], by_responsibility[kGroup] = {};
  for (size_t k = 0; k < kGroup; ++k) responsibility[k] = c.child[k].activation * share;
  for (size_t j = 0; j < r.parents; ++j) {
    const float* q = c.rotation + 9 * j;
    Vec outer[9] = {};
    for (size_t k = 0; k < kGroup; ++k) {
      const Step& step = group.steps[k][j];
      Vec g[3];
      by_responsibility[k] += step.by_mass;
      for (size_t h = 0; h < 3; ++h) {
        Vec d = s.votes[j][k].d[h];
        Vec slope = step.by_d2[h] * d;
        by_responsibility[k] += (step.by_d[h] + slope) * d;
        g[h] = s.vote_grad[j][k][h] + responsibility[k] * (step.by_d[h] + 2.0f * slope);
      }
      for (size_t h = 0; h < 3; ++h) {
        c.pose_grad[k][h] = q[6 + h] * g[2] + (q[3 + h] * g[1] + (q[h] * g[0] + c.pose_grad[k][h]));
        for (size_t axis = 0; axis < 3; ++axis) outer[3 * h + axis] += g[h] * c.child[k].pose[axis];
      }
    }
    for (size_t e = 0; e < 9; ++e) rotation_grad[j][e] += outer[e];
  }
  for (size_t k = 0; k < kGroup; ++k) c.activation_grad[k] += by_responsibility[k] * share;
}

// Adds the gradients of the group's children at one place; rotation_grad is that place's.
void place_backward(const Routing& r, const Group& group, size_t place, size_t channel, const Arrays& s,
                    Vec (*rotation_grad)[9]) {
  size_t map = r.height * r.width, offset = place_offset(r, place);
  Children c{};
  c.rotation = rotations_of(r, place * r.channels + channel);
  for (size_t k = 0; k < kGroup; ++k) {
    c.child[k] = child_of(r, group.tiles[k], offset, channel);
    if (group.tiles[k].valid == 0) c.child[k].activation = Vec{};  // then none of its votes has a gradient
  }
  if (r.iterations == 1) votes_of_one_step(r, group, c, s);
  for (size_t t = r.iterations - 1; t > 0; --t) step_backward(r, group, t, c, s);
  first_step_backward(r, group, c, s, rotation_grad);
  for (size_t k = 0; k < kGroup; ++k) {
    const Tile& tile = group.tiles[k];
    tile.add_to_children(r.grad_activation + channel * map + offset, r.channels * map, c.activation_grad[k]);
    for (size_t h = 0; h < 3; ++h) {
      tile.add_to_children(r.grad_pose + (channel * 3 + h) * map + offset, r.channels * 3 * map, c.pose_grad[k][h]);
    }
  }
}

}  // namespace

size_t backward_channel_scratch_floats(const Routing& r) {
  Scratch count;
  Arrays(r, count);
  return count.floats();
}

void backward_channel(const Routing& r, size_t channel, float* memory) {
  size_t map = r.height * r.width, places = r.shared ? 1 : r.places, tiles = (r.windows + kLanes - 1) / kLanes;
  Scratch scratch(memory);
  Arrays arrays(r, scratch);
  Vec(*rotation_grad)[9] = arrays.rotation_grad;

  memset(rotation_grad, 0, places * r.parents * sizeof *rotation_grad);
  for (size_t image = 0; image < r.batch; ++image) {
    memset(r.grad_activation + (image * r.channels + channel) * map, 0, map * sizeof(float));
    memset(r.grad_pose + (image * r.channels + channel) * 3 * map, 0, 3 * map * sizeof(float));
  }
  // A group's Steps stay in the cache while it goes through all places.
  for (size_t tile = 0; tile < tiles; tile += kGroup) {
    Group group;
    for (size_t k = 0; k < kGroup; ++k) {
      size_t index = tile + k < tiles ? tile + k : tiles - 1;
      group.tiles[k] = Tile(r, index);
      group.steps[k] = reinterpret_cast<const Step*>(r.steps) + index * r.iterations * r.parents;
      if (tile + k >= tiles) {
        group.tiles[k].valid = 0;
        group.tiles[k].consecutive = false;
      }
    }
    for (size_t place = 0; place < r.places; ++place) {
      Vec(*to)[9] = rotation_grad + (r.shared ? 0 : place * r.parents);
      place_backward(r, group, place, channel, arrays, to);
    }
  }
  for (size_t place = 0; place < places; ++place) {
    for (size_t j = 0; j < r.parents; ++j) {
      float* to = r.grad_rotation + ((place * r.channels + channel) * r.parents + j) * 9;
      for (size_t e = 0; e < 9; ++e) {
        to[e] = static_cast<float>(sum_of_lanes(rotation_grad[place * r.parents + j][e]));
      }
    }
  }
}

}  // namespace qcn::QCN_INSTRUCTION_SET

// Routing of one tile of windows, forward, in half precision: the sweeps of em_routing_forward.cpp in float16, the
// M-step between them in float32. docs/kernels.md says what is rounded to float16 and why that is enough.
//
// Responsibilities are 16 times as large as they should be, so that small ones keep their digits; a sweep's sums of
// eight children are float16, and all that comes after them is float32. A float16 ends at 65504: where a tile's sums
// are not finite, it is routed in float32 instead.
#include "em_routing_tile.h"
#include "half_vector.h"
#if defined(__aarch64__)
#include "half_neon.h"
#endif

namespace qcn::QCN_INSTRUCTION_SET {
namespace {

constexpr float kScale = 16.0f, kRootOfScale = 4;  // of responsibilities
constexpr float kNever = -30000.0f;                // the prior of a parent that only fills up a vector

struct HalfChild {
  Stored pose[3];
  Vec activation[kParts];
};

struct HalfGaussian {  // logit, in base 2 = prior - sum of ((vote - mean) * inverse)^2
  Half minus_mean[3], inverse[3], prior;
};

struct HalfSums {  // as Sums
  Half zeroth, first[3], second[3];
};

struct WideSums {
  Wide zeroth, first[3], second[3];
};

// The lanes of vector v are those of two float32 vectors, `side` 0 and 1: of which tile and of which parent.
size_t part_of(size_t side) { return side % kParts; }
size_t parent_of(size_t v, size_t side) { return v * kTogether + side % kTogether; }

size_t vectors_of(const Routing& r) { return (r.parents + kTogether - 1) / kTogether; }
size_t padded(const Routing& r) { return (r.children + kSummed - 1) / kSummed * kSummed; }

// The rotations of kSummed children from i on, for the first vector of parents; for the next they lie so much further.
constexpr size_t kRotations = kSummed * 9 * kTogether;
const uint16_t* half_rotations_of(const Routing& r, size_t i) {
  return r.half_rotation + i % r.half_period / kSummed * vectors_of(r) * kRotations;
}

// In a loop of its own: only one of NEON's two units converts, and what waits for it would hold up what multiplies.
void add(const HalfSums* groups, size_t vectors, WideSums* sums) {
  const Half* from = &groups[0].zeroth;
  Wide* to = &sums[0].zeroth;
  for (size_t i = 0; i < 7 * vectors; ++i) to[i] += widen(from[i]);
}

void scale(WideSums* sums, size_t vectors, float by) {
  for (size_t v = 0; v < vectors; ++v) {
    sums[v].zeroth = sums[v].zeroth * by;
    for (size_t h = 0; h < 3; ++h) {
      sums[v].first[h] = sums[v].first[h] * by;
      sums[v].second[h] = sums[v].second[h] * by;
    }
  }
}

// Packs the children of the tiles one after the other: channel by channel, place by place.
class Packer {
 public:
  Packer(const Routing& r, const Tile* tiles) : r_(r), tiles_(tiles) {}

  void pack(HalfChild* to) {
    if (place_ == r_.places) return static_cast<void>(*to = HalfChild{});  // it only fills up a group
    Vec pose[3][kParts];
    for (size_t part = 0; part < kParts; ++part) {
      Child child = child_of(r_, tiles_[part], offset_, channel_);
      for (size_t h = 0; h < 3; ++h) pose[h][part] = child.pose[h];
      to->activation[part] = child.activation;
    }
    for (size_t h = 0; h < 3; ++h) to->pose[h] = store_windows(pose[h]);
    if (++channel_ < r_.channels) return;
    channel_ = 0;
    offset_ = place_offset(r_, ++place_);
  }

 private:
  const Routing& r_;
  const Tile* tiles_;
  size_t place_ = 0, channel_ = 0, offset_ = 0;
};

struct ScaledChild {  // the root of the activation in the pose: root * vote = R (root * u)
  Half pose[3], root, unused;
};

// The sums of kSummed children of a uniform sweep, for a vector of parents.
template <bool kShifted>
void add_uniform(const uint16_t* rotations, const ScaledChild* children, const Half* minus_shift, HalfSums& to) {
#if defined(__aarch64__)
  static_assert(sizeof *children == 80, "as half_neon.h has it");
  if (!kShifted) return uniform_sums(rotations, children, to.first);
#endif
  HalfSums sums{};
  for (size_t k = 0; k < kSummed; ++k) {
    const Half root = children[k].root;
    Half d[3];
    if (kShifted) {
      for (size_t h = 0; h < 3; ++h) d[h] = minus_shift[h] * root;
      add_vote(rotations, k, children[k].pose, d);
    } else {
      set_vote(rotations, k, children[k].pose, d);
    }
    for (size_t h = 0; h < 3; ++h) {
      sums.first[h] = multiply_add(root, d[h], sums.first[h]);
      sums.second[h] = multiply_add(d[h], d[h], sums.second[h]);
    }
  }
  to = sums;
}

// The first sweep, which is not shifted, packs the children of the tile as it goes.
template <bool kShifted>
void uniform_sweep(const Routing& r, const Tile* tiles, HalfChild* children, const Half (*minus_shift)[3],
                   HalfSums* groups, WideSums* sums) {
  size_t vectors = vectors_of(r);
  Vec mass[kParts] = {};
  Packer packer(r, tiles);
  memset(groups, 0, vectors * sizeof *groups);
  memset(sums, 0, vectors * sizeof *sums);
  for (size_t i = 0; i < padded(r); i += kSummed) {
    ScaledChild scaled[kSummed];
    for (size_t k = 0; k < kSummed; ++k) {
      HalfChild& child = children[i + k];
      if (!kShifted) packer.pack(&child);
      Vec roots[kParts];
      for (size_t part = 0; part < kParts; ++part) {
        Vec a = child.activation[part];
        mass[part] += a;
        roots[part] = kRootOfScale * a * inverse_root(max(broadcast(1e-20f), a));
      }
      const Half root = for_all_parents(store_windows(roots));
      scaled[k].root = root;
      for (size_t h = 0; h < 3; ++h) scaled[k].pose[h] = root * for_all_parents(child.pose[h]);
    }
    const uint16_t* rotations = half_rotations_of(r, i);
    for (size_t v = 0; v < vectors; ++v, rotations += kRotations) {
      add_uniform<kShifted>(rotations, scaled, minus_shift[v], groups[v]);
    }
    add(groups, vectors, sums);
  }
  for (size_t v = 0; v < vectors; ++v) sums[v].zeroth = interleave(mass[0], mass[kParts - 1]) * kScale;
  scale(sums, vectors, 1.0f / (kScale * static_cast<float>(r.parents)));
}

// The votes of kSummed children less a shift, and their logits.
template <bool kShifted>
void votes_and_logits(const uint16_t* rotations, size_t vectors, const HalfChild* children,
                      const HalfGaussian* gaussians, const Half (*minus_shift)[3], Half (*votes)[kSummed][3],
                      Half (*p)[kSummed]) {
#if defined(__aarch64__)
  static_assert(sizeof *children == 80, "as half_neon.h has it");
  for (size_t v = 0; v < vectors && !kShifted; ++v) {
    votes_about_mean(rotations + v * kRotations, children, gaussians[v].minus_mean, votes[v], p[v]);
  }
  if (!kShifted) return;
#endif
  for (size_t first = 0; first < kSummed; first += kGroup) {
    Half pose[kGroup][3];
    for (size_t k = 0; k < kGroup; ++k) {
      for (size_t h = 0; h < 3; ++h) pose[k][h] = for_all_parents(children[first + k].pose[h]);
    }
    for (size_t v = 0; v < vectors; ++v) {
      const HalfGaussian& g = gaussians[v];
      const Half* start = kShifted ? minus_shift[v] : g.minus_mean;
      for (size_t k = 0; k < kGroup; ++k) {
        Half d[3] = {reload(&start[0]), reload(&start[1]), reload(&start[2])}, logit = reload(&g.prior);
        add_vote(rotations + v * kRotations, first + k, pose[k], d);
        for (size_t h = 0; h < 3; ++h) {
          votes[v][first + k][h] = d[h];
          if (kShifted) d[h] += g.minus_mean[h] - start[h];
          logit = minus_square(d[h] * g.inverse[h], logit);
        }
        p[v][first + k] = logit;
      }
    }
  }
}

// Replaces the logits of kGroup children, for some vectors of parents, by powers of 2, and gives the sums of these.
void set_powers(size_t vectors, const Powers& powers, const Half* terms, Half (*p)[kSummed], Half* sums) {
#if defined(__aarch64__)
  if (!powers.subtract) return powers_of_four(vectors, powers.floor, powers.round, terms, p, sums);
#endif
  for (size_t k = 0; k < kGroup; ++k) {
    const Powers::OfChild power = powers.of(k);
    Half sum{};
    for (size_t v = 0; v < vectors; ++v) sum += p[v][k] = power(p[v][k], terms);
    sums[k] = sum;
  }
}

// Replaces the logits of kGroup children by powers of 2, and sets their weights: kScale * activation / sum of powers.
void softmax(const HalfChild* children, size_t vectors, const Half* terms, Half (*p)[kSummed], Half* weight) {
  constexpr size_t kAdded = 8;  // powers whose sum is float16
  Half a = p[0][0], b = p[0][1], c = p[0][2], d = p[0][3];
  for (size_t v = 1; v < vectors; ++v) {
    a = max(a, p[v][0]), b = max(b, p[v][1]), c = max(c, p[v][2]), d = max(d, p[v][3]);
  }
  const Half largest[kGroup] = {max_of_parents(a), max_of_parents(b), max_of_parents(c), max_of_parents(d)};
  const Powers powers(largest);
  Vec sum[kGroup][kParts] = {};
  for (size_t first = 0; first < vectors; first += kAdded) {
    Half some[kGroup];
    set_powers(vectors - first < kAdded ? vectors - first : kAdded, powers, terms, p + first, some);
    for (size_t k = 0; k < kGroup; ++k) {
      Vec added[kParts];
      sum_of_parents(some[k], added);
      for (size_t part = 0; part < kParts; ++part) sum[k][part] += added[part];
    }
  }
  for (size_t k = 0; k < kGroup; ++k) {
    for (size_t part = 0; part < kParts; ++part) {
      sum[k][part] = kScale * children[k].activation[part] * inverse(sum[k][part]);
    }
    weight[k] = for_all_parents(store_windows(sum[k]));
  }
}

template <bool kShifted>
void weighted_sweep(const Routing& r, const HalfChild* children, const HalfGaussian* gaussians,
                    const Half (*minus_shift)[3], const Half* terms, HalfSums* groups, WideSums* sums,
                    Half (*votes)[kSummed][3], Half (*p)[kSummed]) {
  size_t vectors = vectors_of(r);
  memset(sums, 0, vectors * sizeof *sums);
  for (size_t i = 0; i < padded(r); i += kSummed) {
    Half weight[kSummed];
    votes_and_logits<kShifted>(half_rotations_of(r, i), vectors, children + i, gaussians, minus_shift, votes, p);
    for (size_t first = 0; first < kSummed; first += kGroup) {
      auto own = reinterpret_cast<Half(*)[kSummed]>(p[0] + first);
      softmax(children + i + first, vectors, terms, own, weight + first);
    }
    for (size_t v = 0; v < vectors; ++v) {
      Half s{}, sx{}, sy{}, sz{}, sxx{}, syy{}, szz{};
      for (size_t k = 0; k < kSummed; ++k) {
        Half responsibility = p[v][k] * weight[k], x = votes[v][k][0], y = votes[v][k][1], z = votes[v][k][2];
        Half rx = responsibility * x, ry = responsibility * y, rz = responsibility * z;
        s += responsibility, sx += rx, sy += ry, sz += rz;
        sxx = multiply_add(rx, x, sxx), syy = multiply_add(ry, y, syy), szz = multiply_add(rz, z, szz);
      }
      groups[v].zeroth = s, groups[v].first[0] = sx, groups[v].first[1] = sy, groups[v].first[2] = sz;
      groups[v].second[0] = sxx, groups[v].second[1] = syy, groups[v].second[2] = szz;
    }
    add(groups, vectors, sums);
  }
  scale(sums, vectors, 1.0f / kScale);
}

struct Arrays {
  HalfChild* children;
  Half (*votes)[kSummed][3];
  Half (*p)[kSummed];
  Half* terms;
  HalfSums* groups;
  WideSums* sums;
  HalfGaussian* gaussians;
  Half (*half_shift)[3];
  // By part.
  Sums* parts[kParts];
  Moments* moments[kParts];
  Vec (*minus_shift[kParts])[3];
  Vec *z[kParts], *log_spread[kParts], *prior[kParts];

  Arrays(const Routing& r, Scratch& scratch)
      : children(scratch.take<HalfChild>(padded(r))),
        votes(scratch.take<Half[kSummed][3]>(vectors_of(r))),
        p(scratch.take<Half[kSummed]>(vectors_of(r))),
        terms(scratch.take<Half>(Powers::kTerms)),
        groups(scratch.take<HalfSums>(vectors_of(r))),
        sums(scratch.take<WideSums>(vectors_of(r))),
        gaussians(scratch.take<HalfGaussian>(vectors_of(r))),
        half_shift(scratch.take<Half[3]>(vectors_of(r))) {
    size_t parents = vectors_of(r) * kTogether;
    for (size_t part = 0; part < kParts; ++part) {
      parts[part] = scratch.take<Sums>(parents);
      moments[part] = scratch.take<Moments>(parents);
      minus_shift[part] = scratch.take<Vec[3]>(parents);
      z[part] = scratch.take<Vec>(parents);
      log_spread[part] = scratch.take<Vec>(parents);
      prior[part] = scratch.take<Vec>(parents);
    }
  }
};

// Sums of vectors of parents -> sums of parents.
void split_sums(const Routing& r, Arrays& a) {
  for (size_t v = 0; v < vectors_of(r); ++v) {
    Wide from[7];
    memcpy(from, &a.sums[v], sizeof from);
    Vec to[2][7];
    for (size_t i = 0; i < 7; ++i) {
      Wide both = split(from[i]);
      to[0][i] = both.low;
      to[1][i] = both.high;
    }
    for (size_t side = 0; side < 2; ++side) memcpy(&a.parts[part_of(side)][parent_of(v, side)], to[side], sizeof *to);
  }
}

// The M-step of all parts: false if a number is not finite. Sets `lost` if a sweep about the new means is needed.
bool m_step(const Routing& r, Arrays& a, bool* lost) {
  split_sums(r, a);
  VecInt beyond{};
  *lost = false;
  for (size_t part = 0; part < kParts; ++part) {
    *lost |= m_step(r, a.parts[part], a.minus_shift[part], a.moments[part]);
    for (size_t j = 0; j < r.parents; ++j) {
      const Sums& s = a.parts[part][j];
      Vec all = s.zeroth;
      for (size_t h = 0; h < 3; ++h) all += magnitude(s.first[h]) + s.second[h];
      beyond |= ~(all < 3e38f);
    }
  }
  return !any(beyond);
}

// Rounds the means to float16: both sides must mean the same shift.
void set_shift(const Routing& r, Arrays& a) {
  for (size_t part = 0; part < kParts; ++part) set_minus_shift(r, a.moments[part], a.minus_shift[part]);
  for (size_t v = 0; v < vectors_of(r); ++v) {
    for (size_t h = 0; h < 3; ++h) {
      Vec* first = &a.minus_shift[part_of(0)][parent_of(v, 0)][h];
      Vec* second = &a.minus_shift[part_of(1)][parent_of(v, 1)][h];
      a.half_shift[v][h] = join(*first, *second);
      Wide rounded = split(widen(a.half_shift[v][h]));
      *first = rounded.low;
      *second = rounded.high;
    }
  }
}

// The parents as the E-step sees them. Priors are less the largest of their window, so that float16 keeps their digits.
void set_gaussians(const Routing& r, Arrays& a) {
  for (size_t part = 0; part < kParts; ++part) {
    Vec largest = broadcast(-__builtin_inff());
    for (size_t j = 0; j < r.parents; ++j) {
      a.prior[part][j] = kLog2E * (log_sigmoid(a.z[part][j]) - a.log_spread[part][j]);
      largest = max(largest, a.prior[part][j]);
    }
    for (size_t j = 0; j < r.parents; ++j) a.prior[part][j] -= largest;
  }
  for (size_t v = 0; v < vectors_of(r); ++v) {
    HalfGaussian& g = a.gaussians[v];
    memcpy(g.minus_mean, a.half_shift[v], sizeof g.minus_mean);
    auto both = [&](auto value_of) {
      return join(value_of(part_of(0), parent_of(v, 0)), value_of(part_of(1), parent_of(v, 1)));
    };
    g.prior = both([&](size_t part, size_t j) { return a.prior[part][j]; });
    for (size_t h = 0; h < 3; ++h) {
      g.inverse[h] = both([&](size_t part, size_t j) { return sqrt(0.5f * kLog2E / a.moments[part][j].variance[h]); });
    }
  }
}

// False: a number was beyond float16.
bool route(const Routing& r, const Tile* tiles, Arrays& a) {
  size_t parents = vectors_of(r) * kTogether;
  for (size_t part = 0; part < kParts; ++part) {
    memset(a.minus_shift[part], 0, parents * sizeof *a.minus_shift[part]);
    for (size_t j = r.parents; j < parents; ++j) {
      a.moments[part][j] = Moments{};
      for (Vec& variance : a.moments[part][j].variance) variance = broadcast(1.0f);
      a.prior[part][j] = broadcast(kNever);
    }
  }
  Powers::set_terms(a.terms);
  bool lost = false;
  uniform_sweep<false>(r, tiles, a.children, a.half_shift, a.groups, a.sums);
  if (!m_step(r, a, &lost)) return false;
  if (lost) {
    set_shift(r, a);
    uniform_sweep<true>(r, tiles, a.children, a.half_shift, a.groups, a.sums);
    if (!m_step(r, a, &lost)) return false;
  }
  for (size_t iteration = 0;; ++iteration) {
    for (size_t part = 0; part < kParts; ++part) {
      if (r.statistics) save_moments(r, tiles[part], iteration, a.moments[part]);
      activations(r, a.moments[part], a.z[part], a.log_spread[part]);
    }
    if (iteration + 1 == r.iterations) return true;
    set_shift(r, a);
    set_gaussians(r, a);
    weighted_sweep<false>(r, a.children, a.gaussians, a.half_shift, a.terms, a.groups, a.sums, a.votes, a.p);
    if (!m_step(r, a, &lost)) return false;
    if (lost) {
      set_shift(r, a);
      weighted_sweep<true>(r, a.children, a.gaussians, a.half_shift, a.terms, a.groups, a.sums, a.votes, a.p);
      if (!m_step(r, a, &lost)) return false;
    }
  }
}

size_t scratch_floats(const Routing& r) {
  Scratch count;
  Arrays(r, count);
  size_t single = forward_scratch_floats(r);
  return single > count.floats() ? single : count.floats();
}

void half_tile(const Routing& r, size_t index, float* memory) {
  Tile tiles[kParts];
  for (size_t part = 0; part < kParts; ++part) tiles[part] = Tile(r, index * kParts + part);
  Scratch scratch(memory);
  Arrays a(r, scratch);
  bool finite = route(r, tiles, a);
  for (size_t part = 0; part < kParts; ++part) {
    if (finite) {
      set_outputs(r, tiles[part], a.moments[part], a.z[part]);
    } else if (tiles[part].valid > 0) {
      forward_tile(r, index * kParts + part, memory);
    }
  }
}

}  // namespace

const HalfRoutingKernels half_kernels = {QCN_TEXT(QCN_INSTRUCTION_SET),
                                         kParts* kLanes,
                                         {kSummed, kTogether, kChildStep, kEntryStep},
                                         scratch_floats,
                                         half_tile};

}  // namespace qcn::QCN_INSTRUCTION_SET

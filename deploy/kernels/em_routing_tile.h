// What the forward and the backward kernel share. A vector's lanes are windows, so that a sum over parents or children
// needs nothing across lanes, and a rotation is nine scalars.
#ifndef QCN_KERNELS_EM_ROUTING_TILE_H
#define QCN_KERNELS_EM_ROUTING_TILE_H

#include "em_routing.h"
#include "em_routing_cpu.h"
#include "vector.h"

namespace qcn::QCN_INSTRUCTION_SET {

constexpr size_t kGroup = 4;  // children (or tiles) worked at together: so many independent chains of multiply-adds

struct Child {
  Vec pose[3], activation;
};

struct Moments {  // of a parent, after an M-step
  Vec mass, mean[3], variance[3];
};

struct Gaussian {  // a parent as the E-step sees it, in base 2: logit = prior - sum of precision * (vote - mean)^2
  Vec minus_mean[3], precision[3], prior;
};

struct Sums {  // over the children: of a weight, of weight * d and of weight * d^2, with d a vote less some shift
  Vec zeroth, first[3], second[3];

  void add(const Sums& group) {
    zeroth += group.zeroth;
    for (size_t h = 0; h < 3; ++h) {
      first[h] += group.first[h];
      second[h] += group.second[h];
    }
  }
};

// A long sum in float32 loses digits: so children are summed in groups, groups in blocks, and blocks in totals.
constexpr size_t kBlock = 16 * kGroup;

inline void end_block(size_t parents, Sums* block, Sums* totals) {
  for (size_t j = 0; j < parents; ++j) {
    totals[j].add(block[j]);
    block[j] = Sums{};
  }
}

static_assert(sizeof(Moments) == QCN_ROUTING_STATISTICS * sizeof(Vec), "saved as they are");

size_t forward_scratch_floats(const Routing& r);
size_t backward_tile_scratch_floats(const Routing& r);
size_t backward_channel_scratch_floats(const Routing& r);
void forward_tile(const Routing& r, size_t tile, float* scratch);
void backward_tile(const Routing& r, size_t tile, float* scratch);
void backward_channel(const Routing& r, size_t channel, float* scratch);

// Cuts a thread's scratch into arrays of vectors. Without memory it only counts how much they would take.
class Scratch {
 public:
  explicit Scratch(float* memory = nullptr) : memory_(memory) {}

  template <typename T>
  T* take(size_t count) {
    T* array = memory_ ? reinterpret_cast<T*>(memory_ + floats_) : nullptr;
    floats_ += count * sizeof(T) / sizeof(float);
    return array;
  }

  size_t floats() const { return floats_; }

 private:
  float* memory_;
  size_t floats_ = 0;
};

// Where the windows of a tile lie. Lanes beyond the last window repeat it, and are never written. A tile may have none.
struct Tile {
  size_t first, valid;
  size_t image[kLanes], position[kLanes];  // position: of the window in its image
  size_t corner[kLanes];                   // of the window's first child in a height x width map
  bool consecutive;                        // all in one image, each beside the one before

#if QCN_LANES == 16
  struct Run {  // windows that are beside each other
    size_t first;
    __mmask16 lanes;
  };
  Run runs[kLanes];
  size_t run_count = 0;
#endif

  Tile() = default;
  Tile(const Routing& r, size_t index) : first(index * kLanes) {
    size_t left = first < r.windows ? r.windows - first : 0;
    valid = left < kLanes ? left : kLanes;
    consecutive = valid == kLanes;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      size_t window = lane < valid ? first + lane : r.windows - 1;
      image[lane] = window / r.positions;
      position[lane] = window % r.positions;
      corner[lane] = (position[lane] / r.columns * r.width + position[lane] % r.columns) * r.stride;
      consecutive = consecutive && image[lane] == image[0] && corner[lane] == corner[0] + lane;
#if QCN_LANES == 16
      bool beside = lane > 0 && image[lane] == image[lane - 1] && corner[lane] == corner[lane - 1] + 1;
      if (!beside) runs[run_count++] = {lane, 0};
      runs[run_count - 1].lanes |= static_cast<__mmask16>(1u << lane);
#endif
    }
  }

  // `map` is the child's place in the map of its channel in the first image.
  Vec children(const float* map, size_t image_size) const {
    if (consecutive) return load(map + image[0] * image_size + corner[0]);
#if QCN_LANES == 16
    if (run_count <= kLanes / 4) {
      __m512 x = _mm512_setzero_ps();
      for (size_t i = 0; i < run_count; ++i) {
        const Run& run = runs[i];
        x = _mm512_mask_loadu_ps(x, run.lanes, map + image[run.first] * image_size + corner[run.first] - run.first);
      }
      return x;
    }
#endif
    Vec x;
    for (size_t lane = 0; lane < kLanes; ++lane) x[lane] = map[image[lane] * image_size + corner[lane]];
    return x;
  }

  void add_to_children(float* map, size_t image_size, Vec x) const {
    if (consecutive) {
      float* to = map + image[0] * image_size + corner[0];
      return store(to, load(to) + x);
    }
    for (size_t lane = 0; lane < valid; ++lane) map[image[lane] * image_size + corner[lane]] += x[lane];
  }

  // `map` is [batch, ..., rows, columns] at the parent's place in the first image; lanes that are not valid read 0.
  Vec parents(const float* map, size_t image_size) const {
    Vec x{};
    for (size_t lane = 0; lane < valid; ++lane) x[lane] = map[image[lane] * image_size + position[lane]];
    return x;
  }

  void set_parents(float* map, size_t image_size, Vec x) const {
    for (size_t lane = 0; lane < valid; ++lane) map[image[lane] * image_size + position[lane]] = x[lane];
  }
};

// Where a place of the window lies, from the window's corner.
inline size_t place_offset(const Routing& r, size_t place) {
  return place / r.window_width * r.width + place % r.window_width;
}

// The child of one channel in every window of the tile; offset: of its place.
inline Child child_of(const Routing& r, const Tile& tile, size_t offset, size_t channel) {
  size_t map = r.height * r.width;
  const float* pose = r.pose + channel * 3 * map + offset;
  Child child;
  for (size_t h = 0; h < 3; ++h) child.pose[h] = tile.children(pose + h * map, r.channels * 3 * map);
  child.activation = tile.children(r.activation + channel * map + offset, r.channels * map);
  return child;
}

inline size_t padded_children(const Routing& r) { return (r.children + kGroup - 1) / kGroup * kGroup; }

// All children of the tile, in order of place and channel; those that fill up the last group are silent.
inline void pack_children(const Routing& r, const Tile& tile, Child* children) {
  for (size_t place = 0; place < r.places; ++place) {
    size_t offset = place_offset(r, place);
    for (size_t c = 0; c < r.channels; ++c) *children++ = child_of(r, tile, offset, c);
  }
  for (size_t i = r.children; i < padded_children(r); ++i) *children++ = Child{};
}

// The rotations of child i, [parents, 3, 3]. A child that only fills up a group has those of the last one.
inline const float* rotations_of(const Routing& r, size_t i) {
  if (i >= r.children) i = r.children - 1;
  return r.rotation + (r.shared ? i % r.channels : i) * r.parents * 9;
}

// Three scalars: row h of a rotation. NEON multiplies by a lane of a register, so that one load serves three
// multiply-adds; the last row is loaded from one place before, lest it end beyond the array.
class Row {
 public:
#if defined(__aarch64__)
  Row(const float* rotation, size_t h) : first_(h < 2 ? 0 : 1) {
    typedef float Four __attribute__((vector_size(16), aligned(4)));
    lanes_ = *reinterpret_cast<const volatile Four*>(rotation + (h < 2 ? 3 * h : 5));  // volatile: not three loads
  }
  float operator[](size_t i) const { return lanes_[first_ + i]; }

 private:
  float32x4_t lanes_;
  size_t first_;
#else
  Row(const float* rotation, size_t h) : row_(rotation + 3 * h) {}
  float operator[](size_t i) const { return row_[i]; }

 private:
  const float* row_;
#endif
};

// One axis of the vote, plus start.
inline Vec vote(const Row& row, const Vec* pose, Vec start) {
  return row[2] * pose[2] + (row[1] * pose[1] + (row[0] * pose[0] + start));
}

// Replaces the logits of a group by 2^(logit - largest) up to a common factor, and sets inverse_sum.
inline void softmax(Vec (*p)[kGroup], const Vec* largest, size_t parents, Vec* inverse_sum) {
  constexpr float kFar = -1048576.0f;  // kRound does not round beyond 2^22: such a largest logit is subtracted instead
  Vec round[kGroup], floor[kGroup], sum[kGroup];
  VecInt far{};
  for (size_t k = 0; k < kGroup; ++k) far |= largest[k] < kFar;
  bool subtract = any(far);
  if (subtract) {
    for (size_t j = 0; j < parents; ++j) {
      for (size_t k = 0; k < kGroup; ++k) p[j][k] -= largest[k];
    }
  }
  for (size_t k = 0; k < kGroup; ++k) {
    // An integer is taken off the exponent, which costs nothing: it goes into the constant that rounds.
    Vec nearest = subtract ? Vec{} : (largest[k] + kRound) - kRound;
    round[k] = kRound - nearest;
    floor[k] = nearest - 127.0f;
    sum[k] = Vec{};
  }
  for (size_t j = 0; j < parents; ++j) {
    Vec rounded[kGroup], fraction[kGroup], power[kGroup];
    for (size_t k = 0; k < kGroup; ++k) fraction[k] = max(floor[k], p[j][k]);
    for (size_t k = 0; k < kGroup; ++k) rounded[k] = fraction[k] + round[k];
    for (size_t k = 0; k < kGroup; ++k) fraction[k] -= rounded[k] - round[k];
    exp2_fraction(fraction, power);
    for (size_t k = 0; k < kGroup; ++k) power[k] *= exp2_integer(rounded[k]);
    for (size_t k = 0; k < kGroup; ++k) p[j][k] = power[k];
    for (size_t k = 0; k < kGroup; ++k) sum[k] += power[k];
  }
  for (size_t k = 0; k < kGroup; ++k) inverse_sum[k] = 1.0f / sum[k];
}

// A parent's activation before the sigmoid, for all parents of the tile, and half the logarithm of its variances'
// product. In unit mode z is divided by `norm`, its length over the parents.
inline Vec activations(const Routing& r, const Moments* moments, Vec* z, Vec* log_spread) {
  float scale = 2.0f * static_cast<float>(r.parents) / static_cast<float>(r.children);
  Vec square{};
  for (size_t j = 0; j < r.parents; ++j) {
    const Moments& m = moments[j];
    log_spread[j] = 0.5f * (log(m.variance[0]) + log(m.variance[1]) + log(m.variance[2]));
    z[j] = r.beta_a[j] - (3.0f * r.beta_u[j] + log_spread[j]) * m.mass * scale;
    square += z[j] * z[j];
  }
  if (!r.unit) return broadcast(1.0f);
  Vec norm = max(broadcast(1e-12f), sqrt(square));
  for (size_t j = 0; j < r.parents; ++j) z[j] /= norm;
  return norm;
}

inline Gaussian gaussian_of(const Moments& m, Vec z, Vec log_spread) {
  Gaussian g;
  for (size_t h = 0; h < 3; ++h) {
    g.minus_mean[h] = -m.mean[h];
    g.precision[h] = 0.5f * kLog2E / m.variance[h];
  }
  g.prior = kLog2E * (log_sigmoid(z) - log_spread);
  return g;
}

// Moments about m lose digits when the mean is many spreads away from m: past this ratio of squares the sweep is done
// once more, about the mean it found.
constexpr float kCancellation = 8.0f;

// Moments from sums about a shift; true if they lost digits that a sweep about the new mean would keep.
inline bool m_step(const Routing& r, const Sums* sums, const Vec (*minus_shift)[3], Moments* moments) {
  VecInt lost{};
  for (size_t j = 0; j < r.parents; ++j) {
    Vec mass = sums[j].zeroth, inverse = 1.0f / (mass + kMassFloor);
    moments[j].mass = mass;
    for (size_t h = 0; h < 3; ++h) {
      Vec first = sums[j].first[h], second = sums[j].second[h];
      Vec moved = (first + kMassFloor * minus_shift[j][h]) * inverse;
      Vec square = max(Vec{}, second - moved * (2.0f * first - moved * mass));
      moments[j].mean[h] = moved - minus_shift[j][h];
      moments[j].variance[h] = square * inverse + kVarianceFloor;
      lost |= moved * moved * mass * inverse > kCancellation * moments[j].variance[h];
    }
  }
  return any(lost);
}

inline void set_minus_shift(const Routing& r, const Moments* moments, Vec (*minus_shift)[3]) {
  for (size_t j = 0; j < r.parents; ++j) {
    for (size_t h = 0; h < 3; ++h) minus_shift[j][h] = -moments[j].mean[h];
  }
}

// statistics: [iterations][QCN_ROUTING_STATISTICS][parents][windows]
inline void save_moments(const Routing& r, const Tile& tile, size_t iteration, const Moments* moments) {
  for (size_t j = 0; j < r.parents; ++j) {
    float values[QCN_ROUTING_STATISTICS][kLanes];
    memcpy(values, &moments[j], sizeof values);
    for (size_t s = 0; s < QCN_ROUTING_STATISTICS; ++s) {
      float* to = r.statistics + ((iteration * QCN_ROUTING_STATISTICS + s) * r.parents + j) * r.windows + tile.first;
      memcpy(to, values[s], tile.valid * sizeof(float));
    }
  }
}

inline void set_outputs(const Routing& r, const Tile& tile, const Moments* moments, const Vec* z) {
  for (size_t j = 0; j < r.parents; ++j) {
    for (size_t h = 0; h < 3; ++h) {
      tile.set_parents(r.out_pose + (j * 3 + h) * r.positions, r.parents * 3 * r.positions, moments[j].mean[h]);
    }
    tile.set_parents(r.out_activation + j * r.positions, r.parents * r.positions, r.logit ? z[j] : sigmoid(z[j]));
  }
}

}  // namespace qcn::QCN_INSTRUCTION_SET

#endif

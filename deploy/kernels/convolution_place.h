// What the convolutions of floats and of integers share: where pixels lie, and the activation function.
#ifndef QCN_KERNELS_CONVOLUTION_PLACE_H
#define QCN_KERNELS_CONVOLUTION_PLACE_H

#include "convolution.h"
#include "vector.h"

namespace qcn::QCN_INSTRUCTION_SET {

// Where the pixels of a tile lie: in each source, and in what is written. Pixels beyond the last repeat it, and are
// never written.
struct Place {
  size_t image, y, x;

  Place(const Map& map, size_t pixel)
      : image(pixel / (map.height * map.width)), y(pixel / map.width % map.height), x(pixel % map.width) {}

  void advance(const Map& map) {
    if (++x < map.width) return;
    x = 0;
    if (++y < map.height) return;
    y = 0;
    ++image;
  }
};

inline size_t offset_in(const Convolution::Source& s, const Place& place) {
  return place.image * image_floats(s.map) + place.y * s.stride * row_floats(s.map) +
         place.x * s.stride * s.map.channels + inside(s.map, s.map.border - s.padding);
}

inline size_t planar_offset(const Map& map, const Place& place) {
  return (place.image * map.channels * map.height + place.y) * map.width + place.x;
}

inline size_t map_offset(const Map& map, const Place& place) {
  return place.image * image_floats(map) + place.y * row_floats(map) + place.x * map.channels + inside(map, map.border);
}

inline size_t offset_out(const Convolution& c, const Place& place) {
  return c.planar ? planar_offset(c.out, place) : map_offset(c.out, place);
}

// How many of `pixels` are left for tiles of `fewer`: 16 pixels are two tiles of 8 rather than one of 12 and a bit.
inline size_t tiles_rest(size_t pixels, size_t tile, size_t fewer) {
  const size_t rest = pixels % tile;
  return rest > 0 && rest + tile <= 2 * fewer && pixels > tile ? rest + tile : rest > fewer ? 0 : rest;
}

// Where the pixels of a tile are read. Of pixels at equal distances few places are known, in registers, and the others
// follow; x86 has not enough registers for a place each.
template <typename Element, size_t pixels>
struct Spaced {
  const Element* from[(pixels + 2) / 3];
  size_t step;

  Spaced(const Element* const (&all)[pixels], size_t distance) : step(distance) {
    for (size_t i = 0; i < pixels; i += 3) from[i / 3] = all[i];
  }
  const Element* operator[](size_t p) const { return from[p / 3] + p % 3 * step; }
  void advance(size_t numbers) {
    for (const Element*& one : from) one += numbers;
  }
};

template <typename Element, size_t pixels>
struct Scattered {
  const Element* from[pixels];

  Scattered(const Element* const (&all)[pixels], size_t) {
    for (size_t p = 0; p < pixels; ++p) from[p] = all[p];
  }
  const Element* operator[](size_t p) const { return from[p]; }
  void advance(size_t numbers) {
    for (const Element*& one : from) one += numbers;
  }
};

template <typename Element, size_t pixels>
inline bool equally_spaced(const Element* const (&from)[pixels], size_t distance) {
  for (size_t p = 1; p < pixels; ++p) {
    if (from[p] != from[p - 1] + distance) return false;
  }
  return true;
}

inline Vec ended(Ending ending, Vec x) {
  switch (ending) {
    case Ending::kNone:
      return x;
    case Ending::kRelu:
      return max(Vec{}, x);
    case Ending::kRelu6:
      return min(broadcast(6), max(Vec{}, x));
    case Ending::kSigmoid:
      return sigmoid(x);
  }
  return x;
}

template <size_t pixels, size_t vectors>
inline void end_all(Ending ending, Vec (&x)[pixels][vectors]) {
  const auto all = [&](const auto& end) {
    for (size_t p = 0; p < pixels; ++p) {
      for (size_t v = 0; v < vectors; ++v) x[p][v] = end(x[p][v]);
    }
  };
  if (ending == Ending::kRelu) all([](Vec y) { return ended(Ending::kRelu, y); });
  if (ending == Ending::kRelu6) all([](Vec y) { return ended(Ending::kRelu6, y); });
  if (ending == Ending::kSigmoid) all([](Vec y) { return ended(Ending::kSigmoid, y); });
}

}  // namespace qcn::QCN_INSTRUCTION_SET

#endif

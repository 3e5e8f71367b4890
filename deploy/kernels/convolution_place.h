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

}  // namespace qcn::QCN_INSTRUCTION_SET

#endif

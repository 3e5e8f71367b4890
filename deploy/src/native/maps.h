// What the native backend does to maps beside convolutions and routing: little work, in plain loops.
#ifndef QCN_SRC_NATIVE_MAPS_H
#define QCN_SRC_NATIVE_MAPS_H

#include <cstddef>

#include "convolution.h"

namespace qcn::native {

// How a map lies in memory: its first number, and the way from one image, channel, row and column to the next.
struct Strides {
  std::size_t first, image, channel, row, column;
};

Strides planar_strides(const Map& map);   // [channels][height][width], as routing reads it
Strides feature_strides(const Map& map);  // as convolutions read it: convolution.h

// One row's share of the border of an image, whose numbers have `size` bytes, made of bytes of this value: what lies
// between this row and the next, and of the first row what is before it.
void clear_border(const Map& map, std::size_t row, std::size_t size, int value, void* image);

// One image, through ending(x * scale + shift) by channel. scale is null: copied as it is.
void transform(const Map& map, const float* scale, const float* shift, Ending ending, const float* in,
               const Strides& in_strides, float* out, const Strides& out_strides);

// One image: out = a + b.
void add_maps(const Map& map, const float* a, const Strides& a_strides, const float* b, const Strides& b_strides,
              float* out, const Strides& out_strides);

// One image: the largest number, or the average, of each window. `out` is the map that is made.
void pool(const Map& out_map, std::size_t kernel, std::size_t stride, bool average, const float* in,
          const Strides& in_strides, float* out, const Strides& out_strides);

}  // namespace qcn::native

#endif

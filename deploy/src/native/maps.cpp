#include "maps.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace qcn::native {
namespace {

using std::size_t;

float ended(Ending ending, float x) {
  if (ending == Ending::kRelu || ending == Ending::kRelu6) {
    const float most = ending == Ending::kRelu ? INFINITY : 6.0f;
    return x < 0 ? 0.0f : x > most ? most : x;  // a NaN stays one
  }
  return ending == Ending::kSigmoid ? 1 / (1 + std::exp(-x)) : x;
}

}  // namespace

Strides planar_strides(const Map& map) {
  const size_t plane = map.height * map.width;
  return {0, map.channels * plane, plane, map.width, 1};
}

Strides feature_strides(const Map& map) {
  return {inside(map, map.border), image_floats(map), 1, row_floats(map), map.channels};
}

void clear_border(const Map& map, size_t row, size_t size, int value, void* image) {
  auto* bytes = static_cast<unsigned char*>(image);
  const size_t line = row_floats(map) * size, edge = map.border * map.channels * size, whole = map.border * line + edge;
  if (row == 0) std::memset(bytes, value, whole);
  unsigned char* behind = bytes + (map.border + row + 1) * line - edge;
  std::memset(behind, value, row + 1 == map.height ? whole : 2 * edge);
}

void transform(const Map& map, const float* scale, const float* shift, Ending ending, const float* in,
               const Strides& in_strides, float* out, const Strides& out_strides) {
  for (size_t c = 0; c < map.channels; ++c) {
    for (size_t y = 0; y < map.height; ++y) {
      const float* from = in + in_strides.first + c * in_strides.channel + y * in_strides.row;
      float* to = out + out_strides.first + c * out_strides.channel + y * out_strides.row;
      for (size_t x = 0; x < map.width; ++x, from += in_strides.column, to += out_strides.column) {
        *to = scale ? ended(ending, *from * scale[c] + shift[c]) : *from;
      }
    }
  }
}

void add_maps(const Map& map, const float* a, const Strides& a_strides, const float* b, const Strides& b_strides,
              float* out, const Strides& out_strides) {
  for (size_t y = 0; y < map.height; ++y) {
    const float* first = a + a_strides.first + y * a_strides.row;
    const float* second = b + b_strides.first + y * b_strides.row;
    float* to = out + out_strides.first + y * out_strides.row;
    if (a_strides.channel == 1 && b_strides.channel == 1 && out_strides.channel == 1) {  // a row lies in one piece
      for (size_t i = 0; i < map.width * map.channels; ++i) to[i] = first[i] + second[i];
      continue;
    }
    for (size_t x = 0; x < map.width; ++x) {
      for (size_t c = 0; c < map.channels; ++c) {
        to[x * out_strides.column + c * out_strides.channel] =
            first[x * a_strides.column + c * a_strides.channel] + second[x * b_strides.column + c * b_strides.channel];
      }
    }
  }
}

void pool(const Map& out_map, size_t kernel, size_t stride, bool average, const float* in, const Strides& in_strides,
          float* out, const Strides& out_strides) {
  const float share = 1 / static_cast<float>(kernel * kernel);
  for (size_t y = 0; y < out_map.height; ++y) {
    for (size_t x = 0; x < out_map.width; ++x) {
      const float* window = in + in_strides.first + y * stride * in_strides.row + x * stride * in_strides.column;
      float* to = out + out_strides.first + y * out_strides.row + x * out_strides.column;
      for (size_t c = 0; c < out_map.channels; ++c) {
        float found = average ? 0.0f : -INFINITY;
        for (size_t ky = 0; ky < kernel; ++ky) {
          const float* from = window + c * in_strides.channel + ky * in_strides.row;
          for (size_t kx = 0; kx < kernel; ++kx, from += in_strides.column) {
            if (average) {
              found += *from;
            } else if (*from > found || std::isnan(*from)) {  // a NaN stays: nothing is larger
              found = *from;
            }
          }
        }
        to[c * out_strides.channel] = average ? found * share : found;
      }
    }
  }
}

}  // namespace qcn::native

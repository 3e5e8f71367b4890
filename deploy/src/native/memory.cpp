#include "memory.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace qcn::native {
namespace {

using std::size_t;

// Calls see(place) for what a step reads and writes.
template <typename See>
void see_places(BorderStep& s, const See& see) {
  see(s.out);
}
template <typename See>
void see_places(TransformStep& s, const See& see) {
  see(s.in), see(s.out);
}
template <typename See>
void see_places(ConvolutionStep& s, const See& see) {
  for (size_t i = 0; i < s.convolution.source_count; ++i) see(s.in[i]);
  see(s.out);
}
template <typename See>
void see_places(QuantiseStep& s, const See& see) {
  see(s.in), see(s.out);
}
template <typename See>
void see_places(IntegerStep& s, const See& see) {
  for (size_t i = 0; i < s.convolution.shape.source_count; ++i) see(s.in[i]);
  see(s.out);
}
template <typename See>
void see_places(SumStep& s, const See& see) {
  see(s.in[0]), see(s.in[1]), see(s.out);
}
template <typename See>
void see_places(PoolStep& s, const See& see) {
  see(s.in), see(s.out);
}
template <typename See>
void see_places(RouteStep& s, const See& see) {
  see(s.pose), see(s.activation), see(s.out_pose), see(s.out_activation);
}

bool same_shape(const MapMemory& a, const MapMemory& b) {
  const auto shape = [](const MapMemory& m) {
    return std::tuple(m.map.height, m.map.width, m.map.channels, m.map.border, m.bytes);
  };
  return shape(a) == shape(b);
}

bool overlap(const MapMemory& a, const MapMemory& b) {
  return a.place < b.place + b.floats && b.place < a.place + a.floats;
}

// Where a map of its shape was not long ago, so that the border is kept; else the lowest place that is free.
void find_place(std::vector<MapMemory>& all, size_t number) {
  constexpr size_t kTried = 8;  // a program may have thousands of maps
  MapMemory& made = all[number];
  std::vector<const MapMemory*> beside;  // needed at the same time, by place
  for (size_t i = 0; i < number; ++i) {
    if (made.first <= all[i].last && all[i].first <= made.last) beside.push_back(&all[i]);
  }
  std::sort(beside.begin(), beside.end(), [](const auto* a, const auto* b) { return a->place < b->place; });
  for (size_t i = number, tried = 0; i-- > 0 && tried < kTried;) {
    if (!same_shape(made, all[i])) continue;
    made.place = all[i].place;
    ++tried;
    if (std::none_of(beside.begin(), beside.end(), [&](const auto* other) { return overlap(made, *other); })) return;
  }
  made.place = 0;
  for (const MapMemory* other : beside) {
    if (made.place + made.floats <= other->place) return;
    made.place = std::max(made.place, other->place + other->floats);
  }
}

}  // namespace

size_t lay_out(Plan& plan) {
  std::vector<MapMemory>& all = plan.memory;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const auto see = [&](Place& place) {
      if (place == kImages) return;
      all[place].first = std::min(all[place].first, i);
      all[place].last = i;
    };
    std::visit([&](auto& step) { see_places(step, see); }, plan.steps[i]);
  }
  all[plan.logit].last = SIZE_MAX;
  if (plan.pose) all[*plan.pose].last = SIZE_MAX;
  size_t floats = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    find_place(all, i);
    floats = std::max(floats, all[i].place + all[i].floats);
  }
  for (Step& step : plan.steps) {
    if (auto* border = std::get_if<BorderStep>(&step)) {
      const MapMemory& of = all[border->out];
      border->once = std::none_of(all.begin(), all.end(), [&](const MapMemory& other) {
        return overlap(of, other) && !(same_shape(of, other) && of.place == other.place);
      });
    }
    const auto put = [&](Place& place) { place = place == kImages ? kImages : all[place].place; };
    std::visit([&](auto& one) { see_places(one, put); }, step);
  }
  plan.logit = all[plan.logit].place;
  if (plan.pose) plan.pose = all[*plan.pose].place;
  return floats;
}

}  // namespace qcn::native

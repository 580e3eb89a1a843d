// Parallel loops that do not need torch's headers.
#pragma once

#include <cstdint>

namespace nightquant {

using Body = void (*)(void* context, int64_t begin, int64_t end);

// Runs at::parallel_for over [0, count) in pieces of at least `grain`.
void run_parallel(int64_t count, int64_t grain, Body body, void* context);

template <typename F>
void parallel(int64_t count, int64_t grain, F&& function) {
  if (count <= grain) {
    function(int64_t{0}, count);
    return;
  }
  const Body body = [](void* context, int64_t begin, int64_t end) { (*static_cast<F*>(context))(begin, end); };
  run_parallel(count, grain, body, &function);
}

// With fewer multiply-adds, dispatching work to another thread costs more than it saves.
constexpr int64_t kWork = 1 << 20;

inline int64_t grain_of(int64_t work_of_one) {
  const int64_t grain = kWork / (work_of_one > 0 ? work_of_one : 1);
  return grain > 0 ? grain : 1;
}

}  // namespace nightquant

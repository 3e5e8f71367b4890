// In place of kernels/threads.cpp. The threads of a page are workers that share this memory: they come in by
// qcn_web_help and stay (libqcn.js). Where memory is not shared there are none, and the caller does all of the work.
#include "threads.h"

#include <algorithm>
#include <atomic>

namespace qcn {
namespace {

struct Job {
  std::size_t count;
  Task task;
  const void* context;
  std::atomic<std::size_t> next{0};

  void work(float* scratch) {
    for (std::size_t item; (item = next.fetch_add(1)) < count;) task(context, item, scratch);
  }
};

constexpr int kMostHelpers = 15;

Memory scratches[kMostHelpers + 1];  // the last is the caller's; grows while no job is out
std::atomic<int> helpers{0};
std::atomic<Job*> the_job{nullptr};

#if defined(__wasm_atomics__)
std::atomic<int> working{0};  // helpers
std::atomic<int> jobs{0};     // how many there were: what helpers wait for

void offer(Job& job) {
  the_job = &job;
  ++jobs;
  __builtin_wasm_memory_atomic_notify(reinterpret_cast<int*>(&jobs), ~0u);
}
// Not for long: no item of the job is left to begin with.
void wait_for_helpers() {
  for (int left, spins = 0; (left = working) > 0;) {
    if (++spins > 1000) __builtin_wasm_memory_atomic_wait32(reinterpret_cast<int*>(&working), left, -1);
  }
}
#else
void offer(Job&) {}
void wait_for_helpers() {}
#endif

}  // namespace

void set_threads(int) {}  // as many as came in
int thread_count() { return helpers + 1; }

bool run_tasks(std::size_t count, std::size_t scratch_floats, Task task, const void* context) {
  const std::size_t bytes = scratch_floats * sizeof(float);
  float* const scratch = static_cast<float*>(scratches[kMostHelpers].get(bytes));
  bool ready = scratch || bytes == 0;
  for (int i = 0; i < helpers; ++i) ready = (scratches[i].get(bytes) || bytes == 0) && ready;
  if (!ready) return false;
  Job job{count, task, context};
  if (count > 1 && helpers > 0) offer(job);
  job.work(scratch);
  the_job = nullptr;
  wait_for_helpers();
  return true;
}

}  // namespace qcn

extern "C" __attribute__((export_name("qcn_web_threads"))) int qcn_web_threads() { return qcn::thread_count(); }

#if defined(__wasm_atomics__)
// The life of a helper, which has a stack of its own and never comes back. They come in one after the other.
extern "C" __attribute__((export_name("qcn_web_help"))) void qcn_web_help() {
  const int number = qcn::helpers;
  if (number >= qcn::kMostHelpers) return;
  int seen = qcn::jobs;
  ++qcn::helpers;
  for (;; seen = qcn::jobs) {
    __builtin_wasm_memory_atomic_wait32(reinterpret_cast<int*>(&qcn::jobs), seen, -1);
    ++qcn::working;
    if (qcn::Job* const job = qcn::the_job) job->work(static_cast<float*>(qcn::scratches[number].get(0)));
    --qcn::working;
    __builtin_wasm_memory_atomic_notify(reinterpret_cast<int*>(&qcn::working), ~0u);
  }
}
#endif

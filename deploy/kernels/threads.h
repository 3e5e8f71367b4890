// The threads of the library: started when first needed, then kept, asleep between jobs.
#ifndef QCN_KERNELS_THREADS_H
#define QCN_KERNELS_THREADS_H

#include <cstddef>
#include <cstdlib>

namespace qcn {

// Memory that grows and is never given back before its thread ends, so that a second call allocates nothing.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(data_); }

  // At least `bytes`, aligned for any vector; null if there is no memory. What was there before is lost.
  void* get(std::size_t bytes) {
    constexpr std::size_t kAlignment = 64;
    if (bytes > bytes_) {
      std::free(data_);
      data_ = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
      bytes_ = data_ ? bytes : 0;
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

constexpr int kMaxThreads = 1024;  // as QCN_MAX_THREADS in qcn.h

void set_threads(int threads);  // less than 1: one per core; more than kMaxThreads: as many as that
int thread_count();             // of the next job

using Task = void (*)(const void* context, std::size_t item, float* scratch);

// Calls task for every item below `count`, on several threads, each with its own scratch; items are handed out in
// order. When another host thread has the pool, the caller does all of it alone. False: no memory for scratch.
bool run_tasks(std::size_t count, std::size_t scratch_floats, Task task, const void* context);

// The same for a function object, called as function(item, scratch).
template <typename Function>
bool parallel_for(std::size_t count, std::size_t scratch_floats, const Function& function) {
  Task task = [](const void* context, std::size_t item, float* scratch) {
    (*static_cast<const Function*>(context))(item, scratch);
  };
  return run_tasks(count, scratch_floats, task, &function);
}

}  // namespace qcn

#endif

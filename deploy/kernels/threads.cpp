#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "without_signals.h"

namespace qcn {

namespace {

struct Job {
  std::size_t count, scratch_floats;
  Task task;
  const void* context;
  std::atomic<std::size_t> next{0};

  // False: no memory for scratch.
  bool scratch_from(Memory& memory, float** scratch) const {
    *scratch = static_cast<float*>(memory.get(scratch_floats * sizeof(float)));
    return *scratch || scratch_floats == 0;
  }

  void work(float* scratch) {
    for (std::size_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(context, item, scratch);
  }
};

void pause() {
#if defined(__aarch64__)
  __asm__ volatile("yield");
#else
  __builtin_ia32_pause();
#endif
}

// The next layer's job comes soon after the last one's, so a thread looks for it a while before it sleeps.
template <typename Condition>
void spin_until(const Condition& condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) pause();
}

class Pool {
 public:
  // The caller works too; up to `helpers` others join in. One that wakes up too late is not waited for, but has its
  // scratch all the same: so whoever comes to the next job of this size, nothing is allocated.
  void run(Job& job, float* scratch, int helpers) {
    while (started_ < helpers && start_thread()) ++started_;
    float* unused;
    int ready = 0;
    while (ready < helpers && ready < started_ &&
           job.scratch_from(scratch_[static_cast<std::size_t>(ready)], &unused)) {
      ++ready;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      free_places_ = ready;
      ++jobs_;
    }
    wake_.notify_all();
    job.work(scratch);
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;
    lock.unlock();
    spin_until([&] { return working_ == 0; });
    lock.lock();
    done_.wait(lock, [&] { return working_ == 0; });
  }

  std::mutex busy;  // held by the host thread that uses the pool

 private:
  bool start_thread() {
    try {
      if (scratch_.size() <= static_cast<std::size_t>(started_)) scratch_.emplace_back();
      const WithoutSignals none;
      std::thread([this] { help(); }).detach();
      return true;
    } catch (const std::exception&) {  // no more threads or no memory to be had: fewer do it
      return false;
    }
  }

  void help() {
    for (unsigned long seen = 0;;) {
      spin_until([&] { return jobs_ != seen; });
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return jobs_ != seen; });
      seen = jobs_;
      Job* job = job_;
      if (!job || free_places_ == 0) continue;
      --free_places_;
      ++working_;
      float* scratch;
      job->scratch_from(scratch_[static_cast<std::size_t>(free_places_)], &scratch);  // as much as was made ready
      lock.unlock();
      job->work(scratch);
      lock.lock();
      if (--working_ == 0) done_.notify_one();
    }
  }

  int started_ = 0;
  std::deque<Memory> scratch_;  // one for each thread that may join a job; grows under `busy`, with no job out
  std::mutex mutex_;            // over all that follows
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  int free_places_ = 0;
  std::atomic<unsigned long> jobs_{0};  // atomic, as working_: looked at without the mutex
  std::atomic<int> working_{0};
};

std::atomic<int> wanted_threads{0};
std::atomic<Pool*> the_pool{nullptr};

// A forked child has none of the threads, and perhaps locked mutexes: it starts a pool of its own.
void forget_pool() { the_pool = nullptr; }

// The pool is never destroyed: its threads may outlive every static object.
Pool* pool() {
  Pool* found = the_pool;
  if (found) return found;
  Pool* made = new (std::nothrow) Pool;
  if (!made) return nullptr;
  if (!the_pool.compare_exchange_strong(found, made)) {
    delete made;
    return found;
  }
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  static_cast<void>(registered);
  return made;
}

}  // namespace

void set_threads(int threads) { wanted_threads = threads; }

int thread_count() {
  const int threads = wanted_threads;
  if (threads > 0) return std::min(threads, kMaxThreads);
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, unsigned{kMaxThreads}));
}

bool run_tasks(std::size_t count, std::size_t scratch_floats, Task task, const void* context) {
  Job job;
  job.count = count;
  job.scratch_floats = scratch_floats;
  job.task = task;
  job.context = context;
  thread_local Memory own;
  float* scratch;
  if (!job.scratch_from(own, &scratch)) return false;
  // No more than there is work for: a thread that is started stays.
  const int helpers = static_cast<int>(std::min(static_cast<std::size_t>(thread_count()), count)) - 1;
  if (helpers > 0) {
    Pool* shared = pool();
    if (shared && shared->busy.try_lock()) {
      std::lock_guard<std::mutex> lock(shared->busy, std::adopt_lock);
      shared->run(job, scratch, helpers);
      return true;
    }
  }
  job.work(scratch);
  return true;
}

}  // namespace qcn

#include "core/thread_pool.h"

#include <sched.h>

#include <chrono>

namespace ninfer {

namespace {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A worker spins this long for the next step before it sleeps: longer than the engine needs between two decode steps.
constexpr std::chrono::microseconds kSpin{300};
// A barrier that takes this many polls has lost a thread to the scheduler (more threads than cores): give way.
constexpr int kPollsBeforeYield = 4000;

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::worker(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    auto deadline = std::chrono::steady_clock::now() + kSpin;
    while (generation_.load(std::memory_order_acquire) == seen) {
      for (int i = 0; i < 32 && generation_.load(std::memory_order_acquire) == seen; ++i) pause();
      if (std::chrono::steady_clock::now() > deadline) generation_.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (stop_) return;
    fn_(context_, thread);
    barrier();
  }
}

void ThreadPool::run(void (*fn)(void*, int), void* context) {
  if (size_ == 1) {
    fn(context, 0);
    return;
  }
  fn_ = fn;
  context_ = context;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  fn(context, 0);
  barrier();
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  int polls = 0;
  while (phase_.load(std::memory_order_acquire) == phase) {
    pause();
    if (++polls > kPollsBeforeYield) sched_yield();
  }
}

}  // namespace ninfer

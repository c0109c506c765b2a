// Threads for measuring: they start together, and what they did is timed from the first start to the last end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ninfer::bench {

using Clock = std::chrono::steady_clock;

inline void spin_wait_hint() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// A reusable barrier that never sleeps. `threads` must all call arrive_and_wait; the last one opens the next generation.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}

  void arrive_and_wait() {
    const std::uint32_t generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
    } else {
      while (generation_.load(std::memory_order_acquire) == generation) spin_wait_hint();
    }
  }

 private:
  const int threads_;
  // Separate cache lines: waiting threads must not disturb the counter that others still increment.
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> generation_{0};
};

// Runs work(thread) on `threads` threads (the caller is thread 0) and returns the seconds from the first start to the
// last end. Thread creation lies outside the interval.
double timed_run(int threads, const std::function<void(int)>& work);

// Seconds per round of a SpinBarrier among `threads` threads, from `rounds` rounds.
double barrier_seconds(int threads, int rounds);

}  // namespace ninfer::bench

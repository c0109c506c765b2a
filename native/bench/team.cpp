#include "bench/team.h"

#include <algorithm>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace ninfer::bench {
namespace {

// Keeps the calling thread on the `index`-th CPU it may use, until the end of the scope: two threads on one CPU would
// measure half of what two CPUs do. Without Linux affinity calls it does nothing.
class OnOneCpu {
 public:
#if defined(__linux__)
  explicit OnOneCpu(int index) {
    if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    int remaining = index % CPU_COUNT(&before_);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before_) || remaining-- > 0) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pinned_ = sched_setaffinity(0, sizeof one, &one) == 0;
      return;
    }
  }
  ~OnOneCpu() {
    if (pinned_) sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_{};
  bool pinned_ = false;
#else
  explicit OnOneCpu(int) {}
#endif
 public:
  OnOneCpu(const OnOneCpu&) = delete;
  OnOneCpu& operator=(const OnOneCpu&) = delete;
};

}  // namespace

double timed_run(int threads, const std::function<void(int)>& work) {
  struct alignas(64) Interval {
    Clock::time_point start, stop;
  };
  std::vector<Interval> intervals(threads);
  SpinBarrier barrier(threads);
  const auto body = [&](int thread) {
    const OnOneCpu pinned(thread);
    barrier.arrive_and_wait();
    intervals[thread].start = Clock::now();
    work(thread);
    intervals[thread].stop = Clock::now();
  };
  std::vector<std::thread> others;
  others.reserve(threads - 1);
  // Started before thread 0 pins itself, or they would inherit its one CPU.
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(body, thread);
  body(0);
  for (std::thread& other : others) other.join();
  Clock::time_point first = intervals[0].start, last = intervals[0].stop;
  for (const Interval& interval : intervals) {
    first = std::min(first, interval.start);
    last = std::max(last, interval.stop);
  }
  return std::chrono::duration<double>(last - first).count();
}

double barrier_seconds(int threads, int rounds) {
  SpinBarrier barrier(threads);
  const double seconds = timed_run(threads, [&](int) {
    for (int round = 0; round < rounds; ++round) barrier.arrive_and_wait();
  });
  return seconds / rounds;
}

}  // namespace ninfer::bench

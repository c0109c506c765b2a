// A pool that runs one function on every thread, with a barrier inside. The caller is thread 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace ninfer {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls fn(context, thread) on every thread and returns when all have. One caller at a time.
  void run(void (*fn)(void*, int), void* context);

  // Inside run: waits until every thread has arrived.
  void barrier();

 private:
  void worker(int thread);

  int size_;
  std::vector<std::thread> workers_;
  void (*fn_)(void*, int) = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};
};

}  // namespace ninfer

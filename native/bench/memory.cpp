#include "bench/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <system_error>

#include "bench/team.h"

namespace ninfer::bench {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLine = 64;

// What a read loop returns, so that no compiler can drop the reads.
volatile std::uint64_t sink;

std::uint64_t read_plain(const std::byte* data, std::size_t bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i < bytes / 8; i += 8)
    for (int lane = 0; lane < 8; ++lane) sums[lane] ^= words[i + lane];
  std::uint64_t all = 0;
  for (std::uint64_t sum : sums) all ^= sum;
  return all;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::byte* data, std::size_t bytes) {
  const auto* words = reinterpret_cast<const __m256i*>(data);
  __m256i a = _mm256_setzero_si256(), b = a;
  for (std::size_t i = 0; i < bytes / 32; i += 2) {
    a = _mm256_xor_si256(a, _mm256_load_si256(words + i));
    b = _mm256_xor_si256(b, _mm256_load_si256(words + i + 1));
  }
  return static_cast<std::uint64_t>(_mm256_extract_epi64(_mm256_xor_si256(a, b), 0));
}

__attribute__((target("avx512f"))) std::uint64_t read_avx512(const std::byte* data, std::size_t bytes) {
  const auto* words = reinterpret_cast<const __m512i*>(data);
  __m512i sum = _mm512_setzero_si512();
  for (std::size_t i = 0; i < bytes / 64; ++i) sum = _mm512_xor_si512(sum, _mm512_load_si512(words + i));
  alignas(64) std::uint64_t lanes[8];
  _mm512_store_si512(lanes, sum);
  return lanes[0];
}
#endif

using ReadLoop = std::uint64_t (*)(const std::byte*, std::size_t);

ReadLoop widest_read_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_plain;
}

// A private anonymous mapping that starts on a huge-page border and is unmapped at the end of its scope.
class Mapping {
 public:
  Mapping(std::size_t bytes, bool huge_pages) : mapped_bytes_(bytes + kHugePage) {
    base_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of a benchmark buffer");
#if defined(MADV_HUGEPAGE) && defined(MADV_NOHUGEPAGE)
    // A kernel without transparent huge pages refuses the advice; huge_bytes() then reports what was really obtained.
    madvise(base_, mapped_bytes_, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)huge_pages;
#endif
    const auto address = reinterpret_cast<std::uintptr_t>(base_);
    data_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
  }
  ~Mapping() { munmap(base_, mapped_bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }

  // AnonHugePages of this mapping from /proc/self/smaps; 0 where the kernel does not say.
  std::size_t huge_bytes() const {
    std::ifstream smaps("/proc/self/smaps");
    const auto wanted = reinterpret_cast<std::uintptr_t>(data_);
    bool inside = false;
    for (std::string line; std::getline(smaps, line);) {
      std::uintptr_t start = 0, stop = 0;
      std::size_t kib = 0;
      if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &start, &stop) == 2)
        inside = start <= wanted && wanted < stop;
      else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %zu kB", &kib) == 1)
        return kib << 10;
    }
    return 0;
  }

 private:
  void* base_ = nullptr;
  std::size_t mapped_bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace

ReadTrial read_memory(std::size_t bytes, bool huge_pages, int threads, int passes, int repeats) {
  const Mapping mapping(bytes, huge_pages);
  const std::size_t share = bytes / threads / kLine * kLine;
  timed_run(threads, [&](int thread) {
    std::byte* own = mapping.data() + thread * share;
    // Every line differs, or pages could be merged; every page is touched by the thread that reads it.
    for (std::size_t i = 0; i < share; i += kLine) *reinterpret_cast<std::uint64_t*>(own + i) = i * 0x9E3779B97F4A7C15;
  });
  const ReadLoop read = widest_read_loop();
  ReadTrial trial;
  trial.huge_bytes = mapping.huge_bytes();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    trial.seconds.push_back(timed_run(threads, [&](int thread) {
      std::uint64_t sum = 0;
      for (int pass = 0; pass < passes; ++pass) sum ^= read(mapping.data() + thread * share, share);
      sink = sum;
    }));
  }
  return trial;
}

}  // namespace ninfer::bench

// How much arithmetic a core can do: one row per instruction kind, with or without its operands coming from L1.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ninfer::bench {

struct Peak {
  std::string_view name;           // e.g. "int8_avx512_vnni_l1"
  std::string_view needs;          // what the processor and kernel must grant, in words
  bool (*available)();             // false: report `needs`, never call `run`
  std::uint64_t ops_per_iteration;  // a multiply and an add are two
  void (*run)(std::uint64_t iterations);
};

// All rows this build knows, in the order of the report; empty where no row was written for the architecture.
std::span<const Peak> peaks();

// Seconds of `repeats` runs on `threads` threads, `iterations` per thread and run.
std::vector<double> run_peak(const Peak& peak, int threads, std::uint64_t iterations, int repeats);

}  // namespace ninfer::bench

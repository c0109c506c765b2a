#include "bench/peaks.h"

#include "bench/team.h"

namespace ninfer::bench {

#if !defined(__x86_64__)
std::span<const Peak> peaks() { return {}; }
#endif

std::vector<double> run_peak(const Peak& peak, int threads, std::uint64_t iterations, int repeats) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat)
    seconds.push_back(timed_run(threads, [&](int) { peak.run(iterations); }));
  return seconds;
}

}  // namespace ninfer::bench

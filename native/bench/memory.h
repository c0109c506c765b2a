// How fast memory can be read: a private mapping with small or huge pages, read once per pass by every thread's share.
#pragma once

#include <cstddef>
#include <vector>

namespace ninfer::bench {

struct ReadTrial {
  std::vector<double> seconds;  // one value per repeat; each repeat reads the whole buffer `passes` times
  std::size_t huge_bytes = 0;   // how much of the buffer the kernel really backs with huge pages
};

// Maps `bytes` (a multiple of 64 x threads), asks for huge pages or forbids them, writes every page, then reads it
// `repeats` times. Throws std::system_error when the mapping fails.
ReadTrial read_memory(std::size_t bytes, bool huge_pages, int threads, int passes, int repeats);

}  // namespace ninfer::bench

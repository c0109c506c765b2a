// Python faces of the measuring loops: argument checks, lock released while they run, results as plain lists and dicts.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "bench/memory.h"
#include "bench/peaks.h"
#include "bench/team.h"

namespace nb = nanobind;

namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

nb::dict bench_memory_read(std::size_t num_bytes, bool huge_pages, int threads, int passes, int repeats) {
  require(threads >= 1 && passes >= 1 && repeats >= 1, "threads, passes and repeats start at 1");
  require(num_bytes >= 64 * std::size_t(threads) && num_bytes % (64 * std::size_t(threads)) == 0,
          "num_bytes must be a positive multiple of 64 x threads");
  ninfer::bench::ReadTrial trial;
  {
    nb::gil_scoped_release unlocked;
    trial = ninfer::bench::read_memory(num_bytes, huge_pages, threads, passes, repeats);
  }
  nb::dict result;
  result["seconds"] = trial.seconds;
  result["huge_bytes"] = trial.huge_bytes;
  return result;
}

nb::list bench_peaks() {
  nb::list rows;
  for (const ninfer::bench::Peak& peak : ninfer::bench::peaks()) {
    nb::dict row;
    row["name"] = std::string(peak.name);
    row["needs"] = std::string(peak.needs);
    row["available"] = peak.available();
    row["ops_per_iteration"] = peak.ops_per_iteration;
    rows.append(row);
  }
  return rows;
}

std::vector<double> bench_run_peak(const std::string& name, int threads, std::uint64_t iterations, int repeats) {
  require(threads >= 1 && iterations >= 1 && repeats >= 1, "threads, iterations and repeats start at 1");
  for (const ninfer::bench::Peak& peak : ninfer::bench::peaks()) {
    if (peak.name != name) continue;
    require(peak.available(), "this processor or kernel lacks what the loop needs");
    nb::gil_scoped_release unlocked;
    return ninfer::bench::run_peak(peak, threads, iterations, repeats);
  }
  throw std::invalid_argument("no such loop: " + name);
}

double bench_barrier(int threads, int rounds) {
  require(threads >= 1 && rounds >= 1, "threads and rounds start at 1");
  nb::gil_scoped_release unlocked;
  return ninfer::bench::barrier_seconds(threads, rounds);
}

}  // namespace

void bind_bench(nb::module_& m) {
  m.def("bench_memory_read", &bench_memory_read, nb::arg("num_bytes"), nb::kw_only(), nb::arg("huge_pages"),
        nb::arg("threads"), nb::arg("passes"), nb::arg("repeats"),
        "Read a fresh buffer; {'seconds': one per repeat, 'huge_bytes': what huge pages really back}.");
  m.def("bench_peaks", &bench_peaks, "Every arithmetic loop: name, needs, available, ops_per_iteration.");
  m.def("bench_run_peak", &bench_run_peak, nb::arg("name"), nb::kw_only(), nb::arg("threads"), nb::arg("iterations"),
        nb::arg("repeats"), "Seconds of each repeat of one arithmetic loop.");
  m.def("bench_barrier", &bench_barrier, nb::kw_only(), nb::arg("threads"), nb::arg("rounds"),
        "Seconds per round of a spinning barrier.");
}

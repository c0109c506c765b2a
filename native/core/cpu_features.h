// Which instruction-set targets this CPU can run.
#pragma once

#include <string>
#include <vector>

#include "core/kernels.h"

namespace ninfer {

struct Target {
  const KernelTable* table;  // null when not built for this architecture
  std::string name;
  std::string missing;       // empty when it can run, else what the CPU lacks
};

// Slowest first; the last runnable one is the default.
const std::vector<Target>& targets();

// The named target, or the best runnable one for an empty name. Throws std::invalid_argument with the reason.
const KernelTable& select_target(const std::string& name);

}  // namespace ninfer

#include "core/cpu_features.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ninfer {

namespace {

#if defined(__x86_64__)
// Names the first missing feature; __builtin_cpu_supports also checks that the operating system saves the registers.
std::string lacking_avx2() {
  if (!__builtin_cpu_supports("avx2")) return "the CPU lacks AVX2";
  if (!__builtin_cpu_supports("fma")) return "the CPU lacks FMA";
  if (!__builtin_cpu_supports("bmi2")) return "the CPU lacks BMI2";
  if (!__builtin_cpu_supports("f16c")) return "the CPU lacks F16C";
  return "";
}

std::string lacking_avx512_vnni() {
  if (const std::string base = lacking_avx2(); !base.empty()) return base;
  if (!__builtin_cpu_supports("avx512f")) return "the CPU lacks AVX-512 F";
  if (!__builtin_cpu_supports("avx512bw")) return "the CPU lacks AVX-512 BW";
  if (!__builtin_cpu_supports("avx512vl")) return "the CPU lacks AVX-512 VL";
  if (!__builtin_cpu_supports("avx512dq")) return "the CPU lacks AVX-512 DQ";
  if (!__builtin_cpu_supports("avx512vnni")) return "the CPU lacks AVX-512 VNNI";
  return "";
}

std::string lacking_amx() {
  if (const std::string base = lacking_avx512_vnni(); !base.empty()) return base;
  if (!__builtin_cpu_supports("amx-tile")) return "the CPU lacks AMX tiles";
  if (!__builtin_cpu_supports("amx-int8")) return "the CPU lacks AMX INT8";
  // Linux hands out the tile registers on request, for the whole process (Documentation/arch/x86/xstate.rst).
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return "the operating system refuses AMX tiles";
  return "";
}
#else
std::string lacking_amx() { return "not an x86-64 CPU"; }
std::string lacking_avx2() { return "not an x86-64 CPU"; }
std::string lacking_avx512_vnni() { return "not an x86-64 CPU"; }
#endif

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {scalar_kernels(), "scalar", ""},
      {avx2_kernels(), "avx2", lacking_avx2()},
      {avx512_vnni_kernels(), "avx512_vnni", lacking_avx512_vnni()},
      {amx_kernels(), "amx", lacking_amx()},
  };
  return all;
}

const KernelTable& select_target(const std::string& name) {
  const Target* best = nullptr;
  for (const Target& target : targets()) {
    const bool runnable = target.table != nullptr && target.missing.empty();
    if (name.empty() && runnable) best = &target;
    if (name == target.name) {
      if (!runnable)
        throw std::invalid_argument("instruction set '" + name + "' cannot run here: " +
                                    (target.missing.empty() ? "not built for this architecture" : target.missing));
      return *target.table;
    }
  }
  if (best == nullptr) {
    std::string known;
    for (const Target& target : targets()) known += (known.empty() ? "" : ", ") + target.name;
    throw std::invalid_argument("unknown instruction set '" + name + "'; known are " + known);
  }
  return *best->table;
}

}  // namespace ninfer

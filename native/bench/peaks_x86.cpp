// Arithmetic loops for x86-64, their one instruction written as asm so that nothing else runs in the loop. Each keeps 12
// independent accumulators: the longest latency here is 5 cycles (VPDPBUSD), two may start per cycle, so 10 are needed.
#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "bench/peaks.h"

namespace ninfer::bench {
namespace {

constexpr int kAccumulators = 12;
constexpr int kUnroll = 4;

// `step` is the asm text: %0 the accumulator, %1 scratch, %2 a register operand, %3 a register or an L1 operand (`place`).
#define NINFER_VECTOR_PEAK(name, isa, type, step, place)                                          \
  __attribute__((target(isa))) void name(std::uint64_t iterations) {                              \
    alignas(64) type from_l1[kAccumulators];                                                      \
    std::memset(from_l1, 0, sizeof from_l1);                                                      \
    type acc[kAccumulators], a, scratch;                                                          \
    __asm__ volatile("vpxor %x0, %x0, %x0" : "=x"(a));                                            \
    _Pragma("GCC unroll 12") for (type& each : acc) each = a;                                     \
    for (std::uint64_t i = 0; i < iterations; ++i)                                                \
      _Pragma("GCC unroll 4") for (int u = 0; u < kUnroll; ++u)                                   \
          _Pragma("GCC unroll 12") for (int j = 0; j < kAccumulators; ++j)                        \
              __asm__ volatile(step : "+v"(acc[j]), "=&v"(scratch) : "v"(a), place);              \
  }
#define NINFER_FROM_REGISTER "v"(a)
#define NINFER_FROM_L1 "m"(from_l1[j])

NINFER_VECTOR_PEAK(fma_avx2, "avx2,fma", __m256, "vfmadd231ps %3, %2, %0", NINFER_FROM_REGISTER)
NINFER_VECTOR_PEAK(fma_avx512, "avx512f", __m512, "vfmadd231ps %3, %2, %0", NINFER_FROM_REGISTER)
NINFER_VECTOR_PEAK(maddubs_avx2, "avx2", __m256i,
                   "vpmaddubsw %3, %2, %1\n\tvpmaddwd %2, %1, %1\n\tvpaddd %1, %0, %0", NINFER_FROM_REGISTER)
NINFER_VECTOR_PEAK(vnni_avx512, "avx512f,avx512vnni", __m512i, "vpdpbusd %3, %2, %0", NINFER_FROM_REGISTER)
NINFER_VECTOR_PEAK(vnni_avx512_l1, "avx512f,avx512vnni", __m512i, "vpdpbusd %3, %2, %0", NINFER_FROM_L1)
NINFER_VECTOR_PEAK(bf16_avx512, "avx512f,avx512bf16", __m512, "vdpbf16ps %3, %2, %0", NINFER_FROM_REGISTER)

#undef NINFER_FROM_L1
#undef NINFER_FROM_REGISTER
#undef NINFER_VECTOR_PEAK

constexpr std::uint64_t vector_ops(std::uint64_t lanes) { return 2 * lanes * kAccumulators * kUnroll; }

// The 64 bytes LDTILECFG reads (Intel SDM, "TILECFG"): 8 tiles of 16 rows x 64 bytes, the largest there are.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

constexpr std::uint64_t kTileDots = 8;  // two blocks of 2 x 2 tiles per iteration
constexpr std::uint64_t kInt8TileOps = 2 * 16 * 16 * 64;
constexpr std::uint64_t kBf16TileOps = 2 * 16 * 16 * 32;

// Written as asm throughout: GCC 12 declares _tile_loadconfig as reading 8 of the 64 bytes and drops the other stores.
#define NINFER_TILE_BLOCK(dot)            \
  dot " %%tmm6, %%tmm4, %%tmm0\n\t"       \
  dot " %%tmm7, %%tmm4, %%tmm1\n\t"       \
  dot " %%tmm6, %%tmm5, %%tmm2\n\t"       \
  dot " %%tmm7, %%tmm5, %%tmm3\n\t"
#define NINFER_TILE_LOADS                    \
  "tileloadd (%0,%1), %%tmm4\n\t"            \
  "tileloadd (%0,%1), %%tmm6\n\t"            \
  "tileloadd 1024(%0,%1), %%tmm7\n\t"        \
  "tileloadd 1024(%0,%1), %%tmm5\n\t"
#define NINFER_TILE_PEAK(name, inner)                                                                        \
  void name(std::uint64_t iterations) {                                                                      \
    const TileConfig config;                                                                                 \
    alignas(64) std::uint8_t operands[2048];                                                                 \
    std::memset(operands, 0, sizeof operands);                                                               \
    const std::uint64_t stride = 64;                                                                         \
    __asm__ volatile("ldtilecfg %0" : : "m"(config));                                                        \
    __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"          \
                     NINFER_TILE_LOADS : : "r"(operands), "r"(stride) : "memory");                           \
    for (std::uint64_t i = 0; i < iterations; ++i)                                                           \
      __asm__ volatile(inner : : "r"(operands), "r"(stride) : "memory");                                     \
    __asm__ volatile("tilerelease");                                                                         \
  }

NINFER_TILE_PEAK(amx_int8, NINFER_TILE_BLOCK("tdpbusd") NINFER_TILE_BLOCK("tdpbusd"))
NINFER_TILE_PEAK(amx_int8_l1, NINFER_TILE_LOADS NINFER_TILE_BLOCK("tdpbusd")
                                  NINFER_TILE_LOADS NINFER_TILE_BLOCK("tdpbusd"))
NINFER_TILE_PEAK(amx_bf16, NINFER_TILE_BLOCK("tdpbf16ps") NINFER_TILE_BLOCK("tdpbf16ps"))

#undef NINFER_TILE_PEAK
#undef NINFER_TILE_LOADS
#undef NINFER_TILE_BLOCK

// CPUID leaf 7 EDX bits of the tile extensions, and the kernel's permission to use their 8 KiB of state.
bool has_amx(unsigned edx_bit) {
  constexpr unsigned kTile = 1U << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & kTile) || !(edx & edx_bit)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2"); }
bool has_avx2_fma() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() { return __builtin_cpu_supports("avx512f"); }
bool has_vnni() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni"); }
bool has_bf16() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16"); }
bool has_amx_int8() { return has_amx(1U << 25); }
bool has_amx_bf16() { return has_amx(1U << 22); }

constexpr Peak kPeaks[] = {
    {"fp32_fma_avx2", "AVX2 and FMA", has_avx2_fma, vector_ops(8), fma_avx2},
    {"fp32_fma_avx512", "AVX-512F", has_avx512, vector_ops(16), fma_avx512},
    {"int8_avx2_maddubs", "AVX2", has_avx2, vector_ops(32), maddubs_avx2},
    {"int8_avx512_vnni", "AVX-512 VNNI", has_vnni, vector_ops(64), vnni_avx512},
    {"int8_avx512_vnni_l1", "AVX-512 VNNI", has_vnni, vector_ops(64), vnni_avx512_l1},
    {"int8_amx", "AMX-INT8 and the kernel's permission", has_amx_int8, kTileDots * kInt8TileOps, amx_int8},
    {"int8_amx_l1", "AMX-INT8 and the kernel's permission", has_amx_int8, kTileDots * kInt8TileOps, amx_int8_l1},
    {"bf16_avx512", "AVX-512 BF16", has_bf16, vector_ops(32), bf16_avx512},
    {"bf16_amx", "AMX-BF16 and the kernel's permission", has_amx_bf16, kTileDots * kBf16TileOps, amx_bf16},
};

}  // namespace

std::span<const Peak> peaks() { return kPeaks; }

}  // namespace ninfer::bench

#endif  // __x86_64__

// What the packed weight formats have in common, as kernels see it: blocks of 32 columns of a record, each 8 quads of
// unsigned bytes per lane, an offset that makes them the format's integers, and scales (docs/formats.md, "Layouts").
#pragma once

#include "core/kernels.h"

namespace {

using namespace ninfer;

// Codes<format>:
//   kLow, kHigh      bytes of a block in the codes part and in the part of high bits
//   kLargest         of the unsigned bytes
//   kOffset          integer = byte - kOffset, as activation records hold it
//   kBlocks          blocks that share a scale
//   kHalves          whether each half of a block has a scale of its own
//   load(low, high, j, a, b)   quads j and j + 4 of a block
//   scale(w, record, block, half), min(w, record, block)
struct CommonCodes {
  static constexpr int kHigh = 0, kBlocks = 1;
  static constexpr bool kHalves = false, kHasMin = false;
  static inline V::F scale(const Weight&, const std::uint8_t* record, int block, int) {
    return V::load_f16(reinterpret_cast<const std::uint16_t*>(record) + kLanes * block);
  }
  static inline V::F min(const Weight& w, const std::uint8_t* record, int block) {
    return V::load_f16(reinterpret_cast<const std::uint16_t*>(record + w.mins_offset) + kLanes * block);
  }
};

struct CodesQ8 : CommonCodes {
  static constexpr int kLow = 512, kLargest = 255, kOffset = 128;
  static inline __attribute__((always_inline)) void load(const std::uint8_t* low, const std::uint8_t*, int j, V::B& a,
                                                         V::B& b) {
    a = V::load_u8(low + 64 * j);
    b = V::load_u8(low + 64 * j + 256);
  }
};

struct CodesQ4 : CommonCodes {
  static constexpr int kLow = 256, kLargest = 15, kOffset = 8;
  static inline __attribute__((always_inline)) void load(const std::uint8_t* low, const std::uint8_t*, int j, V::B& a,
                                                         V::B& b) {
    V::load_u4(low + 64 * j, a, b);
  }
};

struct CodesQ4M : CodesQ4 {
  static constexpr int kOffset = 0;
  static constexpr bool kHasMin = true;
};

template <class Codes>
struct Group64 : Codes {
  static constexpr int kBlocks = 2;
  static inline V::F scale(const Weight&, const std::uint8_t* record, int block, int) {
    return V::load_f16(reinterpret_cast<const std::uint16_t*>(record) + kLanes * (block / 2));
  }
};

struct CodesQ5 : CommonCodes {
  static constexpr int kLow = 256, kHigh = 64, kLargest = 31, kOffset = 16;
  static inline __attribute__((always_inline)) void load(const std::uint8_t* low, const std::uint8_t* high, int j,
                                                         V::B& a, V::B& b) {
    V::load_u4(low + 64 * j, a, b);
    const V::B bits = V::load_u8(high);
    a = V::either(a, V::bits(bits, 4 - j, 0x10));
    b = V::either(b, V::bits(bits, -j, 0x10));
  }
};

struct CodesQ6 : CommonCodes {
  static constexpr int kLow = 256, kHigh = 128, kLargest = 63, kOffset = 32;
  static inline __attribute__((always_inline)) void load(const std::uint8_t* low, const std::uint8_t* high, int j,
                                                         V::B& a, V::B& b) {
    V::load_u4(low + 64 * j, a, b);
    a = V::either(a, V::bits(V::load_u8(high), 4 - 2 * j, 0x30));
    b = V::either(b, V::bits(V::load_u8(high + 64), 4 - 2 * j, 0x30));
  }
};

// 2 * E2M1 + 16 by code.
alignas(16) constexpr std::uint8_t kDoubledE2M1[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

struct CodesNvfp4 : CommonCodes {
  static constexpr int kLow = 256, kLargest = 28, kOffset = 16;
  static constexpr bool kHalves = true;
  static inline __attribute__((always_inline)) void load(const std::uint8_t* low, const std::uint8_t*, int j, V::B& a,
                                                         V::B& b) {
    V::load_u4(low + 64 * j, a, b);
    a = V::look_up(kDoubledE2M1, a);
    b = V::look_up(kDoubledE2M1, b);
  }
  static inline V::F scale(const Weight&, const std::uint8_t* record, int block, int half) {
    return V::load_e4m3(record + kLanes * (2 * block + half));
  }
};

// Calls fn<Codes>() for the traits of a packed format.
template <class Fn>
inline void with_codes(WeightFormat format, Fn fn) {
  switch (format) {
    case WeightFormat::q8g32: return fn.template operator()<CodesQ8>();
    case WeightFormat::q4g32: return fn.template operator()<CodesQ4>();
    case WeightFormat::q4g32m: return fn.template operator()<CodesQ4M>();
    case WeightFormat::q4g64: return fn.template operator()<Group64<CodesQ4>>();
    case WeightFormat::q5g64: return fn.template operator()<Group64<CodesQ5>>();
    case WeightFormat::q6g64: return fn.template operator()<Group64<CodesQ6>>();
    case WeightFormat::nvfp4: return fn.template operator()<CodesNvfp4>();
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::fp8: return;  // not packed
  }
}

}  // namespace

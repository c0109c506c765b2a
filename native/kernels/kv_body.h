// Writing one token's keys and values into its page (quant-formats.md section 8; layout in docs/formats.md).
#pragma once

#include "core/kernels.h"

namespace {

using namespace ninfer;

inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x != x) return static_cast<std::uint16_t>((bits >> 16) | 0x40);  // keep NaN, quiet
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Float to IEEE half, round to nearest even; overflow gives infinity, NaN stays NaN.
inline std::uint16_t to_f16(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (bits < 0x38800000u) {  // subnormal half: add 0.5 so that the mantissa lands in the low bits, rounded by the FPU
    float f;
    __builtin_memcpy(&f, &bits, 4);
    f += 0.5f;
    std::uint32_t r;
    __builtin_memcpy(&r, &f, 4);
    return static_cast<std::uint16_t>(sign | (r - 0x3f000000u));
  }
  bits += 0xc8000fffu + ((bits >> 13) & 1u);  // rebias the exponent by -112 and round
  return static_cast<std::uint16_t>(sign | (bits >> 13));
}

inline float from_f16(std::uint16_t h) {
  alignas(32) std::uint16_t lanes[kLanes] = {h};
  alignas(64) float out[kLanes];
  V::store(out, V::load_f16(lanes));
  return out[0];
}

// Codes and scale of up to 64 values; unused codes are zero.
inline std::uint16_t encode_kv_group(const float* x, int n, std::int8_t* codes) {
  alignas(64) float padded[kKVGroup];
  if (n < kKVGroup) {
    for (int i = 0; i < kKVGroup; ++i) padded[i] = i < n ? x[i] : 0.0f;
    x = padded;
  }
  const std::uint16_t scale = to_f16(V::abs_max(x, kKVGroup) / 127.0f);
  const float s = from_f16(scale);
  const float inv = s == 0.0f ? 0.0f : 1.0f / s;
  for (int i = 0; i < kKVGroup; i += 16) V::quantize16(x + i, inv, codes + i);
  for (int i = 0; i < kKVGroup; ++i) codes[i] = codes[i] < -127 ? static_cast<std::int8_t>(-127) : codes[i];
  return scale;
}

void kv_append(const KVAppendArgs& a) {
  const KVLayout& layout = *a.layout;
  const int dim = layout.head_dim, padded = layout.padded_dim, slot = a.slot;
  for (int head = a.head_begin; head < a.head_end; ++head) {
    std::uint8_t* base = a.page + layout.head_bytes * head;
    const float* k = a.k + head * dim;
    const float* v = a.v + head * dim;
    if (layout.format == KVFormat::bf16) {
      std::uint16_t* keys = reinterpret_cast<std::uint16_t*>(base);
      std::uint16_t* values = reinterpret_cast<std::uint16_t*>(base + layout.v_offset) + slot * padded;
      for (int d = 0; d < padded; ++d) {
        keys[d * kPageTokens + slot] = d < dim ? to_bf16(k[d]) : 0;
        values[d] = d < dim ? to_bf16(v[d]) : 0;
      }
      continue;
    }
    std::uint16_t* k_scales = reinterpret_cast<std::uint16_t*>(base + layout.k_scales_offset);
    std::uint16_t* v_scales = reinterpret_cast<std::uint16_t*>(base + layout.v_scales_offset);
    std::uint8_t* values = base + layout.v_offset;
    for (int g = 0; g < layout.groups; ++g) {
      alignas(64) std::int8_t codes[kKVGroup];
      const int first = g * kKVGroup, n = dim - first < kKVGroup ? dim - first : kKVGroup;
      const int stored = padded - first < kKVGroup ? padded - first : kKVGroup;
      k_scales[g * kPageTokens + slot] = encode_kv_group(k + first, n, codes);
      for (int quad = 0; quad < stored / 4; ++quad) {
        std::uint32_t four;
        __builtin_memcpy(&four, codes + 4 * quad, 4);
        four ^= 0x80808080u;
        __builtin_memcpy(base + static_cast<std::size_t>(first + 4 * quad) * kPageTokens + slot * 4, &four, 4);
      }
      v_scales[g * kPageTokens + slot] = encode_kv_group(v + first, n, codes);
      std::uint8_t* bytes = values + first * kPageTokens + value_row(slot) * stored * 4 + value_byte(slot);
      for (int d = 0; d < stored; ++d) bytes[4 * d] = static_cast<std::uint8_t>(codes[d]);
    }
  }
}

}  // namespace

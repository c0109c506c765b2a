// Activations in the number formats of the numeric profiles: two int8 digits per row scale (a8, ops/two_digits.py), one
// per group scale (a8g32, ops/one_digit.py) and NVFP4 with a static scale (w4a4, ops/nvfp4_rows.py). Tiles and records are described in core/kernels.h.
#pragma once

#include <math.h>

#include "core/kernels.h"

namespace {

using namespace ninfer;

// Rows whose largest magnitude is below this become zero: their scale would be near the subnormals.
constexpr float kSmallestRowMax = 0x1p-100f;
constexpr float kLargestTwoDigits = 127.0f * 256.0f, kLargestDigit = 127.0f;

struct CodeScale {
  float scale, inverse;
  // NaN and infinity fail the comparison and end up in the scale, so that they are never lost.
  explicit CodeScale(float amax, float largest_code = kLargestTwoDigits)
      : scale(amax < kSmallestRowMax ? 0.0f : amax / largest_code),
        inverse(amax < kSmallestRowMax ? 0.0f : largest_code / amax) {}
};

// Where one tile lies and what it holds.
struct Tile {
  int rows;
  const float* x;       // its first row
  std::uint8_t* data;
  Tile(const QuantizeArgs& a, int index) {
    const int left = a.rows - index * a.tile_rows;
    rows = left < a.tile_rows ? left : a.tile_rows;
    x = a.x + static_cast<std::size_t>(index) * a.tile_rows * a.ldx;
    data = a.tiles + tile_bytes(a.tile_rows, activation_groups(a.k)) * static_cast<std::size_t>(index);
  }
};

// The columns of a group, completed with zeros in `tail` where the row has fewer.
inline const float* whole_group(const float* row, int first, int k, float (&tail)[kGroup]) {
  if (k - first >= kGroup) return row + first;
  for (int j = 0; j < kGroup; ++j) tail[j] = first + j < k ? row[first + j] : 0.0f;
  return tail;
}

template <class T>
inline void put(std::uint8_t* record, int offset, int tile_rows, int row, T value) {
  reinterpret_cast<T*>(record + offset * tile_rows)[row] = value;
}

void quantize(const QuantizeArgs& a, long begin, long end) {
  const int groups = activation_groups(a.k);
  float inverse[kMaxTileRows];
  for (long i = begin; i < end; ++i) {
    const Tile tile(a, static_cast<int>(i / groups));
    const int group = static_cast<int>(i % groups);
    if (i == begin || group == 0)
      for (int row = 0; row < tile.rows; ++row) {
        const CodeScale scale(V::abs_max(tile.x + row * a.ldx, a.k));
        inverse[row] = scale.inverse;
        if (group == 0) reinterpret_cast<float*>(tile.data)[row] = scale.scale;
      }
    std::uint8_t* record = tile.data + kTileHeaderBytes + kActBytesPerRowGroup * tile.rows * group;
    for (int row = 0; row < tile.rows; ++row) {
      alignas(64) float tail[kGroup];
      const float* x = whole_group(tile.x + row * a.ldx, group * kGroup, a.k, tail);
      std::int8_t* high = reinterpret_cast<std::int8_t*>(record) + kGroup * row;
      std::int8_t* low = high + kGroup * tile.rows;
      const unsigned first = static_cast<unsigned>(V::digits16(x, inverse[row], high, low));
      const unsigned sum = first + static_cast<unsigned>(V::digits16(x + 16, inverse[row], high + 16, low + 16));
      put(record, kActSum, tile.rows, row, static_cast<float>(static_cast<std::int32_t>(sum)));
      put(record, kActMinus8, tile.rows, row, static_cast<std::int32_t>(-8u * sum));
      put(record, kActMinus16First, tile.rows, row, static_cast<std::int32_t>(-16u * first));
    }
  }
}

void quantize_a8g32(const QuantizeArgs& a, long begin, long end) {
  const int groups = activation_groups(a.k);
  for (long i = begin; i < end; ++i) {
    const Tile tile(a, static_cast<int>(i / groups));
    const int group = static_cast<int>(i % groups);
    std::uint8_t* record = tile.data + kTileHeaderBytes + kOneDigitBytesPerRowGroup * tile.rows * group;
    for (int row = 0; row < tile.rows; ++row) {
      alignas(64) float tail[kGroup];
      const float* x = whole_group(tile.x + row * a.ldx, group * kGroup, a.k, tail);
      const CodeScale scale(V::abs_max(x, kGroup), kLargestDigit);
      std::int8_t* codes = reinterpret_cast<std::int8_t*>(record) + kGroup * row;
      int sum = 0, first = 0;
      for (int half = 0; half < kGroup; half += 16) {
        V::quantize16(x + half, scale.inverse, codes + half);
        first = sum;
        for (int j = half; j < half + 16; ++j) sum += codes[j];
      }
      put(record, kOneDigitScale, tile.rows, row, scale.scale);
      put(record, kOneDigitSum, tile.rows, row, scale.scale * static_cast<float>(sum));
      put(record, kOneDigitMinus8, tile.rows, row, static_cast<std::int32_t>(-8 * sum));
      put(record, kOneDigitMinus16First, tile.rows, row, static_cast<std::int32_t>(-16 * first));
    }
  }
}

// The E4M3 number nearest to v in [0, 448], ties to even.
inline float round_e4m3(float v) {
  if (v < 0x1p-6f) return rintf(v * 0x1p9f) * 0x1p-9f;
  std::uint32_t bits;
  __builtin_memcpy(&bits, &v, 4);
  bits = (bits + 0x7ffffu + ((bits >> 20) & 1u)) & ~0xfffffu;
  __builtin_memcpy(&v, &bits, 4);
  return v;
}

// Scale and codes (2 * E2M1) of 16 floats; returns the scale. A NaN or infinity makes it NaN.
inline float encode_nvfp4(const float* x, float input_scale, std::int8_t* codes) {
  const float amax = V::abs_max(x, kNvfp4Group);
  float scale = input_scale * amax / 6.0f;
  scale = amax < __builtin_inff() ? round_e4m3(scale < 448.0f ? scale : 448.0f) : __builtin_nanf("");
  if (!(scale > 0.0f)) {
    __builtin_memset(codes, 0, kNvfp4Group);
    return scale;
  }
  const V::F t = V::div(V::mul(V::load(x), V::set1(input_scale)), V::set1(scale));
  const V::F v = V::max(V::set1(-6.0f), V::min(V::set1(6.0f), t));
  const V::F size = V::max(v, V::sub(V::zero(), v));
  // Steps of 1/2 up to 2, of 1 up to 4, of 2 up to 6; the numbers at the borders are multiples of both steps.
  const V::F fine = V::round(V::add(v, v)), middle = V::mul(V::set1(2.0f), V::round(v));
  const V::F coarse = V::mul(V::set1(4.0f), V::round(V::mul(V::set1(0.5f), v)));
  V::F code = V::add(fine, V::zero_below(V::sub(middle, fine), size, V::set1(2.0f)));
  code = V::add(code, V::zero_below(V::sub(coarse, middle), size, V::set1(4.0f)));
  alignas(64) float lanes[kLanes];
  V::store(lanes, code);
  V::quantize16(lanes, 1.0f, codes);
  return scale;
}

void quantize_w4a4(const QuantizeArgs& a, long begin, long end) {
  const int groups = activation_groups(a.k);
  for (long i = begin; i < end; ++i) {
    const Tile tile(a, static_cast<int>(i / groups));
    const int group = static_cast<int>(i % groups);
    std::uint8_t* record = tile.data + kTileHeaderBytes + kNvfp4BytesPerRowGroup * tile.rows * group;
    for (int row = 0; row < tile.rows; ++row) {
      alignas(64) float tail[kGroup];
      const float* x = whole_group(tile.x + row * a.ldx, group * kGroup, a.k, tail);
      std::int8_t* codes = reinterpret_cast<std::int8_t*>(record) + kGroup * row;
      for (int half = 0; half < 2; ++half) {
        std::int8_t* sixteen = codes + kNvfp4Group * half;
        const float scale = encode_nvfp4(x + kNvfp4Group * half, a.input_scale, sixteen);
        int sum = 0;
        for (int j = 0; j < kNvfp4Group; ++j) sum += sixteen[j];
        put(record, kNvfp4Scale + 4 * half, tile.rows, row, scale);
        put(record, kNvfp4Minus16 + 4 * half, tile.rows, row, static_cast<std::int32_t>(-16 * sum));
      }
    }
  }
}

}  // namespace

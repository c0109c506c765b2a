// Matrix products: activations [rows, K] times weights in layout n16, one output row per vector lane.
//
// Reduction order, the same for every row count and every target: lane n of the accumulator adds up the groups (packed
// weights) or columns (float) of output row n in ascending order, one fused multiply-add each. Sums inside a group are
// exact integers; their conversion, the group sums and the row scale round.
#pragma once

#include "core/kernels.h"

namespace {

using namespace ninfer;

// Rows whose largest magnitude is below this become zero: their scale would be near the subnormals.
constexpr float kSmallestRowMax = 0x1p-100f;
constexpr float kLargestCode = 127.0f * 256.0f;

// Largest |x| by the order of the bit patterns, so that NaN and infinity win.
inline float row_abs_max(const float* x, int n) {
  float best = 0.0f;
  for (int i = 0; i < n; i += 32) {
    alignas(64) float tail[32];
    const float* p = x + i;
    if (n - i < 32) {
      for (int j = 0; j < 32; ++j) tail[j] = i + j < n ? x[i + j] : 0.0f;
      p = tail;
    }
    const float m = V::abs_max32(p);
    if (m > best || m != m) best = m;
    if (m != m) break;
  }
  return best;
}

struct CodeScale {
  float scale, inverse;
  // NaN and infinity fail the comparison and end up in the scale, so that they are never lost.
  explicit CodeScale(float amax)
      : scale(amax < kSmallestRowMax ? 0.0f : amax / kLargestCode),
        inverse(amax < kSmallestRowMax ? 0.0f : kLargestCode / amax) {}
};

void quantize(const QuantizeArgs& a, long begin, long end) {
  const int groups = (a.k + kGroup - 1) / kGroup;
  CodeScale scale(0.0f);
  for (long i = begin; i < end; ++i) {
    const int row = static_cast<int>(i / groups), group = static_cast<int>(i % groups);
    const float* x = a.x + row * a.ldx;
    if (i == begin || group == 0) scale = CodeScale(row_abs_max(x, a.k));
    const int tile = row / a.tile_rows, in_tile = row % a.tile_rows;
    const int left = a.rows - tile * a.tile_rows;
    const int tile_rows = left < a.tile_rows ? left : a.tile_rows;
    std::uint8_t* base = a.tiles + tile_bytes(a.tile_rows, groups) * tile;
    if (group == 0) reinterpret_cast<float*>(base)[in_tile] = scale.scale;
    std::uint8_t* record = base + kTileHeaderBytes + kActBytesPerRowGroup * tile_rows * group;
    std::int8_t* high = reinterpret_cast<std::int8_t*>(record) + kGroup * in_tile;
    std::int8_t* low = high + kGroup * tile_rows;
    alignas(64) float tail[kGroup];
    const int first = group * kGroup;
    const float* p = x + first;
    if (a.k - first < kGroup) {
      for (int j = 0; j < kGroup; ++j) tail[j] = first + j < a.k ? x[first + j] : 0.0f;
      p = tail;
    }
    const int sum = V::digits16(p, scale.inverse, high, low) + V::digits16(p + 16, scale.inverse, high + 16, low + 16);
    reinterpret_cast<float*>(record + 64 * tile_rows)[in_tile] = static_cast<float>(sum);
    reinterpret_cast<std::int32_t*>(record + 68 * tile_rows)[in_tile] = static_cast<std::int32_t>(-8u * static_cast<unsigned>(sum));
    reinterpret_cast<std::int32_t*>(record + 72 * tile_rows)[in_tile] = static_cast<std::int32_t>(-128u * static_cast<unsigned>(sum));
  }
}

// Exact integer dot products of one weight group with R activation rows: 16 lanes of int32 per row. Rows run in the inner
// loop, so that R independent sums hide the latency of the dot instructions.
struct DotQ8 {
  static constexpr int kCodeBytes = 512;
  static constexpr bool kHasMin = false;
  static constexpr int kBiasOffset = 72;  // of the sums that take the codes' offset out, in an activation record, per row
  template <int R>
  static inline __attribute__((always_inline)) void dot(const std::uint8_t* codes, const std::uint8_t* act,
                                                        V::I (&acc)[R]) {
    const std::int8_t* digits = reinterpret_cast<const std::int8_t*>(act);
    const std::int32_t* bias = reinterpret_cast<const std::int32_t*>(act + kBiasOffset * R);
    for (int r = 0; r < R; ++r) acc[r] = V::zero_i32();
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const V::B w = V::load_u8off(codes + 64 * j);
      for (int r = 0; r < R; ++r) acc[r] = V::dot_u8off(acc[r], w, digits + kGroup * r + 4 * j);
    }
    for (int r = 0; r < R; ++r) acc[r] = V::next_digit_u8off(acc[r], bias + r);
    digits += kGroup * R;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const V::B w = V::load_u8off(codes + 64 * j);
      for (int r = 0; r < R; ++r) acc[r] = V::dot_u8off(acc[r], w, digits + kGroup * r + 4 * j);
    }
  }
};

template <bool HasMin>
struct DotQ4 {
  static constexpr int kCodeBytes = 256;
  static constexpr bool kHasMin = HasMin;
  static constexpr int kBiasOffset = 68;
  template <int R>
  static inline __attribute__((always_inline)) void dot(const std::uint8_t* codes, const std::uint8_t* act,
                                                        V::I (&acc)[R]) {
    const std::int8_t* digits = reinterpret_cast<const std::int8_t*>(act);
    V::B w[8];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) V::load_u4(codes + 64 * j, w[j], w[j + 4]);
    V::template dot_u4_digits<R>(w, digits, digits + kGroup * R, kGroup, acc);
    const std::int32_t* bias = reinterpret_cast<const std::int32_t*>(act + kBiasOffset * R);
    if (!HasMin)
      for (int r = 0; r < R; ++r) acc[r] = V::add_i32(acc[r], bias + r);
  }
};

inline void store_lanes(const ProductArgs& a, int row, int column, V::F acc) {
  const int n = a.weight->n - column;
  float* y = a.y + row * a.ldy + column;
  if (n >= kLanes) {
    V::store(y, a.residual ? V::add(acc, V::load(a.residual + row * a.ldr + column)) : acc);
  } else {
    V::store_n(y, a.residual ? V::add(acc, V::load_n(a.residual + row * a.ldr + column, n)) : acc, n);
  }
}

// Asking for weights this far ahead keeps more reads under way than the hardware prefetcher does: one row ran at 50 GB/s
// instead of 33 (2 threads, Granite Rapids, 2026-11-30). Reads past the end are harmless: a prefetch never faults.
constexpr std::size_t kPrefetchBytes = 24576;

// Asks for the part of the weights ahead that corresponds to one group, scales and minima included.
template <int CodeBytes>
inline void prefetch_group(const Weight& w, const std::uint8_t* record, int g) {
  const std::uint8_t* p = record + kPrefetchBytes + w.record_bytes / static_cast<unsigned>(w.groups) * g;
#pragma GCC unroll 9
  for (int i = 0; i < CodeBytes + 64; i += 64) __builtin_prefetch(p + i, 0, 3);
}

template <class Dot, int R>
void packed_tile(const ProductArgs& a, const std::uint8_t* record, const std::uint8_t* tile, int row0, int column) {
  const Weight& w = *a.weight;
  const std::uint16_t* scales = reinterpret_cast<const std::uint16_t*>(record);
  const std::uint16_t* mins = reinterpret_cast<const std::uint16_t*>(record + w.mins_offset);
  const std::uint8_t* codes = record + w.codes_offset;
  const std::uint8_t* act = tile + kTileHeaderBytes;
  V::F acc[R];
  for (int r = 0; r < R; ++r) acc[r] = V::zero();
  for (int g = 0; g < w.groups; ++g) {
    prefetch_group<Dot::kCodeBytes>(w, record, g);
    V::I dot[R];
    Dot::template dot<R>(codes, act, dot);
    const V::F scale = V::load_f16(scales);
    const float* sums = reinterpret_cast<const float*>(act + 64 * R);
    for (int r = 0; r < R; ++r) acc[r] = V::fma(V::to_float(dot[r]), scale, acc[r]);
    if (Dot::kHasMin) {
      const V::F min = V::load_f16(mins);
      for (int r = 0; r < R; ++r) acc[r] = V::fma(min, V::set1(sums[r]), acc[r]);
    }
    codes += Dot::kCodeBytes;
    scales += kLanes;
    mins += kLanes;
    act += kActBytesPerRowGroup * R;
  }
  const float* row_scales = reinterpret_cast<const float*>(tile);
  for (int r = 0; r < R; ++r) store_lanes(a, row0 + r, column, V::mul(acc[r], V::set1(row_scales[r])));
}

// Column sources of float products: 16 lanes of consecutive columns k, in ascending order.
struct ColumnsF32 {
  static constexpr int kStep = 1;
  const float* p;
  ColumnsF32(const Weight&, const std::uint8_t* record) : p(reinterpret_cast<const float*>(record)) {}
  template <class Fn> inline __attribute__((always_inline)) void each(int k, Fn fn) { fn(k, V::load(p + 16 * k)); }
};

struct ColumnsBF16 {
  static constexpr int kStep = 1;
  const std::uint16_t* p;
  ColumnsBF16(const Weight&, const std::uint8_t* record) : p(reinterpret_cast<const std::uint16_t*>(record)) {}
  template <class Fn> inline __attribute__((always_inline)) void each(int k, Fn fn) {
    fn(k, V::load_bf16(p + 16 * k));
  }
};

struct ColumnsQ8 {
  static constexpr int kStep = kGroup;
  const Weight& w;
  const std::uint8_t* record;
  ColumnsQ8(const Weight& weight, const std::uint8_t* rec) : w(weight), record(rec) {}
  template <class Fn> inline __attribute__((always_inline)) void each(int k, Fn fn) {
    const int g = k / kGroup;
    const V::F scale = V::load_f16(reinterpret_cast<const std::uint16_t*>(record) + kLanes * g);
    const std::uint8_t* codes = record + w.codes_offset + 512 * static_cast<std::size_t>(g);
    for (int j = 0; j < 8; ++j) {
      const V::B q = V::load_u8off(codes + 64 * j);
      for (int b = 0; b < 4; ++b) fn(k + 4 * j + b, V::mul(V::u8off_to_float(q, b), scale));
    }
  }
};

template <bool HasMin>
struct ColumnsQ4 {
  static constexpr int kStep = kGroup;
  const Weight& w;
  const std::uint8_t* record;
  ColumnsQ4(const Weight& weight, const std::uint8_t* rec) : w(weight), record(rec) {}
  template <class Fn> inline __attribute__((always_inline)) void each(int k, Fn fn) {
    const int g = k / kGroup;
    const V::F scale = V::load_f16(reinterpret_cast<const std::uint16_t*>(record) + kLanes * g);
    const V::F min = HasMin
        ? V::load_f16(reinterpret_cast<const std::uint16_t*>(record + w.mins_offset) + kLanes * g)
        : V::mul(scale, V::set1(-8.0f));  // exact, so d * nib - 8 d rounds only once
    const std::uint8_t* codes = record + w.codes_offset + 256 * static_cast<std::size_t>(g);
    for (int half = 0; half < 2; ++half)
      for (int j = 0; j < 4; ++j) {
        V::B lo, hi;
        V::load_u4(codes + 64 * j, lo, hi);
        for (int b = 0; b < 4; ++b)
          fn(k + 16 * half + 4 * j + b, V::fma(V::u4_to_float(half ? hi : lo, b), scale, min));
      }
  }
};

template <class Columns, int R>
void float_tile(const ProductArgs& a, const std::uint8_t* record, int row0, int column) {
  const Weight& w = *a.weight;
  const float* x[R];
  V::F acc[R];
  for (int r = 0; r < R; ++r) {
    x[r] = a.x + (row0 + r) * a.ldx;
    acc[r] = V::zero();
  }
  Columns columns(w, record);
  for (int k = 0; k < w.k; k += Columns::kStep) {
    const int left = w.k - k;
    if (Columns::kStep == 1 || left >= Columns::kStep) {
      columns.each(k, [&](int col, V::F v) {
        for (int r = 0; r < R; ++r) acc[r] = V::fma(v, V::set1(x[r][col]), acc[r]);
      });
    } else {
      columns.each(k, [&](int col, V::F v) {
        if (col < w.k)
          for (int r = 0; r < R; ++r) acc[r] = V::fma(v, V::set1(x[r][col]), acc[r]);
      });
    }
  }
  for (int r = 0; r < R; ++r) store_lanes(a, row0 + r, column, acc[r]);
}

// Calls fn<R>() for the run-time row count r in 1..Max.
template <int Max, class Fn>
inline void with_rows(int r, Fn fn) {
  if constexpr (Max > 1) {
    if (r < Max) return with_rows<Max - 1>(r, fn);
  }
  fn.template operator()<Max>();
}

template <class Dot>
void packed_product(const ProductArgs& a) {
  const Weight& w = *a.weight;
  for (int rec = a.record_begin; rec < a.record_end; ++rec) {
    const std::uint8_t* record = w.data + w.record_bytes * rec;
    for (int row = 0; row < a.rows; row += a.tile_rows) {
      const int rows = a.rows - row < a.tile_rows ? a.rows - row : a.tile_rows;
      const std::uint8_t* tile = a.tiles + tile_bytes(a.tile_rows, w.groups) * (row / a.tile_rows);
      with_rows<V::kTileRows>(rows, [&]<int R>() { packed_tile<Dot, R>(a, record, tile, row, rec * kLanes); });
    }
  }
}

template <class Columns>
void float_product(const ProductArgs& a) {
  const Weight& w = *a.weight;
  for (int rec = a.record_begin; rec < a.record_end; ++rec) {
    const std::uint8_t* record = w.data + w.record_bytes * rec;
    for (int row = 0; row < a.rows; row += V::kFloatTileRows) {
      const int rows = a.rows - row < V::kFloatTileRows ? a.rows - row : V::kFloatTileRows;
      with_rows<V::kFloatTileRows>(rows, [&]<int R>() { float_tile<Columns, R>(a, record, row, rec * kLanes); });
    }
  }
}

void product_a8(const ProductArgs& a) {
  switch (a.weight->format) {
    case WeightFormat::q8g32: return packed_product<DotQ8>(a);
    case WeightFormat::q4g32: return packed_product<DotQ4<false>>(a);
    case WeightFormat::q4g32m: return packed_product<DotQ4<true>>(a);
    case WeightFormat::f32:
    case WeightFormat::bf16: return;  // the caller routes float weights to product_f32
  }
}

void product_f32(const ProductArgs& a) {
  switch (a.weight->format) {
    case WeightFormat::f32: return float_product<ColumnsF32>(a);
    case WeightFormat::bf16: return float_product<ColumnsBF16>(a);
    case WeightFormat::q8g32: return float_product<ColumnsQ8>(a);
    case WeightFormat::q4g32: return float_product<ColumnsQ4<false>>(a);
    case WeightFormat::q4g32m: return float_product<ColumnsQ4<true>>(a);
  }
}

}  // namespace

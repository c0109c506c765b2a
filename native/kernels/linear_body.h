// Matrix products: activations [rows, K] times weights in layout n16, one output row per vector lane.
//
// Reduction order, the same for every row count and every target: lane n of the accumulator adds up the groups (packed
// weights) or columns (float) of output row n in ascending order, one fused multiply-add each. Sums inside a group are
// exact integers, so only their conversion and the group sums round.
#pragma once

#include "core/kernels.h"

namespace {

using namespace ninfer;

// Groups whose largest magnitude is below this quantise to zero: their scale would be subnormal.
constexpr float kSmallestGroupMax = 0x1p-100f;

void quantize_group(const float* x, int n, int row, int tile_rows, std::uint8_t* record) {
  alignas(64) float padded[kGroup];
  if (n < kGroup) {
    for (int i = 0; i < kGroup; ++i) padded[i] = i < n ? x[i] : 0.0f;
    x = padded;
  }
  const float amax = V::abs_max32(x);
  // NaN and infinity fail the comparison and end up in the scale, so that they are never lost.
  const bool empty = amax < kSmallestGroupMax;
  const float scale = empty ? 0.0f : amax / 127.0f;
  const float inv = empty ? 0.0f : 127.0f / amax;
  std::int8_t* codes = reinterpret_cast<std::int8_t*>(record) + kGroup * row;
  const int sum = V::quantize16(x, inv, codes) + V::quantize16(x + 16, inv, codes + 16);
  float* scales = reinterpret_cast<float*>(record + 32 * tile_rows);
  scales[row] = scale;
  scales[tile_rows + row] = scale * static_cast<float>(sum);
  std::int32_t* biases = reinterpret_cast<std::int32_t*>(record + 40 * tile_rows);
  biases[row] = -8 * sum;
  biases[tile_rows + row] = -128 * sum;
}

void quantize(const QuantizeArgs& a, long begin, long end) {
  const int groups = (a.k + kGroup - 1) / kGroup;
  long row = begin / groups;
  int group = static_cast<int>(begin % groups);
  for (long i = begin; i < end; ++i) {
    const int tile = static_cast<int>(row) / a.tile_rows;
    const int left = a.rows - tile * a.tile_rows;
    const int tile_rows = left < a.tile_rows ? left : a.tile_rows;
    std::uint8_t* tile_base = a.tiles + kActBytesPerRowGroup * groups * a.tile_rows * tile;
    const int n = a.k - group * kGroup;
    quantize_group(a.x + row * a.ldx + group * kGroup, n < kGroup ? n : kGroup, static_cast<int>(row) % a.tile_rows,
                   tile_rows, tile_base + kActBytesPerRowGroup * tile_rows * group);
    if (++group == groups) {
      group = 0;
      ++row;
    }
  }
}

// Exact integer dot products of one weight group with R activation rows, as 16 lanes of int32 per row.
struct DotQ8 {
  static constexpr int kCodeBytes = 512;
  static constexpr bool kHasMin = false;
  template <int R>
  static inline __attribute__((always_inline)) void dot(const std::uint8_t* codes, const std::uint8_t* act,
                                                        V::I (&acc)[R]) {
    const std::int32_t* bias = reinterpret_cast<const std::int32_t*>(act + 44 * R);
    for (int r = 0; r < R; ++r) acc[r] = V::bias_u8off(bias + r);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const V::B w = V::load_u8off(codes + 64 * j);
      for (int r = 0; r < R; ++r)
        acc[r] = V::dot_u8off(acc[r], w, reinterpret_cast<const std::int8_t*>(act) + kGroup * r + 4 * j);
    }
  }
};

template <bool HasMin>
struct DotQ4 {
  static constexpr int kCodeBytes = 256;
  static constexpr bool kHasMin = HasMin;
  template <int R>
  static inline __attribute__((always_inline)) void dot(const std::uint8_t* codes, const std::uint8_t* act,
                                                        V::I (&acc)[R]) {
    const std::int8_t* a = reinterpret_cast<const std::int8_t*>(act);
    V::A4 sum[R];
    for (int r = 0; r < R; ++r) sum[r] = V::zero_u4();
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      V::B lo, hi;
      V::load_u4(codes + 64 * j, lo, hi);
      for (int r = 0; r < R; ++r) sum[r] = V::dot_u4(sum[r], lo, a + kGroup * r + 4 * j);
      for (int r = 0; r < R; ++r) sum[r] = V::dot_u4(sum[r], hi, a + kGroup * r + 16 + 4 * j);
    }
    const std::int32_t* bias = reinterpret_cast<const std::int32_t*>(act + 40 * R);
    for (int r = 0; r < R; ++r) {
      acc[r] = V::finish_u4(sum[r]);
      if (!HasMin) acc[r] = V::add_i32(acc[r], bias + r);
    }
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
constexpr std::size_t kPrefetchBytes = 12288;

template <int Bytes>
inline void prefetch_lines(const std::uint8_t* p) {
#pragma GCC unroll 8
  for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

template <class Dot, int R>
void packed_tile(const ProductArgs& a, const std::uint8_t* record, const std::uint8_t* act, int row0, int column) {
  const Weight& w = *a.weight;
  const std::uint16_t* scales = reinterpret_cast<const std::uint16_t*>(record);
  const std::uint16_t* mins = reinterpret_cast<const std::uint16_t*>(record + w.mins_offset);
  const std::uint8_t* codes = record + w.codes_offset;
  V::F acc[R];
  for (int r = 0; r < R; ++r) acc[r] = V::zero();
  for (int g = 0; g < w.groups; ++g) {
    prefetch_lines<Dot::kCodeBytes>(codes + kPrefetchBytes);
    V::I dot[R];
    Dot::template dot<R>(codes, act, dot);
    const float* act_scale = reinterpret_cast<const float*>(act + 32 * R);
    const V::F scale = V::load_f16(scales);
    for (int r = 0; r < R; ++r)
      acc[r] = V::fma(V::to_float(dot[r]), V::mul(scale, V::set1(act_scale[r])), acc[r]);
    if (Dot::kHasMin) {
      const V::F min = V::load_f16(mins);
      for (int r = 0; r < R; ++r) acc[r] = V::fma(min, V::set1(act_scale[R + r]), acc[r]);
    }
    codes += Dot::kCodeBytes;
    scales += kLanes;
    mins += kLanes;
    act += kActBytesPerRowGroup * R;
  }
  for (int r = 0; r < R; ++r) store_lanes(a, row0 + r, column, acc[r]);
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
      const std::uint8_t* act = a.tiles + kActBytesPerRowGroup * w.groups * row;
      with_rows<V::kTileRows>(rows, [&]<int R>() { packed_tile<Dot, R>(a, record, act, row, rec * kLanes); });
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

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

struct CodeScale {
  float scale, inverse;
  // NaN and infinity fail the comparison and end up in the scale, so that they are never lost.
  explicit CodeScale(float amax)
      : scale(amax < kSmallestRowMax ? 0.0f : amax / kLargestCode),
        inverse(amax < kSmallestRowMax ? 0.0f : kLargestCode / amax) {}
};

// One group of one row: its digits and the sums that take the offsets of codes out.
inline void quantize_group(const float* x, int columns, float inverse, std::uint8_t* record, int tile_rows, int row) {
  alignas(64) float tail[kGroup];
  if (columns < kGroup) {
    for (int j = 0; j < kGroup; ++j) tail[j] = j < columns ? x[j] : 0.0f;
    x = tail;
  }
  std::int8_t* high = reinterpret_cast<std::int8_t*>(record) + kGroup * row;
  std::int8_t* low = high + kGroup * tile_rows;
  const unsigned first = static_cast<unsigned>(V::digits16(x, inverse, high, low));
  const unsigned second = static_cast<unsigned>(V::digits16(x + 16, inverse, high + 16, low + 16));
  const auto put = [&](int offset, unsigned value) {
    reinterpret_cast<std::int32_t*>(record + offset * tile_rows)[row] = static_cast<std::int32_t>(value);
  };
  reinterpret_cast<float*>(record + kActSum * tile_rows)[row] =
      static_cast<float>(static_cast<std::int32_t>(first + second));
  put(kActMinus8, -8u * (first + second));
  put(kActMinus128, -128u * (first + second));
}

void quantize(const QuantizeArgs& a, long begin, long end) {
  const int groups = (a.k + kGroup - 1) / kGroup;
  float inverse[kMaxTileRows];
  for (long i = begin; i < end; ++i) {
    const int tile = static_cast<int>(i / groups), group = static_cast<int>(i % groups);
    const int left = a.rows - tile * a.tile_rows;
    const int tile_rows = left < a.tile_rows ? left : a.tile_rows;
    const float* x = a.x + static_cast<std::size_t>(tile) * a.tile_rows * a.ldx;
    std::uint8_t* base = a.tiles + tile_bytes(a.tile_rows, groups) * tile;
    if (i == begin || group == 0)
      for (int row = 0; row < tile_rows; ++row) {
        const CodeScale scale(V::abs_max(x + row * a.ldx, a.k));
        inverse[row] = scale.inverse;
        if (group == 0) reinterpret_cast<float*>(base)[row] = scale.scale;
      }
    std::uint8_t* record = base + kTileHeaderBytes + kActBytesPerRowGroup * tile_rows * group;
    const int first = group * kGroup;
    for (int row = 0; row < tile_rows; ++row)
      quantize_group(x + row * a.ldx + first, a.k - first, inverse[row], record, tile_rows, row);
  }
}

// One group of packed weights as 8 quads of unsigned bytes: load(codes, j, a, b) gives quads j and j + 4.
struct CodesQ8 {
  static constexpr int kBytes = 512;
  static constexpr int kLargest = 255;
  static constexpr bool kHasMin = false;
  static constexpr int kBias = kActMinus128;  // of the sums that take the codes' offset out, in an activation record
  static inline __attribute__((always_inline)) void load(const std::uint8_t* codes, int j, V::B& a, V::B& b) {
    a = V::load_u8(codes + 64 * j);
    b = V::load_u8(codes + 64 * j + 256);
  }
};

template <bool HasMin>
struct CodesQ4 {
  static constexpr int kBytes = 256;
  static constexpr int kLargest = 15;
  static constexpr bool kHasMin = HasMin;
  static constexpr int kBias = kActMinus8;
  static inline __attribute__((always_inline)) void load(const std::uint8_t* codes, int j, V::B& a, V::B& b) {
    V::load_u4(codes + 64 * j, a, b);
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

// Asks for the part of the weights ahead that corresponds to one group of N records, scales and minima included.
template <int CodeBytes, int N>
inline void prefetch_group(const Weight& w, const std::uint8_t* record, int g) {
  const std::uint8_t* p = record + kPrefetchBytes + w.record_bytes * N / static_cast<unsigned>(w.groups) * g;
#pragma GCC unroll 18
  for (int i = 0; i < N * (CodeBytes + 64); i += 64) __builtin_prefetch(p + i, 0, 3);
}

// R rows of an activation tile, from row `row` of its `tile_rows` on, times N neighbouring records of weights. Rows and
// records run in the inner loops: independent sums hide the latency of the dot instructions, and a quad of activations
// that was read serves all records.
template <class Codes, int R, int N>
void packed_block(const ProductArgs& a, int rec, const std::uint8_t* tile, int tile_rows, int row, int first_row) {
  const Weight& w = *a.weight;
  const std::uint8_t* record = w.data + w.record_bytes * rec;
  const std::uint8_t* act = tile + kTileHeaderBytes;
  const bool first_pass = first_row + row == 0;
  V::F acc[N][R];
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r) acc[n][r] = V::zero();
  for (int g = 0; g < w.groups; ++g) {
    if (first_pass) prefetch_group<Codes::kBytes, N>(w, record, g);
    const std::uint8_t* codes = record + w.codes_offset + static_cast<std::size_t>(Codes::kBytes) * g;
    const auto load = [&](int n, int j, V::B& a, V::B& b) __attribute__((always_inline)) {
      Codes::load(codes + w.record_bytes * n, j, a, b);
    };
    const std::int8_t* high = reinterpret_cast<const std::int8_t*>(act) + kGroup * row;
    const std::int32_t* bias = reinterpret_cast<const std::int32_t*>(act + Codes::kBias * tile_rows) + row;
    V::I dot[N][R];
    V::template dot_digits<Codes::kLargest, R, N>(load, high, high + kGroup * tile_rows, dot);
    if (!Codes::kHasMin)
      for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) dot[n][r] = V::add_i32(dot[n][r], bias + r);
    for (int n = 0; n < N; ++n) {
      const V::F scale =
          V::load_f16(reinterpret_cast<const std::uint16_t*>(record + w.record_bytes * n) + kLanes * g);
      for (int r = 0; r < R; ++r) acc[n][r] = V::fma(V::to_float(dot[n][r]), scale, acc[n][r]);
    }
    if (Codes::kHasMin) {
      const float* sums = reinterpret_cast<const float*>(act + kActSum * tile_rows) + row;
      for (int n = 0; n < N; ++n) {
        const V::F min = V::load_f16(
            reinterpret_cast<const std::uint16_t*>(record + w.record_bytes * n + w.mins_offset) + kLanes * g);
        for (int r = 0; r < R; ++r) acc[n][r] = V::fma(min, V::set1(sums[r]), acc[n][r]);
      }
    }
    act += kActBytesPerRowGroup * tile_rows;
  }
  const float* row_scales = reinterpret_cast<const float*>(tile) + row;
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r)
      store_lanes(a, first_row + row + r, (rec + n) * kLanes, V::mul(acc[n][r], V::set1(row_scales[r])));
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
      const V::B q = V::load_u8(codes + 64 * j);
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

// All rows times N neighbouring records. Tiles are cut into blocks of nearly equal height.
template <class Codes, int N>
void packed_records(const ProductArgs& a, int rec) {
  const std::size_t tile_stride = tile_bytes(a.tile_rows, a.weight->groups);
  for (int first = 0; first < a.rows; first += a.tile_rows) {
    const int rows = a.rows - first < a.tile_rows ? a.rows - first : a.tile_rows;
    const std::uint8_t* tile = a.tiles + tile_stride * static_cast<std::size_t>(first / a.tile_rows);
    int blocks = (rows + V::kBlockRows - 1) / V::kBlockRows;
    for (int row = 0; row < rows;) {
      const int height = (rows - row + blocks - 1) / blocks;
      with_rows<V::kBlockRows>(height, [&]<int R>() { packed_block<Codes, R, N>(a, rec, tile, rows, row, first); });
      row += height;
      --blocks;
    }
  }
}

template <class Codes>
void packed_product(const ProductArgs& a) {
  int rec = a.record_begin;
  for (; rec + V::kBlockRecords <= a.record_end; rec += V::kBlockRecords)
    packed_records<Codes, V::kBlockRecords>(a, rec);
  for (; rec < a.record_end; ++rec) packed_records<Codes, 1>(a, rec);
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
    case WeightFormat::q8g32: return packed_product<CodesQ8>(a);
    case WeightFormat::q4g32: return packed_product<CodesQ4<false>>(a);
    case WeightFormat::q4g32m: return packed_product<CodesQ4<true>>(a);
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

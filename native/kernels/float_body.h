// Products of float32 activations with every weight format: what the f32 profile asks for, and what fp8, bf16 and f32
// weights always get. Lane n adds up the columns of output row n in ascending order, one fused multiply-add each.
#pragma once

#include "kernels/linear_body.h"

namespace {

using namespace ninfer;

// Column sources: N records; each(k, fn) calls fn(column, values of the N records) for kStep columns from k on, in
// ascending order; finish(n, sum) is the output of record n.
template <int N>
struct Records {
  const std::uint8_t* first;
  std::size_t stride;
  Records(const Weight& w, const std::uint8_t* record) : first(record), stride(w.record_bytes) {}
  const std::uint8_t* operator[](int n) const { return first + stride * n; }
  V::F finish(int, V::F sum) const { return sum; }
};

template <int N>
struct ColumnsF32 : Records<N> {
  static constexpr int kStep = 1, kBytes = 64;
  ColumnsF32(const ProductArgs& a, const std::uint8_t* record) : Records<N>(*a.weight, record) {}
  template <class Fn> inline __attribute__((always_inline)) void each(int k, Fn fn) const {
    V::F v[N];
    for (int n = 0; n < N; ++n) v[n] = V::load(reinterpret_cast<const float*>((*this)[n]) + kLanes * k);
    fn(k, v);
  }
};

template <int N>
struct ColumnsBF16 : Records<N> {
  static constexpr int kStep = 1, kBytes = 32;
  ColumnsBF16(const ProductArgs& a, const std::uint8_t* record) : Records<N>(*a.weight, record) {}
  template <class Fn> inline __attribute__((always_inline)) void each(int k, Fn fn) const {
    V::F v[N];
    for (int n = 0; n < N; ++n) v[n] = V::load_bf16(reinterpret_cast<const std::uint16_t*>((*this)[n]) + kLanes * k);
    fn(k, v);
  }
};

// Row scales first, then 4 columns of 16 rows per line. Codes that are NaN, which no legal weight has, count as 480: to keep
// the largest byte seen costs one row 14 % with AVX-512 and 60 % with AVX2 (weights in cache, Zen 5, 2026-11-30).
template <int N>
struct ColumnsFP8 : Records<N> {
  static constexpr int kStep = 4, kBytes = 64;
  ColumnsFP8(const ProductArgs& a, const std::uint8_t* record) : Records<N>(*a.weight, record) {}
  template <class Fn> inline __attribute__((always_inline)) void each(int k, Fn fn) const {
    V::B q[N];
    for (int n = 0; n < N; ++n) q[n] = V::load_u8((*this)[n] + 64 + 16 * static_cast<std::size_t>(k));
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      V::F v[N];
      for (int n = 0; n < N; ++n) v[n] = V::mul(V::small_e4m3(q[n], b), V::set1(0x1p120f));
      fn(k + b, v);
    }
  }
  V::F finish(int n, V::F sum) const { return V::mul(sum, V::load(reinterpret_cast<const float*>((*this)[n]))); }
};

template <class Codes, int N>
struct ColumnsPacked : Records<N> {
  static constexpr int kStep = kGroup, kBytes = Codes::kLow + Codes::kHigh;
  const Weight& w;
  float factor;
  ColumnsPacked(const ProductArgs& a, const std::uint8_t* record)
      : Records<N>(*a.weight, record), w(*a.weight), factor(a.factor) {}
  template <class Fn> inline __attribute__((always_inline)) void each(int k, Fn fn) const {
    const int c = k / kGroup;
    for (int half = 0; half < 2; ++half) {
      V::F scale[N], min[N];
      for (int n = 0; n < N; ++n) {
        scale[n] = Codes::scale(w, (*this)[n], c, half);
        if constexpr (Codes::kHasMin) min[n] = Codes::min(w, (*this)[n], c);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        V::B q[N];
        for (int n = 0; n < N; ++n) {
          V::B a, b;
          Codes::load((*this)[n] + w.codes_offset + Codes::kLow * static_cast<std::size_t>(c),
                      (*this)[n] + w.high_offset + Codes::kHigh * static_cast<std::size_t>(c), j, a, b);
          q[n] = half == 0 ? a : b;
        }
        for (int b = 0; b < 4; ++b) {
          V::F v[N];
          for (int n = 0; n < N; ++n) {
            const V::F code = V::byte_to_float(q[n], b, Codes::kOffset);  // times the scale: exact in float32
            if constexpr (Codes::kHasMin) v[n] = V::fma(code, scale[n], min[n]);
            else v[n] = V::mul(code, scale[n]);
          }
          fn(k + 16 * half + 4 * j + b, v);
        }
      }
    }
  }
  V::F finish(int, V::F sum) const { return V::mul(sum, V::set1(factor)); }
};

template <class Codes>
struct Packed {
  template <int N> using Columns = ColumnsPacked<Codes, N>;
};

// R rows of activations times N neighbouring records; x has the values of the rows side by side: [K][R].
template <class Columns, int R, int N>
void float_block(const ProductArgs& a, int record, int row0, const float* x) {
  const Weight& w = *a.weight;
  const std::uint8_t* data = w.data + w.record_bytes * record;
  V::F acc[N][R];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) acc[n][r] = V::zero();
  const Columns columns(a, data);
  const auto add = [&](int k, const V::F (&v)[N]) __attribute__((always_inline)) {
    for (int r = 0; r < R; ++r) {
      const V::F each = V::set1(x[R * k + r]);
      for (int n = 0; n < N; ++n) acc[n][r] = V::fma(v[n], each, acc[n][r]);
    }
  };
  const int whole = w.k - w.k % Columns::kStep;
  Ahead<N> ahead(w, data, Columns::kBytes, (w.k + Columns::kStep - 1) / Columns::kStep);
  for (int k = 0; k < whole; k += Columns::kStep) {
    if (row0 == 0)
      ahead.next(fetch_lines<Columns::kBytes>);
    columns.each(k, add);
  }
  if (whole < w.k)
    columns.each(whole, [&](int k, const V::F (&v)[N]) {
      if (k < w.k) add(k, v);
    });
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r) store_lanes(a, row0 + r, (record + n) * kLanes, columns.finish(n, acc[n][r]));
}

// Rows [row, row + rows) of the activations side by side, column by column, in the scratch memory. One row is that already.
inline const float* side_by_side(const ProductArgs& a, int row, int rows) {
  const float* x = a.x + row * a.ldx;
  if (rows == 1) return x;
  float* packed = static_cast<float*>(a.scratch);
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < a.weight->k; ++k) packed[static_cast<std::size_t>(k) * rows + r] = x[r * a.ldx + k];
  return packed;
}

// Blocks of up to R rows and of N records. A block of rows goes through all records before the next, so that its
// activations are put side by side once; weights are read again for every block, which costs little next to the sums.
template <template <int> class Columns, int R, int N>
void float_blocks(const ProductArgs& a) {
  for_pieces(a.rows, R, [&](int row, int rows) {
    const float* x = side_by_side(a, row, rows);
    for_records<N>(a, [&]<int M>(int record) {
      with_rows<R>(rows, [&]<int S>() { float_block<Columns<M>, S, M>(a, record, row, x); });
    });
  });
}

template <template <int> class Columns>
void float_product(const ProductArgs& a) {
  static_assert(V::kFloatBlockRows <= kMostFloatRows);
  if (a.rows <= V::kFewRows) float_blocks<Columns, V::kFewRows, V::kFewRowsRecords>(a);
  else float_blocks<Columns, V::kFloatBlockRows, V::kFloatBlockRecords>(a);
}

// Decoding takes most of the time of these whatever the rows: one record, fewer instances.
constexpr int kPackedFloatRows = 6;

void product_f32(const ProductArgs& a) {
  switch (a.weight->format) {
    case WeightFormat::f32: return float_product<ColumnsF32>(a);
    case WeightFormat::bf16: return float_product<ColumnsBF16>(a);
    case WeightFormat::fp8: return float_product<ColumnsFP8>(a);
    default:
      with_codes(a.weight->format, [&]<class Codes>() {
        float_blocks<Packed<Codes>::template Columns, kPackedFloatRows, 1>(a);
      });
  }
}

}  // namespace

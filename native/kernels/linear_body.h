// Matrix products: activations [rows, K] times weights in layout n16, one output row per vector lane.
//
// Reduction order, the same for every row count and every target: lane n of the accumulator adds up the groups (packed
// weights) or columns (float) of output row n in ascending order, one fused multiply-add each. Sums inside a group are
// exact integers; their conversion, the group sums and the row scale round.
#pragma once

#include "core/kernels.h"
#include "kernels/codes_body.h"
#include "kernels/quantize_body.h"

namespace {

using namespace ninfer;

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

// What is read that far ahead when N records at a time are read in steps of `step_bytes`.
template <int N>
class Ahead {
 public:
  Ahead(const Weight& w, const std::uint8_t* record, std::size_t step_bytes, int steps)
      : record_(record + kPrefetchBytes), record_bytes_(w.record_bytes), step_bytes_(step_bytes), steps_(steps) {
    if constexpr (N == 1) return;  // one record after the other: bytes in their order
    const int lead = static_cast<int>(kPrefetchBytes / (N * step_bytes));
    record_ = record + record_bytes_ * N * static_cast<std::size_t>(lead / steps) + step_bytes * static_cast<std::size_t>(lead % steps);
    left_ = steps - lead % steps;
  }
  // Calls fetch(address) for the N records and goes on to the next step.
  template <class Fetch>
  inline __attribute__((always_inline)) void next(Fetch fetch) {
    for (int n = 0; n < N; ++n) fetch(record_ + record_bytes_ * n);
    record_ += step_bytes_;
    if (N == 1 || --left_ > 0) return;
    left_ = steps_;
    record_ += record_bytes_ * N - step_bytes_ * static_cast<std::size_t>(steps_);
  }

 private:
  const std::uint8_t* record_;
  std::size_t record_bytes_, step_bytes_;
  int steps_, left_ = 0;
};

template <int Bytes>
inline __attribute__((always_inline)) void fetch_lines(const std::uint8_t* p) {
#pragma GCC unroll 9
  for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

// A block's share of a record, scales and minima included. Records are asked for in the order of their bytes, so scales
// are there before the codes of their block; that is 15 % faster than asking for what each block needs (1 row, 2 threads,
// Zen 5, 2026-11-30).
template <class Codes>
inline __attribute__((always_inline)) void fetch_block(const std::uint8_t* p) {
  fetch_lines<Codes::kLow + Codes::kHigh + 64>(p);
}

// The rows [row, row + R) of one activation tile and the records [record, record + N) of a weight: what one call of a
// block kernel multiplies.
struct Block {
  const std::uint8_t* record;
  const std::uint8_t* tile;
  int tile_rows, row;
  int first_row, column;  // of the output
};

// The sums that take the codes' offset out: of a whole block of 32 columns, or of one half of it. Minus8 and Minus16First
// are where a record has them.
template <class Codes, int Minus8 = kActMinus8>
inline V::I block_bias(const std::uint8_t* act, int tile_rows, int row) {
  const V::I minus_8 = V::set1_i32(reinterpret_cast<const std::int32_t*>(act + Minus8 * tile_rows)[row]);
  static_assert(Codes::kOffset == 8 || Codes::kOffset == 16 || Codes::kOffset == 32 || Codes::kOffset == 128);
  constexpr int kLeft = Codes::kOffset == 8 ? 0 : Codes::kOffset == 16 ? 1 : Codes::kOffset == 32 ? 2 : 4;
  return kLeft == 0 ? minus_8 : V::template shift_left<kLeft>(minus_8);
}

template <int Minus8 = kActMinus8, int Minus16First = kActMinus16First>
inline V::I half_bias(const std::uint8_t* act, int tile_rows, int row, int half) {
  const V::I first = V::set1_i32(reinterpret_cast<const std::int32_t*>(act + Minus16First * tile_rows)[row]);
  if (half == 0) return first;
  const V::I minus_8 = V::set1_i32(reinterpret_cast<const std::int32_t*>(act + Minus8 * tile_rows)[row]);
  return V::sub_i32(V::template shift_left<1>(minus_8), first);
}

// acc += products of a block (or half of it: Part as in dot_block) with the codes 256 * high + low of R rows.
template <class Codes, int Part, int R, int N, class Load>
inline __attribute__((always_inline)) void dot_digits(Load load, const std::int8_t* high, const std::int8_t* low,
                                                      V::I (&acc)[N][R]) {
  if constexpr (2 * R * N <= V::kTwinSums && Part == 0) {  // the halves of a block by themselves, too
    V::I half[N][R];
    for (int n = 0; n < N; ++n)
      for (int r = 0; r < R; ++r) half[n][r] = V::zero_i32();
    dot_digits<Codes, 1, R, N>(load, high, low, half);
    dot_digits<Codes, 2, R, N>(load, high, low, acc);
    for (int n = 0; n < N; ++n)
      for (int r = 0; r < R; ++r) acc[n][r] = V::add_i32(acc[n][r], half[n][r]);
  } else if constexpr (R * N <= V::kTwinSums) {  // high digits as R rows more
    V::I both[N][2 * R];
    for (int n = 0; n < N; ++n)
      for (int r = 0; r < R; ++r) {
        both[n][r] = acc[n][r];
        both[n][R + r] = V::zero_i32();
      }
    const auto digits = [&](int r) { return r < R ? low + kGroup * r : high + kGroup * (r - R); };
    V::template dot_block<Codes::kLargest, Part, 2 * R, N>(load, digits, both);
    for (int n = 0; n < N; ++n)
      for (int r = 0; r < R; ++r) acc[n][r] = V::add_i32(both[n][r], V::template shift_left<8>(both[n][R + r]));
  } else {
    V::I sum[N][R];
    for (int n = 0; n < N; ++n)
      for (int r = 0; r < R; ++r) sum[n][r] = V::zero_i32();
    V::template dot_block<Codes::kLargest, Part, R, N>(load, [&](int r) { return high + kGroup * r; }, sum);
    for (int n = 0; n < N; ++n)
      for (int r = 0; r < R; ++r) acc[n][r] = V::add_i32(acc[n][r], V::template shift_left<8>(sum[n][r]));
    V::template dot_block<Codes::kLargest, Part, R, N>(load, [&](int r) { return low + kGroup * r; }, acc);
  }
}

template <int R, int N>
inline __attribute__((always_inline)) void add_scaled(const V::I (&dot)[N][R], const V::F (&scale)[N], V::F (&acc)[N][R]) {
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r) acc[n][r] = V::fma(V::to_float(dot[n][r]), scale[n], acc[n][r]);
}

// Rows and records run in the inner loops: independent sums hide the latency of the dot instructions, and a quad of
// activations that was read serves all records.
template <class Codes, int R, int N>
void packed_block(const ProductArgs& a, const Block& block) {
  const Weight& w = *a.weight;
  const int tile_rows = block.tile_rows, row = block.row;
  const std::size_t act_bytes = kActBytesPerRowGroup * static_cast<std::size_t>(tile_rows);
  const std::uint8_t* act = block.tile + kTileHeaderBytes;
  const bool first_pass = block.first_row == 0;
  Ahead<N> ahead(w, block.record, w.block_bytes, w.groups);
  V::F acc[N][R];
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r) acc[n][r] = V::zero();
  for (int c = 0; c < w.groups; c += Codes::kBlocks) {
    V::I dot[N][R];
    V::F scale[N];
    for (int i = 0; i < Codes::kBlocks; ++i, act += act_bytes) {
      if (first_pass) ahead.next(fetch_block<Codes>);
      const std::uint8_t* low_bits = block.record + w.codes_offset + Codes::kLow * static_cast<std::size_t>(c + i);
      const std::uint8_t* high_bits = block.record + w.high_offset + Codes::kHigh * static_cast<std::size_t>(c + i);
      const auto load = [&](int n, int j, V::B& a, V::B& b) __attribute__((always_inline)) {
        Codes::load(low_bits + w.record_bytes * n, high_bits + w.record_bytes * n, j, a, b);
      };
      const std::int8_t* high = reinterpret_cast<const std::int8_t*>(act) + kGroup * row;
      const std::int8_t* low = high + kGroup * tile_rows;
      if constexpr (Codes::kHalves) {
        for (int r = 0; r < R; ++r)
          for (int n = 0; n < N; ++n) dot[n][r] = half_bias(act, tile_rows, row + r, 0);
        dot_digits<Codes, 1, R, N>(load, high, low, dot);
        for (int n = 0; n < N; ++n) scale[n] = Codes::scale(w, block.record + w.record_bytes * n, c, 0);
        add_scaled<R, N>(dot, scale, acc);
        for (int r = 0; r < R; ++r)
          for (int n = 0; n < N; ++n) dot[n][r] = half_bias(act, tile_rows, row + r, 1);
        dot_digits<Codes, 2, R, N>(load, high, low, dot);
      } else {
        for (int r = 0; r < R; ++r) {
          V::I bias = V::zero_i32();
          if constexpr (!Codes::kHasMin) bias = block_bias<Codes>(act, tile_rows, row + r);
          for (int n = 0; n < N; ++n) dot[n][r] = i == 0 ? bias : V::add_i32(dot[n][r], bias);
        }
        dot_digits<Codes, 0, R, N>(load, high, low, dot);
      }
    }
    for (int n = 0; n < N; ++n) scale[n] = Codes::scale(w, block.record + w.record_bytes * n, c, 1);
    add_scaled<R, N>(dot, scale, acc);
    if constexpr (Codes::kHasMin) {
      const float* sums = reinterpret_cast<const float*>(act - act_bytes + kActSum * tile_rows) + row;
      for (int n = 0; n < N; ++n) {
        const V::F min = Codes::min(w, block.record + w.record_bytes * n, c);
        for (int r = 0; r < R; ++r) acc[n][r] = V::fma(min, V::set1(sums[r]), acc[n][r]);
      }
    }
  }
  const float* row_scales = reinterpret_cast<const float*>(block.tile) + row;
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r)
      store_lanes(a, block.first_row + r, block.column + kLanes * n,
                  V::mul(acc[n][r], V::set1(row_scales[r] * a.factor)));
}

// Activations of one digit, whose groups have scales of their own.
template <class Codes, int R, int N>
void one_digit_block(const ProductArgs& a, const Block& block) {
  const Weight& w = *a.weight;
  const int tile_rows = block.tile_rows, row = block.row;
  const std::size_t act_bytes = kOneDigitBytesPerRowGroup * static_cast<std::size_t>(tile_rows);
  const std::uint8_t* act = block.tile + kTileHeaderBytes;
  const bool first_pass = block.first_row == 0;
  Ahead<N> ahead(w, block.record, w.block_bytes, w.groups);
  V::F acc[N][R];
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r) acc[n][r] = V::zero();
  for (int c = 0; c < w.groups; ++c, act += act_bytes) {
    if (first_pass) ahead.next(fetch_block<Codes>);
    const std::uint8_t* low_bits = block.record + w.codes_offset + Codes::kLow * static_cast<std::size_t>(c);
    const std::uint8_t* high_bits = block.record + w.high_offset + Codes::kHigh * static_cast<std::size_t>(c);
    const auto load = [&](int n, int j, V::B& a, V::B& b) __attribute__((always_inline)) {
      Codes::load(low_bits + w.record_bytes * n, high_bits + w.record_bytes * n, j, a, b);
    };
    const auto digits = [&](int r) { return reinterpret_cast<const std::int8_t*>(act) + kGroup * (row + r); };
    const float* scales = reinterpret_cast<const float*>(act + kOneDigitScale * tile_rows) + row;
    const auto part = [&]<int Part>() __attribute__((always_inline)) {
      V::I dot[N][R];
      for (int r = 0; r < R; ++r) {
        V::I bias = V::zero_i32();
        if constexpr (Part != 0)
          bias = half_bias<kOneDigitMinus8, kOneDigitMinus16First>(act, tile_rows, row + r, Part - 1);
        else if constexpr (!Codes::kHasMin)
          bias = block_bias<Codes, kOneDigitMinus8>(act, tile_rows, row + r);
        for (int n = 0; n < N; ++n) dot[n][r] = bias;
      }
      V::template dot_block<Codes::kLargest, Part, R, N>(load, digits, dot);
      for (int n = 0; n < N; ++n) {
        const V::F scale = Codes::scale(w, block.record + w.record_bytes * n, c, Part == 1 ? 0 : 1);
        for (int r = 0; r < R; ++r)
          acc[n][r] = V::fma(V::to_float(dot[n][r]), V::mul(V::set1(scales[r]), scale), acc[n][r]);
      }
    };
    if constexpr (Codes::kHalves) {
      part.template operator()<1>();
      part.template operator()<2>();
    } else {
      part.template operator()<0>();
    }
    if constexpr (Codes::kHasMin) {
      const float* sums = reinterpret_cast<const float*>(act + kOneDigitSum * tile_rows) + row;
      for (int n = 0; n < N; ++n) {
        const V::F min = Codes::min(w, block.record + w.record_bytes * n, c);
        for (int r = 0; r < R; ++r) acc[n][r] = V::fma(min, V::set1(sums[r]), acc[n][r]);
      }
    }
  }
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r)
      store_lanes(a, block.first_row + r, block.column + kLanes * n, V::mul(acc[n][r], V::set1(a.factor)));
}

// nvfp4 weights and activations: one digit, and a scale on both sides of every 16 columns.
template <class Codes, int R, int N>
void nvfp4_block(const ProductArgs& a, const Block& block) {
  const Weight& w = *a.weight;
  const int tile_rows = block.tile_rows, row = block.row;
  const std::uint8_t* act = block.tile + kTileHeaderBytes;
  const bool first_pass = block.first_row == 0;
  Ahead<N> ahead(w, block.record, w.block_bytes, w.groups);
  V::F acc[N][R];
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r) acc[n][r] = V::zero();
  for (int c = 0; c < w.groups; ++c) {
    if (first_pass) ahead.next(fetch_block<Codes>);
    const std::uint8_t* bits = block.record + w.codes_offset + Codes::kLow * static_cast<std::size_t>(c);
    const auto load = [&](int n, int j, V::B& a, V::B& b) __attribute__((always_inline)) {
      Codes::load(bits + w.record_bytes * n, nullptr, j, a, b);
    };
    const auto half = [&]<int Half>() __attribute__((always_inline)) {
      const float* scales = reinterpret_cast<const float*>(act + (kNvfp4Scale + 4 * Half) * tile_rows) + row;
      const std::int32_t* bias = reinterpret_cast<const std::int32_t*>(act + (kNvfp4Minus16 + 4 * Half) * tile_rows) + row;
      V::I dot[N][R];
      for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) dot[n][r] = V::set1_i32(bias[r]);
      const std::int8_t* codes = reinterpret_cast<const std::int8_t*>(act) + kGroup * row;
      V::template dot_block<Codes::kLargest, 1 + Half, R, N>(load, [&](int r) { return codes + kGroup * r; }, dot);
      for (int n = 0; n < N; ++n) {
        const V::F scale = Codes::scale(w, block.record + w.record_bytes * n, c, Half);
        for (int r = 0; r < R; ++r)
          acc[n][r] = V::fma(V::to_float(dot[n][r]), V::mul(V::set1(scales[r]), scale), acc[n][r]);
      }
    };
    half.template operator()<0>();
    half.template operator()<1>();
    act += kNvfp4BytesPerRowGroup * static_cast<std::size_t>(tile_rows);
  }
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < R; ++r)
      store_lanes(a, block.first_row + r, block.column + kLanes * n, V::mul(acc[n][r], V::set1(a.factor)));
}

// Calls fn<R>() for the run-time row count r in 1..Max.
template <int Max, class Fn>
inline void with_rows(int r, Fn fn) {
  if constexpr (Max > 1) {
    if (r < Max) return with_rows<Max - 1>(r, fn);
  }
  fn.template operator()<Max>();
}

// Calls fn(first row, rows) for pieces of nearly equal height, none above `most`.
template <class Fn>
inline void for_pieces(int rows, int most, Fn fn) {
  int pieces = (rows + most - 1) / most;
  for (int row = 0; row < rows; --pieces) {
    const int height = (rows - row + pieces - 1) / pieces;
    fn(row, height);
    row += height;
  }
}

// Calls fn<N>(record) for neighbouring records, N at a time, and the last ones alone.
template <int N, class Fn>
inline void for_records(const ProductArgs& a, Fn fn) {
  int record = a.record_begin;
  for (; record + N <= a.record_end; record += N) fn.template operator()<N>(record);
  for (; record < a.record_end; ++record) fn.template operator()<1>(record);
}

// Calls run<R, N>(block) for all rows and records of a product of quantised activations.
template <int N, class Run>
inline void for_blocks(const ProductArgs& a, Run run) {
  const Weight& w = *a.weight;
  const std::size_t tile_stride = tile_bytes(a.tile_rows, activation_groups(w.k));
  for_records<N>(a, [&]<int M>(int record) {
    for (int first = 0; first < a.rows; first += a.tile_rows) {
      const int tile_rows = a.rows - first < a.tile_rows ? a.rows - first : a.tile_rows;
      const std::uint8_t* tile = a.tiles + tile_stride * static_cast<std::size_t>(first / a.tile_rows);
      for_pieces(tile_rows, V::kBlockRows, [&](int row, int rows) {
        const Block block{w.data + w.record_bytes * record, tile, tile_rows, row, first + row, record * kLanes};
        with_rows<V::kBlockRows>(rows, [&]<int R>() { run.template operator()<R, M>(block); });
      });
    }
  });
}

// Few rows wait for memory, which is read faster in one stream; the more bytes a weight has, the more rows are few.
template <class Codes, class Run>
inline void for_blocks(const ProductArgs& a, Run run) {
  if (a.rows <= V::kFewBlockRows * Codes::kLow / 256) for_blocks<1>(a, run);
  else for_blocks<V::kBlockRecords>(a, run);
}

void product_a8(const ProductArgs& a) {
  with_codes(a.weight->format, [&]<class Codes>() {
    for_blocks<Codes>(a, [&]<int R, int N>(const Block& block) { packed_block<Codes, R, N>(a, block); });
  });
}

void product_a8g32(const ProductArgs& a) {
  with_codes(a.weight->format, [&]<class Codes>() {
    for_blocks<Codes>(a, [&]<int R, int N>(const Block& block) { one_digit_block<Codes, R, N>(a, block); });
  });
}

void product_w4a4(const ProductArgs& a) {
  for_blocks<CodesNvfp4>(a, [&]<int R, int N>(const Block& block) { nvfp4_block<CodesNvfp4, R, N>(a, block); });
}

}  // namespace

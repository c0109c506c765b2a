// Products of codes as two bytes each, for targets that multiply and add up four bytes at once.
#pragma once

#include "kernels/attention_codes.h"

namespace {

using namespace ninfer;

struct CodeKernels {
  // Two sums per query and vector: 16 hide the latency of a dot product.
  static constexpr int kQueries = 2, kScoreBlocks = 4, kValueVectors = 4;

  // Where the high (0) or low (1) digits of 64 numbers of a query of a block are.
  static std::int8_t* digits(std::uint8_t* codes, int digit, int row) {
    return reinterpret_cast<std::int8_t*>(codes) + (digit * kQueryBlock + row) * kPageTokens;
  }

  // Codes of 64 floats, and the sums of their digits.
  static void encode_query(const float* q, float inverse, std::uint8_t* codes, int row, std::int32_t (&sums)[2]) {
    for (int d = 0; d < kKVGroup; d += kLanes)
      V::digits16(q + d, inverse, digits(codes, 0, row) + d, digits(codes, 1, row) + d);
    for (int digit = 0; digit < 2; ++digit) sums[digit] = V::sum_bytes(digits(codes, digit, row));
  }

  // Codes of the positions of a page, in the low halves of `code`. Unsigned digits, as they meet signed values.
  static inline __attribute__((always_inline)) void encode_weights(const V::I (&code)[kBlocksPerPage], std::uint8_t* codes,
                                                                   int row) {
    const V::I even = V::low_halves(code[0], code[1]), odd = V::low_halves(code[2], code[3]);
    V::store_i8(digits(codes, 0, row), V::high_bytes(even, odd));
    V::store_i8(digits(codes, 1, row), V::low_bytes(even, odd));
  }

  template <int Q, int N>
  static __attribute__((noinline)) void scores(const std::uint8_t* codes,
                                               const std::int32_t (*bias)[2][kQueryBlock][kLanes], int row,
                                                     const std::uint8_t* line, int quads, std::int32_t* sums) {
    V::I high[Q][N], low[Q][N];
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) {
        high[i][n] = V::load_i32((*bias)[0][row + i]);
        low[i][n] = V::load_i32((*bias)[1][row + i]);
      }
    const std::uint8_t* digits = codes + row * kKVGroup;
    for (int j = 0; j < quads; ++j, line += 256, digits += 4) {
      V::B k[N];
      for (int n = 0; n < N; ++n) k[n] = V::load_u8(line + n * 64);
      for (int i = 0; i < Q; ++i) {
        const V::B h = V::four_bytes(digits + i * kKVGroup), l = V::four_bytes(digits + (kQueryBlock + i) * kKVGroup);
        for (int n = 0; n < N; ++n) {
          high[i][n] = V::dot_bytes(high[i][n], k[n], h);
          low[i][n] = V::dot_bytes(low[i][n], k[n], l);
        }
      }
    }
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) low[i][n] = V::add_i32(low[i][n], V::shift_left<8>(high[i][n]));
    store(low, row, sums);
  }

  template <int Q, int N>
  static __attribute__((noinline)) void values(CodeScratch& s, int g, int row, const std::uint8_t* const* lines,
                                                     int pages, int line_bytes, std::int32_t* sums) {
    V::I high[Q][N], low[Q][N];
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) high[i][n] = low[i][n] = V::zero_i32();
    for (int page = 0; page < pages; ++page) {
      const std::uint8_t* line = lines[page];
      const std::uint8_t* digits = s.codes[page][g] + row * kPageTokens;
      for (int j = 0; j < kPageTokens / 4; ++j, line += line_bytes, digits += 4) {
        V::B v[N];
        for (int n = 0; n < N; ++n) v[n] = V::load_u8(line + n * 64);
        for (int i = 0; i < Q; ++i) {
          const V::B h = V::four_bytes(digits + i * kPageTokens);
          const V::B l = V::four_bytes(digits + (kQueryBlock + i) * kPageTokens);
          for (int n = 0; n < N; ++n) {
            high[i][n] = V::dot_bytes(high[i][n], h, v[n]);
            low[i][n] = V::dot_bytes(low[i][n], l, v[n]);
          }
        }
      }
    }
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) low[i][n] = V::add_i32(low[i][n], V::shift_left<8>(high[i][n]));
    store(low, row, sums);
  }

 private:
  template <int Q, int N>
  static void store(const V::I (&acc)[Q][N], int row, std::int32_t* sums) {
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) V::store_i32(sums + n * kSumsTile + (row + i) * kLanes, acc[i][n]);
  }
};

}  // namespace

// Products of codes of 16 bits, for targets without dot products of bytes of either sign.
#pragma once

#include "kernels/attention_codes.h"

namespace {

using namespace ninfer;

struct CodeKernels {
  static constexpr int kQueries = 3, kScoreBlocks = 2, kValueVectors = 2;

  static std::int16_t* pairs(std::uint8_t* codes, int row) {
    return reinterpret_cast<std::int16_t*>(codes) + row * kPageTokens;
  }

  // Codes of 64 floats. Keys are centred before they meet them, so that no sums are needed.
  static void encode_query(const float* q, float inverse, std::uint8_t* codes, int row, std::int32_t (&sums)[2]) {
    for (int d = 0; d < kKVGroup; d += kLanes) V::codes16(q + d, inverse, pairs(codes, row) + d);
    sums[0] = sums[1] = 0;
  }

  // Codes of the positions of a page, in the low halves of `code`: those that meet bytes 0 and 2 of the values, then the
  // others.
  static inline __attribute__((always_inline)) void encode_weights(const V::I (&code)[kBlocksPerPage], std::uint8_t* codes,
                                                                   int row) {
    std::int32_t* to = reinterpret_cast<std::int32_t*>(pairs(codes, row));
    V::store_i32(to, V::low_halves(code[0], code[1]));
    V::store_i32(to + kLanes, V::low_halves(code[2], code[3]));
  }

  template <int Q, int N>
  static __attribute__((noinline)) void scores(const std::uint8_t* codes,
                                               const std::int32_t (*)[2][kQueryBlock][kLanes], int row, const std::uint8_t* line, int quads,
                                                    std::int32_t* sums) {
    V::I acc[Q][N];
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) acc[i][n] = V::zero_i32();
    const std::int16_t* q = reinterpret_cast<const std::int16_t*>(codes) + row * kKVGroup;
    for (int j = 0; j < quads; ++j, line += 256, q += 4) {
      V::I pairs[N];
      for (int n = 0; n < N; ++n) pairs[n] = V::even_pairs(V::load_u8(line + n * 64));
      for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) acc[i][n] = V::dot_pairs(acc[i][n], pairs[n], q + i * kKVGroup);
      for (int n = 0; n < N; ++n) pairs[n] = V::odd_pairs(V::load_u8(line + n * 64));
      for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) acc[i][n] = V::dot_pairs(acc[i][n], pairs[n], q + i * kKVGroup + 2);
    }
    store(acc, row, sums);
  }

  template <int Q, int N>
  static __attribute__((noinline)) void values(CodeScratch& s, int g, int row, const std::uint8_t* const* lines,
                                                    int pages, int line_bytes, std::int32_t* sums) {
    V::I acc[Q][N];
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) acc[i][n] = V::zero_i32();
    for (int page = 0; page < pages; ++page) {
      const std::uint8_t* line = lines[page];
      const std::int16_t* p = pairs(s.codes[page][g], row);
      for (int j = 0; j < kPageTokens / 4; ++j, line += line_bytes, p += 2) {
        V::I two[N];
        for (int n = 0; n < N; ++n) two[n] = V::even_signed_pairs(V::load_u8(line + n * 64));
        for (int i = 0; i < Q; ++i)
          for (int n = 0; n < N; ++n) acc[i][n] = V::dot_pairs(acc[i][n], two[n], p + i * kPageTokens);
        for (int n = 0; n < N; ++n) two[n] = V::odd_signed_pairs(V::load_u8(line + n * 64));
        for (int i = 0; i < Q; ++i)
          for (int n = 0; n < N; ++n)
            acc[i][n] = V::dot_pairs(acc[i][n], two[n], p + i * kPageTokens + kPageTokens / 2);
      }
    }
    store(acc, row, sums);
  }

 private:
  template <int Q, int N>
  static void store(const V::I (&acc)[Q][N], int row, std::int32_t* sums) {
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) V::store_i32(sums + n * kSumsTile + (row + i) * kLanes, acc[i][n]);
  }
};

}  // namespace

// Scores and weighted sums of codes: int8 KV under a8 and w4a4. All sums of products of codes are exact integers.
//
// Queries are 16-bit codes (two_digits) per head; the sum of a group meets the scale of the key, and groups are added up in
// ascending order by fused multiply-adds. A weight p in [0, 1] (against the largest score of its segment) times the scale
// of a value is the code round(p * factor), factor = scale * (32512 / largest scale) over the positions of the segment that
// the query sees. A segment has 256 * 32512 * 127 < 2^31, so its sum over value codes is one integer.
//
// Queries go in blocks of 16, and a block through a segment in three rounds: scores, weights and their codes, values.
#pragma once

#include "kernels/attention_softmax.h"
#include "kernels/quantize_body.h"

namespace {

using namespace ninfer;

constexpr float kCodeRounder = 0x1p23f;  // a float in [0, 2^16) plus this has its rounded value in the low bits
constexpr int kSumsTile = kQueryBlock * kLanes;  // sums of a block of queries, 16 each

template <class Codec>
void prepare_code_queries(const AttentionTile& t, CodeScratch& s) {
  const int dim = t.layout->head_dim, padded = t.layout->groups * kKVGroup;
  alignas(64) float q[kMaxHeadDim];
  for (int i = 0; i < t.num_queries; ++i) {
    const V::F scale = V::set1(t.scale);
    for_lanes(dim, [&](int d, int lanes) { V::store(q + d, V::mul(load_lanes(t.q[i] + d, lanes), scale)); });
    for (int d = round_up(dim, kLanes); d < padded; d += kLanes) V::store(q + d, V::zero());
    const CodeScale scale_of_q(V::abs_max(q, padded));
    s.score_units[i] = scale_of_q.scale * kLog2e;
    const int block = i / kQueryBlock, row = i % kQueryBlock;
    for (int g = 0; g < t.layout->groups; ++g) {
      std::uint8_t* codes = s.q[block][g];
      std::int32_t sums[2];  // of the digits
      Codec::encode_query(q + g * kKVGroup, scale_of_q.inverse, codes, row, sums);
      for (int digit = 0; digit < 2; ++digit)
        V::store_i32(s.bias[block][g][digit][row], V::set1_i32(-128 * sums[digit]));
    }
  }
}

// Scales of one segment as floats.
void load_scales(const AttentionTile& t, CodeScratch& s, int segment, int most) {
  for (int column = 0; column < most; column += kPageTokens) {
    const std::uint8_t* head = page_head(t, segment, column);
    const auto load = [&](std::size_t offset, int g, float* to) {
      const std::uint16_t* from = reinterpret_cast<const std::uint16_t*>(head + offset) + g * kPageTokens;
      for (int i = 0; i < kPageTokens; i += kLanes) V::store(to + column + i, V::load_f16(from + i));
    };
    for (int g = 0; g < t.layout->groups; ++g) {
      load(t.layout->k_scales_offset, g, s.key_scales[g]);
      load(t.layout->v_scales_offset, g, s.value_scales[g]);
    }
  }
  s.range_of_factors = {0, 0};
}

void make_code_factors(CodeScratch& s, int groups, TokenRange seen) {
  if (s.range_of_factors.begin == seen.begin && s.range_of_factors.end == seen.end) return;
  s.range_of_factors = seen;
  const int end = round_up(seen.end, kLanes);
  for (int g = 0; g < groups; ++g) {
    float* factors = s.code_factors[g];
    for (int i = 0; i < end; i += kLanes)
      V::store(factors + i, select_seen(V::load(s.value_scales[g] + i), V::zero(), seen, i));
    const CodeScale scale(V::abs_max(factors, end));
    s.code_units[g] = scale.scale;
    for (int i = 0; i < end; i += kLanes) V::store(factors + i, V::mul(V::load(factors + i), V::set1(scale.inverse)));
  }
}

// One block of queries and one segment.
struct CodeBlock {
  const AttentionTile& t;
  CodeScratch& s;
  int segment, most;  // positions of it that any query of the tile sees
  int block, rows;
  int pages;
  const std::uint8_t* heads[kPagesPerSegment];
};

// Products of codes on vectors, by the CodeKernels of the target; amx_attention.h has the same on tiles.
template <class Kernels>
struct VectorProducts {
  using Codec = Kernels;

  // 16 sums of a row of a tile.
  static inline V::F load(const std::int32_t* tile, int row) { return V::to_float(V::load_i32(tile + row * kLanes)); }

  // Sums of the query codes with the key codes: finish(column, g, tile) for every 16 positions and group.
  template <int Groups, class Finish>
  static void scores(const CodeBlock& b, Finish finish) {
    CodeScratch& s = b.s;
    for (int page = 0; page < b.pages; ++page)
      for (int g = 0; g < Groups; ++g) {
        const int quads = group_width(*b.t.layout, g) / 4;
        const std::uint8_t* keys = b.heads[page] + g * kKVGroup * kPageTokens;
        const int left = (b.most - page * kPageTokens + kLanes - 1) / kLanes;
        const int blocks = left < kBlocksPerPage ? left : kBlocksPerPage;
        for (int i = 0; i < blocks; i += Kernels::kScoreBlocks) {
          const int n = blocks - i < Kernels::kScoreBlocks ? blocks - i : Kernels::kScoreBlocks;
          for (int row = 0; row < b.rows; row += Kernels::kQueries) {
            const int queries = b.rows - row < Kernels::kQueries ? b.rows - row : Kernels::kQueries;
            with_rows<Kernels::kScoreBlocks>(n, [&]<int N>() {
              with_rows<Kernels::kQueries>(queries, [&]<int Q>() {
                Kernels::template scores<Q, N>(s.q[b.block][g], &s.bias[b.block][g], row, keys + i * 64, quads, s.sums[i]);
              });
            });
          }
        }
        for (int i = 0; i < blocks; ++i) finish(page * kPageTokens + i * kLanes, g, s.sums[i]);
      }
  }

  // Sums of the weight codes with the value codes over the segment: finish(g, d, tile) for every 16 dimensions.
  template <int Groups, class Finish>
  static void values(const CodeBlock& b, Finish finish) {
    CodeScratch& s = b.s;
    const std::uint8_t* lines[kPagesPerSegment];
    for (int g = 0; g < Groups; ++g) {
      const int vectors = group_width(*b.t.layout, g) / kLanes;
      for (int d = 0; d < vectors; d += Kernels::kValueVectors) {
        const int n = vectors - d < Kernels::kValueVectors ? vectors - d : Kernels::kValueVectors;
        for (int page = 0; page < b.pages; ++page)
          lines[page] = b.heads[page] + b.t.layout->v_offset + g * kKVGroup * kPageTokens + d * 64;
        for (int row = 0; row < b.rows; row += Kernels::kQueries) {
          const int queries = b.rows - row < Kernels::kQueries ? b.rows - row : Kernels::kQueries;
          with_rows<Kernels::kValueVectors>(n, [&]<int N>() {
            with_rows<Kernels::kQueries>(queries, [&]<int Q>() {
              Kernels::template values<Q, N>(s, g, row, lines, b.pages, vectors * 64, s.sums[d]);
            });
          });
        }
      }
      for (int d = 0; d < vectors; ++d) finish(g, d, s.sums[d]);
    }
  }
};

// Sums of one group into scores, which are still to be multiplied by the scale of the query; the last group completes them.
template <class Products, int Groups>
inline __attribute__((always_inline)) void add_scores(const CodeBlock& b, int column, int g, const std::int32_t* tile) {
  CodeScratch& s = b.s;
  const V::F scale = V::load(s.key_scales[g] + column);
  for (int row = 0; row < b.rows; ++row) {
    float* scores = s.scores[row] + column;
    const V::F sum = Products::load(tile, row);
    const V::F score = g == 0 ? V::mul(sum, scale) : V::fma(sum, scale, V::load(scores));
    V::store(scores, score);
    if (g == Groups - 1) V::store(s.best[row], column == 0 ? score : V::max(V::load(s.best[row]), score));
  }
}

// The largest score that a query sees; all of the segment is in `best` already.
float largest_score(const CodeBlock& b, int row, TokenRange seen) {
  if (seen.count() == kSegmentTokens) return V::reduce_max(V::load(b.s.best[row]));
  V::F best = V::set1(kMinusInfinity);
  for (int i = 0; i < b.most; i += kLanes)
    best = V::max(best, select_seen(V::load(b.s.scores[row] + i), V::set1(kMinusInfinity), seen, i));
  return V::reduce_max(best);
}

// Weights of one query of a block and their codes; their sums by lanes. kWhole: it sees all of the segment.
template <class Codec, int Groups, bool kWhole>
void encode_weights(const CodeBlock& block, int row, TokenRange seen, float unit) {
  CodeScratch& s = block.s;
  const float* scores = s.scores[row];
  const float m = s.most[row];
  V::F sum = V::zero();
  for (int column = 0; column < block.most; column += kPageTokens) {
    V::F p[kBlocksPerPage];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocksPerPage; ++b) {
      const int i = column + b * kLanes;
      p[b] = weights_of(V::sub(V::load(scores + i), V::set1(m)), V::set1(unit));
      if (!kWhole) p[b] = select_seen(p[b], V::zero(), seen, i);
      sum = V::add(sum, p[b]);
    }
    for (int g = 0; g < Groups; ++g) {
      const float* factors = s.code_factors[g] + column;
      V::I code[kBlocksPerPage];
#pragma GCC unroll 4
      for (int b = 0; b < kBlocksPerPage; ++b) {
        V::F rounded = V::fma(p[b], V::load(factors + b * kLanes), V::set1(kCodeRounder));
        if (!kWhole) rounded = select_seen(rounded, V::zero(), seen, column + b * kLanes);
        code[b] = V::bits_of(rounded);
      }
      Codec::encode_weights(code, s.codes[column / kPageTokens][g], row);
    }
  }
  V::store(s.sums_of_weights[row], sum);
}

// Rows one after the other in every step, so that none waits for the end of the one before.
template <class Codec, int Groups>
void weigh_block(const CodeBlock& b, AttentionScratch& scratch) {
  CodeScratch& s = b.s;
  const int query0 = b.block * kQueryBlock;
  for (int row = 0; row < b.rows; ++row) s.most[row] = largest_score(b, row, seen_of(b.t, query0 + row, b.segment));
  for (int row = 0; row < b.rows; ++row) {
    const TokenRange seen = seen_of(b.t, query0 + row, b.segment);
    if (seen.count() == 0) continue;
    make_code_factors(s, Groups, seen);
    for (int g = 0; g < Groups; ++g) s.units[row][g] = s.code_units[g];
    const float unit = s.score_units[query0 + row];
    if (seen.count() == kSegmentTokens) encode_weights<Codec, Groups, true>(b, row, seen, unit);
    else encode_weights<Codec, Groups, false>(b, row, seen, unit);
  }
  for (int row = 0; row < b.rows; ++row) {
    s.target[row] = {nullptr, false};
    if (seen_of(b.t, query0 + row, b.segment).count() == 0) continue;
    const float l = V::reduce_add(V::load(s.sums_of_weights[row]));
    s.target[row] = target_of(b.t, scratch, query0 + row, b.segment);
    QuerySum& sum = *s.target[row].sum;
    if (s.target[row].merge) {
      merge_scalars(sum, s.most[row], l, s.keep[row], s.take[row]);
    } else {
      sum.m = s.most[row];
      sum.l = l;
      sum.unit = s.score_units[query0 + row];
    }
  }
}

// Sums of 16 dimensions into the values that queries have.
template <class Products>
inline __attribute__((always_inline)) void add_values(const CodeBlock& b, int g, int d, const std::int32_t* tile) {
  CodeScratch& s = b.s;
  for (int row = 0; row < b.rows; ++row) {
    if (s.target[row].sum == nullptr) continue;
    float* o = s.target[row].sum->values() + g * kKVGroup + d * kLanes;
    const V::F sum = V::mul(Products::load(tile, row), V::set1(s.units[row][g]));
    const V::F take = V::set1(s.take[row]), keep = V::set1(s.keep[row]);
    V::store(o, s.target[row].merge ? V::fma(sum, take, V::mul(V::load(o), keep)) : sum);
  }
}

// One segment of all queries; `most` of its positions are seen by any.
template <class Products>
void attend_in_codes(const AttentionTile& t, AttentionScratch& scratch, int segment, int most) {
  CodeScratch& s = scratch.codes;
  load_scales(t, s, segment, most);
  CodeBlock b{t, s, segment, most, 0, 0, 0, {}};
  for (int column = 0; column < most; column += kPageTokens) b.heads[b.pages++] = page_head(t, segment, column);
  with_rows<kMostGroups>(t.layout->groups, [&]<int Groups>() {
    for (; b.block * kQueryBlock < t.num_queries; ++b.block) {
      const int left = t.num_queries - b.block * kQueryBlock;
      b.rows = left < kQueryBlock ? left : kQueryBlock;
      Products::template scores<Groups>(b, [&](int column, int g, const std::int32_t* tile) {
        add_scores<Products, Groups>(b, column, g, tile);
      });
      weigh_block<typename Products::Codec, Groups>(b, scratch);
      Products::template values<Groups>(
          b, [&](int g, int d, const std::int32_t* tile) { add_values<Products>(b, g, d, tile); });
    }
  });
}

}  // namespace

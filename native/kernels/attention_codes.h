// Scores and weighted sums in integers: int8 KV under a8 and w4a4.
#pragma once

#include "kernels/attention_tile.h"

namespace {

using namespace ninfer;

// Integer scores of Q queries against one page. Lines of the values of this page and of the keys of the next one are
// asked for along the way. A few blocks of tokens at a time: their accumulators stay in registers, which the compiler
// manages best in a function of its own.
template <int Q>
__attribute__((noinline)) void scores_int8(const AttentionTile& t, AttentionScratch& s, int query0,
                                           const std::uint8_t* head, const std::uint8_t* next, int column) {
  constexpr int kBlocks = V::kScoreBlocks;
  const KVLayout& layout = *t.layout;
  const std::ptrdiff_t to_next = next - head, to_values = static_cast<std::ptrdiff_t>(layout.v_offset);
  for (int g = 0; g < layout.groups; ++g) {
    const int left = layout.padded_dim - g * kKVGroup;
    const int quads = (left < kKVGroup ? left : kKVGroup) / 4;
    const std::uint16_t* scales = reinterpret_cast<const std::uint16_t*>(head + layout.k_scales_offset) + g * kPageTokens;
    for (int block = 0; block < kBlocksPerPage; block += kBlocks) {
      const std::uint8_t* line = head + static_cast<std::size_t>(g) * kKVGroup * kPageTokens + block * 64;
      if (query0 == 0)
        for (int j = 0; j < quads; ++j)
          for (int b = 0; b < kBlocks; ++b) {
            __builtin_prefetch(line + j * 256 + b * 64 + to_values, 0, 3);
            __builtin_prefetch(line + j * 256 + b * 64 + to_next, 0, 3);
          }
      V::I acc[Q][kBlocks];
      for (int i = 0; i < Q; ++i)
        for (int b = 0; b < kBlocks; ++b) acc[i][b] = V::zero_i32();
      const std::int16_t* codes = s.q_codes[query0] + g * kKVGroup;
      for (int j = 0; j < quads; ++j, line += 256, codes += 4) {
        V::I pairs[kBlocks];
        for (int b = 0; b < kBlocks; ++b) pairs[b] = V::even_pairs(V::load_u8(line + b * 64));
        for (int i = 0; i < Q; ++i)
          for (int b = 0; b < kBlocks; ++b) acc[i][b] = V::dot_pairs(acc[i][b], pairs[b], codes + i * kMaxHeadDim);
        for (int b = 0; b < kBlocks; ++b) pairs[b] = V::odd_pairs(V::load_u8(line + b * 64));
        for (int i = 0; i < Q; ++i)
          for (int b = 0; b < kBlocks; ++b) acc[i][b] = V::dot_pairs(acc[i][b], pairs[b], codes + i * kMaxHeadDim + 2);
      }
      for (int b = 0; b < kBlocks; ++b) {
        const V::F k_scale = V::load_f16(scales + (block + b) * kLanes);
        for (int i = 0; i < Q; ++i) {
          const V::F dot = V::mul(V::to_float(acc[i][b]), V::set1(s.q_scales[query0 + i]));
          float* score = s.scores[query0 + i] + column + (block + b) * kLanes;
          V::store(score, g == 0 ? V::mul(dot, k_scale) : V::fma(dot, k_scale, V::load(score)));
        }
      }
    }
  }
}

// Codes of the weights times the value scales of one segment and group, page by page; zero where a query does not see a
// position, whatever the page holds there.
void encode_weights(const AttentionTile& t, AttentionScratch& s, const std::uint8_t* const* heads, int g, int segment,
                    int tokens) {
  for (int i = 0; i < tokens; i += kLanes) {
    const std::uint8_t* scales = heads[i / kPageTokens] + t.layout->v_scales_offset;
    V::store(s.value_scales + i,
             V::load_f16(reinterpret_cast<const std::uint16_t*>(scales) + g * kPageTokens + i % kPageTokens));
  }
  for (int query = 0; query < t.num_queries; ++query) {
    const TokenRange seen = seen_of(t, query, segment);
    for (int i = 0; i < tokens; i += kLanes) {
      const V::F product = V::mul(V::load(s.scores[query] + i), V::load(s.value_scales + i));
      V::store(s.products + i, select_seen(product, V::zero(), seen, i));
    }
    for (int begin = 0; begin < tokens; begin += kPageTokens) {
      const int left = (tokens - begin + kLanes - 1) / kLanes * kLanes, count = left < kPageTokens ? left : kPageTokens;
      const CodeScale scale(V::abs_max(s.products + begin, count));
      s.code_scales[query][begin / kPageTokens] = scale.scale;
      for (int i = begin; i < begin + count; i += kLanes) V::codes16(s.products + i, scale.inverse, s.codes[query] + i);
    }
  }
}

// o[i][0 .. 16 N) of Q queries = sums over the pages of a segment, exact inside a page, as 64 * 32512 * 127 < 2^31.
template <int Q, int N>
__attribute__((noinline)) void sum_values(AttentionScratch& s, int query0, const std::uint8_t* const* lines, std::size_t width,
                                          int tokens, float* o) {
  for (int first = 0; first < tokens; first += kPageTokens) {
    V::I acc[Q][N];
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) acc[i][n] = V::zero_i32();
    const std::uint8_t* line = lines[first / kPageTokens];
    const int end = first + kPageTokens < tokens ? first + kPageTokens : tokens;
    for (int token = first; token < end; token += 4, line += width * 4) {
      const std::int16_t* codes = s.codes[query0] + token;
      V::I pairs[N];
      for (int n = 0; n < N; ++n) pairs[n] = V::even_pairs(V::load_u8(line + n * 64));
      for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) acc[i][n] = V::dot_pairs(acc[i][n], pairs[n], codes + i * kSegmentTokens);
      for (int n = 0; n < N; ++n) pairs[n] = V::odd_pairs(V::load_u8(line + n * 64));
      for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) acc[i][n] = V::dot_pairs(acc[i][n], pairs[n], codes + i * kSegmentTokens + 2);
    }
    for (int i = 0; i < Q; ++i) {
      const V::F scale = V::set1(s.code_scales[query0 + i][first / kPageTokens]);
      for (int n = 0; n < N; ++n) {
        float* sum = o + i * (kMaxHeadDim + kLanes) + n * kLanes;
        const V::F dot = V::to_float(acc[i][n]);
        V::store(sum, first == 0 ? V::mul(dot, scale) : V::fma(dot, scale, V::load(sum)));
      }
    }
  }
}

// The weighted sums of one segment of int8 values in integers.
void values_segment(const AttentionTile& t, AttentionScratch& s, const std::uint8_t* const* heads, int segment,
                    int tokens) {
  const KVLayout& layout = *t.layout;
  for (int g = 0; g < layout.groups; ++g) {
    encode_weights(t, s, heads, g, segment, tokens);
    const int left = layout.padded_dim - g * kKVGroup;
    const int width = left < kKVGroup ? left : kKVGroup;
    for (int i = 0; i < t.num_queries; i += V::kCodeQueries) {
      const int queries = t.num_queries - i < V::kCodeQueries ? t.num_queries - i : V::kCodeQueries;
      for (int d = 0; d < width; d += V::kValueVectors * kLanes) {
        const int vectors = (width - d) / kLanes < V::kValueVectors ? (width - d) / kLanes : V::kValueVectors;
        const std::uint8_t* lines[kPagesPerSegment];
        for (int page = 0; page * kPageTokens < tokens; ++page)
          lines[page] = heads[page] + layout.v_offset + g * kKVGroup * kPageTokens + d * 4;
        float* o = s.segment[i] + g * kKVGroup + d;
        with_rows<V::kCodeQueries>(queries, [&]<int Q>() {
          with_rows<V::kValueVectors>(vectors, [&]<int N>() {
            sum_values<Q, N>(s, i, lines, static_cast<std::size_t>(width), tokens, o);
          });
        });
      }
    }
  }
}

}  // namespace

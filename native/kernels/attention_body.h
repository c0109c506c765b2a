// Causal attention of a few query rows over the paged KV cache of one sequence and one KV head.
//
// Order of arithmetic, fixed per query whatever else is in the tile: positions are cut into segments of 256, aligned to
// absolute positions. Inside a segment: scores, their maximum m, weights e^(score - m) (zero below e^-64), their sum l by
// 16 lanes, and the weighted sum of values. Float sums are one fused multiply-add per position in ascending order; in
// integers (a8 with int8 KV), the weights times the value scales of a page and group are 16-bit codes (two_digits), their
// sum over the value codes is exact, and pages are added up in ascending order. Segments are then merged in ascending order
// with the usual rescaling (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"). A query alone, a query
// in a chunk, and segments spread over threads all give the same bits.
#pragma once

#include "kernels/attention_codes.h"
#include "kernels/attention_float.h"
#include "kernels/attention_softmax.h"

namespace {

using namespace ninfer;

// One segment of all queries into s.segment; `seen` are the positions of it that any query sees.
void attend_segment(const AttentionTile& t, AttentionScratch& s, int segment, TokenRange seen) {
  const KVLayout& layout = *t.layout;
  const int padded = layout.padded_dim, most = seen.end - segment * kSegmentTokens;
  const std::uint8_t* heads[kPagesPerSegment];
  for (int column = 0; column < most; column += kPageTokens) heads[column / kPageTokens] = page_head(t, segment, column);
  for (int column = 0; column < most; column += kPageTokens) {
    const std::uint8_t* head = heads[column / kPageTokens];
    if (layout.format == KVFormat::int8 && !t.integers) {
      for (int i = 0; i < t.num_queries; ++i) scores_float_int8(t, s, i, head, column);
      continue;
    }
    const std::uint8_t* next = column + kPageTokens < most ? heads[column / kPageTokens + 1] : head;
    const int most_queries = t.integers ? V::kCodeQueries : V::kQueryBlock;
    for (int i = 0; i < t.num_queries; i += most_queries) {
      const int n = t.num_queries - i < most_queries ? t.num_queries - i : most_queries;
      if (t.integers)
        with_rows<V::kCodeQueries>(n, [&]<int Q>() { scores_int8<Q>(t, s, i, head, next, column); });
      else
        with_rows<V::kQueryBlock>(n, [&]<int Q>() { scores_bf16<Q>(t, s, i, head, column); });
    }
  }
  for (int i = 0; i < t.num_queries; ++i) {
    softmax_segment(s.scores[i], seen_of(t, i, segment), most, &s.segment[i][padded], &s.segment[i][padded + 1]);
    if (t.integers) continue;
    for (int d = 0; d < padded; d += kLanes) V::store(s.segment[i] + d, V::zero());
  }
  if (t.integers) return values_segment(t, s, heads, segment, most);
  for (int column = 0; column < most; column += kPageTokens)
    values_page(t, s, heads[column / kPageTokens], segment, column,
                most - column < kPageTokens ? most - column : kPageTokens);
}

void attention(const AttentionTile& t) {
  AttentionScratch& s = *static_cast<AttentionScratch*>(t.scratch);
  const int padded = t.layout->padded_dim;
  prepare_queries(t, s);
  TokenRange all = t.visible[0];
  for (int i = 1; i < t.num_queries; ++i) {
    if (t.visible[i].begin < all.begin) all.begin = t.visible[i].begin;
    if (t.visible[i].end > all.end) all.end = t.visible[i].end;
  }
  for (int segment = t.segments.begin; segment < t.segments.end; ++segment) {
    const TokenRange seen = part_of_segment(all, segment);
    if (seen.count() == 0) continue;
    attend_segment(t, s, segment, seen);
    for (int i = 0; i < t.num_queries; ++i) {
      if (seen_of(t, i, segment).count() == 0) continue;
      const std::size_t partial = static_cast<std::size_t>(segment - t.segments.begin);
      float* target = t.split ? t.partials[i] + partial * partial_floats(padded) : s.merged[i];
      if (t.split || t.visible[i].begin / kSegmentTokens >= segment || segment == t.segments.begin)
        __builtin_memcpy(target, s.segment[i], (padded + 2) * sizeof(float));
      else
        merge_segment(target, s.segment[i], padded);
    }
  }
  if (!t.split)
    for (int i = 0; i < t.num_queries; ++i) finish_query(s.merged[i], t.layout->head_dim, padded, t.out[i]);
}

void merge(const MergeArgs& a) {
  alignas(64) float acc[kMaxHeadDim + kLanes];
  __builtin_memcpy(acc, a.partials, (a.padded_dim + 2) * sizeof(float));
  for (int i = 1; i < a.segments; ++i)
    merge_segment(acc, a.partials + i * partial_floats(a.padded_dim), a.padded_dim);
  finish_query(acc, a.head_dim, a.padded_dim, a.out);
}

}  // namespace

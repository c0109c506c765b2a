// Attention of some query rows over the paged KV cache of one sequence and one KV head.
//
// Order of arithmetic, fixed per query whatever else is in the tile: positions are cut into segments of 256, aligned to
// absolute positions. Inside a segment: scores, their maximum m, weights e^(score - m) (zero below e^-64), their sum l by
// 16 lanes, and the weighted sum of values, in floats (attention_float.h) or in codes (attention_codes.h). Segments are
// then merged in ascending order with the usual rescaling (Milakov & Gimelshein 2018, "Online normalizer calculation for
// softmax"). A query alone, a query in a chunk, and segments spread over threads all give the same bits.
#pragma once

#include "kernels/attention_codes.h"
#include "kernels/attention_float.h"

namespace {

using namespace ninfer;

// Products: what multiplies codes (attention_codes.h).
template <class Products>
void attend(const AttentionTile& t) {
  AttentionScratch& s = *static_cast<AttentionScratch*>(t.scratch);
  if (t.integers) prepare_code_queries<typename Products::Codec>(t, s.codes);
  else prepare_float_queries(t, s.floats);
  TokenRange all = t.visible[0];
  for (int i = 1; i < t.num_queries; ++i) {
    if (t.visible[i].begin < all.begin) all.begin = t.visible[i].begin;
    if (t.visible[i].end > all.end) all.end = t.visible[i].end;
  }
  for (int segment = t.segments.begin; segment < t.segments.end; ++segment) {
    const TokenRange seen = part_of_segment(all, segment);
    if (seen.count() == 0) continue;
    const int most = seen.end - segment * kSegmentTokens;
    if (t.integers) attend_in_codes<Products>(t, s, segment, most);
    else attend_in_floats(t, s, segment, most);
  }
  if (!t.split)
    for (int i = 0; i < t.num_queries; ++i) finish_query(s.merged[i], t.layout->head_dim, t.out[i]);
}

void attention(const AttentionTile& t) { attend<VectorProducts<CodeKernels>>(t); }

void merge(const MergeArgs& a) {
  alignas(64) float memory[kLanes + kMaxHeadDim];
  QuerySum& sum = *reinterpret_cast<QuerySum*>(memory);
  __builtin_memcpy(memory, a.partials, partial_floats(a.padded_dim) * sizeof(float));
  for (int i = 1; i < a.segments; ++i)
    merge_segment(sum, *reinterpret_cast<const QuerySum*>(a.partials + i * partial_floats(a.padded_dim)), a.padded_dim);
  finish_query(sum, a.head_dim, a.out);
}

}  // namespace

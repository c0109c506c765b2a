// What the parts of attention share: the memory of one tile of queries, the queries as they meet the keys, and pages.
#pragma once

#include "core/kernels.h"
#include "kernels/elementwise_body.h"

namespace {

using namespace ninfer;

constexpr int kPagesPerSegment = kSegmentTokens / kPageTokens;
constexpr int kBlocksPerPage = kPageTokens / kLanes;

// Per-thread memory of one tile; its size is attention_scratch_bytes().
struct AttentionScratch {
  alignas(64) float scores[kQueryTile][kSegmentTokens];     // scores, then weights
  alignas(64) float weights[kQueryTile][kPageTokens];       // weights times value scales of one page and group
  alignas(64) float values[kPageTokens][kKVGroup];          // one page and group of values as float
  alignas(64) float q[kQueryTile][kMaxHeadDim];             // scaled queries (float scores)
  alignas(64) std::int16_t q_codes[kQueryTile][kMaxHeadDim];    // of queries, in the order of V::codes16 (integer scores)
  float q_scales[kQueryTile];
  alignas(64) float value_scales[kSegmentTokens];               // of one segment and group
  alignas(64) float products[kSegmentTokens];                   // of one query's weights with them
  alignas(64) std::int16_t codes[kQueryTile][kSegmentTokens];   // of the products, in the order of V::codes16
  float code_scales[kQueryTile][kPagesPerSegment];
  alignas(64) float segment[kQueryTile][kMaxHeadDim + kLanes];  // one segment's o, then m and l
  alignas(64) float merged[kQueryTile][kMaxHeadDim + kLanes];
};

void prepare_queries(const AttentionTile& t, AttentionScratch& s) {
  const int dim = t.layout->head_dim, padded = t.layout->groups * kKVGroup;
  for (int i = 0; i < t.num_queries; ++i) {
    float* q = s.q[i];
    const V::F scale = V::set1(t.scale);
    for_lanes(dim, [&](int d, int lanes) { V::store(q + d, V::mul(load_lanes(t.q[i] + d, lanes), scale)); });
    for (int d = (dim + kLanes - 1) / kLanes * kLanes; d < padded; d += kLanes) V::store(q + d, V::zero());
    if (!t.integers) continue;
    const CodeScale scale_of_q(V::abs_max(q, padded));
    s.q_scales[i] = scale_of_q.scale;
    for (int d = 0; d < padded; d += kLanes) V::codes16(q + d, scale_of_q.inverse, s.q_codes[i] + d);
  }
}

// What a range has of a segment; count() is zero where that is nothing.
inline TokenRange part_of_segment(TokenRange range, int segment) {
  const int first = segment * kSegmentTokens, last = first + kSegmentTokens;
  const int begin = range.begin > first ? range.begin : first, end = range.end < last ? range.end : last;
  return end > begin ? TokenRange{begin, end} : TokenRange{begin, begin};
}

// The columns of a segment that query i sees.
inline TokenRange seen_of(const AttentionTile& t, int i, int segment) {
  const TokenRange seen = part_of_segment(t.visible[i], segment);
  return {seen.begin - segment * kSegmentTokens, seen.end - segment * kSegmentTokens};
}

// Lanes of columns [column, column + 16) that lie in `seen` from v, the others from other.
inline V::F select_seen(V::F v, V::F other, TokenRange seen, int column) {
  if (seen.end < column + kLanes) v = V::select_n(v, other, seen.end > column ? seen.end - column : 0);
  if (seen.begin > column) v = V::select_n(other, v, seen.begin < column + kLanes ? seen.begin - column : kLanes);
  return v;
}

inline const std::uint8_t* page_head(const AttentionTile& t, int segment, int column) {
  const std::int32_t page = t.page_ids[segment * kPagesPerSegment + column / kPageTokens];
  return t.kv_layer + t.page_bytes * static_cast<std::size_t>(page) + t.layout->head_bytes * t.kv_head;
}

}  // namespace

// What the parts of attention share: the memory of one tile of queries, what they see, and pages.
#pragma once

#include "core/kernels.h"
#include "kernels/elementwise_body.h"
#include "kernels/linear_body.h"  // with_rows

namespace {

using namespace ninfer;

constexpr int kPagesPerSegment = kSegmentTokens / kPageTokens;
constexpr int kBlocksPerPage = kPageTokens / kLanes;
// Of scores in memory. Rows that are a part of 4 KiB apart would make every load of one wait for stores of another.
constexpr int kScoreStride = kSegmentTokens + kLanes;
constexpr int kMostSums = 8;  // tiles of sums of a block of queries that are kept
constexpr int kMostGroups = kMaxHeadDim / kKVGroup;

// What some segments give for one query, partial_floats() in memory: these, a line of them, then the weighted values.
struct QuerySum {
  float m, l;  // largest score, and the sum of the weights 2^((score - m) * unit)
  float unit;  // of scores, in powers of two
  float unused[kLanes - 3];
  float* values() { return reinterpret_cast<float*>(this + 1); }
  const float* values() const { return reinterpret_cast<const float*>(this + 1); }
};
static_assert(sizeof(QuerySum) == sizeof(float) * kLanes);

// As many of them as a tile has queries.
struct QuerySums {
  alignas(64) float memory[kQueryTile][kLanes + kMaxHeadDim];
  QuerySum& operator[](int i) { return *reinterpret_cast<QuerySum*>(memory[i]); }
};

// Where a query's part of a segment goes (null: it sees nothing of it), and whether to merge it with what is there.
struct Target {
  QuerySum* sum;
  bool merge;
};

// Memory of float sums.
struct FloatScratch {
  alignas(64) float q[kQueryTile][kMaxHeadDim];              // scaled queries
  alignas(64) float scores[kQueryTile][kSegmentTokens];      // scores, then weights
  alignas(64) float weights[kQueryTile][kPageTokens];        // weights times value scales of one page and group
  alignas(64) float values[kPageTokens][kKVGroup];           // one page and group of values as float
  QuerySums segment;
};

// Memory of sums of codes (attention_codes.h), most of it of one block of queries.
struct CodeScratch {
  // Of the tile, by block and group: codes of queries, as the kernels of the target like them, and what accumulators of
  // their products with offset key codes start from.
  alignas(64) std::uint8_t q[kQueryTile / kQueryBlock][kMostGroups][2 * kQueryBlock * kKVGroup];
  alignas(64) std::int32_t bias[kQueryTile / kQueryBlock][kMostGroups][2][kQueryBlock][kLanes];
  float score_units[kQueryTile];
  // Of the segment.
  alignas(64) float key_scales[kMostGroups][kScoreStride];
  alignas(64) float value_scales[kMostGroups][kScoreStride];
  // What makes codes of weights, and of what range of positions: value scales over the largest one of the range.
  alignas(64) float code_factors[kMostGroups][kScoreStride];
  float code_units[kMostGroups];
  TokenRange range_of_factors;
  // Of the block.
  alignas(64) float scores[kQueryBlock][kScoreStride];
  alignas(64) std::uint8_t codes[kPagesPerSegment][kMostGroups][2 * kQueryBlock * kPageTokens];  // of weights
  alignas(64) std::int32_t sums[kMostSums][kQueryBlock * kLanes];
  alignas(64) std::int32_t zero_tile[kQueryBlock][kLanes];
  alignas(64) float best[kQueryBlock][kLanes];             // largest scores by lanes, and of all that a query sees
  float most[kQueryBlock];
  alignas(64) float sums_of_weights[kQueryBlock][kLanes];
  float units[kQueryBlock][kMostGroups];                   // of the sums of values
  float keep[kQueryBlock], take[kQueryBlock];
  Target target[kQueryBlock];
};

// Per-thread memory of one tile; its size is attention_scratch_bytes().
struct AttentionScratch {
  QuerySums merged;
  union {
    FloatScratch floats;
    CodeScratch codes;
  };
};

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

// Head dimensions of group g that are stored.
inline int group_width(const KVLayout& layout, int g) {
  const int left = layout.padded_dim - g * kKVGroup;
  return left < kKVGroup ? left : kKVGroup;
}

inline Target target_of(const AttentionTile& t, AttentionScratch& s, int i, int segment) {
  const std::size_t partial = static_cast<std::size_t>(segment - t.segments.begin);
  if (t.split)
    return {reinterpret_cast<QuerySum*>(t.partials[i] + partial * partial_floats(t.layout->padded_dim)), false};
  return {&s.merged[i], segment > t.segments.begin && segment > t.visible[i].begin / kSegmentTokens};
}

}  // namespace

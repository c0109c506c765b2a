// Scores and weighted sums in float32: bf16 KV under every profile, int8 KV under f32.
#pragma once

#include "kernels/attention_softmax.h"

namespace {

using namespace ninfer;

// Float scores of one query against one page of int8 keys.
void scores_float_int8(const AttentionTile& t, FloatScratch& s, int query, const std::uint8_t* head, int column) {
  const KVLayout& layout = *t.layout;
  for (int b = 0; b < kBlocksPerPage; ++b) {
    V::F total = V::zero();
    for (int g = 0; g < layout.groups; ++g) {
      const int quads = group_width(layout, g) / 4;
      const std::uint8_t* keys = head + static_cast<std::size_t>(g) * kKVGroup * kPageTokens + b * 64;
      const float* q = s.q[query] + g * kKVGroup;
      V::F acc = V::zero();
      for (int j = 0; j < quads; ++j) {
        const V::B k = V::load_u8(keys + j * 256);
        for (int byte = 0; byte < 4; ++byte)
          acc = V::fma(V::byte_to_float(k, byte, 128), V::set1(q[4 * j + byte]), acc);
      }
      const std::uint16_t* scales =
          reinterpret_cast<const std::uint16_t*>(head + layout.k_scales_offset) + g * kPageTokens + b * kLanes;
      total = V::fma(acc, V::load_f16(scales), total);
    }
    V::store(s.scores[query] + column + b * kLanes, total);
  }
}

// Float scores of Q queries against one page of bf16 keys.
template <int Q>
void scores_bf16(const AttentionTile& t, FloatScratch& s, int query0, const std::uint8_t* head, int column) {
  const std::uint16_t* keys = reinterpret_cast<const std::uint16_t*>(head);
  V::F acc[Q][kBlocksPerPage];
  for (int i = 0; i < Q; ++i)
    for (int b = 0; b < kBlocksPerPage; ++b) acc[i][b] = V::zero();
  for (int d = 0; d < t.layout->head_dim; ++d) {
    V::F k[kBlocksPerPage];
    for (int b = 0; b < kBlocksPerPage; ++b) k[b] = V::load_bf16(keys + d * kPageTokens + b * kLanes);
    for (int i = 0; i < Q; ++i) {
      const V::F q = V::set1(s.q[query0 + i][d]);
      for (int b = 0; b < kBlocksPerPage; ++b) acc[i][b] = V::fma(k[b], q, acc[i][b]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int b = 0; b < kBlocksPerPage; ++b) V::store(s.scores[query0 + i] + column + b * kLanes, acc[i][b]);
}

// Scores to weights in place: zero for columns of the first `tokens` that are not seen.
void softmax_segment(float* scores, TokenRange seen, int tokens, QuerySum& sum) {
  V::F best = V::set1(kMinusInfinity);
  for (int i = 0; i < tokens; i += kLanes)
    best = V::max(best, select_seen(V::load(scores + i), V::set1(kMinusInfinity), seen, i));
  sum.m = V::reduce_max(best);
  sum.unit = kLog2e;
  V::F total = V::zero();
  for (int i = 0; i < tokens; i += kLanes) {
    const V::F weights = weights_of(V::sub(V::load(scores + i), V::set1(sum.m)), V::set1(kLog2e));
    const V::F p = select_seen(weights, V::zero(), seen, i);
    total = V::add(total, p);
    V::store(scores + i, p);
  }
  sum.l = V::reduce_add(total);
}

struct ValuesFloat {  // converted page: [64][64]
  const float* p;
  inline V::F load(int token, int lane0) const { return V::load(p + token * kKVGroup + lane0); }
};
struct ValuesInt8 {  // one page and group: [16][width][4]
  const std::uint8_t* p;
  std::size_t width;
  inline V::F load(int token, int lane0) const {
    return V::signed_byte_to_float(V::load_u8(p + (value_row(token) * width + lane0) * 4), value_byte(token));
  }
};
struct ValuesBF16 {
  const std::uint16_t* p;
  std::size_t stride;
  inline V::F load(int token, int lane0) const { return V::load_bf16(p + token * stride + lane0); }
};

// o[i][0 .. 16 N) += sum over a range of tokens of weights[i][token] * value[token], ascending.
template <int Q, int N, class Values>
void accumulate(const Values& values, const float* weights, std::size_t weight_stride, TokenRange tokens, float* o,
                std::size_t o_stride) {
  V::F acc[Q][N];
  for (int i = 0; i < Q; ++i)
    for (int n = 0; n < N; ++n) acc[i][n] = V::load(o + i * o_stride + n * kLanes);
  for (int t = tokens.begin; t < tokens.end; ++t) {
    V::F v[N];
    for (int n = 0; n < N; ++n) v[n] = values.load(t, n * kLanes);
    for (int i = 0; i < Q; ++i) {
      const V::F p = V::set1(weights[i * weight_stride + t]);
      for (int n = 0; n < N; ++n) acc[i][n] = V::fma(p, v[n], acc[i][n]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int n = 0; n < N; ++n) V::store(o + i * o_stride + n * kLanes, acc[i][n]);
}

// The tokens of one page that query i sees.
inline TokenRange seen_of_page(const AttentionTile& t, int i, int segment, int column) {
  const TokenRange seen = seen_of(t, i, segment);
  const int begin = seen.begin > column ? seen.begin : column;
  const int end = seen.end < column + kPageTokens ? seen.end : column + kPageTokens;
  return {begin - column, end > begin ? end - column : begin - column};
}

// Queries are summed together as long as they see the same tokens: a weight of zero would not keep out what is no number.
template <int N, class Values>
void accumulate_tile(const Values& values, const AttentionTile& t, const float* weights, std::size_t weight_stride,
                     int segment, int column, float* o, std::size_t o_stride) {
  for (int i = 0; i < t.num_queries;) {
    const TokenRange seen = seen_of_page(t, i, segment, column);
    int n = 1;
    for (; n < V::kQueryBlock && i + n < t.num_queries; ++n) {
      const TokenRange other = seen_of_page(t, i + n, segment, column);
      if (other.begin != seen.begin || other.end != seen.end) break;
    }
    with_rows<V::kQueryBlock>(n, [&]<int Q>() {
      accumulate<Q, N>(values, weights + i * weight_stride, weight_stride, seen, o + i * o_stride, o_stride);
    });
    i += n;
  }
}

void values_page(const AttentionTile& t, FloatScratch& s, const std::uint8_t* head, int segment, int column, int tokens) {
  const KVLayout& layout = *t.layout;
  constexpr std::size_t o_stride = sizeof(s.segment.memory[0]) / sizeof(float);
  const bool convert = t.num_queries > V::kQueryBlock;  // worth it when several query blocks read the page
  for (int g = 0; g < layout.groups; ++g) {
    const int vectors = group_width(layout, g) / kLanes;
    const float* weights = &s.scores[0][column];
    std::size_t weight_stride = kSegmentTokens;
    if (layout.format == KVFormat::int8) {
      const std::uint16_t* scales =
          reinterpret_cast<const std::uint16_t*>(head + layout.v_scales_offset) + g * kPageTokens;
      for (int b = 0; b < tokens; b += kLanes) {
        const V::F scale = V::load_f16(scales + b);
        for (int i = 0; i < t.num_queries; ++i)
          V::store(s.weights[i] + b, V::mul(V::load(&s.scores[i][column] + b), scale));
      }
      weights = s.weights[0];
      weight_stride = kPageTokens;
    }
    float* o = s.segment[0].values() + g * kKVGroup;
    const auto sum = [&](const auto& values) {
      with_rows<kKVGroup / kLanes>(vectors, [&]<int N>() {
        accumulate_tile<N>(values, t, weights, weight_stride, segment, column, o, o_stride);
      });
    };
    const auto add_up = [&](const auto& stored) {
      if (!convert) return sum(stored);
      for (int token = 0; token < tokens; ++token)
        for (int n = 0; n < vectors; ++n) V::store(s.values[token] + n * kLanes, stored.load(token, n * kLanes));
      sum(ValuesFloat{s.values[0]});
    };
    const std::uint8_t* values = head + layout.v_offset;
    const std::size_t stride = static_cast<std::size_t>(layout.padded_dim);
    if (layout.format == KVFormat::int8)
      add_up(ValuesInt8{values + g * kKVGroup * kPageTokens, static_cast<std::size_t>(vectors) * kLanes});
    else
      add_up(ValuesBF16{reinterpret_cast<const std::uint16_t*>(values) + g * kKVGroup, stride});
  }
}

void prepare_float_queries(const AttentionTile& t, FloatScratch& s) {
  const int dim = t.layout->head_dim, padded = t.layout->groups * kKVGroup;
  const V::F scale = V::set1(t.scale);
  for (int i = 0; i < t.num_queries; ++i) {
    float* q = s.q[i];
    for_lanes(dim, [&](int d, int lanes) { V::store(q + d, V::mul(load_lanes(t.q[i] + d, lanes), scale)); });
    for (int d = round_up(dim, kLanes); d < padded; d += kLanes) V::store(q + d, V::zero());
  }
}

// One segment of all queries; `most` of its positions are seen by any.
void attend_in_floats(const AttentionTile& t, AttentionScratch& scratch, int segment, int most) {
  FloatScratch& s = scratch.floats;
  for (int column = 0; column < most; column += kPageTokens) {
    const std::uint8_t* head = page_head(t, segment, column);
    if (t.layout->format == KVFormat::int8) {
      for (int i = 0; i < t.num_queries; ++i) scores_float_int8(t, s, i, head, column);
      continue;
    }
    for (int i = 0; i < t.num_queries; i += V::kQueryBlock) {
      const int n = t.num_queries - i < V::kQueryBlock ? t.num_queries - i : V::kQueryBlock;
      with_rows<V::kQueryBlock>(n, [&]<int Q>() { scores_bf16<Q>(t, s, i, head, column); });
    }
  }
  const int padded = t.layout->padded_dim;
  for (int i = 0; i < t.num_queries; ++i) {
    softmax_segment(s.scores[i], seen_of(t, i, segment), most, s.segment[i]);
    for (int d = 0; d < padded; d += kLanes) V::store(s.segment[i].values() + d, V::zero());
  }
  for (int column = 0; column < most; column += kPageTokens)
    values_page(t, s, page_head(t, segment, column), segment, column,
                most - column < kPageTokens ? most - column : kPageTokens);
  for (int i = 0; i < t.num_queries; ++i) {
    if (seen_of(t, i, segment).count() == 0) continue;
    const Target target = target_of(t, scratch, i, segment);
    if (target.merge) merge_segment(*target.sum, s.segment[i], padded);
    else __builtin_memcpy(target.sum, &s.segment[i], partial_floats(padded) * sizeof(float));
  }
}

}  // namespace

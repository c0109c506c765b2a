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

#include "core/kernels.h"
#include "kernels/elementwise_body.h"

namespace {

using namespace ninfer;

constexpr int kPagesPerSegment = kSegmentTokens / kPageTokens;
constexpr int kBlocksPerPage = kPageTokens / kLanes;
constexpr float kWeightCutoff = -64.0f;
constexpr float kMinusInfinity = -__builtin_inff();

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

inline float exp_one(float x) {
  alignas(64) float lanes[kLanes];
  V::store(lanes, V::zero_below(exp_lanes(V::set1(x)), V::set1(x), V::set1(kWeightCutoff)));
  return lanes[0];
}

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

// Float scores of one query against one page of int8 keys.
void scores_float_int8(const AttentionTile& t, AttentionScratch& s, int query, const std::uint8_t* head, int column) {
  const KVLayout& layout = *t.layout;
  for (int b = 0; b < kBlocksPerPage; ++b) {
    V::F total = V::zero();
    for (int g = 0; g < layout.groups; ++g) {
      const int left = layout.padded_dim - g * kKVGroup;
      const int quads = (left < kKVGroup ? left : kKVGroup) / 4;
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
void scores_bf16(const AttentionTile& t, AttentionScratch& s, int query0, const std::uint8_t* head, int column) {
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

// Scores to weights in place over `visible` of `tokens` positions; returns through m and l.
void softmax_segment(float* scores, int visible, int tokens, float* m_out, float* l_out) {
  V::F best = V::set1(kMinusInfinity);
  for (int i = 0; i < visible; i += kLanes) {
    const int n = visible - i;
    const V::F v = V::load(scores + i);
    best = V::max(best, n >= kLanes ? v : V::select_n(v, V::set1(kMinusInfinity), n));
  }
  const float m = V::reduce_max(best);
  const V::F m_lanes = V::set1(m), cutoff = V::set1(kWeightCutoff);
  V::F sum = V::zero();
  int i = 0;
  for (; i < visible; i += kLanes) {
    const V::F x = V::sub(V::load(scores + i), m_lanes);
    V::F p = V::zero_below(exp_lanes(x), x, cutoff);
    if (visible - i < kLanes) p = V::select_n(p, V::zero(), visible - i);
    sum = V::add(sum, p);
    V::store(scores + i, p);
  }
  for (; i < tokens; i += kLanes) V::store(scores + i, V::zero());
  *m_out = m;
  *l_out = V::reduce_add(sum);
}

struct ValuesFloat {  // converted page: [64][64]
  const float* p;
  inline V::F load(int token, int lane0) const { return V::load(p + token * kKVGroup + lane0); }
};
struct ValuesInt8 {  // one page and group: [16][width][4]
  const std::uint8_t* p;
  std::size_t width;
  inline V::F load(int token, int lane0) const {
    return V::byte_to_float(V::load_u8(p + (token / 4 * width + lane0) * 4), token % 4, 128);
  }
};
struct ValuesBF16 {
  const std::uint16_t* p;
  std::size_t stride;
  inline V::F load(int token, int lane0) const { return V::load_bf16(p + token * stride + lane0); }
};

// o[i][0 .. 16 N) += sum over tokens of weights[i][token] * value[token], ascending.
template <int Q, int N, class Values>
void accumulate(const Values& values, const float* weights, std::size_t weight_stride, int tokens, float* o,
                std::size_t o_stride) {
  V::F acc[Q][N];
  for (int i = 0; i < Q; ++i)
    for (int n = 0; n < N; ++n) acc[i][n] = V::load(o + i * o_stride + n * kLanes);
  for (int t = 0; t < tokens; ++t) {
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

template <int N, class Values>
void accumulate_tile(const Values& values, const AttentionTile& t, const float* weights, std::size_t weight_stride,
                     int tokens, float* o, std::size_t o_stride) {
  for (int i = 0; i < t.num_queries; i += V::kQueryBlock) {
    const int n = t.num_queries - i < V::kQueryBlock ? t.num_queries - i : V::kQueryBlock;
    with_rows<V::kQueryBlock>(n, [&]<int Q>() {
      accumulate<Q, N>(values, weights + i * weight_stride, weight_stride, tokens, o + i * o_stride, o_stride);
    });
  }
}

template <class Values>
void accumulate_lanes(int vectors, const Values& values, const AttentionTile& t, const float* weights,
                      std::size_t weight_stride, int tokens, float* o, std::size_t o_stride) {
  with_rows<kKVGroup / kLanes>(vectors, [&]<int N>() {
    accumulate_tile<N>(values, t, weights, weight_stride, tokens, o, o_stride);
  });
}

void values_page(const AttentionTile& t, AttentionScratch& s, const std::uint8_t* head, int column, int tokens) {
  const KVLayout& layout = *t.layout;
  constexpr std::size_t o_stride = kMaxHeadDim + kLanes;
  const bool convert = t.num_queries > V::kQueryBlock;  // worth it when several query blocks read the page
  for (int g = 0; g < layout.groups; ++g) {
    const int left = layout.padded_dim - g * kKVGroup;
    const int vectors = (left < kKVGroup ? left : kKVGroup) / kLanes;
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
    float* o = s.segment[0] + g * kKVGroup;
    const auto add_up = [&](const auto& stored) {
      if (!convert) return accumulate_lanes(vectors, stored, t, weights, weight_stride, tokens, o, o_stride);
      for (int token = 0; token < tokens; ++token)
        for (int n = 0; n < vectors; ++n) V::store(s.values[token] + n * kLanes, stored.load(token, n * kLanes));
      accumulate_lanes(vectors, ValuesFloat{s.values[0]}, t, weights, weight_stride, tokens, o, o_stride);
    };
    const std::uint8_t* values = head + layout.v_offset;
    const std::size_t stride = static_cast<std::size_t>(layout.padded_dim);
    if (layout.format == KVFormat::int8)
      add_up(ValuesInt8{values + g * kKVGroup * kPageTokens, static_cast<std::size_t>(vectors) * kLanes});
    else
      add_up(ValuesBF16{reinterpret_cast<const std::uint16_t*>(values) + g * kKVGroup, stride});
  }
}

// Codes of the weights times the value scales of one segment and group, page by page; zero from the first position on that
// a query does not see, whatever the page holds there.
void encode_weights(const AttentionTile& t, AttentionScratch& s, const std::uint8_t* const* heads, int g, int first,
                    int tokens) {
  for (int i = 0; i < tokens; i += kLanes) {
    const std::uint8_t* scales = heads[i / kPageTokens] + t.layout->v_scales_offset;
    V::store(s.value_scales + i,
             V::load_f16(reinterpret_cast<const std::uint16_t*>(scales) + g * kPageTokens + i % kPageTokens));
  }
  for (int query = 0; query < t.num_queries; ++query) {
    const int visible = t.visible[query] - first;
    for (int i = 0; i < tokens; i += kLanes) {
      V::F product = V::mul(V::load(s.scores[query] + i), V::load(s.value_scales + i));
      if (visible - i < kLanes) product = V::select_n(product, V::zero(), visible > i ? visible - i : 0);
      V::store(s.products + i, product);
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
void values_segment(const AttentionTile& t, AttentionScratch& s, const std::uint8_t* const* heads, int first,
                    int tokens) {
  const KVLayout& layout = *t.layout;
  for (int g = 0; g < layout.groups; ++g) {
    encode_weights(t, s, heads, g, first, tokens);
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

// acc := acc merged with segment; both hold o[padded_dim], then m and l.
void merge_segment(float* acc, const float* segment, int padded_dim) {
  const float m_acc = acc[padded_dim], m_seg = segment[padded_dim];
  const float m = m_seg > m_acc ? m_seg : m_acc;
  const float f_acc = exp_one(m_acc - m), f_seg = exp_one(m_seg - m);
  const V::F a = V::set1(f_acc), b = V::set1(f_seg);
  for (int d = 0; d < padded_dim; d += kLanes)
    V::store(acc + d, V::fma(V::load(segment + d), b, V::mul(V::load(acc + d), a)));
  acc[padded_dim] = m;
  acc[padded_dim + 1] = __builtin_fmaf(segment[padded_dim + 1], f_seg, acc[padded_dim + 1] * f_acc);
}

void finish_query(const float* acc, int head_dim, int padded_dim, float* out) {
  const V::F inv = V::set1(1.0f / acc[padded_dim + 1]);
  for_lanes(head_dim, [&](int d, int lanes) { save_lanes(out + d, V::mul(V::load(acc + d), inv), lanes); });
}

inline const std::uint8_t* page_head(const AttentionTile& t, int segment, int column) {
  const std::int32_t page = t.page_ids[segment * kPagesPerSegment + column / kPageTokens];
  return t.kv_layer + t.page_bytes * static_cast<std::size_t>(page) + t.layout->head_bytes * t.kv_head;
}

void attention(const AttentionTile& t) {
  AttentionScratch& s = *static_cast<AttentionScratch*>(t.scratch);
  const KVLayout& layout = *t.layout;
  const int padded = layout.padded_dim;
  prepare_queries(t, s);
  int last_visible = 0;
  for (int i = 0; i < t.num_queries; ++i) last_visible = t.visible[i] > last_visible ? t.visible[i] : last_visible;
  for (int segment = t.segment_begin; segment < t.segment_end; ++segment) {
    const int first = segment * kSegmentTokens;
    int most = last_visible - first;
    if (most <= 0) break;
    if (most > kSegmentTokens) most = kSegmentTokens;
    for (int column = 0; column < most; column += kPageTokens) {
      const std::uint8_t* head = page_head(t, segment, column);
      const bool last = segment * kSegmentTokens + column + kPageTokens >= last_visible;
      const std::uint8_t* next = last ? head : page_head(t, segment, column + kPageTokens);
      if (layout.format == KVFormat::int8 && !t.integers) {
        for (int i = 0; i < t.num_queries; ++i) scores_float_int8(t, s, i, head, column);
        continue;
      }
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
      int visible = t.visible[i] - first;
      visible = visible < 0 ? 0 : visible > kSegmentTokens ? kSegmentTokens : visible;
      softmax_segment(s.scores[i], visible, most, &s.segment[i][padded], &s.segment[i][padded + 1]);
      if (t.integers) continue;
      for (int d = 0; d < padded; d += kLanes) V::store(s.segment[i] + d, V::zero());
    }
    const std::uint8_t* heads[kPagesPerSegment];
    for (int column = 0; column < most; column += kPageTokens) heads[column / kPageTokens] = page_head(t, segment, column);
    if (t.integers) values_segment(t, s, heads, first, most);
    for (int column = 0; !t.integers && column < most; column += kPageTokens)
      values_page(t, s, heads[column / kPageTokens], column, most - column < kPageTokens ? most - column : kPageTokens);
    for (int i = 0; i < t.num_queries; ++i) {
      if (t.visible[i] <= first) continue;
      float* target =
          t.split ? t.partials[i] + (segment - t.segment_begin) * partial_floats(padded) : s.merged[i];
      if (t.split || segment == t.segment_begin)
        __builtin_memcpy(target, s.segment[i], (padded + 2) * sizeof(float));
      else
        merge_segment(target, s.segment[i], padded);
    }
  }
  if (!t.split)
    for (int i = 0; i < t.num_queries; ++i) finish_query(s.merged[i], layout.head_dim, padded, t.out[i]);
}

void merge(const MergeArgs& a) {
  alignas(64) float acc[kMaxHeadDim + kLanes];
  __builtin_memcpy(acc, a.partials, (a.padded_dim + 2) * sizeof(float));
  for (int i = 1; i < a.segments; ++i)
    merge_segment(acc, a.partials + i * partial_floats(a.padded_dim), a.padded_dim);
  finish_query(acc, a.head_dim, a.padded_dim, a.out);
}

}  // namespace

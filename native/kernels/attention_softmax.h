// The softmax of a segment and the merging of segments.
#pragma once

#include "kernels/attention_tile.h"

namespace {

using namespace ninfer;

constexpr float kWeightCutoff = -64.0f;
constexpr float kMinusInfinity = -__builtin_inff();

inline float exp_one(float x) {
  alignas(64) float lanes[kLanes];
  V::store(lanes, V::zero_below(exp_lanes(V::set1(x)), V::set1(x), V::set1(kWeightCutoff)));
  return lanes[0];
}

// Scores to weights in place: zero for columns of the first `tokens` that are not seen. Returns through m and l.
void softmax_segment(float* scores, TokenRange seen, int tokens, float* m_out, float* l_out) {
  V::F best = V::set1(kMinusInfinity);
  for (int i = 0; i < tokens; i += kLanes)
    best = V::max(best, select_seen(V::load(scores + i), V::set1(kMinusInfinity), seen, i));
  const float m = V::reduce_max(best);
  const V::F m_lanes = V::set1(m), cutoff = V::set1(kWeightCutoff);
  V::F sum = V::zero();
  for (int i = 0; i < tokens; i += kLanes) {
    const V::F x = V::sub(V::load(scores + i), m_lanes);
    const V::F p = select_seen(V::zero_below(exp_lanes(x), x, cutoff), V::zero(), seen, i);
    sum = V::add(sum, p);
    V::store(scores + i, p);
  }
  *m_out = m;
  *l_out = V::reduce_add(sum);
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

}  // namespace

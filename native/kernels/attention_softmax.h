// Weights of scores, and the merging of segments.
#pragma once

#include "kernels/attention_tile.h"

namespace {

using namespace ninfer;

constexpr float kLog2e = 1.44269504f;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLowestWeight = -92.0f;  // as a power of two, the cutoff e^-64

// 2^(x * unit) for x <= 0, relative error below 2^-22; zero where that is below 2^-92.5. NaN stays NaN.
// Rounding to the nearest power of two by a large addend, then 2^r for r in [-0.5, 0.5] as a polynomial of degree 5 with
// the least largest relative error (1.1e-7) among those that are 1 at 0 (our own fit).
inline V::F weights_of(V::F x, V::F unit) {
  const V::F magic = V::set1(0x1.8p23f);
  const V::F n = V::sub(V::fma(x, unit, magic), magic);
  const V::F r = V::fms(x, unit, n);
  V::F p = V::set1(0.001326472731307149f);
  p = V::fma(p, r, V::set1(0.009671512991189957f));
  p = V::fma(p, r, V::set1(0.05550733581185341f));
  p = V::fma(p, r, V::set1(0.24022242426872253f));
  p = V::fma(p, r, V::set1(0.6931470036506653f));
  p = V::fma(p, r, V::set1(1.0f));
  return V::zero_below(V::scale2(p, n), n, V::set1(kLowestWeight));
}

// Brings the scalars of two parts of a query together in `sum`: its values are to be multiplied by keep, those of the
// other part by take.
inline void merge_scalars(QuerySum& sum, float m, float l, float& keep, float& take) {
  const float most = m > sum.m ? m : sum.m;
  alignas(64) float factors[kLanes] = {sum.m - most, m - most};
  V::store(factors, weights_of(V::load(factors), V::set1(sum.unit)));
  keep = factors[0];
  take = factors[1];
  sum.m = most;
  sum.l = __builtin_fmaf(l, take, sum.l * keep);
}

void merge_segment(QuerySum& sum, const QuerySum& segment, int padded_dim) {
  float keep, take;
  merge_scalars(sum, segment.m, segment.l, keep, take);
  const V::F a = V::set1(keep), b = V::set1(take);
  for (int d = 0; d < padded_dim; d += kLanes)
    V::store(sum.values() + d, V::fma(V::load(segment.values() + d), b, V::mul(V::load(sum.values() + d), a)));
}

void finish_query(const QuerySum& sum, int head_dim, float* out) {
  const V::F inv = V::set1(1.0f / sum.l);
  for_lanes(head_dim, [&](int d, int lanes) { save_lanes(out + d, V::mul(V::load(sum.values() + d), inv), lanes); });
}

}  // namespace

// Row-wise ops: norms, rotary embedding, gated activation; and the exponential that softmax and silu share.
#pragma once

#include <math.h>

#include "core/kernels.h"

namespace {

using namespace ninfer;

// e^x, relative error below 2 ulp, the same bits on every target. Arguments are clamped to [-87, 88]; NaN stays NaN.
// Range reduction to [-ln2/2, ln2/2] with a two-part ln 2, then a degree-6 Taylor-minimax polynomial.
inline V::F exp_lanes(V::F x) {
  x = V::min(V::set1(88.0f), V::max(V::set1(-87.0f), x));
  const V::F n = V::round(V::mul(x, V::set1(1.44269504f)));
  V::F r = V::fnma(n, V::set1(0.693359375f), x);
  r = V::fnma(n, V::set1(-2.12194440e-4f), r);
  V::F p = V::set1(1.0f / 720.0f);
  p = V::fma(p, r, V::set1(1.0f / 120.0f));
  p = V::fma(p, r, V::set1(1.0f / 24.0f));
  p = V::fma(p, r, V::set1(1.0f / 6.0f));
  p = V::fma(p, r, V::set1(0.5f));
  p = V::fma(p, r, V::set1(1.0f));
  p = V::fma(p, r, V::set1(1.0f));
  return V::scale2(p, n);
}

// Calls fn(column, lanes) over a width, 16 lanes at a time; lanes < 16 only at the end.
template <class Fn>
inline void for_lanes(int width, Fn fn) {
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) fn(i, kLanes);
  if (i < width) fn(i, width - i);
}

inline V::F load_lanes(const float* p, int lanes) { return lanes == kLanes ? V::load(p) : V::load_n(p, lanes); }

inline void save_lanes(float* p, V::F v, int lanes) {
  if (lanes == kLanes) V::store(p, v);
  else V::store_n(p, v, lanes);
}

void rms_norm(const RmsNormArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = a.x + row * a.ldx;
    float* y = a.y + row * a.ldy;
    V::F sum = V::zero();
    for_lanes(a.width, [&](int i, int lanes) {
      const V::F v = load_lanes(x + i, lanes);
      sum = V::fma(v, v, sum);
    });
    const float mean = V::reduce_add(sum) / static_cast<float>(a.width);
    const V::F inv = V::set1(1.0f / sqrtf(mean + a.eps));
    for_lanes(a.width, [&](int i, int lanes) {
      save_lanes(y + i, V::mul(V::mul(load_lanes(x + i, lanes), inv), load_lanes(a.w + i, lanes)), lanes);
    });
  }
}

void rope(const RopeArgs& a, int row_begin, int row_end) {
  const int half = a.rotary_dim / 2;
  for (int row = row_begin; row < row_end; ++row) {
    const float* cosines = a.angles + row * a.lda;
    const float* sines = cosines + half;
    for (int head = 0; head < a.num_heads; ++head) {
      const float* x = a.x + row * a.ldx + head * a.head_dim;
      float* y = a.y + row * a.ldy + head * a.head_dim;
      for_lanes(half, [&](int i, int lanes) {
        const V::F c = load_lanes(cosines + i, lanes), s = load_lanes(sines + i, lanes);
        const V::F first = load_lanes(x + i, lanes), second = load_lanes(x + half + i, lanes);
        save_lanes(y + i, V::fnma(second, s, V::mul(first, c)), lanes);
        save_lanes(y + half + i, V::fma(first, s, V::mul(second, c)), lanes);
      });
      for_lanes(a.head_dim - a.rotary_dim, [&](int i, int lanes) {
        save_lanes(y + a.rotary_dim + i, load_lanes(x + a.rotary_dim + i, lanes), lanes);
      });
    }
  }
}

void silu_mul(const SiluMulArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* gate = a.x + row * a.ldx;
    const float* up = gate + a.width;
    float* y = a.y + row * a.ldy;
    for_lanes(a.width, [&](int i, int lanes) {
      const V::F g = load_lanes(gate + i, lanes);
      const V::F denominator = V::add(V::set1(1.0f), exp_lanes(V::sub(V::zero(), g)));
      save_lanes(y + i, V::mul(V::div(g, denominator), load_lanes(up + i, lanes)), lanes);
    });
  }
}

}  // namespace

// Row-wise ops: norms, rotary embedding, gates; and the exponential that softmax and gates share.
#pragma once

#include <math.h>

#include "core/kernels.h"

namespace {

using namespace ninfer;

// e^x, relative error below 2 ulp, the same bits on every target. Arguments are clamped to [kLowestExponent, 88];
// NaN stays NaN.
// Range reduction to [-ln2/2, ln2/2] with a two-part ln 2, then a degree-6 Taylor-minimax polynomial.
constexpr float kLowestExponent = -87.0f;

inline V::F exp_lanes(V::F x) {
  x = V::min(V::set1(88.0f), V::max(V::set1(kLowestExponent), x));
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

inline V::F one_plus_exp_of_minus(V::F x) { return V::add(V::set1(1.0f), exp_lanes(V::sub(V::zero(), x))); }
inline V::F sigmoid(V::F x) { return V::div(V::set1(1.0f), one_plus_exp_of_minus(x)); }
inline V::F silu(V::F x) { return V::div(x, one_plus_exp_of_minus(x)); }

// log(1 + e^x) = max(x, 0) + log(1 + t) with t = e^-|x| in 0 .. 1. With u = t / (2 + t), log(1 + t) is twice the area
// tangent of u, whose series u + u^3 / 3 + ... has no terms above 2^-26 of it beyond u^15, as u is at most 1/3. From x =
// 17 on t is lost in the sum, so that the result is x.
inline V::F softplus(V::F x) {
  const V::F magnitude = V::max(V::sub(V::zero(), x), x);
  const V::F t = exp_lanes(V::sub(V::zero(), magnitude));
  const V::F u = V::div(t, V::add(V::set1(2.0f), t));
  const V::F square = V::mul(u, u);
  V::F series = V::set1(1.0f / 15.0f);
  for (int odd = 13; odd > 0; odd -= 2) series = V::fma(series, square, V::set1(1.0f / static_cast<float>(odd)));
  return V::fma(V::add(u, u), series, V::max(V::zero(), x));
}

// 1 / sqrt(of the sum of squares over `divisor`, plus eps).
inline float inverse_root(const float* x, int width, float divisor, float eps) {
  V::F sum = V::zero();
  for_lanes(width, [&](int i, int lanes) {
    const V::F v = load_lanes(x + i, lanes);
    sum = V::fma(v, v, sum);
  });
  return 1.0f / sqrtf(V::reduce_add(sum) / divisor + eps);
}

void rms_norm(const NormArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row)
    for (int head = 0; head < a.num_heads; ++head) {
      const float* x = a.x + row * a.ldx + head * a.head_dim;
      float* y = a.y + row * a.ldy + head * a.head_dim;
      const V::F inverse = V::set1(inverse_root(x, a.head_dim, static_cast<float>(a.head_dim), a.eps));
      for_lanes(a.head_dim, [&](int i, int lanes) {
        save_lanes(y + i, V::mul(V::mul(load_lanes(x + i, lanes), inverse), load_lanes(a.w + i, lanes)), lanes);
      });
    }
}

void gated_rms_norm(const NormArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row)
    for (int head = 0; head < a.num_heads; ++head) {
      const float* x = a.x + row * a.ldx + head * a.head_dim;
      const float* z = a.z + row * a.ldz + head * a.head_dim;
      float* y = a.y + row * a.ldy + head * a.head_dim;
      const V::F inverse = V::set1(inverse_root(x, a.head_dim, static_cast<float>(a.head_dim), a.eps));
      for_lanes(a.head_dim, [&](int i, int lanes) {
        const V::F normed = V::mul(V::mul(load_lanes(x + i, lanes), inverse), load_lanes(a.w + i, lanes));
        save_lanes(y + i, V::mul(normed, silu(load_lanes(z + i, lanes))), lanes);
      });
    }
}

void l2_norm(const NormArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row)
    for (int head = 0; head < a.num_heads; ++head) {
      const float* x = a.x + row * a.ldx + head * a.head_dim;
      float* y = a.y + row * a.ldy + head * a.head_dim;
      const V::F factor = V::set1(inverse_root(x, a.head_dim, 1.0f, a.eps) * a.scale);
      for_lanes(a.head_dim, [&](int i, int lanes) { save_lanes(y + i, V::mul(load_lanes(x + i, lanes), factor), lanes); });
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

void dynamic_conv(const DynamicConvArgs& a) {
  const int size = a.channels / a.groups;
  for (int group = 0; group < a.groups; ++group) {
    const int first = group * size;
    for_lanes(size, [&](int i, int lanes) {
      V::F sum = V::zero();
      for (int tap = 0; tap < a.taps; ++tap) {
        const V::F weight = V::add(load_lanes(a.w + tap * a.channels + first + i, lanes), V::set1(a.d[tap * a.groups + group]));
        sum = V::fma(weight, load_lanes(a.z - tap * a.ldz + first + i, lanes), sum);
      }
      if (a.residual != nullptr) sum = V::add(sum, load_lanes(a.residual + first + i, lanes));
      save_lanes(a.y + first + i, sum, lanes);
    });
  }
}

void silu_mul(const GateArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row)
    for_lanes(a.width, [&](int i, int lanes) {
      const V::F gated = silu(load_lanes(a.gate + row * a.ldg + i, lanes));
      save_lanes(a.y + row * a.ldy + i, V::mul(gated, load_lanes(a.x + row * a.ldx + i, lanes)), lanes);
    });
}

void sigmoid_mul(const GateArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row)
    for_lanes(a.width, [&](int i, int lanes) {
      const V::F denominator = one_plus_exp_of_minus(load_lanes(a.gate + row * a.ldg + i, lanes));
      save_lanes(a.y + row * a.ldy + i, V::div(load_lanes(a.x + row * a.ldx + i, lanes), denominator), lanes);
    });
}

void delta_gates(const DeltaGatesArgs& a, int row_begin, int row_end) {
  const V::F lowest = V::set1(kLowestExponent);
  for (int row = row_begin; row < row_end; ++row) {
    float* y = a.y + row * a.ldy;
    for_lanes(a.heads, [&](int j, int lanes) {
      const V::F x = V::add(load_lanes(a.a + row * a.lda + j, lanes), load_lanes(a.dt_bias + j, lanes));
      const V::F exponent = V::sub(V::zero(), V::mul(load_lanes(a.decay + j, lanes), softplus(x)));
      save_lanes(y + j, V::zero_below(exp_lanes(exponent), exponent, lowest), lanes);
      save_lanes(y + a.heads + j, sigmoid(load_lanes(a.b + row * a.ldb + j, lanes)), lanes);
    });
  }
}

}  // namespace

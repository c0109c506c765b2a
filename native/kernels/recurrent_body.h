// Kernels of recurrent layers: short convolution, and the gated delta rule on a few columns of one head's matrix.
//
// Order of arithmetic of the delta rule, fixed per element and row whatever the tile and wherever a call starts: with
// p = s * decay (one rounding), m = sum of fma(k[i], p[i]) over ascending i from 0, d = beta * (v - m),
// s' = fma(k[i], d, p[i]), o = sum of fma(q[i], s'[i]) over ascending i from 0. One pass over the tile per row does the
// second half of a row and the first half of the next, so that an element is loaded and stored once per row.
#pragma once

#include "core/kernels.h"
#include "kernels/elementwise_body.h"
#include "kernels/linear_body.h"

namespace {

using namespace ninfer;

void causal_conv(const ConvArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const float* seen[kMaxTaps];
    for (int j = 0; j < a.taps; ++j) {
      const int source = row - (a.taps - 1) + j;
      seen[j] = source >= 0 ? a.u + source * a.ldu : a.window + (a.taps - 1 + source) * a.window_stride;
    }
    float* y = a.y + row * a.ldy;
    for_lanes(a.channels, [&](int c, int lanes) {
      V::F sum = V::mul(load_lanes(a.w + c, lanes), load_lanes(seen[0] + c, lanes));
      for (int j = 1; j < a.taps; ++j)
        sum = V::fma(load_lanes(a.w + j * a.ldw + c, lanes), load_lanes(seen[j] + c, lanes), sum);
      save_lanes(y + c, silu(sum), lanes);
    });
  }
}

// m = k^T (s * decay), and s * decay itself into `to`; a null `from` is a state of zeros.
template <int B>
void decay_and_read(const DeltaArgs& a, V::F (&m)[B]) {
  const std::size_t key_dim = a.key_dim, block = key_dim * kLanes;
  const float* const from = a.from;
  const float* const k = a.k;
  float* const to = a.to;
  const V::F decay = V::set1(a.decay[0]);
  for (int b = 0; b < B; ++b) m[b] = V::zero();
  for (std::size_t i = 0; i < key_dim; ++i) {
    const V::F ki = V::set1(k[i]);
    for (int b = 0; b < B; ++b) {
      const std::size_t at = b * block + i * kLanes;
      const V::F p = V::mul(from == nullptr ? V::zero() : V::load(from + at), decay);
      V::store(to + at, p);
      m[b] = V::fma(ki, p, m[b]);
    }
  }
}

constexpr int kRowsAhead = 3;

// Rows lie further apart than hardware prefetchers look.
template <bool kQuery>
inline void prefetch_row(const DeltaArgs& a, int row) {
  for (int i = 0; i < a.key_dim; i += kLanes) {
    __builtin_prefetch(a.k + row * a.ldk + i, 0, 3);
    if constexpr (kQuery) __builtin_prefetch(a.q + row * a.ldq + i, 0, 3);
  }
  for (int i = 0; i < a.columns; i += kLanes) {
    __builtin_prefetch(a.v + row * a.ldv + i, 0, 3);
    if constexpr (kQuery) __builtin_prefetch(a.o + row * a.ldo + i, 1, 3);
  }
}

// One row's write and query; with kNext also the next row's decay and read. kQuery false: the row only changes the state.
template <int B, bool kQuery, bool kNext>
void write_and_query(const DeltaArgs& a, int row, V::F (&m)[B]) {
  const std::size_t key_dim = a.key_dim, block = key_dim * kLanes;
  float* const to = a.to;
  const float* const k = a.k + row * a.ldk;
  const float* const next_k = kNext ? k + a.ldk : k;
  const float* const q = kQuery ? a.q + row * a.ldq : k;
  const float* v = a.v + row * a.ldv;
  const V::F beta = V::set1(a.beta[row * a.ldg]);
  const V::F decay = V::set1(a.decay[(kNext ? row + 1 : row) * a.ldg]);
  V::F d[B], o[B], next_m[B];
  const float* const next = a.next == nullptr ? to : a.next;
  for (int b = 0; b < B; ++b) {
    const int lanes = a.columns - b * kLanes;
    d[b] = V::mul(beta, V::sub(load_lanes(v + b * kLanes, lanes < kLanes ? lanes : kLanes), m[b]));
    o[b] = next_m[b] = V::zero();
  }
  for (std::size_t i = 0; i < key_dim; ++i) {
    const V::F ki = V::set1(k[i]), qi = V::set1(q[i]), next_ki = V::set1(next_k[i]);
    for (int b = 0; b < B; ++b) {
      float* const at = to + b * block + i * kLanes;
      V::F s = V::fma(ki, d[b], V::load(at));
      if constexpr (kQuery) o[b] = V::fma(qi, s, o[b]);
      if constexpr (kNext) {
        s = V::mul(s, decay);
        next_m[b] = V::fma(next_ki, s, next_m[b]);
      }
      V::store(at, s);
      // The last pass of a tile leaves memory idle; the next tile may come meanwhile.
      if constexpr (!kNext) __builtin_prefetch(next + b * block + i * kLanes, 0, 3);
    }
  }
  for (int b = 0; b < B; ++b) {
    if constexpr (kNext) m[b] = next_m[b];
    const int lanes = a.columns - b * kLanes;
    if constexpr (kQuery) save_lanes(a.o + row * a.ldo + b * kLanes, o[b], lanes < kLanes ? lanes : kLanes);
  }
}

template <int B, bool kQuery>
void delta_rows(const DeltaArgs& a) {
  V::F m[B];
  decay_and_read<B>(a, m);
  for (int row = 0; row + 1 < a.rows; ++row) {
    if (row + kRowsAhead < a.rows) prefetch_row<kQuery>(a, row + kRowsAhead);
    write_and_query<B, kQuery, true>(a, row, m);
  }
  write_and_query<B, kQuery, false>(a, a.rows - 1, m);
}

void delta_rule(const DeltaArgs& a) {
  with_rows<kStateBlocks>((a.columns + kLanes - 1) / kLanes, [&]<int B>() {
    if (a.o == nullptr) delta_rows<B, false>(a);
    else delta_rows<B, true>(a);
  });
}

}  // namespace

// Vector policy of the scalar target: 16 lanes in plain arrays. Compiles everywhere; the same arithmetic, lane by lane.
#pragma once

#include <math.h>

#include <cstdint>

namespace {

struct V {
  struct F { float v[16]; };
  struct I { std::int32_t v[16]; };
  struct B { std::uint8_t v[16][4]; };

  static constexpr int kTileRows = 4;
  static constexpr int kBlockRows = 4;
  static constexpr int kBlockRecords = 1;
  static constexpr int kFewBlockRows = 4;  // of 4-bit weights: up to these, one record at a time
  static constexpr int kTwinSums = 4;
  static constexpr int kFloatBlockRows = 4;
  static constexpr int kFloatBlockRecords = 1;
  static constexpr int kFewRows = 2, kFewRowsRecords = 1;
  static constexpr int kQueryBlock = 3;

  template <class Fn> static F map(Fn fn) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
    return r;
  }
  static F zero() { return set1(0.0f); }
  static F set1(float x) { return map([&](int) { return x; }); }
  static F load(const float* p) { return map([&](int i) { return p[i]; }); }
  static void store(float* p, F v) { store_n(p, v, 16); }
  static F load_n(const float* p, int n) { return map([&](int i) { return i < n ? p[i] : 0.0f; }); }
  static void store_n(float* p, F v, int n) {
    for (int i = 0; i < (n < 16 ? n : 16); ++i) p[i] = v.v[i];
  }
  static F select_n(F v, F other, int n) { return map([&](int i) { return i < n ? v.v[i] : other.v[i]; }); }
  static F add(F a, F b) { return map([&](int i) { return a.v[i] + b.v[i]; }); }
  static F sub(F a, F b) { return map([&](int i) { return a.v[i] - b.v[i]; }); }
  static F mul(F a, F b) { return map([&](int i) { return a.v[i] * b.v[i]; }); }
  static F div(F a, F b) { return map([&](int i) { return a.v[i] / b.v[i]; }); }
  static F fma(F a, F b, F c) { return map([&](int i) { return fmaf(a.v[i], b.v[i], c.v[i]); }); }
  static F fms(F a, F b, F c) { return map([&](int i) { return fmaf(a.v[i], b.v[i], -c.v[i]); }); }
  static F fnma(F a, F b, F c) { return map([&](int i) { return fmaf(-a.v[i], b.v[i], c.v[i]); }); }
  static F max(F a, F b) { return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
  static F min(F a, F b) { return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
  static F zero_below(F v, F a, F limit) { return map([&](int i) { return a.v[i] < limit.v[i] ? 0.0f : v.v[i]; }); }
  static F round(F a) { return map([&](int i) { return rintf(a.v[i]); }); }
  static float float_of(std::uint32_t bits) {
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
  }
  static std::uint32_t bits_of(float f) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &f, 4);
    return bits;
  }
  // Out of the int32 range (and NaN) gives the "indefinite" value that x86 conversions give.
  static std::int32_t to_int(float x) {
    const float r = rintf(x);
    return r >= -2147483648.0f && r < 2147483648.0f ? static_cast<std::int32_t>(r) : INT32_MIN;
  }
  static F scale2(F v, F n) {
    return map([&](int i) {
      return v.v[i] * float_of((static_cast<std::uint32_t>(to_int(n.v[i])) + 127u) << 23);
    });
  }
  static float reduce_add(F v) {
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) v.v[i] += v.v[i + half];
    return v.v[0];
  }
  static float reduce_max(F v) {
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) v.v[i] = v.v[i] > v.v[i + half] ? v.v[i] : v.v[i + half];
    return v.v[0];
  }

  static float abs_max(const float* x, int n) {
    std::uint32_t best = 0;
    for (int i = 0; i < n; ++i) {
      const std::uint32_t bits = bits_of(x[i]) & 0x7fffffffu;
      best = bits > best ? bits : best;
    }
    return float_of(best);
  }
  static void quantize16(const float* x, float inv, std::int8_t* q) {
    for (int i = 0; i < 16; ++i) {
      const std::int32_t c = to_int(x[i] * inv);
      q[i] = static_cast<std::int8_t>(c < -128 ? -128 : c > 127 ? 127 : c);
    }
  }

  static int digits16(const float* x, float inv, std::int8_t* high, std::int8_t* low) {
    std::uint32_t sum = 0;  // wraps like the vector targets when the input is not finite
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t code = static_cast<std::uint32_t>(to_int(x[i] * inv));
      high[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(code + 128u) >> 8);
      low[i] = static_cast<std::int8_t>(code);
      sum += code;
    }
    return static_cast<int>(sum);
  }

  // Integers wrap, as in the vector targets.
  template <class Fn> static I map_i(Fn fn) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(fn(i)));
    return r;
  }
  static I zero_i32() { return map_i([](int) { return 0u; }); }
  static F to_float(I v) { return map([&](int i) { return static_cast<float>(v.v[i]); }); }
  static std::uint32_t unsigned_of(std::int32_t x) { return static_cast<std::uint32_t>(x); }
  static I set1_i32(std::int32_t x) { return map_i([&](int) { return x; }); }
  static I add_i32(I a, I b) { return map_i([&](int i) { return unsigned_of(a.v[i]) + unsigned_of(b.v[i]); }); }
  static I sub_i32(I a, I b) { return map_i([&](int i) { return unsigned_of(a.v[i]) - unsigned_of(b.v[i]); }); }
  template <int Left> static I shift_left(I a) { return map_i([&](int i) { return unsigned_of(a.v[i]) << Left; }); }
  static float half(std::uint16_t h) {
    const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -tiny : tiny;
  }
  static F load_f16(const std::uint16_t* p) { return map([&](int i) { return half(p[i]); }); }
  static F load_bf16(const std::uint16_t* p) {
    return map([&](int i) { return float_of(static_cast<std::uint32_t>(p[i]) << 16); });
  }

  static B load_u8(const std::uint8_t* p) {
    B r;
    __builtin_memcpy(&r, p, 64);
    return r;
  }
  static I dot_u8(I acc, B w, const std::int8_t* quad) {
    for (int i = 0; i < 16; ++i)
      for (int b = 0; b < 4; ++b) acc.v[i] += w.v[i][b] * quad[b];
    return acc;
  }
  static void codes16(const float* x, float inv, std::int16_t* codes) {
    constexpr int order[4] = {0, 2, 1, 3};
    for (int i = 0; i < 16; ++i) codes[i] = static_cast<std::int16_t>(to_int(x[i / 4 * 4 + order[i % 4]] * inv));
  }
  static I pairs(B v, int first) {
    return map_i([&](int i) {
      return unsigned_of((v.v[i][first + 2] - 128) * 65536 + ((v.v[i][first] - 128) & 0xffff));
    });
  }
  static I even_pairs(B v) { return pairs(v, 0); }
  static I odd_pairs(B v) { return pairs(v, 1); }
  static std::int32_t signed_byte(std::uint8_t byte) { return static_cast<std::int8_t>(byte); }
  static I signed_pairs(B v, int first) {
    return map_i([&](int i) {
      return unsigned_of(signed_byte(v.v[i][first + 2]) * 65536 + (signed_byte(v.v[i][first]) & 0xffff));
    });
  }
  static I even_signed_pairs(B v) { return signed_pairs(v, 0); }
  static I odd_signed_pairs(B v) { return signed_pairs(v, 1); }
  static I load_i32(const std::int32_t* p) { return map_i([&](int i) { return p[i]; }); }
  static void store_i32(std::int32_t* p, I v) { __builtin_memcpy(p, v.v, sizeof v.v); }
  static I bits_of(F v) { return map_i([&](int i) { return bits_of(v.v[i]); }); }
  static I low_halves(I a, I b) {
    return map_i([&](int i) { return (unsigned_of(a.v[i]) & 0xffffu) | unsigned_of(b.v[i]) << 16; });
  }
  static I dot_pairs(I acc, I pairs, const std::int16_t* two) {
    return map_i([&](int i) {
      return unsigned_of(acc.v[i]) + unsigned_of(static_cast<std::int16_t>(pairs.v[i]) * two[0] + (pairs.v[i] >> 16) * two[1]);
    });
  }
  static F byte_to_float(B w, int b, int offset) {
    return map([&](int i) { return static_cast<float>(w.v[i][b] - offset); });
  }
  static F signed_byte_to_float(B w, int b) {
    return map([&](int i) { return static_cast<float>(signed_byte(w.v[i][b])); });
  }
  static float small_e4m3(std::uint8_t byte) { return float_of((byte & 0x80u) << 24 | (byte & 0x7fu) << 20); }
  static F small_e4m3(B w, int b) { return map([&](int i) { return small_e4m3(w.v[i][b]); }); }
  static F load_e4m3(const std::uint8_t* p) {
    return map([&](int i) { return (p[i] & 0x7fu) == 0x7fu ? float_of(~0u) : small_e4m3(p[i]) * 0x1p120f; });
  }

  static void load_u4(const std::uint8_t* p, B& lo, B& hi) {
    for (int i = 0; i < 64; ++i) {
      lo.v[i / 4][i % 4] = p[i] & 15;
      hi.v[i / 4][i % 4] = p[i] >> 4;
    }
  }
  template <class Fn> static B map_b(Fn fn) {
    B r;
    for (int i = 0; i < 64; ++i) r.v[i / 4][i % 4] = static_cast<std::uint8_t>(fn(i / 4, i % 4));
    return r;
  }
  static B look_up(const std::uint8_t* table, B v) { return map_b([&](int i, int b) { return table[v.v[i][b]]; }); }
  static B bits(B v, int left, std::uint8_t byte_mask) {
    return map_b([&](int i, int b) { return (left >= 0 ? v.v[i][b] << left : v.v[i][b] >> -left) & byte_mask; });
  }
  static B either(B x, B y) { return map_b([&](int i, int b) { return x.v[i][b] | y.v[i][b]; }); }

  template <int Largest, int Part, int R, int N, class Load, class Digits>
  static void dot_block(Load load, Digits digits, I (&acc)[N][R]) {
    for (int n = 0; n < N; ++n) {
      B w[8];
      for (int j = 0; j < 4; ++j) load(n, j, w[j], w[j + 4]);
      for (int r = 0; r < R; ++r)
        for (int j = Part == 2 ? 4 : 0; j < (Part == 1 ? 4 : 8); ++j)
          acc[n][r] = dot_u8(acc[n][r], w[j], digits(r) + 4 * j);
    }
  }
};

}  // namespace

// Vector policy of the AVX-512 VNNI target: 16 lanes in one zmm register.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct V {
  using F = __m512;   // 16 floats
  using I = __m512i;  // 16 int32
  using B = __m512i;  // 16 lanes x 4 bytes

  static constexpr int kTileRows = 12;
  static constexpr int kFloatTileRows = 12;
  static constexpr int kQueryBlock = 6;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store_n(float* p, F v, int n) { _mm512_mask_storeu_ps(p, mask(n), v); }
  // Lanes below n from v, the others from other.
  static F select_n(F v, F other, int n) { return _mm512_mask_mov_ps(other, mask(n), v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  // Second operand wins when either is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  // a < limit ? 0 : v  (false for NaN)
  static F zero_below(F v, F a, F limit) {
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(a, limit, _CMP_LT_OQ), _mm512_setzero_ps());
  }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // v * 2^n for integral n in [-126, 127]
  static F scale2(F v, F n) {
    const I bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    return _mm512_mul_ps(v, _mm512_castsi512_ps(bits));
  }
  static float reduce_add(F v) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
  }
  static float reduce_max(F v) { return _mm512_reduce_max_ps(v); }

  // Largest |x| of 32 floats by the order of the bit patterns, so that NaN and infinity win; returns the float.
  static float abs_max32(const float* x) {
    const I m = _mm512_set1_epi32(0x7fffffff);
    const I a = _mm512_and_si512(_mm512_loadu_si512(x), m);
    const I b = _mm512_and_si512(_mm512_loadu_si512(x + 16), m);
    const unsigned bits = static_cast<unsigned>(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
  }
  // RNE(x * inv) of 16 floats as int8, saturated.
  static void quantize16(const float* x, float inv, std::int8_t* q) {
    const I i = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inv)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(i));
  }

  // Codes RNE(x * inv) of 16 floats as digits 256 * high + low; returns the sum of the codes.
  static int digits16(const float* x, float inv, std::int8_t* high, std::int8_t* low) {
    const I code = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inv)));
    const I h = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(h));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(code));
    return _mm512_reduce_add_epi32(code);
  }

  static I zero_i32() { return _mm512_setzero_si512(); }
  static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static I add_i32(I a, const std::int32_t* broadcast) { return _mm512_add_epi32(a, _mm512_set1_epi32(*broadcast)); }
  static F load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const std::uint16_t* p) {
    const I w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  }
  static F load_s8(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

  // 16 lanes x 4 bytes stored as code + 128.
  static B load_u8off(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  // Between the digits: what is summed so far counts 256-fold; the bias takes the offset of the codes out.
  static I next_digit_u8off(I acc, const std::int32_t* minus_128_sum) {
    return _mm512_add_epi32(_mm512_slli_epi32(acc, 8), _mm512_set1_epi32(*minus_128_sum));
  }
  static I dot_u8off(I acc, B w, const std::int8_t* quad) {
    std::int32_t q;
    __builtin_memcpy(&q, quad, 4);
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(q));
  }
  // Byte b of every lane as float, minus 128.
  static F u8off_to_float(B w, int b) {
    const I byte = _mm512_and_si512(_mm512_srl_epi32(w, _mm_cvtsi32_si128(8 * b)), _mm512_set1_epi32(255));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(byte, _mm512_set1_epi32(128)));
  }

  static void load_u4(const std::uint8_t* p, B& lo, B& hi) {
    const I m = _mm512_set1_epi8(15), v = _mm512_loadu_si512(p);
    lo = _mm512_and_si512(v, m);
    hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), m);
  }
  // Sums of 8 quads of nibbles times the codes 256 * high + low of R rows, `stride` bytes apart.
  template <int R>
  static inline __attribute__((always_inline)) void dot_u4_digits(const B (&w)[8], const std::int8_t* high,
                                                                  const std::int8_t* low, int stride, I (&acc)[R]) {
    // A dot instruction takes 5 cycles and two start per cycle: few rows need more than one running sum each.
    constexpr int kSums = R == 1 ? 4 : R <= 8 ? 2 : 1;
    I sum[kSums][R];
    for (int i = 0; i < kSums; ++i)
      for (int r = 0; r < R; ++r) sum[i][r] = zero_i32();
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j)
      for (int r = 0; r < R; ++r) {
        I& high_sum = sum[kSums == 4 ? j % 2 : 0][r];
        high_sum = dot_u8off(high_sum, w[j], high + stride * r + 4 * j);
        if (kSums > 1) {
          I& low_sum = sum[kSums == 4 ? 2 + j % 2 : kSums - 1][r];
          low_sum = dot_u8off(low_sum, w[j], low + stride * r + 4 * j);
        }
      }
    for (int r = 0; r < R; ++r) {
      const I h = kSums == 4 ? _mm512_add_epi32(sum[0][r], sum[kSums > 1 ? 1 : 0][r]) : sum[0][r];
      acc[r] = _mm512_slli_epi32(h, 8);
      if (kSums == 4) acc[r] = _mm512_add_epi32(acc[r], sum[kSums / 2][r]);
      if (kSums > 1) acc[r] = _mm512_add_epi32(acc[r], sum[kSums - 1][r]);
    }
    if (kSums > 1) return;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j)
      for (int r = 0; r < R; ++r) acc[r] = dot_u8off(acc[r], w[j], low + stride * r + 4 * j);
  }
  static F u4_to_float(B w, int b) {
    return _mm512_cvtepi32_ps(
        _mm512_and_si512(_mm512_srl_epi32(w, _mm_cvtsi32_si128(8 * b)), _mm512_set1_epi32(255)));
  }
};

}  // namespace

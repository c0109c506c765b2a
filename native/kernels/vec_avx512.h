// Vector policy of the AVX-512 VNNI target: 16 lanes in one zmm register.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kE4M3Bits = static_cast<int>(0x87f00000);  // where an E4M3 number lies in a float of its value times 2^-120

struct V {
  using F = __m512;   // 16 floats
  using I = __m512i;  // 16 int32
  using B = __m512i;  // 16 lanes x 4 bytes

  static constexpr int kTileRows = 12;
  // A block of 6 rows and 2 records has 12 integer and 12 float sums; the other registers hold weights and activations.
  static constexpr int kBlockRows = 6;
  static constexpr int kBlockRecords = 2;
  static constexpr int kFewBlockRows = 4;  // of 4-bit weights: up to these, one record at a time
  // A dot instruction takes 5 cycles and two start per cycle: up to this many sums of a block have a second one for the
  // low digits.
  static constexpr int kTwinSums = 8;
  static constexpr int kFloatBlockRows = 12;
  static constexpr int kFloatBlockRecords = 2;
  // Sums of so few rows are too few to hide the latency of a fused multiply-add: more records then.
  static constexpr int kFewRows = 2, kFewRowsRecords = 4;
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
  static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
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
  static F scale2(F v, F n) { return _mm512_scalef_ps(v, n); }
  static float reduce_add(F v) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
  }
  static float reduce_max(F v) { return _mm512_reduce_max_ps(v); }

  // Largest |x| of n floats by the order of the bit patterns, so that NaN and infinity win; returns the float.
  static float abs_max(const float* x, int n) {
    const I m = _mm512_set1_epi32(0x7fffffff);
    I best = _mm512_setzero_si512();
    int i = 0;
    for (; i + 16 <= n; i += 16) best = _mm512_max_epi32(best, _mm512_and_si512(_mm512_loadu_si512(x + i), m));
    if (i < n) best = _mm512_max_epi32(best, _mm512_and_si512(_mm512_maskz_loadu_epi32(mask(n - i), x + i), m));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(best))));
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
  static I set1_i32(std::int32_t x) { return _mm512_set1_epi32(x); }
  static I add_i32(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_i32(I a, I b) { return _mm512_sub_epi32(a, b); }
  template <int Left> static I shift_left(I a) { return _mm512_slli_epi32(a, Left); }
  static F load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const std::uint16_t* p) {
    const I w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  }

  // 16 lanes x 4 unsigned bytes.
  static B load_u8(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static I quad(const std::int8_t* p) {
    std::int32_t q;
    __builtin_memcpy(&q, p, 4);
    return _mm512_set1_epi32(q);
  }
  static I load_i32(const std::int32_t* p) { return _mm512_loadu_si512(p); }
  static void store_i32(std::int32_t* p, I v) { _mm512_storeu_si512(p, v); }
  static void store_i8(std::int8_t* p, I v) { _mm512_storeu_si512(p, v); }
  static I bits_of(F v) { return _mm512_castps_si512(v); }
  static B four_bytes(const std::uint8_t* p) { return quad(reinterpret_cast<const std::int8_t*>(p)); }
  // acc + the dot products of the four bytes of every lane, unsigned with signed.
  static I dot_bytes(I acc, B u8, B s8) { return _mm512_dpbusd_epi32(acc, u8, s8); }
  static int sum_bytes(const std::int8_t* p) {
    return _mm512_reduce_add_epi32(dot_bytes(zero_i32(), _mm512_set1_epi8(1), _mm512_loadu_si512(p)));
  }
  // The low 16 bits of every lane of a below those of b.
  static I low_halves(I a, I b) { return _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16)); }
  // The low bytes of all 16 bits of even, each below the one of odd; the same for high bytes.
  static I low_bytes(I even, I odd) { return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, even, _mm512_slli_epi16(odd, 8)); }
  static I high_bytes(I even, I odd) { return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, _mm512_srli_epi16(even, 8), odd); }
  // Byte b of every lane, minus `offset`, as float.
  static F byte_to_float(B w, int b, int offset) {
    const I byte = _mm512_and_si512(_mm512_srl_epi32(w, _mm_cvtsi32_si128(8 * b)), _mm512_set1_epi32(255));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(byte, _mm512_set1_epi32(offset)));
  }
  static F signed_byte_to_float(B w, int b) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_sll_epi32(w, _mm_cvtsi32_si128(24 - 8 * b)), 24));
  }
  // Byte b of every lane, an E4M3 number, as float times 2^-120; NaN becomes 480 of its sign.
  static F small_e4m3(B w, int b) {
    const I at_top = _mm512_sll_epi32(w, _mm_cvtsi32_si128(24 - 8 * b));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_srai_epi32(at_top, 4), _mm512_set1_epi32(kE4M3Bits)));
  }
  // 16 E4M3 numbers; every bit of a NaN is set.
  static F load_e4m3(const std::uint8_t* p) {
    const I bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const I largest = _mm512_set1_epi32(0x7f);
    const __mmask16 finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(bytes, largest), largest);
    const F nan = _mm512_castsi512_ps(_mm512_set1_epi32(-1));
    return _mm512_mask_mul_ps(nan, finite, small_e4m3(bytes, 0), set1(0x1p120f));
  }

  static void load_u4(const std::uint8_t* p, B& low, B& high) {
    const I m = _mm512_set1_epi8(15), v = _mm512_loadu_si512(p);
    low = _mm512_and_si512(v, m);
    high = _mm512_and_si512(_mm512_srli_epi16(v, 4), m);
  }
  // Every byte's entry of a table of 16, for bytes below 16.
  static B look_up(const std::uint8_t* table, B v) {
    const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), v);
  }
  // Bits of every byte moved up by `left` places (down if negative) and cut out by a mask that takes no neighbour's bits.
  static B bits(B v, int left, std::uint8_t byte_mask) {
    const I moved = left >= 0 ? _mm512_sll_epi32(v, _mm_cvtsi32_si128(left)) : _mm512_srl_epi32(v, _mm_cvtsi32_si128(-left));
    return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(byte_mask)));
  }
  static B either(B a, B b) { return _mm512_or_si512(a, b); }

  // acc += dot products of quads of bytes of N records with R rows of digits, which digits(r) points to. load(n, j, a, b)
  // gives quads j and j + 4 of record n; Part is 0 for all 8 quads, 1 for the first and 2 for the last four.
  template <int Largest, int Part, int R, int N, class Load, class Digits>
  static inline __attribute__((always_inline)) void dot_block(Load load, Digits digits, I (&acc)[N][R]) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      B a[N], b[N];
      for (int n = 0; n < N; ++n) load(n, j, a[n], b[n]);
      for (int r = 0; r < R; ++r) {
        const std::int8_t* quads = digits(r) + 4 * j;
        if constexpr (Part != 2) {
          const I first = quad(quads);
          for (int n = 0; n < N; ++n) acc[n][r] = _mm512_dpbusd_epi32(acc[n][r], a[n], first);
        }
        if constexpr (Part != 1) {
          const I second = quad(quads + 16);
          for (int n = 0; n < N; ++n) acc[n][r] = _mm512_dpbusd_epi32(acc[n][r], b[n], second);
        }
      }
    }
  }
};

}  // namespace

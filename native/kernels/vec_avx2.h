// Vector policy of the AVX2 target: 16 lanes in two ymm registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kE4M3Bits = static_cast<int>(0x87f00000);  // where an E4M3 number lies in a float of its value times 2^-120

struct V {
  struct F { __m256 a, b; };
  struct I { __m256i a, b; };
  struct B { __m256i a, b; };

  static constexpr int kTileRows = 4;
  static constexpr int kBlockRows = 4;
  static constexpr int kBlockRecords = 1;
  static constexpr int kFewBlockRows = 4;  // of 4-bit weights: up to these, one record at a time
  static constexpr int kTwinSums = 4;
  static constexpr int kFloatBlockRows = 4;
  static constexpr int kFloatBlockRecords = 1;
  static constexpr int kFewRows = 2, kFewRowsRecords = 2;
  static constexpr int kQueryBlock = 3;

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
  }
  static __m256i mask8(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, mask8(n)), _mm256_maskload_ps(p + 8, mask8(n - 8))};
  }
  static void store_n(float* p, F v, int n) {
    _mm256_maskstore_ps(p, mask8(n), v.a);
    _mm256_maskstore_ps(p + 8, mask8(n - 8), v.b);
  }
  static F select_n(F v, F other, int n) {
    return {_mm256_blendv_ps(other.a, v.a, _mm256_castsi256_ps(mask8(n))),
            _mm256_blendv_ps(other.b, v.b, _mm256_castsi256_ps(mask8(n - 8)))};
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static F fms(F x, F y, F z) { return {_mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b)}; }
  static F fnma(F x, F y, F z) { return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F zero_below(F v, F x, F limit) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_LT_OQ), v.a),
            _mm256_andnot_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_LT_OQ), v.b)};
  }
  static F round(F x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
  }
  static __m256 scale2_8(__m256 v, __m256 n) {
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(v, _mm256_castsi256_ps(bits));
  }
  static F scale2(F v, F n) { return {scale2_8(v.a, n.a), scale2_8(v.b, n.b)}; }
  static float reduce_add(F v) {
    const __m256 h = _mm256_add_ps(v.a, v.b);
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
  }
  static float reduce_max(F v) {
    const __m256 h = _mm256_max_ps(v.a, v.b);
    const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
  }

  static float abs_max(const float* x, int n) {
    const __m256i m = _mm256_set1_epi32(0x7fffffff);
    __m256i best = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) {
      const __m256i v = _mm256_maskload_epi32(reinterpret_cast<const int*>(x + i), mask8(n - i));
      best = _mm256_max_epi32(best, _mm256_and_si256(v, m));
    }
    __m128i q = _mm_max_epi32(_mm256_castsi256_si128(best), _mm256_extracti128_si256(best, 1));
    q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(q));
  }
  // RNE(x * inv) of 16 floats as int8, saturated.
  static void quantize16(const float* x, float inv, std::int8_t* q) {
    const __m256 s = _mm256_set1_ps(inv);
    store_bytes(q, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), s)),
                _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), s)));
  }

  static __m256i digits8(__m256i code, __m256i& low) {
    low = _mm256_srai_epi32(_mm256_slli_epi32(code, 24), 24);
    return _mm256_srai_epi32(_mm256_add_epi32(code, _mm256_set1_epi32(128)), 8);
  }
  static void store_bytes(std::int8_t* p, __m256i a, __m256i b) {
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
  }
  static int digits16(const float* x, float inv, std::int8_t* high, std::int8_t* low) {
    const __m256 s = _mm256_set1_ps(inv);
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), s));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), s));
    __m256i low_a, low_b;
    const __m256i high_a = digits8(a, low_a), high_b = digits8(b, low_b);
    store_bytes(high, high_a, high_b);
    store_bytes(low, low_a, low_b);
    const __m256i sum8 = _mm256_add_epi32(a, b);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sum8), _mm256_extracti128_si256(sum8, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return _mm_cvtsi128_si32(sum);
  }

  static I zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static F to_float(I v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
  static I set1_i32(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static I add_i32(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I sub_i32(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
  template <int Left> static I shift_left(I v) { return {_mm256_slli_epi32(v.a, Left), _mm256_slli_epi32(v.b, Left)}; }
  static F load_f16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static __m256 bf16_8(const std::uint16_t* p) {
    const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  }
  static F load_bf16(const std::uint16_t* p) { return {bf16_8(p), bf16_8(p + 8)}; }

  static B load_u8(const std::uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  // By way of 16 bits: sums of two products of bytes may leave the range of the byte instruction.
  static __m256i dot8(__m256i acc, __m256i w, __m256i a) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(a, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
  }
  static __m256i broadcast_quad(const std::int8_t* quad) {
    std::int32_t q;
    __builtin_memcpy(&q, quad, 4);
    return _mm256_set1_epi32(q);
  }
  static I dot_u8(I acc, B w, const std::int8_t* quad) {
    const __m256i a = broadcast_quad(quad);
    return {dot8(acc.a, w.a, a), dot8(acc.b, w.b, a)};
  }
  static void codes16(const float* x, float inv, std::int16_t* codes) {
    const __m256 s = _mm256_set1_ps(inv);
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), s));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), s));
    const __m256i order = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0f0e0b0a0d0c0908, 0x0706030205040100));
    const __m256i low = _mm256_set1_epi32(0xffff);  // of a code that is no number
    const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes),
                        _mm256_shuffle_epi8(_mm256_permute4x64_epi64(packed, 0xd8), order));
  }
  static __m256i minus_128(__m256i v) { return _mm256_sub_epi16(v, _mm256_set1_epi16(128)); }
  static __m256i even_8(__m256i v) { return minus_128(_mm256_and_si256(v, _mm256_set1_epi16(255))); }
  static I even_pairs(B v) { return {even_8(v.a), even_8(v.b)}; }
  static I odd_pairs(B v) { return {minus_128(_mm256_srli_epi16(v.a, 8)), minus_128(_mm256_srli_epi16(v.b, 8))}; }
  static I even_signed_pairs(B v) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(v.a, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(v.b, 8), 8)};
  }
  static I odd_signed_pairs(B v) { return {_mm256_srai_epi16(v.a, 8), _mm256_srai_epi16(v.b, 8)}; }
  static I load_i32(const std::int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  static void store_i32(std::int32_t* p, I v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.b);
  }
  static I bits_of(F v) { return {_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)}; }
  static __m256i low_halves_8(__m256i a, __m256i b) { return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa); }
  static I low_halves(I x, I y) { return {low_halves_8(x.a, y.a), low_halves_8(x.b, y.b)}; }
  static I dot_pairs(I acc, I pairs, const std::int16_t* two) {
    std::int32_t both;
    __builtin_memcpy(&both, two, 4);
    const __m256i codes = _mm256_set1_epi32(both);
    return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(pairs.a, codes)),
            _mm256_add_epi32(acc.b, _mm256_madd_epi16(pairs.b, codes))};
  }
  static __m256 byte_8(__m256i w, int b, int offset) {
    const __m256i byte = _mm256_and_si256(_mm256_srl_epi32(w, _mm_cvtsi32_si128(8 * b)), _mm256_set1_epi32(255));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(byte, _mm256_set1_epi32(offset)));
  }
  static F byte_to_float(B w, int b, int offset) { return {byte_8(w.a, b, offset), byte_8(w.b, b, offset)}; }
  static __m256 signed_byte_8(__m256i w, int b) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sll_epi32(w, _mm_cvtsi32_si128(24 - 8 * b)), 24));
  }
  static F signed_byte_to_float(B w, int b) { return {signed_byte_8(w.a, b), signed_byte_8(w.b, b)}; }
  static __m256 small_e4m3_8(__m256i w, int b) {
    const __m256i at_top = _mm256_sll_epi32(w, _mm_cvtsi32_si128(24 - 8 * b));
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32(at_top, 4), _mm256_set1_epi32(kE4M3Bits)));
  }
  static F small_e4m3(B w, int b) { return {small_e4m3_8(w.a, b), small_e4m3_8(w.b, b)}; }
  static F load_e4m3(const std::uint8_t* p) {
    const B bytes = {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
                     _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
    const F v = mul(small_e4m3(bytes, 0), set1(0x1p120f));
    return {_mm256_or_ps(v.a, all_if_nan_8(bytes.a)), _mm256_or_ps(v.b, all_if_nan_8(bytes.b))};
  }
  static __m256 all_if_nan_8(__m256i bytes) {
    const __m256i largest = _mm256_set1_epi32(0x7f);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(bytes, largest), largest));
  }

  static void load_u4(const std::uint8_t* p, B& lo, B& hi) {
    const __m256i m = _mm256_set1_epi8(15);
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
    lo = {_mm256_and_si256(a, m), _mm256_and_si256(b, m)};
    hi = {_mm256_and_si256(_mm256_srli_epi16(a, 4), m), _mm256_and_si256(_mm256_srli_epi16(b, 4), m)};
  }
  static B look_up(const std::uint8_t* table, B v) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(t, v.a), _mm256_shuffle_epi8(t, v.b)};
  }
  static __m256i bits_32(__m256i v, int left, std::uint8_t byte_mask) {
    const __m256i moved = left >= 0 ? _mm256_sll_epi32(v, _mm_cvtsi32_si128(left)) : _mm256_srl_epi32(v, _mm_cvtsi32_si128(-left));
    return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(byte_mask)));
  }
  static B bits(B v, int left, std::uint8_t byte_mask) { return {bits_32(v.a, left, byte_mask), bits_32(v.b, left, byte_mask)}; }
  static B either(B x, B y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }

  // Pair sums of the byte instruction stay within 16 bits for codes up to 127; several of them may be added up there.
  template <int Largest, int Part, int R, int N, class Load, class Digits>
  static inline __attribute__((always_inline)) void dot_block(Load load, Digits digits, I (&acc)[N][R]) {
    constexpr int kFirst = Part == 2 ? 4 : 0, kLast = Part == 1 ? 4 : 8;
    const __m256i one = _mm256_set1_epi16(1);
    for (int n = 0; n < N; ++n) {
      B w[8];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) load(n, j, w[j], w[j + 4]);
      for (int r = 0; r < R; ++r) {
        const std::int8_t* quads = digits(r);
        if constexpr (Largest > 127) {
          for (int j = kFirst; j < kLast; ++j) acc[n][r] = dot_u8(acc[n][r], w[j], quads + 4 * j);
        } else {
          constexpr int kFit = 32767 / (2 * 128 * Largest), kRun = kFit < kLast - kFirst ? kFit : kLast - kFirst;
          static_assert((kLast - kFirst) % kRun == 0);
#pragma GCC unroll 8
          for (int first = kFirst; first < kLast; first += kRun) {
            __m256i a = _mm256_setzero_si256(), b = a;
#pragma GCC unroll 8
            for (int j = first; j < first + kRun; ++j) {
              const __m256i d = broadcast_quad(quads + 4 * j);
              a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w[j].a, d));
              b = _mm256_add_epi16(b, _mm256_maddubs_epi16(w[j].b, d));
            }
            acc[n][r] = add_i32(acc[n][r], {_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one)});
          }
        }
      }
    }
  }
};

}  // namespace

// Vectors of 16 lanes as pairs of AVX2 registers; needs FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace turing::TURING_ISA {

constexpr int kGemmRows = 2;
constexpr int kFloatRows = 2;
constexpr int kQueryRows = 3;
constexpr int kPassVectors = 1;

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct Bytes {
  __m256i a, b;
};
struct Mask {
  __m256 a, b;
};

inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F round(F x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
}
inline __m256 power2(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline F scale2(F x, F n) {
  return {_mm256_mul_ps(x.a, power2(n.a)), _mm256_mul_ps(x.b, power2(n.b))};
}
inline float sum(F x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float top(F x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float lane0(F x) { return _mm256_cvtss_f32(x.a); }
inline F load_half(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline F load_bfloat(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves));
  const __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}

inline Mask greater(F x, F y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)};
}
inline __m256 between(__m256i lane, int from, int to) {
  const __m256i low = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(from - 1));
  const __m256i high = _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane);
  return _mm256_castsi256_ps(_mm256_and_si256(low, high));
}
inline Mask lanes(int from, int to) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {between(lane, from, to), between(lane, from - 8, to - 8)};
}
inline F pick(Mask m, F yes, F no) {
  return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
inline I pick(Mask m, I yes, I no) {
  return {_mm256_blendv_epi8(no.a, yes.a, _mm256_castps_si256(m.a)),
          _mm256_blendv_epi8(no.b, yes.b, _mm256_castps_si256(m.b))};
}

inline I load_int(const int32_t* p) {
  const auto* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline void store(int32_t* p, I x) {
  auto* halves = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(halves, x.a);
  _mm256_storeu_si256(halves + 1, x.b);
}
inline I set_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I operator+(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline int32_t sum(I x) {
  const __m256i eight = _mm256_add_epi32(x.a, x.b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
inline __m128i narrow(__m256i x) {
  return _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}
inline void store_int8(void* p, I x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm_packs_epi16(narrow(x.a), narrow(x.b)));
}

inline Bytes load_bytes(const uint8_t* p) {
  const auto* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline Bytes low_nibbles(Bytes x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline Bytes high_nibbles(Bytes x) {
  return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)});
}
inline I field(Bytes x, int shift, int mask) {
  const __m128i count = _mm_cvtsi32_si128(shift);
  const __m256i bits = _mm256_set1_epi32(mask);
  return {_mm256_and_si256(_mm256_srl_epi32(x.a, count), bits),
          _mm256_and_si256(_mm256_srl_epi32(x.b, count), bits)};
}

// A block's sums of nibble products fit into 16 bits: 8 groups x 2 x 15 x 127 < 2^15.
struct Dot4 {
  __m256i a, b;
};
inline Dot4 start4() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Dot4 dot(Dot4 d, Bytes w, int32_t x) {
  const __m256i y = _mm256_set1_epi32(x);
  return {_mm256_add_epi16(d.a, _mm256_maddubs_epi16(w.a, y)),
          _mm256_add_epi16(d.b, _mm256_maddubs_epi16(w.b, y))};
}
inline I total(Dot4 d) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(d.a, ones), _mm256_madd_epi16(d.b, ones)};
}

// Signed weights split into magnitude and sign, because maddubs saturates on 8-bit products of
// the full range; so the offset of the unsigned form does not apply.
struct Weights8 {
  Bytes magnitude, sign;
};
inline Weights8 load_weights8(const uint8_t* p) {
  const Bytes raw = load_bytes(p);
  const __m256i flip = _mm256_set1_epi8(-128);
  const Bytes w = {_mm256_xor_si256(raw.a, flip), _mm256_xor_si256(raw.b, flip)};
  return {{_mm256_abs_epi8(w.a), _mm256_abs_epi8(w.b)}, w};
}
struct Dot8 {
  __m256i a, b;
};
inline Dot8 start8(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Dot8 dot(Dot8 d, Weights8 w, int32_t x) {
  const __m256i y = _mm256_set1_epi32(x), ones = _mm256_set1_epi16(1);
  const __m256i a = _mm256_maddubs_epi16(w.magnitude.a, _mm256_sign_epi8(y, w.sign.a));
  const __m256i b = _mm256_maddubs_epi16(w.magnitude.b, _mm256_sign_epi8(y, w.sign.b));
  return {_mm256_add_epi32(d.a, _mm256_madd_epi16(a, ones)),
          _mm256_add_epi32(d.b, _mm256_madd_epi16(b, ones))};
}
inline I total(Dot8 d) { return {d.a, d.b}; }

inline __m128i to_bfloat(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i high = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
inline void store_bfloat(uint16_t* p, F x) {
  auto* halves = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(halves, to_bfloat(x.a));
  _mm_storeu_si128(halves + 1, to_bfloat(x.b));
}
struct Pairs {
  F low, high;
};
inline Pairs load_pairs(const void* p) {
  const auto* halves = static_cast<const __m256i*>(p);
  const __m256i a = _mm256_loadu_si256(halves), b = _mm256_loadu_si256(halves + 1);
  const __m256i mask = _mm256_set1_epi32(-65536);
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(a, mask)),
           _mm256_castsi256_ps(_mm256_and_si256(b, mask))}};
}
inline F dot_pairs(F d, Pairs x, uint32_t y) {
  const __m256 low = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(y << 16)));
  const __m256 high = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(y & 0xffff0000)));
  return fma(x.high, {high, high}, fma(x.low, {low, low}, d));
}

// Fetches a cache line into the first level, or into the second.
inline void fetch_near(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void fetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace turing::TURING_ISA

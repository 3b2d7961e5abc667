// Vectors of 16 lanes on AVX-512 with VNNI; bf16 products in hardware where it is compiled in.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace turing::TURING_ISA {

constexpr int kGemmRows = 8;   // rows that share one pass over an int8 weight tile
constexpr int kFloatRows = 8;  // the same for fp32 operands
constexpr int kQueryRows = 6;  // query rows of an attention pass
constexpr int kPassVectors = 4;

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct Bytes {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F set(float x) { return {_mm512_set1_ps(x)}; }
inline F zero() { return {_mm512_setzero_ps()}; }
inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
inline F round(F a) { return {_mm512_roundscale_ps(a.v, 8)}; }
// a * 2^n for integral n.
inline F scale2(F a, F n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline float sum(F a) { return _mm512_reduce_add_ps(a.v); }
inline float top(F a) { return _mm512_reduce_max_ps(a.v); }
inline float lane0(F a) { return _mm512_cvtss_f32(a.v); }
inline F load_half(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline F load_bfloat(const void* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

inline Mask greater(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
// Lanes from..to-1, for any integers.
inline Mask lanes(int from, int to) {
  const uint32_t below_to = to <= 0 ? 0 : to >= 16 ? 0xffff : (1u << to) - 1;
  const uint32_t below_from = from <= 0 ? 0 : from >= 16 ? 0xffff : (1u << from) - 1;
  return {static_cast<__mmask16>(below_to & ~below_from)};
}
inline F pick(Mask m, F yes, F no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
inline I pick(Mask m, I yes, I no) { return {_mm512_mask_blend_epi32(m.v, no.v, yes.v)}; }

inline I load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
inline I set_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline int32_t sum(I a) { return _mm512_reduce_add_epi32(a.v); }
// 16 values within int8.
inline void store_int8(void* p, I a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

inline Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
// Bits [shift, shift + 8) of each 32-bit lane, under the mask.
inline I field(Bytes a, int shift, int mask) {
  return {_mm512_and_si512(_mm512_srli_epi32(a.v, static_cast<unsigned>(shift)),
                           _mm512_set1_epi32(mask))};
}

// Sums of 4-byte dot products per lane. Dot4 takes weights up to 15, Dot8 takes q + 128.
struct Dot4 {
  __m512i v;
};
inline Dot4 start4() { return {_mm512_setzero_si512()}; }
inline Dot4 dot(Dot4 a, Bytes w, int32_t x) {
  return {_mm512_dpbusd_epi32(a.v, w.v, _mm512_set1_epi32(x))};
}
inline I total(Dot4 a) { return {a.v}; }

using Weights8 = Bytes;
inline Weights8 load_weights8(const uint8_t* p) { return load_bytes(p); }
struct Dot8 {
  __m512i v;
};
inline Dot8 start8(int32_t offset) { return {_mm512_set1_epi32(offset)}; }
inline Dot8 dot(Dot8 a, Weights8 w, int32_t x) {
  return {_mm512_dpbusd_epi32(a.v, w.v, _mm512_set1_epi32(x))};
}
inline I total(Dot8 a) { return {a.v}; }

#ifdef __AVX512BF16__
inline void store_bfloat(uint16_t* p, F a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a.v));
}
using Pairs = Bytes;
inline Pairs load_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
// a + x0 y0 + x1 y1 per lane, where y is one pair for all lanes.
inline F dot_pairs(F a, Pairs x, uint32_t y) {
  return {
      _mm512_dpbf16_ps(a.v, (__m512bh)x.v, (__m512bh)_mm512_set1_epi32(static_cast<int32_t>(y)))};
}
#else
inline void store_bfloat(uint16_t* p, F a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
struct Pairs {
  F low, high;
};
inline Pairs load_pairs(const void* p) {
  const __m512i both = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))}};
}
inline F dot_pairs(F a, Pairs x, uint32_t y) {
  const F low = {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(y << 16)))};
  const F high = {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(y & 0xffff0000)))};
  return fma(x.high, high, fma(x.low, low, a));
}
#endif

// Fetches a cache line into the first level, or into the second.
inline void fetch_near(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void fetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace turing::TURING_ISA

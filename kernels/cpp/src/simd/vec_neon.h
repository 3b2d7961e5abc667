// Vectors of 16 lanes as four NEON registers; needs the dot product instructions of ARMv8.2.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace turing::TURING_ISA {

constexpr int kGemmRows = 2;
constexpr int kFloatRows = 2;
constexpr int kQueryRows = 3;
constexpr int kPassVectors = 1;

struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
struct Bytes {
  uint8x16_t v[4];
};
struct Mask {
  uint32x4_t v[4];
};

// A vector whose register i is part(i).
template <class Result, class Part>
inline Result each_part(Part part) {
  return {{part(0), part(1), part(2), part(3)}};
}

inline F load(const float* p) {
  return each_part<F>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, F a) {
  for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
inline F set(float x) {
  return each_part<F>([&](int) { return vdupq_n_f32(x); });
}
inline F zero() { return set(0); }
inline F operator+(F a, F b) {
  return each_part<F>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F operator-(F a, F b) {
  return each_part<F>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline F operator*(F a, F b) {
  return each_part<F>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F operator/(F a, F b) {
  return each_part<F>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline F fma(F a, F b, F c) {
  return each_part<F>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline F max(F a, F b) {
  return each_part<F>([&](int i) { return vmaxq_f32(a.v[i], b.v[i]); });
}
inline F min(F a, F b) {
  return each_part<F>([&](int i) { return vminq_f32(a.v[i], b.v[i]); });
}
inline F abs(F a) {
  return each_part<F>([&](int i) { return vabsq_f32(a.v[i]); });
}
inline F round(F a) {
  return each_part<F>([&](int i) { return vrndnq_f32(a.v[i]); });
}
inline F scale2(F a, F n) {
  return each_part<F>([&](int i) {
    const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127));
    return vmulq_f32(a.v[i], vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
  });
}
inline float sum(F a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float top(F a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
inline float lane0(F a) { return vgetq_lane_f32(a.v[0], 0); }
inline F load_half(const void* p) {
  return each_part<F>([&](int i) {
    const uint16x4_t bits = vld1_u16(static_cast<const uint16_t*>(p) + 4 * i);
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
  });
}
inline F load_bfloat(const void* p) {
  return each_part<F>([&](int i) {
    const uint16x4_t bits = vld1_u16(static_cast<const uint16_t*>(p) + 4 * i);
    return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
  });
}

inline Mask greater(F a, F b) {
  return each_part<Mask>([&](int i) { return vcgtq_f32(a.v[i], b.v[i]); });
}
inline Mask lanes(int from, int to) {
  constexpr int32_t kLanes[4] = {0, 1, 2, 3};
  const int32x4_t first = vld1q_s32(kLanes);
  return each_part<Mask>([&](int i) {
    const int32x4_t lane = vaddq_s32(first, vdupq_n_s32(4 * i));
    return vandq_u32(vcgeq_s32(lane, vdupq_n_s32(from)), vcltq_s32(lane, vdupq_n_s32(to)));
  });
}
inline F pick(Mask m, F yes, F no) {
  return each_part<F>([&](int i) { return vbslq_f32(m.v[i], yes.v[i], no.v[i]); });
}
inline I pick(Mask m, I yes, I no) {
  return each_part<I>([&](int i) { return vbslq_s32(m.v[i], yes.v[i], no.v[i]); });
}

inline I load_int(const int32_t* p) {
  return each_part<I>([&](int i) { return vld1q_s32(p + 4 * i); });
}
inline void store(int32_t* p, I a) {
  for (int i = 0; i < 4; i++) vst1q_s32(p + 4 * i, a.v[i]);
}
inline I set_int(int32_t x) {
  return each_part<I>([&](int) { return vdupq_n_s32(x); });
}
inline I operator+(I a, I b) {
  return each_part<I>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
inline I to_int(F a) {
  return each_part<I>([&](int i) { return vcvtnq_s32_f32(a.v[i]); });
}
inline F to_float(I a) {
  return each_part<F>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
inline int32_t sum(I a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
inline void store_int8(void* p, I a) {
  const int16x8_t low = vcombine_s16(vqmovn_s32(a.v[0]), vqmovn_s32(a.v[1]));
  const int16x8_t high = vcombine_s16(vqmovn_s32(a.v[2]), vqmovn_s32(a.v[3]));
  vst1q_s8(static_cast<int8_t*>(p), vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}

inline Bytes load_bytes(const uint8_t* p) {
  return each_part<Bytes>([&](int i) { return vld1q_u8(p + 16 * i); });
}
inline Bytes low_nibbles(Bytes a) {
  return each_part<Bytes>([&](int i) { return vandq_u8(a.v[i], vdupq_n_u8(15)); });
}
inline Bytes high_nibbles(Bytes a) {
  return each_part<Bytes>([&](int i) { return vshrq_n_u8(a.v[i], 4); });
}
inline I field(Bytes a, int shift, int mask) {
  return each_part<I>([&](int i) {
    const uint32x4_t words = vreinterpretq_u32_u8(a.v[i]);
    return vandq_s32(vreinterpretq_s32_u32(vshlq_u32(words, vdupq_n_s32(-shift))),
                     vdupq_n_s32(mask));
  });
}

// All weights are signed here: nibbles are small enough, and of q + 128 the sign bit is flipped, so
// the offset of the unsigned form does not apply.
template <class Dot>
inline Dot dot_signed(Dot a, const Bytes& w, int32_t x) {
  const int8x16_t y = vreinterpretq_s8_s32(vdupq_n_s32(x));
  for (int i = 0; i < 4; i++) a.v[i] = vdotq_s32(a.v[i], vreinterpretq_s8_u8(w.v[i]), y);
  return a;
}

struct Dot4 {
  int32x4_t v[4];
};
inline Dot4 start4() {
  return each_part<Dot4>([](int) { return vdupq_n_s32(0); });
}
inline Dot4 dot(Dot4 a, Bytes w, int32_t x) { return dot_signed(a, w, x); }
inline I total(Dot4 a) { return {{a.v[0], a.v[1], a.v[2], a.v[3]}}; }

using Weights8 = Bytes;
inline Weights8 load_weights8(const uint8_t* p) {
  return each_part<Bytes>([&](int i) { return veorq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(128)); });
}
struct Dot8 {
  int32x4_t v[4];
};
inline Dot8 start8(int32_t) {
  return each_part<Dot8>([](int) { return vdupq_n_s32(0); });
}
inline Dot8 dot(Dot8 a, Weights8 w, int32_t x) { return dot_signed(a, w, x); }
inline I total(Dot8 a) { return {{a.v[0], a.v[1], a.v[2], a.v[3]}}; }

inline void store_bfloat(uint16_t* p, F a) {
  for (int i = 0; i < 4; i++) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.v[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    vst1_u16(p + 4 * i, vshrn_n_u32(rounded, 16));
  }
}
struct Pairs {
  F low, high;
};
inline Pairs load_pairs(const void* p) {
  const auto* words = static_cast<const uint32_t*>(p);
  const auto low = [&](int i) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(words + 4 * i), 16));
  };
  const auto high = [&](int i) {
    return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(words + 4 * i), vdupq_n_u32(0xffff0000)));
  };
  return {each_part<F>(low), each_part<F>(high)};
}
inline F dot_pairs(F a, Pairs x, uint32_t y) {
  const float32x4_t low = vreinterpretq_f32_u32(vdupq_n_u32(y << 16));
  const float32x4_t high = vreinterpretq_f32_u32(vdupq_n_u32(y & 0xffff0000));
  return each_part<F>(
      [&](int i) { return vfmaq_f32(vfmaq_f32(a.v[i], x.low.v[i], low), x.high.v[i], high); });
}

inline void fetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }
inline void fetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace turing::TURING_ISA

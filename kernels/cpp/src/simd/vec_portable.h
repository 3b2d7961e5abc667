// Vectors of 16 lanes as plain arrays, for any processor.
#pragma once

#include <cstdint>

namespace turing::TURING_ISA {

constexpr int kGemmRows = 2;
constexpr int kFloatRows = 2;
constexpr int kQueryRows = 2;
constexpr int kPassVectors = 1;

struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};
struct Bytes {
  uint8_t v[64];
};
struct Mask {
  bool v[16];
};

template <class T>
inline T bits_of(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}
template <class Result, class Lane>
inline Result each_lane(Lane lane) {
  Result r;
  for (int i = 0; i < 16; i++) r.v[i] = lane(i);
  return r;
}

inline F load(const float* p) { return bits_of<F>(p); }
inline void store(float* p, F a) { __builtin_memcpy(p, &a, sizeof a); }
inline F set(float x) {
  return each_lane<F>([&](int) { return x; });
}
inline F zero() { return set(0); }
inline F operator+(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F operator-(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] - b.v[i]; });
}
inline F operator*(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F operator/(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] / b.v[i]; });
}
inline F fma(F a, F b, F c) {
  return each_lane<F>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline F max(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F min(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F abs(F a) {
  return each_lane<F>([&](int i) { return __builtin_fabsf(a.v[i]); });
}
inline F round(F a) {
  return each_lane<F>([&](int i) { return __builtin_rintf(a.v[i]); });
}
inline F scale2(F a, F n) {
  return each_lane<F>([&](int i) {
    const int32_t bits = (static_cast<int32_t>(n.v[i]) + 127) << 23;
    return a.v[i] * bits_of<float>(&bits);
  });
}
template <class Combine>
inline float halve(F a, Combine combine) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) a.v[i] = combine(a.v[i], a.v[i + width]);
  }
  return a.v[0];
}
inline float sum(F a) {
  return halve(a, [](float x, float y) { return x + y; });
}
inline float top(F a) {
  return halve(a, [](float x, float y) { return x > y ? x : y; });
}
inline float lane0(F a) { return a.v[0]; }
inline float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude < 0x0400) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t exponent = magnitude >= 0x7c00 ? 0x70000000 : 0x38000000;
  const uint32_t bits = sign | ((magnitude << 13) + exponent);
  return bits_of<float>(&bits);
}
inline F load_half(const void* p) {
  const auto* halves = static_cast<const char*>(p);
  return each_lane<F>([&](int i) { return from_half(bits_of<uint16_t>(halves + 2 * i)); });
}
inline float from_bfloat(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  return bits_of<float>(&bits);
}
inline F load_bfloat(const void* p) {
  const auto* halves = static_cast<const char*>(p);
  return each_lane<F>([&](int i) { return from_bfloat(bits_of<uint16_t>(halves + 2 * i)); });
}

inline Mask greater(F a, F b) {
  return each_lane<Mask>([&](int i) { return a.v[i] > b.v[i]; });
}
inline Mask lanes(int from, int to) {
  return each_lane<Mask>([&](int i) { return i >= from && i < to; });
}
inline F pick(Mask m, F yes, F no) {
  return each_lane<F>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
inline I pick(Mask m, I yes, I no) {
  return each_lane<I>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}

inline I load_int(const int32_t* p) { return bits_of<I>(p); }
inline void store(int32_t* p, I a) { __builtin_memcpy(p, &a, sizeof a); }
inline I set_int(int32_t x) {
  return each_lane<I>([&](int) { return x; });
}
inline I operator+(I a, I b) {
  return each_lane<I>([&](int i) { return a.v[i] + b.v[i]; });
}
inline I to_int(F a) {
  return each_lane<I>([&](int i) { return static_cast<int32_t>(__builtin_rintf(a.v[i])); });
}
inline F to_float(I a) {
  return each_lane<F>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline int32_t sum(I a) {
  int32_t total = 0;
  for (int i = 0; i < 16; i++) total += a.v[i];
  return total;
}
inline void store_int8(void* p, I a) {
  auto* bytes = static_cast<int8_t*>(p);
  for (int i = 0; i < 16; i++) bytes[i] = static_cast<int8_t>(a.v[i]);
}

inline Bytes load_bytes(const uint8_t* p) { return bits_of<Bytes>(p); }
inline Bytes low_nibbles(Bytes a) {
  for (uint8_t& byte : a.v) byte &= 15;
  return a;
}
inline Bytes high_nibbles(Bytes a) {
  for (uint8_t& byte : a.v) byte = static_cast<uint8_t>(byte >> 4);
  return a;
}
inline I field(Bytes a, int shift, int mask) {
  return each_lane<I>(
      [&](int i) { return static_cast<int32_t>(bits_of<uint32_t>(a.v + 4 * i) >> shift) & mask; });
}

struct Dot4 {
  int32_t v[16];
};
inline Dot4 start4() { return {}; }
template <class Dot>
inline Dot dot_bytes(Dot d, const Bytes& w, int32_t x) {
  int8_t y[4];
  __builtin_memcpy(y, &x, sizeof y);
  for (int i = 0; i < 16; i++) {
    for (int j = 0; j < 4; j++) d.v[i] += w.v[4 * i + j] * y[j];
  }
  return d;
}
inline Dot4 dot(Dot4 d, Bytes w, int32_t x) { return dot_bytes(d, w, x); }
inline I total(Dot4 d) { return bits_of<I>(&d); }

using Weights8 = Bytes;
inline Weights8 load_weights8(const uint8_t* p) { return load_bytes(p); }
struct Dot8 {
  int32_t v[16];
};
inline Dot8 start8(int32_t offset) {
  return each_lane<Dot8>([&](int) { return offset; });
}
inline Dot8 dot(Dot8 d, Weights8 w, int32_t x) { return dot_bytes(d, w, x); }
inline I total(Dot8 d) { return bits_of<I>(&d); }

inline uint16_t to_bfloat(float x) {
  const auto bits = bits_of<uint32_t>(&x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void store_bfloat(uint16_t* p, F a) {
  for (int i = 0; i < 16; i++) p[i] = to_bfloat(a.v[i]);
}
struct Pairs {
  F low, high;
};
inline Pairs load_pairs(const void* p) {
  const auto* halves = static_cast<const char*>(p);
  return {each_lane<F>([&](int i) { return from_bfloat(bits_of<uint16_t>(halves + 4 * i)); }),
          each_lane<F>([&](int i) { return from_bfloat(bits_of<uint16_t>(halves + 4 * i + 2)); })};
}
inline F dot_pairs(F d, Pairs x, uint32_t y) {
  const F low = set(from_bfloat(static_cast<uint16_t>(y)));
  const F high = set(from_bfloat(static_cast<uint16_t>(y >> 16)));
  return fma(x.high, high, fma(x.low, low, d));
}

inline void fetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }
inline void fetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace turing::TURING_ISA

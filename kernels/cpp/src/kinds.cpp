#include "kinds.h"

#include <cstring>

#include "error.h"
#include "number.h"

namespace turing {
namespace {

using Bytes = const uint8_t*;

// Calls `block(bytes, floats)` for each block of `count` elements.
template <int kElements, int kBytes, class Block>
void each_block(const std::byte* from, float* to, int64_t count, Block block) {
  Bytes bytes = reinterpret_cast<Bytes>(from);
  for (int64_t i = 0; i < count; i += kElements, bytes += kBytes, to += kElements) {
    block(bytes, to);
  }
}

float half_at(Bytes bytes) { return half_to_float(load_as<uint16_t>(bytes)); }

void f32(const std::byte* from, float* to, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

void f16(const std::byte* from, float* to, int64_t count) {
  each_block<1, 2>(from, to, count, [](Bytes b, float* y) { *y = half_at(b); });
}

void bf16(const std::byte* from, float* to, int64_t count) {
  each_block<1, 2>(from, to, count,
                   [](Bytes b, float* y) { *y = bfloat_to_float(load_as<uint16_t>(b)); });
}

void q4_0(const std::byte* from, float* to, int64_t count) {
  each_block<32, 18>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b);
    for (int i = 0; i < 16; i++) {
      y[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
      y[i + 16] = d * static_cast<float>((b[2 + i] >> 4) - 8);
    }
  });
}

void q4_1(const std::byte* from, float* to, int64_t count) {
  each_block<32, 20>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
      y[i] = d * static_cast<float>(b[4 + i] & 15) + m;
      y[i + 16] = d * static_cast<float>(b[4 + i] >> 4) + m;
    }
  });
}

// The 5-bit kinds keep the fifth bits of a block in one word.
int five_bits(Bytes quants, uint32_t high, int i) {
  const int low = i < 16 ? quants[i] & 15 : quants[i - 16] >> 4;
  return low | static_cast<int>(high >> i & 1) << 4;
}

void q5_0(const std::byte* from, float* to, int64_t count) {
  each_block<32, 22>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b);
    const auto high = load_as<uint32_t>(b + 2);
    for (int i = 0; i < 32; i++) y[i] = d * static_cast<float>(five_bits(b + 6, high, i) - 16);
  });
}

void q5_1(const std::byte* from, float* to, int64_t count) {
  each_block<32, 24>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    const auto high = load_as<uint32_t>(b + 4);
    for (int i = 0; i < 32; i++) y[i] = d * static_cast<float>(five_bits(b + 8, high, i)) + m;
  });
}

void q8_0(const std::byte* from, float* to, int64_t count) {
  each_block<32, 34>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b);
    for (int i = 0; i < 32; i++) y[i] = d * static_cast<float>(static_cast<int8_t>(b[2 + i]));
  });
}

void q2_k(const std::byte* from, float* to, int64_t count) {
  each_block<256, 84>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b + 80), m = half_at(b + 82);
    for (int i = 0; i < 256; i++) {
      const int scale = b[i / 16];
      const int q = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      y[i] = d * static_cast<float>(scale & 15) * static_cast<float>(q) -
             m * static_cast<float>(scale >> 4);
    }
  });
}

// Six-bit scale number `i` of sixteen: low nibbles in 8 bytes, the high pairs of bits behind them.
int q3_scale(Bytes packed, int i) {
  const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
  const int high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

void q3_k(const std::byte* from, float* to, int64_t count) {
  each_block<256, 110>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b + 108);
    for (int i = 0; i < 256; i++) {
      const int low = b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      const int high = b[i % 32] >> (i / 32) & 1;
      y[i] = d * static_cast<float>(q3_scale(b + 96, i / 16)) *
             static_cast<float>(low - (high ? 0 : 4));
    }
  });
}

// Six-bit scale and minimum number `i` of eight, as Q4_K and Q5_K pack them into 12 bytes.
void k_scale(Bytes packed, int i, int& scale, int& minimum) {
  if (i < 4) {
    scale = packed[i] & 63;
    minimum = packed[i + 4] & 63;
  } else {
    scale = (packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4;
    minimum = packed[i + 4] >> 4 | (packed[i] >> 6) << 4;
  }
}

void q4_k(const std::byte* from, float* to, int64_t count) {
  each_block<256, 144>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int part = 0; part < 8; part++) {
      int scale, minimum;
      k_scale(b + 4, part, scale, minimum);
      const float step = d * static_cast<float>(scale), low = m * static_cast<float>(minimum);
      for (int i = 0; i < 32; i++) {
        const int q = b[16 + part / 2 * 32 + i] >> (part % 2 * 4) & 15;
        y[part * 32 + i] = step * static_cast<float>(q) - low;
      }
    }
  });
}

void q5_k(const std::byte* from, float* to, int64_t count) {
  each_block<256, 176>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int part = 0; part < 8; part++) {
      int scale, minimum;
      k_scale(b + 4, part, scale, minimum);
      const float step = d * static_cast<float>(scale), low = m * static_cast<float>(minimum);
      for (int i = 0; i < 32; i++) {
        const int q = (b[48 + part / 2 * 32 + i] >> (part % 2 * 4) & 15) | (b[16 + i] >> part & 1)
                                                                               << 4;
        y[part * 32 + i] = step * static_cast<float>(q) - low;
      }
    }
  });
}

void q6_k(const std::byte* from, float* to, int64_t count) {
  each_block<256, 210>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
      const int half = i / 128, part = i % 128 / 32, lane = i % 32;
      const int low = b[half * 64 + part % 2 * 32 + lane] >> (part / 2 * 4) & 15;
      const int high = b[128 + half * 32 + lane] >> (part * 2) & 3;
      const int scale = static_cast<int8_t>(b[192 + i / 16]);
      y[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
    }
  });
}

constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};

void iq4_nl(const std::byte* from, float* to, int64_t count) {
  each_block<32, 18>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b);
    for (int i = 0; i < 16; i++) {
      y[i] = d * static_cast<float>(kIq4[b[2 + i] & 15]);
      y[i + 16] = d * static_cast<float>(kIq4[b[2 + i] >> 4]);
    }
  });
}

void iq4_xs(const std::byte* from, float* to, int64_t count) {
  each_block<256, 136>(from, to, count, [](Bytes b, float* y) {
    const float d = half_at(b);
    const auto high = load_as<uint16_t>(b + 2);
    for (int part = 0; part < 8; part++) {
      const int low = b[4 + part / 2] >> (part % 2 * 4) & 15;
      const float step = d * static_cast<float>((low | (high >> part * 2 & 3) << 4) - 32);
      Bytes quants = b + 8 + part * 16;
      for (int i = 0; i < 16; i++) {
        y[part * 32 + i] = step * static_cast<float>(kIq4[quants[i] & 15]);
        y[part * 32 + i + 16] = step * static_cast<float>(kIq4[quants[i] >> 4]);
      }
    }
  });
}

constexpr KindInfo kKinds[] = {
    {Kind::F32, "F32", 1, 4, f32},
    {Kind::F16, "F16", 1, 2, f16},
    {Kind::Q4_0, "Q4_0", 32, 18, q4_0},
    {Kind::Q4_1, "Q4_1", 32, 20, q4_1},
    {Kind::Q5_0, "Q5_0", 32, 22, q5_0},
    {Kind::Q5_1, "Q5_1", 32, 24, q5_1},
    {Kind::Q8_0, "Q8_0", 32, 34, q8_0},
    {Kind::Q2_K, "Q2_K", 256, 84, q2_k},
    {Kind::Q3_K, "Q3_K", 256, 110, q3_k},
    {Kind::Q4_K, "Q4_K", 256, 144, q4_k},
    {Kind::Q5_K, "Q5_K", 256, 176, q5_k},
    {Kind::Q6_K, "Q6_K", 256, 210, q6_k},
    {Kind::IQ4_NL, "IQ4_NL", 32, 18, iq4_nl},
    {Kind::IQ4_XS, "IQ4_XS", 256, 136, iq4_xs},
    {Kind::BF16, "BF16", 1, 2, bf16},
};

struct OtherKind {
  uint32_t kind;
  const char* name;
};

constexpr OtherKind kOtherKinds[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {39, "MXFP4"},
};

}  // namespace

const KindInfo* find_kind(uint32_t kind) {
  for (const KindInfo& known : kKinds) {
    if (static_cast<uint32_t>(known.kind) == kind) return &known;
  }
  return nullptr;
}

const KindInfo& info(Kind kind) { return *find_kind(static_cast<uint32_t>(kind)); }

std::string kind_name(uint32_t kind) {
  if (const KindInfo* known = find_kind(kind)) return known->name;
  for (const OtherKind& other : kOtherKinds) {
    if (other.kind == kind) return other.name;
  }
  return "number " + std::to_string(kind);
}

int64_t Tensor::count() const {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

size_t Tensor::row_bytes() const {
  const KindInfo& known = info(kind);
  return static_cast<size_t>(columns() / known.block * known.bytes);
}

void Tensor::row_to_float(int64_t index, float* to) const {
  info(kind).to_float(row(index), to, columns());
}

}  // namespace turing

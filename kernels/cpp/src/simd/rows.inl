// Kernels that work on single rows: norms, operands, rotary embedding, KV pages.
#pragma once

#include "simd/math.inl"

namespace turing::TURING_ISA {

// Puts 32 values into the block's row.
inline void put_block(F a, F b, Int8Block& block, int row) {
  const float peak = top(max(abs(a), abs(b)));
  const F inverse = set(peak > 0 ? 127.0f / peak : 0.0f);
  const I qa = to_int(a * inverse), qb = to_int(b * inverse);
  const int32_t total = sum(qa + qb);
  int32_t groups[8];
  store_int8(groups, qa);
  store_int8(groups + 4, qb);
  for (int g = 0; g < 8; g++) block.q[g][row] = groups[g];
  const float step = peak / 127.0f;
  block.d[row] = step;
  block.s[row] = step * static_cast<float>(total);
  block.offset[row] = -128 * total;
}

inline void put_block(F a, F b, FloatBlock& block, int row) {
  float values[kBlock];
  store(values, a);
  store(values + 16, b);
  for (int k = 0; k < kBlock; k++) block.x[k][row] = values[k];
}

// Fills the blocks from k0 on with n values; value(i) gives 16 of them.
template <class Block, class Value>
inline void put_row(std::byte* tile, int k0, int n, int row, Value value) {
  Block* block = reinterpret_cast<Block*>(tile) + k0 / kBlock;
  for (int i = 0; i < n; i += kBlock, block++) {
    put_block(value(i), i + 16 < n ? value(i + 16) : zero(), *block, row);
  }
}

template <class Value>
inline void put_operand_row(const Operand& out, int k0, int n, int row, Value value) {
  std::byte* tile = out.data + static_cast<size_t>(row / kRowTile) * out.stride;
  if (out.kind == Activations::Int8) {
    put_row<Int8Block>(tile, k0, n, row % kRowTile, value);
  } else {
    put_row<FloatBlock>(tile, k0, n, row % kRowTile, value);
  }
}

inline float inverse_rms(const float* x, float eps, int n, int count) {
  F squares = zero();
  for (int i = 0; i < n; i += 16) squares = fma(load(x + i), load(x + i), squares);
  return 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(count) + eps);
}

void norm(const float* x, const float* weight, float eps, int n, int count, const Operand& out,
          int row) {
  const F factor = set(inverse_rms(x, eps, n, count));
  put_operand_row(out, 0, n, row, [&](int i) { return load(x + i) * factor * load(weight + i); });
}

void quantize(const float* x, int k0, int n, const Operand& out, int row) {
  put_operand_row(out, k0, n, row, [&](int i) { return load(x + i); });
}

void add_norm(float* x, const float* y, const float* weight, float eps, int n, int count) {
  const F factor = set(inverse_rms(y, eps, n, count));
  for (int i = 0; i < n; i += 16) {
    store(x + i, load(x + i) + load(y + i) * factor * load(weight + i));
  }
}

void head_norm(float* x, const float* weight, float eps, int heads, int head_dim) {
  for (int h = 0; h < heads; h++, x += head_dim) {
    const F factor = set(inverse_rms(x, eps, head_dim, head_dim));
    for (int i = 0; i < head_dim; i += 16) store(x + i, load(x + i) * factor * load(weight + i));
  }
}

void rope(float* x, int heads, int head_dim, int rope_dim, const float* cosine, const float* sine) {
  const int half = rope_dim / 2, whole = half / 16 * 16;
  for (int h = 0; h < heads; h++, x += head_dim) {
    float* y = x + half;
    for (int i = 0; i < whole; i += 16) {
      const F a = load(x + i), b = load(y + i), c = load(cosine + i), s = load(sine + i);
      store(x + i, a * c - b * s);
      store(y + i, b * c + a * s);
    }
    for (int i = whole; i < half; i++) {
      const float a = x[i], b = y[i];
      x[i] = a * cosine[i] - b * sine[i];
      y[i] = b * cosine[i] + a * sine[i];
    }
  }
}

inline void store_bf16_head(const float* k, const float* v, int head_dim, int token,
                            std::byte* head) {
  auto* keys = reinterpret_cast<uint32_t*>(head) + token;
  auto* values = reinterpret_cast<uint16_t*>(head + kv_head_bytes(KvFormat::BF16, head_dim) / 2);
  values += static_cast<size_t>(token / 2) * head_dim * 2 + token % 2;
  for (int i = 0; i < head_dim; i += 16) {
    uint16_t rounded[16];
    store_bfloat(rounded, load(k + i));
    for (int j = 0; j < 8; j++, keys += kPageTokens) __builtin_memcpy(keys, rounded + 2 * j, 4);
    store_bfloat(rounded, load(v + i));
    for (int j = 0; j < 16; j++, values += 2) *values = rounded[j];
  }
}

inline void store_f32_head(const float* k, const float* v, int head_dim, int token,
                           std::byte* head) {
  auto* keys = reinterpret_cast<float*>(head) + token;
  auto* values = reinterpret_cast<float*>(head + kv_head_bytes(KvFormat::F32, head_dim) / 2) +
                 static_cast<size_t>(token) * head_dim;
  for (int i = 0; i < head_dim; i++) keys[static_cast<size_t>(i) * kPageTokens] = k[i];
  for (int i = 0; i < head_dim; i++) values[i] = v[i];
}

void store_kv(KvFormat format, const float* k, const float* v, int heads, int head_dim, int token,
              std::byte* kv) {
  for (int h = 0; h < heads; h++, k += head_dim, v += head_dim) {
    if (format == KvFormat::BF16) {
      store_bf16_head(k, v, head_dim, token, kv);
    } else {
      store_f32_head(k, v, head_dim, token, kv);
    }
    kv += kv_head_bytes(format, head_dim);
  }
}

void store_query(KvFormat format, const float* x, float factor, int n, std::byte* out) {
  const F scale = set(factor);
  for (int i = 0; i < n; i += 16) {
    if (format == KvFormat::BF16) {
      store_bfloat(reinterpret_cast<uint16_t*>(out) + i, load(x + i) * scale);
    } else {
      store(reinterpret_cast<float*>(out) + i, load(x + i) * scale);
    }
  }
}

void scale(float* x, float factor, int n) {
  for (int i = 0; i < n; i += 16) store(x + i, load(x + i) * set(factor));
}

}  // namespace turing::TURING_ISA

// Kernels that work on single rows: norms, operands, rotary embedding, KV pages.
#pragma once

#include "simd/math.inl"

namespace turing::TURING_ISA {

// Puts 32 values into row `row` of a block of n rows.
inline void put_int8(F a, F b, int32_t* block, int n, int row) {
  const float peak = top(max(abs(a), abs(b)));
  const F inverse = set(peak > 0 ? 127.0f / peak : 0.0f);
  const I qa = to_int(a * inverse), qb = to_int(b * inverse);
  const int32_t total = sum(qa + qb);
  int32_t groups[8];
  store_int8(groups, qa);
  store_int8(groups + 4, qb);
  for (int g = 0; g < 8; g++) block[g * n + row] = groups[g];
  const float scales[2] = {peak / 127.0f, peak / 127.0f * static_cast<float>(total)};
  __builtin_memcpy(block + 8 * n + row, scales, 4);
  __builtin_memcpy(block + 9 * n + row, scales + 1, 4);
  block[10 * n + row] = -128 * total;
}

inline void put_float(F a, F b, int32_t* block, int n, int row) {
  int32_t values[kBlock];
  store(reinterpret_cast<float*>(values), a);
  store(reinterpret_cast<float*>(values) + 16, b);
  for (int k = 0; k < kBlock; k++) block[k * n + row] = values[k];
}

// Fills the operand's row from k0 on with `count` values; value(i) gives 16 of them. Behind the
// last k it also fills the block that makes the number of blocks even.
template <class Value>
inline void put_row(const Operand& out, int k0, int count, int row, Value value) {
  const int tile = row / kRowTile, n = least(kRowTile, out.rows - tile * kRowTile);
  const int words = block_words(out.kind) * n;
  auto* block = reinterpret_cast<int32_t*>(out.data + static_cast<size_t>(tile) *
                                                          operand_stride(out.k, out.kind));
  block += static_cast<size_t>(k0 / kBlock) * static_cast<size_t>(words);
  const auto put = out.kind == Activations::Int8 ? put_int8 : put_float;
  for (int i = 0; i < count; i += kBlock, block += words) {
    put(value(i), i + 16 < count ? value(i + 16) : zero(), block, n, row % kRowTile);
  }
  if (k0 + count >= out.k && (out.k - 1) / kBlock % 2 == 0) {
    put(zero(), zero(), block, n, row % kRowTile);
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
  put_row(out, 0, n, row, [&](int i) { return load(x + i) * factor * load(weight + i); });
}

void quantize(const float* x, int k0, int n, const Operand& out, int row) {
  put_row(out, k0, n, row, [&](int i) { return load(x + i); });
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

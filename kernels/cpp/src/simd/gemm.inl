// Products of operand tiles (8 rows) with weight tiles (16 columns), and what happens to them.
//
// A column is a vector lane and k runs in one fixed order, so neither the number of rows in a
// pass nor the split of the columns changes a single product.
#pragma once

#include "simd/math.inl"
#include "simd/rows.inl"

namespace turing::TURING_ISA {

// Fetches what will be read this far behind `w`. Hardware prefetchers stop at each page of 4 KiB
// and lose the stream while a tile is used again for more rows; a full pass has time enough to
// hide that. With fewer rows memory is the limit, and more requests only get in the way.
constexpr size_t kAhead = 2048;

template <int R, size_t kBytes>
inline void fetch_ahead(const uint8_t* w) {
  if constexpr (R > kRowTile / 2) {
#pragma GCC unroll 9
    for (size_t line = 0; line < kBytes; line += 64) fetch_near(w + kAhead + line);
  }
}

// Chains of integer sums per row. A single chain of a few rows would leave the multipliers waiting
// for each other; integers add up to the same in any order.
template <int R>
constexpr int kChains = R <= 2 ? 2 : 1;

template <int R, class Sums>
inline I chain_total(const Sums& sums, int m) {
  if constexpr (kChains<R> == 1) {
    return total(sums[0][m]);
  } else {
    return total(sums[0][m]) + total(sums[1][m]);
  }
}

// Rows of the tile that a pass over R of them belongs to: R where a pass takes whole tiles, which
// makes all places in it constants.
template <int R>
inline int rows_in_tile(int rows) {
  return kGemmRows == kRowTile && kFloatRows == kRowTile ? R : rows;
}

// The pieces of an int8 block of n rows, from row `row` on.
struct Int8Rows {
  Int8Rows(const int32_t* block, int n, int row)
      : q(block + row),
        d(reinterpret_cast<const float*>(block + 8 * n) + row),
        s(d + n),
        offset(block + 10 * n + row) {}
  const int32_t* q;
  const float *d, *s;
  const int32_t* offset;
};

// out[m][16] = rows row ... row + R - 1 of a tile of n rows x the weight tile.
template <int R>
inline void multiply_w4(const uint8_t* w, int blocks, const int32_t* block, int rows, int row,
                        float* out) {
  constexpr int kLast = kChains<R> - 1;
  const int n = rows_in_tile<R>(rows);
  F acc[R];
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) acc[m] = zero();
  for (int b = 0; b < blocks; b++, w += tile_bytes(Tile::W4, 1), block += 11 * n) {
    const Int8Rows x(block, n, row);
    const F step = load_half(w), minimum = load_half(w + 32);
    fetch_ahead<R, tile_bytes(Tile::W4, 1)>(w);
    Dot4 sums[kChains<R>][R];
#pragma GCC unroll 8
    for (int m = 0; m < R; m++) {
      sums[kLast][m] = start4();
      sums[0][m] = start4();
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const Bytes both = load_bytes(w + 64 + 64 * j);
      const Bytes low = low_nibbles(both), high = high_nibbles(both);
#pragma GCC unroll 8
      for (int m = 0; m < R; m++) sums[0][m] = dot(sums[0][m], low, x.q[j * n + m]);
#pragma GCC unroll 8
      for (int m = 0; m < R; m++) sums[kLast][m] = dot(sums[kLast][m], high, x.q[(j + 4) * n + m]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < R; m++) {
      const F sum = to_float(chain_total<R>(sums, m));
      acc[m] = fma(sum, step * set(x.d[m]), acc[m]);
      acc[m] = fma(minimum, set(x.s[m]), acc[m]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) store(out + m * kColumnTile, acc[m]);
}

template <int R>
inline void multiply_w8(const uint8_t* w, int blocks, const int32_t* block, int rows, int row,
                        float* out) {
  constexpr int kLast = kChains<R> - 1;
  const int n = rows_in_tile<R>(rows);
  F acc[R];
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) acc[m] = zero();
  for (int pair = 0; pair < blocks; pair += 2, w += tile_bytes(Tile::W8, 2)) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++, block += 11 * n) {
      const Int8Rows x(block, n, row);
      const F step = load_half(w + 32 * half);
      fetch_ahead<R, 512>(w + 512 * half);
      Dot8 sums[kChains<R>][R];
#pragma GCC unroll 8
      for (int m = 0; m < R; m++) {
        sums[kLast][m] = start8(0);
        sums[0][m] = start8(x.offset[m]);
      }
#pragma GCC unroll 4
      for (int g = 0; g < 8; g += 2) {
        const Weights8 first = load_weights8(w + 64 + 512 * half + 64 * g);
        const Weights8 second = load_weights8(w + 128 + 512 * half + 64 * g);
#pragma GCC unroll 8
        for (int m = 0; m < R; m++) sums[0][m] = dot(sums[0][m], first, x.q[g * n + m]);
#pragma GCC unroll 8
        for (int m = 0; m < R; m++) {
          sums[kLast][m] = dot(sums[kLast][m], second, x.q[(g + 1) * n + m]);
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < R; m++) {
        const F sum = to_float(chain_total<R>(sums, m));
        acc[m] = fma(sum, step * set(x.d[m]), acc[m]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) store(out + m * kColumnTile, acc[m]);
}

// sums[m] += w x[m] for R rows.
template <int R>
inline void add_products(F (&sums)[R], F w, const float* x) {
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) sums[m] = fma(w, set(x[m]), sums[m]);
}

// Weights of a W4 or W8 block, one k at a time, exactly as the file defines them.
struct BlockW4 {
  static constexpr size_t kBytes = tile_bytes(Tile::W4, 1);
  const uint8_t* w;
  F step = load_half(w), minimum = load_half(w + 32);
  F at(int k) const {
    const int shift = k % 4 * 8 + k / 16 * 4;
    const I q = field(load_bytes(w + 64 + k % 16 / 4 * 64), shift, 15);
    return step * to_float(q) + minimum;
  }
};

struct BlockF16 {
  static constexpr size_t kBytes = tile_bytes(Tile::F16, 1);
  const uint8_t* w;
  F at(int k) const { return load_half(w + k * 32); }
};

struct BlockBF16 {
  static constexpr size_t kBytes = tile_bytes(Tile::BF16, 1);
  const uint8_t* w;
  F at(int k) const { return load_bfloat(w + k * 32); }
};

struct BlockF32 {
  static constexpr size_t kBytes = tile_bytes(Tile::F32, 1);
  const uint8_t* w;
  F at(int k) const { return load(reinterpret_cast<const float*>(w) + k * 16); }
};

struct BlockW8 {
  const uint8_t* quants;
  F step;
  F at(int k) const {
    const I q = field(load_bytes(quants + k / 4 * 64), k % 4 * 8, 255) + set_int(-128);
    return step * to_float(q);
  }
};

template <class Block>
inline Block block_at(const uint8_t* w, int block) {
  return Block{w + static_cast<size_t>(block) * Block::kBytes};
}

template <>
inline BlockW8 block_at<BlockW8>(const uint8_t* w, int block) {
  const uint8_t* pair = w + static_cast<size_t>(block / 2) * tile_bytes(Tile::W8, 2);
  return {pair + 64 + block % 2 * 512, load_half(pair + block % 2 * 32)};
}

// fp32 products; even and odd k go into two chains, added at the end.
template <class Block, int R>
inline void multiply_float(const uint8_t* w, int blocks, const int32_t* block, int rows, int row,
                           float* out) {
  const int n = rows_in_tile<R>(rows);
  const float* x = reinterpret_cast<const float*>(block) + row;
  F even[R], odd[R];
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) even[m] = odd[m] = zero();
  for (int b = 0; b < blocks; b++) {
    const Block weights = block_at<Block>(w, b);
    for (int k = 0; k < kBlock; k += 2, x += 2 * n) {
      add_products<R>(even, weights.at(k), x);
      add_products<R>(odd, weights.at(k + 1), x + n);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) store(out + m * kColumnTile, even[m] + odd[m]);
}

// Products of the rows of an operand tile, at most 8, with one weight tile.
using Multiply = void (*)(const uint8_t* w, int blocks, const int32_t* x, int rows, float* out);

template <int kMost, class Rows>
inline void in_passes(int rows, float* out, Rows multiply) {
  for (int row = 0; row < rows; row += kMost) {
    with_rows<kMost>(least(kMost, rows - row), [&]<int R>() {
      multiply.template operator()<R>(row, out + row * kColumnTile);
    });
  }
}

void tile_w4(const uint8_t* w, int blocks, const int32_t* x, int rows, float* out) {
  in_passes<kGemmRows>(rows, out, [&]<int R>(int row, float* products) {
    multiply_w4<R>(w, blocks, x, rows, row, products);
  });
}

void tile_w8(const uint8_t* w, int blocks, const int32_t* x, int rows, float* out) {
  in_passes<kGemmRows>(rows, out, [&]<int R>(int row, float* products) {
    multiply_w8<R>(w, blocks, x, rows, row, products);
  });
}

template <class Block>
void tile_float(const uint8_t* w, int blocks, const int32_t* x, int rows, float* out) {
  in_passes<kFloatRows>(rows, out, [&]<int R>(int row, float* products) {
    multiply_float<Block, R>(w, blocks, x, rows, row, products);
  });
}

inline Multiply multiply_for(Tile tile, Activations activations) {
  const bool int8 = activations == Activations::Int8;
  switch (tile) {
    case Tile::W4: return int8 ? tile_w4 : tile_float<BlockW4>;
    case Tile::W8: return int8 ? tile_w8 : tile_float<BlockW8>;
    case Tile::F16: return tile_float<BlockF16>;
    case Tile::BF16: return tile_float<BlockBF16>;
    default: return tile_float<BlockF32>;
  }
}

// Rows that run through a weight tile before the next one is fetched; their operand stays in L2.
constexpr int kRowBlock = 128;

inline const uint8_t* tile_at(const Matrix& m, int tile) {
  return m.data + static_cast<size_t>(tile) * tile_bytes(m.tile, m.blocks);
}

inline const int32_t* rows_at(const Operand& x, int row) {
  return reinterpret_cast<const int32_t*>(x.data + static_cast<size_t>(row / kRowTile) *
                                                       operand_stride(x.k, x.kind));
}

inline F biased(const float* products, const float* bias, int tile) {
  const F value = load(products);
  return bias == nullptr ? value : value + load(bias + tile * kColumnTile);
}

inline void finish_rows(const MatmulJob& job, int row, int rows, int tile, const float* products) {
  float* out = job.out + static_cast<size_t>(row) * job.out_stride + tile * kColumnTile;
  for (int r = 0; r < rows; r++, out += job.out_stride, products += kColumnTile) {
    F value = biased(products, job.bias, tile);
    if (job.add) value = load(out) + value;
    store(out, value);
  }
}

void matmul(const MatmulJob& job) {
  const Multiply multiply = multiply_for(job.weights.tile, job.input.kind);
  alignas(64) float products[kRowTile * kColumnTile];
  for (int block = 0; block < job.input.rows; block += kRowBlock) {
    const int end = least(job.input.rows, block + kRowBlock);
    for (int tile = job.tile0; tile < job.tile1; tile++) {
      for (int row = block; row < end; row += kRowTile) {
        const int rows = least(kRowTile, end - row);
        multiply(tile_at(job.weights, tile), job.weights.blocks, rows_at(job.input, row), rows,
                 products);
        finish_rows(job, row, rows, tile, products);
      }
    }
  }
}

inline F silu(F x) { return x / (set(1.0f) + exp(zero() - x)); }

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), written with a logistic.
inline F gelu(F x) {
  const F inner = x * fma(x * x, set(0.044715f), set(1.0f));
  return x / (set(1.0f) + exp(inner * set(-1.5957691216f)));
}

// Two gate and two up tiles of up to 8 rows become one block of the output operand.
inline void gate_rows(const GatedJob& job, Multiply multiply[2], int block, int row, int rows) {
  alignas(64) float products[2][2][kRowTile * kColumnTile];
  for (int half = 0; half < 2; half++) {
    const int tile = 2 * block + half;
    const int32_t* x = rows_at(job.input, row);
    multiply[0](tile_at(job.gate, tile), job.gate.blocks, x, rows, products[half][0]);
    multiply[1](tile_at(job.up, tile), job.up.blocks, x, rows, products[half][1]);
  }
  for (int r = 0; r < rows; r++) {
    put_row(job.output, block * kBlock, kBlock, row + r, [&](int i) {
      const int tile = 2 * block + i / 16;
      const F gate = biased(products[i / 16][0] + r * kColumnTile, job.gate_bias, tile);
      const F up = biased(products[i / 16][1] + r * kColumnTile, job.up_bias, tile);
      return (job.gelu ? gelu(gate) : silu(gate)) * up;
    });
  }
}

void gated(const GatedJob& job) {
  Multiply multiply[2] = {multiply_for(job.gate.tile, job.input.kind),
                          multiply_for(job.up.tile, job.input.kind)};
  for (int start = 0; start < job.input.rows; start += kRowBlock) {
    const int end = least(job.input.rows, start + kRowBlock);
    for (int block = job.block0; block < job.block1; block++) {
      for (int row = start; row < end; row += kRowTile) {
        gate_rows(job, multiply, block, row, least(kRowTile, end - row));
      }
    }
  }
}

// Per row and lane the best product so far and the tile that it came from.
struct Best {
  float value[kColumnTile];
  int32_t tile[kColumnTile];
};

inline void keep_best(Best& best, F products, int tile) {
  const F old = load(best.value);
  const Mask better = greater(products, old);
  store(best.value, pick(better, products, old));
  store(best.tile, pick(better, set_int(tile), load_int(best.tile)));
}

inline void write_best(const Best& best, float& value, int32_t& id) {
  value = best.value[0];
  id = best.tile[0] * kColumnTile;
  for (int lane = 1; lane < kColumnTile; lane++) {
    const int32_t column = best.tile[lane] * kColumnTile + lane;
    if (best.value[lane] > value || (best.value[lane] == value && column < id)) {
      value = best.value[lane];
      id = column;
    }
  }
}

inline void head_rows(const HeadJob& job, int tile, int row, int rows, const float* products,
                      Best* best) {
  const int columns = least(kColumnTile, job.weights.rows - tile * kColumnTile);
  for (int r = 0; r < rows; r++, products += kColumnTile) {
    const F value = pick(lanes(0, columns), load(products), set(-__builtin_inff()));
    keep_best(best[r], value, tile);
    if (float* logits = job.logits[row + r]) {
      for (int i = 0; i < columns; i++) logits[tile * kColumnTile + i] = products[i];
    }
  }
}

void head(const HeadJob& job) {
  const Multiply multiply = multiply_for(job.weights.tile, job.input.kind);
  constexpr int kRows = 64;
  alignas(64) float products[kRowTile * kColumnTile];
  Best best[kRows];
  for (int block = 0; block < job.input.rows; block += kRows) {
    const int end = least(job.input.rows, block + kRows);
    for (Best& each : best) {
      store(each.value, set(-__builtin_inff()));
      store(each.tile, set_int(job.tile0));
    }
    for (int tile = job.tile0; tile < job.tile1; tile++) {
      for (int row = block; row < end; row += kRowTile) {
        const int rows = least(kRowTile, end - row);
        multiply(tile_at(job.weights, tile), job.weights.blocks, rows_at(job.input, row), rows,
                 products);
        head_rows(job, tile, row, rows, products, best + (row - block));
      }
    }
    for (int row = block; row < end; row++) {
      write_best(best[row - block], job.best[row], job.best_id[row]);
    }
  }
}

}  // namespace turing::TURING_ISA

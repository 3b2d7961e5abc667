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

// out[m][16] = rows row ... row + R - 1 of the operand tile x the weight tile.
template <int R>
inline void multiply_w4(const uint8_t* w, int blocks, const Int8Block* x, int row, float* out) {
  F acc[R];
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) acc[m] = zero();
  for (int b = 0; b < blocks; b++, w += tile_bytes(Tile::W4, 1), x++) {
    const F step = load_half(w), minimum = load_half(w + 32);
    fetch_ahead<R, tile_bytes(Tile::W4, 1)>(w);
    Dot4 dots[R];
#pragma GCC unroll 8
    for (int m = 0; m < R; m++) dots[m] = start4();
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const Bytes both = load_bytes(w + 64 + 64 * j);
      const Bytes low = low_nibbles(both), high = high_nibbles(both);
#pragma GCC unroll 8
      for (int m = 0; m < R; m++) dots[m] = dot(dots[m], low, x->q[j][row + m]);
#pragma GCC unroll 8
      for (int m = 0; m < R; m++) dots[m] = dot(dots[m], high, x->q[j + 4][row + m]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < R; m++) {
      acc[m] = fma(to_float(total(dots[m])), step * set(x->d[row + m]), acc[m]);
      acc[m] = fma(minimum, set(x->s[row + m]), acc[m]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) store(out + m * kColumnTile, acc[m]);
}

template <int R>
inline void multiply_w8(const uint8_t* w, int blocks, const Int8Block* x, int row, float* out) {
  F acc[R];
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) acc[m] = zero();
  for (int pair = 0; pair < blocks; pair += 2, w += tile_bytes(Tile::W8, 2)) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++, x++) {
      const F step = load_half(w + 32 * half);
      fetch_ahead<R, 512>(w + 512 * half);
      Dot8 dots[R];
#pragma GCC unroll 8
      for (int m = 0; m < R; m++) dots[m] = start8(x->offset[row + m]);
#pragma GCC unroll 8
      for (int g = 0; g < 8; g++) {
        const Weights8 weights = load_weights8(w + 64 + 512 * half + 64 * g);
#pragma GCC unroll 8
        for (int m = 0; m < R; m++) dots[m] = dot(dots[m], weights, x->q[g][row + m]);
      }
#pragma GCC unroll 8
      for (int m = 0; m < R; m++) {
        acc[m] = fma(to_float(total(dots[m])), step * set(x->d[row + m]), acc[m]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) store(out + m * kColumnTile, acc[m]);
}

// sums[m] += w x[k] for R rows.
template <int R>
inline void add_products(F (&sums)[R], F w, const float* x) {
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) sums[m] = fma(w, set(x[m]), sums[m]);
}

// fp32 products of one block; even and odd k go into two chains.
template <int R, class Weights>
inline void add_block(F (&even)[R], F (&odd)[R], const Weights& weights, const FloatBlock& x,
                      int row) {
  for (int k = 0; k < kBlock; k += 2) {
    add_products<R>(even, weights.at(k), x.x[k] + row);
    add_products<R>(odd, weights.at(k + 1), x.x[k + 1] + row);
  }
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

template <class Block, int R>
inline void multiply_float(const uint8_t* w, int blocks, const FloatBlock* x, int row, float* out) {
  F even[R], odd[R];
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) even[m] = odd[m] = zero();
  for (int b = 0; b < blocks; b++) add_block<R>(even, odd, block_at<Block>(w, b), x[b], row);
#pragma GCC unroll 8
  for (int m = 0; m < R; m++) store(out + m * kColumnTile, even[m] + odd[m]);
}

// Products of up to 8 rows of an operand tile with one weight tile.
using Multiply = void (*)(const uint8_t* w, int blocks, const void* x, int rows, float* out);

template <int kMost, class X, class Rows>
inline void in_passes(const void* x, int rows, float* out, Rows multiply) {
  for (int row = 0; row < rows; row += kMost) {
    with_rows<kMost>(rows - row < kMost ? rows - row : kMost, [&]<int R>() {
      multiply.template operator()<R>(static_cast<const X*>(x), row, out + row * kColumnTile);
    });
  }
}

void tile_w4(const uint8_t* w, int blocks, const void* x, int rows, float* out) {
  in_passes<kGemmRows, Int8Block>(x, rows, out,
                                  [&]<int R>(const Int8Block* tile, int row, float* o) {
                                    multiply_w4<R>(w, blocks, tile, row, o);
                                  });
}

void tile_w8(const uint8_t* w, int blocks, const void* x, int rows, float* out) {
  in_passes<kGemmRows, Int8Block>(x, rows, out,
                                  [&]<int R>(const Int8Block* tile, int row, float* o) {
                                    multiply_w8<R>(w, blocks, tile, row, o);
                                  });
}

// One entry per kind of weights.
template <class Block>
void tile_float(const uint8_t* w, int blocks, const void* x, int rows, float* out) {
  in_passes<kFloatRows, FloatBlock>(x, rows, out,
                                    [&]<int R>(const FloatBlock* tile, int row, float* o) {
                                      multiply_float<Block, R>(w, blocks, tile, row, o);
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

inline const void* rows_at(const Operand& x, int row) {
  return x.data + static_cast<size_t>(row / kRowTile) * x.stride;
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
  for (int block = 0; block < job.rows; block += kRowBlock) {
    const int end = least(job.rows, block + kRowBlock);
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
    const void* x = rows_at(job.input, row);
    multiply[0](tile_at(job.gate, tile), job.gate.blocks, x, rows, products[half][0]);
    multiply[1](tile_at(job.up, tile), job.up.blocks, x, rows, products[half][1]);
  }
  for (int r = 0; r < rows; r++) {
    put_operand_row(job.output, block * kBlock, kBlock, row + r, [&](int i) {
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
  for (int start = 0; start < job.rows; start += kRowBlock) {
    const int end = least(job.rows, start + kRowBlock);
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
  for (int block = 0; block < job.rows; block += kRows) {
    const int end = least(job.rows, block + kRows);
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

#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "number.h"

namespace turing {
namespace {

// One tile's worth of source rows; null rows are padding.
struct Rows {
  Kind kind;
  int columns;
  const std::byte* row[kColumnTile];
};

uint8_t* w4_block(uint8_t* tile, int block) {
  return tile + tile_bytes(Tile::W4, 1) * static_cast<size_t>(block);
}

struct W8Place {
  uint8_t* quants;
  uint8_t* steps;
};

W8Place w8_block(uint8_t* tile, int block) {
  uint8_t* pair = tile + tile_bytes(Tile::W8, 2) * static_cast<size_t>(block / 2);
  return {pair + 64 + block % 2 * 512, pair + block % 2 * 32};
}

void put_half(uint8_t* place, int column, uint16_t half) {
  std::memcpy(place + 2 * column, &half, sizeof half);
}

// 16 bytes of nibbles, element i below element i + 16, are one column of a W4 block as they are.
void put_w4(uint8_t* block, int column, const void* nibbles, uint16_t step, uint16_t minimum) {
  const auto* from = static_cast<const uint8_t*>(nibbles);
  for (int j = 0; j < 4; j++) std::memcpy(block + 64 + 64 * j + 4 * column, from + 4 * j, 4);
  put_half(block, column, step);
  put_half(block + 32, column, minimum);
}

void put_w8(W8Place place, int column, const int8_t quants[kBlock], uint16_t step) {
  for (int g = 0; g < 8; g++) {
    uint32_t four = load_as<uint32_t>(quants + 4 * g) ^ 0x80808080;
    std::memcpy(place.quants + 64 * g + 4 * column, &four, sizeof four);
  }
  put_half(place.steps, column, step);
}

void pack_q4_0(const std::byte* row, int blocks, int column, uint8_t* tile) {
  for (int b = 0; b < blocks; b++, row += 18) {
    const auto step = load_as<uint16_t>(row);
    const uint16_t minimum = float_to_half(-8 * half_to_float(step));
    put_w4(w4_block(tile, b), column, row + 2, step, minimum);
  }
}

void pack_q4_1(const std::byte* row, int blocks, int column, uint8_t* tile) {
  for (int b = 0; b < blocks; b++, row += 20) {
    put_w4(w4_block(tile, b), column, row + 4, load_as<uint16_t>(row), load_as<uint16_t>(row + 2));
  }
}

void pack_q8_0(const std::byte* row, int blocks, int column, uint8_t* tile) {
  for (int b = 0; b < blocks; b++, row += 34) {
    int8_t quants[kBlock];
    std::memcpy(quants, row + 2, sizeof quants);
    put_w8(w8_block(tile, b), column, quants, load_as<uint16_t>(row));
  }
}

void pack_q5_0(const std::byte* row, int blocks, int column, uint8_t* tile) {
  for (int b = 0; b < blocks; b++, row += 22) {
    const auto high = load_as<uint32_t>(row + 2);
    const auto* low = reinterpret_cast<const uint8_t*>(row + 6);
    int8_t quants[kBlock];
    for (int i = 0; i < kBlock; i++) {
      const int nibble = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
      quants[i] = static_cast<int8_t>((nibble | static_cast<int>(high >> i & 1) << 4) - 16);
    }
    put_w8(w8_block(tile, b), column, quants, load_as<uint16_t>(row));
  }
}

// Q4_K: parts of 32 with six-bit scale and minimum, which together with the super-block's fp16
// factors are rounded to one fp16 step and minimum.
void pack_q4_k(const std::byte* row, int blocks, int column, uint8_t* tile) {
  for (int b = 0; b < blocks; b++) {
    const auto* super = reinterpret_cast<const uint8_t*>(row + b / 8 * 144);
    const int part = b % 8;
    const uint8_t* scales = super + 4;
    int scale = scales[part] & 63, minimum = scales[part + 4] & 63;
    if (part >= 4) {
      scale = (scales[part + 4] & 15) | (scales[part - 4] >> 6) << 4;
      minimum = scales[part + 4] >> 4 | (scales[part] >> 6) << 4;
    }
    const float step = half_to_float(load_as<uint16_t>(super)) * static_cast<float>(scale);
    const float low = -half_to_float(load_as<uint16_t>(super + 2)) * static_cast<float>(minimum);
    const uint8_t* quants = super + 16 + part / 2 * 32;
    uint8_t nibbles[16];
    for (int i = 0; i < 16; i++) {
      const int shift = part % 2 * 4;
      nibbles[i] =
          static_cast<uint8_t>((quants[i] >> shift & 15) | (quants[i + 16] >> shift & 15) << 4);
    }
    put_w4(w4_block(tile, b), column, nibbles, float_to_half(step), float_to_half(low));
  }
}

// Rounds 32 values to 16 levels between the smallest and the largest.
void round_w4(const float* x, uint8_t* block, int column) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const uint16_t minimum = float_to_half(*low);
  const float base = half_to_float(minimum);
  const uint16_t step = float_to_half((*high - base) / 15);
  const float width = half_to_float(step);
  const float inverse = width > 0 ? 1 / width : 0;
  const auto level = [&](float value) {
    return static_cast<uint8_t>(std::clamp(std::rint((value - base) * inverse), 0.0f, 15.0f));
  };
  uint8_t nibbles[16];
  for (int i = 0; i < 16; i++) {
    nibbles[i] = static_cast<uint8_t>(level(x[i]) | level(x[i + 16]) << 4);
  }
  put_w4(block, column, nibbles, step, minimum);
}

void round_w8(const float* x, W8Place place, int column) {
  float peak = 0;
  for (int i = 0; i < kBlock; i++) peak = std::max(peak, std::fabs(x[i]));
  const uint16_t step = float_to_half(peak / 127);
  const float width = half_to_float(step);
  const float inverse = width > 0 ? 1 / width : 0;
  int8_t quants[kBlock];
  for (int i = 0; i < kBlock; i++) {
    quants[i] = static_cast<int8_t>(std::clamp(std::rint(x[i] * inverse), -127.0f, 127.0f));
  }
  put_w8(place, column, quants, step);
}

// Packs a row by way of fp32, into tiles that round.
void pack_rounded(const Rows& rows, const std::byte* row, Tile tile_kind, int column,
                  uint8_t* tile) {
  const int blocks = static_cast<int>(round_up(rows.columns, kBlock)) / kBlock;
  std::vector<float> x(static_cast<size_t>(blocks) * kBlock);
  info(rows.kind).to_float(row, x.data(), rows.columns);
  for (int b = 0; b < blocks; b++) {
    const float* values = x.data() + static_cast<size_t>(b) * kBlock;
    if (tile_kind == Tile::W4) {
      round_w4(values, w4_block(tile, b), column);
    } else {
      round_w8(values, w8_block(tile, b), column);
    }
  }
}

void pack_float(const Rows& rows, const std::byte* row, Tile tile_kind, int column, uint8_t* tile) {
  const size_t width = tile_kind == Tile::F32 ? 4 : 2;
  std::vector<float> wide;
  const std::byte* from = row;
  if (tile_kind == Tile::F32) {
    wide.resize(static_cast<size_t>(rows.columns));
    info(rows.kind).to_float(row, wide.data(), rows.columns);
    from = reinterpret_cast<const std::byte*>(wide.data());
  }
  for (size_t k = 0; k < static_cast<size_t>(rows.columns); k++) {
    std::memcpy(tile + (k * kColumnTile + static_cast<size_t>(column)) * width, from + k * width,
                width);
  }
}

void pack_row(const Rows& rows, int column, Tile tile_kind, uint8_t* tile) {
  const std::byte* row = rows.row[column];
  const int blocks = rows.columns / kBlock;
  const bool w4 = tile_kind == Tile::W4, w8 = tile_kind == Tile::W8;
  if (!w4 && !w8) return pack_float(rows, row, tile_kind, column, tile);
  if (w4 && rows.kind == Kind::Q4_0) return pack_q4_0(row, blocks, column, tile);
  if (w4 && rows.kind == Kind::Q4_1) return pack_q4_1(row, blocks, column, tile);
  if (w4 && rows.kind == Kind::Q4_K) return pack_q4_k(row, blocks, column, tile);
  if (w8 && rows.kind == Kind::Q8_0) return pack_q8_0(row, blocks, column, tile);
  if (w8 && rows.kind == Kind::Q5_0) return pack_q5_0(row, blocks, column, tile);
  pack_rounded(rows, row, tile_kind, column, tile);
}

void pack_tile(const Tensor& tensor, int paired_head, int tile, Tile tile_kind, uint8_t* out) {
  Rows rows{tensor.kind, static_cast<int>(tensor.columns()), {}};
  for (int column = 0; column < kColumnTile; column++) {
    const int64_t row = int64_t{tile} * kColumnTile + column;
    if (row >= tensor.rows()) break;
    rows.row[column] = tensor.row(source_row(row, paired_head));
    pack_row(rows, column, tile_kind, out);
  }
}

}  // namespace

int64_t source_row(int64_t row, int paired_head) {
  if (paired_head == 0) return row;
  const int64_t head = row / paired_head, i = row % paired_head, half = paired_head / 2;
  return head * paired_head + (i < half ? 2 * i : 2 * (i - half) + 1);
}

bool keeps_exactly(Kind kind, Tile tile) {
  switch (tile) {
    case Tile::W4: return kind == Kind::Q4_0 || kind == Kind::Q4_1;
    case Tile::W8: return kind == Kind::Q8_0 || kind == Kind::Q5_0;
    case Tile::F16: return kind == Kind::F16;
    case Tile::BF16: return kind == Kind::BF16;
    default: return true;
  }
}

void unpack_row(const Matrix& matrix, int row, int columns, float* out) {
  const int column = row % kColumnTile;
  // The helpers that place a column also find it again, so they take the tile as writable.
  auto* tile = const_cast<uint8_t*>(matrix.data) +
               static_cast<size_t>(row / kColumnTile) * tile_bytes(matrix.tile, matrix.blocks);
  const auto half = [&](const uint8_t* place) {
    return half_to_float(load_as<uint16_t>(place + 2 * column));
  };
  for (int k = 0; k < columns; k++) {
    const int block = k / kBlock, i = k % kBlock;
    const size_t place = (static_cast<size_t>(k) * kColumnTile + static_cast<size_t>(column));
    if (matrix.tile == Tile::W4) {
      const uint8_t* from = w4_block(tile, block);
      const uint8_t both = from[64 + i % 16 / 4 * 64 + 4 * column + i % 4];
      const int level = i < 16 ? both & 15 : both >> 4;
      out[k] = static_cast<float>(level) * half(from) + half(from + 32);
    } else if (matrix.tile == Tile::W8) {
      const W8Place from = w8_block(tile, block);
      const int level = from.quants[i / 4 * 64 + 4 * column + i % 4] - 128;
      out[k] = static_cast<float>(level) * half(from.steps);
    } else if (matrix.tile == Tile::F32) {
      out[k] = load_as<float>(tile + 4 * place);
    } else {
      const auto stored = load_as<uint16_t>(tile + 2 * place);
      out[k] = matrix.tile == Tile::F16 ? half_to_float(stored) : bfloat_to_float(stored);
    }
  }
}

Tile Packer::tile_for(Kind kind, bool w4_allowed) const {
  switch (kind) {
    case Kind::F32:
    case Kind::F16:
    case Kind::BF16:
      if (quantize_ == Quantize::W4 && w4_allowed) return Tile::W4;
      if (quantize_ != Quantize::None) return Tile::W8;
      return kind == Kind::F32 ? Tile::F32 : kind == Kind::F16 ? Tile::F16 : Tile::BF16;
    case Kind::Q4_0:
    case Kind::Q4_1: return Tile::W4;
    case Kind::Q8_0:
    case Kind::Q5_0: return Tile::W8;
    case Kind::Q4_K: return exact_ ? Tile::F32 : Tile::W4;
    default: return exact_ ? Tile::F32 : Tile::W8;
  }
}

void Packer::add(const Tensor& tensor, Matrix& matrix, int paired_head) {
  add_job(tensor, matrix, paired_head, tile_for(tensor.kind, true));
}

void Packer::add_at_least_w8(const Tensor& tensor, Matrix& matrix) {
  add_job(tensor, matrix, 0, tile_for(tensor.kind, false));
}

void Packer::add_job(const Tensor& tensor, Matrix& matrix, int paired_head, Tile tile) {
  matrix.rows = static_cast<int>(tensor.rows());
  matrix.blocks = operand_blocks(static_cast<int>(tensor.columns()));
  matrix.tile = tile;
  // Pairs of tiles make a block of 32 columns, which is what the gated product works on.
  const int tiles = static_cast<int>(round_up(matrix.rows, kBlock)) / kColumnTile;
  jobs_.push_back({&tensor, &matrix, paired_head, tiles, bytes_});
  bytes_ += static_cast<size_t>(tiles) * tile_bytes(tile, matrix.blocks);
}

Pages Packer::pack(Pool& pool) {
  Pages memory(bytes_, true);
  std::vector<std::pair<const Job*, int>> tiles;
  for (const Job& job : jobs_) {
    job.matrix->data = memory.as<uint8_t>() + job.offset;
    for (int tile = 0; tile < job.tiles; tile++) tiles.emplace_back(&job, tile);
  }
  pool.each(static_cast<int64_t>(tiles.size()), [&](int64_t index, int) {
    const auto& [job, tile] = tiles[static_cast<size_t>(index)];
    const Matrix& matrix = *job->matrix;
    const size_t place =
        job->offset + static_cast<size_t>(tile) * tile_bytes(matrix.tile, matrix.blocks);
    pack_tile(*job->tensor, job->paired_head, tile, matrix.tile, memory.as<uint8_t>() + place);
  });
  return memory;
}

}  // namespace turing

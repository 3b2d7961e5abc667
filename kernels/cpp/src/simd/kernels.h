// The vector kernels as one table per instruction set, and the data layouts they share.
//
// Rows never influence each other: whatever set of rows a kernel is given, the sequence of
// operations behind each single row is the same, so its bits are too.
//
// Included by objects of different instruction sets: functions here have internal linkage, so that
// the linker never swaps in a copy compiled for another processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace turing {

constexpr int kRowTile = 8;      // rows of an operand tile
constexpr int kColumnTile = 16;  // output columns of a weight tile, one per vector lane
constexpr int kBlock = 32;       // elements along k that share one scale
constexpr int kPageTokens = 64;  // tokens of a KV page
constexpr int kSegmentPages = 2;
constexpr int kSegmentTokens = kSegmentPages * kPageTokens;  // tokens of one softmax pass

// What a weight tile of 16 columns x k holds, block after block of 32 k, in the order of reading.
//   W4    16 fp16 steps, 16 fp16 minima and 256 bytes of nibbles: vector j has k group j in its low
//         and j + 4 in its high halves; a group is 4 consecutive k, 4 bytes per column. w = q d + m
//   W8    for two blocks 2 x 16 fp16 steps, then 2 x 512 bytes: 8 vectors, one k group each, of
//         q + 128. w = q d
//   F16, BF16, F32   [32 k][16 columns]
enum class Tile : uint8_t { W4, W8, F16, BF16, F32 };
constexpr int kTiles = 5;

// Bytes of a tile of `blocks` blocks; W8 needs an even number.
static inline constexpr size_t tile_bytes(Tile tile, int blocks) {
  constexpr size_t kBytes[kTiles] = {320, 544, 1024, 1024, 2048};
  return kBytes[static_cast<int>(tile)] * static_cast<size_t>(blocks);
}

// How the rows that meet the weights are represented.
enum class Activations : uint8_t {
  Int8,   // symmetric, one scale per block of 32
  Float,  // fp32
};

// Blocks that an operand of k elements has: an even number, the last ones zero.
static inline constexpr int operand_blocks(int k) {
  return (k + 2 * kBlock - 1) / (2 * kBlock) * 2;
}

struct Matrix {
  const uint8_t* data;
  int rows;    // output columns of the product
  int blocks;  // per tile, even
  Tile tile;
};

// Words of 4 bytes that a block of 32 k takes per row.
static inline constexpr int block_words(Activations kind) {
  return kind == Activations::Int8 ? 11 : kBlock;
}

// Rows that meet weights, in tiles of 8. A tile of n rows (8, in the last tile perhaps fewer) is
// block after block of 32 k:
//   Int8    q[8][n], each 4 int8 of one k group; d[n]; s[n] = d sum(q); offset[n] = -128 sum(q)
//   Float   x[32][n]
struct Operand {
  std::byte* data;
  int rows;
  int k;
  Activations kind;
};

// Bytes from one tile of an operand to the next.
static inline constexpr size_t operand_stride(int k, Activations kind) {
  return static_cast<size_t>(operand_blocks(k)) * static_cast<size_t>(block_words(kind)) *
         kRowTile * sizeof(int32_t);
}

// out[r][16 t ...] = (or +=) input[r] x weights, for the tiles [tile0, tile1).
struct MatmulJob {
  Matrix weights;
  Operand input;
  int tile0, tile1;
  float* out;
  size_t out_stride;
  const float* bias;  // or null
  bool add;
};

// output = act(input x gate + gate_bias) * (input x up + up_bias) for the blocks [block0, block1)
// of 32 columns.
struct GatedJob {
  Matrix gate, up;
  const float *gate_bias, *up_bias;  // or null
  Operand input, output;
  int block0, block1;
  bool gelu;  // tanh form of GELU, else SiLU
};

// Largest product and its column for the tiles [tile0, tile1), ties to the lower column. Where
// `logits` has a row it receives all the products.
struct HeadJob {
  Matrix weights;
  Operand input;
  int tile0, tile1;
  float* const* logits;  // [rows], null entries for rows that need none
  float* best;           // [rows]
  int32_t* best_id;      // [rows]
};

enum class KvFormat : uint8_t { BF16, F32 };
static inline constexpr size_t kv_element_bytes(KvFormat format) {
  return format == KvFormat::BF16 ? 2 : 4;
}

// A KV head of a page is K then V, head_dim x 64 elements each.
//   BF16  K [dim pair][64 tokens][2], V [token pair][head_dim][2]
//   F32   K [dim][64 tokens], V [64 tokens][head_dim]
static inline constexpr size_t kv_head_bytes(KvFormat format, int head_dim) {
  return 2 * kPageTokens * static_cast<size_t>(head_dim) * kv_element_bytes(format);
}

// Attention of some query rows to the segments [segment0, segment1) of one sequence.
struct AttendJob {
  KvFormat format;
  const std::byte* kv;  // of page 0, at the layer and the first of the heads
  size_t page_stride;
  const int32_t* pages;
  int page_count;
  int head_dim;  // a multiple of 16
  int heads;     // KV heads, neighbours in a page
  int queries;   // query rows per KV head
  int segment0, segment1;
  const int32_t* first;  // [queries] first and last position that a query row sees
  const int32_t* last;
  const std::byte* query;  // [heads][queries][head_dim] scaled by log2(e) / sqrt(d), KV format
  float* out;              // [heads][queries][head_dim], not yet divided by the sum
  float* peak;             // [heads][queries] largest score, base-2 logarithm
  float* sum;              // [heads][queries] of exp2(score - peak)
};

// The value of `peak` where nothing was visible.
constexpr float kNoScore = -1e30f;

struct Kernels {
  const char* name;

  void (*matmul)(const MatmulJob& job);
  void (*gated)(const GatedJob& job);
  void (*head)(const HeadJob& job);

  // Row `row` of the operand gets RMSNorm(x) * weight; n is a multiple of 16, mean over `count`.
  void (*norm)(const float* x, const float* weight, float eps, int n, int count, const Operand& out,
               int row);
  // Columns [k0, k0 + n) of the operand's row get x. k0 is a multiple of 32, n of 16.
  void (*quantize)(const float* x, int k0, int n, const Operand& out, int row);
  // x += RMSNorm(y) * weight.
  void (*add_norm)(float* x, const float* y, const float* weight, float eps, int n, int count);
  // Each of the heads becomes its own RMSNorm * weight.
  void (*head_norm)(float* x, const float* weight, float eps, int heads, int head_dim);
  // Rotates elements i and i + rope_dim / 2 of each head by the angle i.
  void (*rope)(float* x, int heads, int head_dim, int rope_dim, const float* cosine,
               const float* sine);

  // Writes k and v ([heads][head_dim]) as token `token` of the page whose first head is at kv.
  void (*store_kv)(KvFormat format, const float* k, const float* v, int heads, int head_dim,
                   int token, std::byte* kv);
  // out = x * scale in the format's query representation.
  void (*store_query)(KvFormat format, const float* x, float scale, int n, std::byte* out);
  void (*attend)(const AttendJob& job);
  // Folds (out, peak, sum) of later segments into those of earlier ones.
  void (*merge)(float* out, float* peak, float* sum, const float* later, float later_peak,
                float later_sum, int head_dim);
  // x *= factor.
  void (*scale)(float* x, float factor, int n);

  // The largest of n > 0 logits.
  float (*peak)(const float* logits, int n);
  // weights[i] = exp((logits[i] - highest) / temperature), 0 where that is below min_p.
  void (*weigh)(const float* logits, int n, float highest, double temperature, double min_p,
                double* weights);
};

// The best table for this processor, or the one called `isa` ("" = best). Throws Error when it is
// unknown or the processor lacks it.
const Kernels& select_kernels(const char* isa);

}  // namespace turing

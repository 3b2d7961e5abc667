// Every kernel of every instruction set against plain loops in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "error.h"
#include "number.h"
#include "pack.h"
#include "pool.h"
#include "simd/kernels.h"

namespace {

using namespace turing;

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

Floats random_floats(size_t count, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// |found - wanted| / |wanted|
template <class A, class B>
double distance(const A& found, const B& wanted) {
  CHECK(found.size() == wanted.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < found.size(); i++) {
    difference += std::pow(static_cast<double>(found[i]) - static_cast<double>(wanted[i]), 2);
    size += std::pow(static_cast<double>(wanted[i]), 2);
  }
  return std::sqrt(difference / size);
}

// A matrix packed in one way, and the weights that its tiles define, read by the documented layout.
struct Packed {
  Pages memory;
  Matrix matrix{};
  Floats weights;  // [rows][columns]
};

float weight_at(const Matrix& matrix, int row, int k) {
  const size_t column = static_cast<size_t>(row % kColumnTile);
  const uint8_t* tile =
      matrix.data + static_cast<size_t>(row / kColumnTile) * tile_bytes(matrix.tile, matrix.blocks);
  const auto block = static_cast<size_t>(k / kBlock), i = static_cast<size_t>(k % kBlock);
  const auto half = [](const uint8_t* place) { return half_to_float(load_as<uint16_t>(place)); };
  switch (matrix.tile) {
    case Tile::W4: {
      const uint8_t* from = tile + 320 * block;
      const uint8_t byte = from[64 + i % 16 / 4 * 64 + column * 4 + i % 4];
      const int q = i < 16 ? byte & 15 : byte >> 4;
      return static_cast<float>(q) * half(from + 2 * column) + half(from + 32 + 2 * column);
    }
    case Tile::W8: {
      const uint8_t* pair = tile + 1088 * (block / 2);
      const int q = pair[64 + block % 2 * 512 + i / 4 * 64 + column * 4 + i % 4] - 128;
      return static_cast<float>(q) * half(pair + block % 2 * 32 + 2 * column);
    }
    case Tile::F16: return half(tile + 1024 * block + 32 * i + 2 * column);
    case Tile::BF16:
      return bfloat_to_float(load_as<uint16_t>(tile + 1024 * block + 32 * i + 2 * column));
    default: return load_as<float>(tile + 2048 * block + 64 * i + 4 * column);
  }
}

Packed pack_matrix(const Tensor& tensor, Quantize quantize) {
  Pool pool(1);
  Packed packed;
  Packer packer(quantize, false);
  packer.add(tensor, packed.matrix);
  packed.memory = packer.pack(pool);
  for (int row = 0; row < packed.matrix.rows; row++) {
    for (int k = 0; k < tensor.columns(); k++) {
      packed.weights.push_back(weight_at(packed.matrix, row, k));
    }
  }
  return packed;
}

// A tensor of random weights in one of the float kinds.
struct Source {
  Source(Kind kind, int64_t rows, int64_t columns)
      : values(random_floats(rows * columns, 11, 0.1f)) {
    tensor = {"t", kind, {rows, columns}, nullptr};
    for (float value : values) {
      const uint16_t half = float_to_half(value);
      const auto top = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      const void* from = kind == Kind::F32   ? static_cast<const void*>(&value)
                         : kind == Kind::F16 ? static_cast<const void*>(&half)
                                             : &top;
      const auto* bytes = static_cast<const std::byte*>(from);
      stored.insert(stored.end(), bytes, bytes + info(kind).bytes);
    }
    tensor.data = stored.data();
  }
  Floats values;
  std::vector<std::byte> stored;
  Tensor tensor;
};

// Rows of an operand, with the memory they live in.
struct Rows {
  Rows(int rows, int k, Activations kind)
      : memory(static_cast<size_t>((rows + 7) / 8) * operand_stride(k, kind)),
        operand{memory.data(), rows, k, kind} {}
  Rows(const Kernels& kernels, const Floats& x, int rows, int k, Activations kind)
      : Rows(rows, k, kind) {
    // What a tile held before must not matter, so it holds nonsense.
    std::memset(memory.data(), 0x7b, memory.size());
    const int width = static_cast<int>(round_up(k, 16));
    for (int row = 0; row < rows; row++) {
      Floats padded(static_cast<size_t>(width), 0.0f);
      std::copy_n(x.data() + static_cast<size_t>(row) * static_cast<size_t>(k), k, padded.data());
      kernels.quantize(padded.data(), 0, width, operand, row);
    }
  }
  // The value that element `k` of a row stands for, by the documented layout.
  float at(int row, int k) const {
    const int n = std::min(8, operand.rows - row / 8 * 8), words = block_words(operand.kind) * n;
    const auto* tile = reinterpret_cast<const int32_t*>(
        operand.data + static_cast<size_t>(row / 8) * operand_stride(operand.k, operand.kind));
    const int32_t* block = tile + k / 32 * words + row % 8;
    if (operand.kind == Activations::Float) return std::bit_cast<float>(block[k % 32 * n]);
    int8_t four[4];
    std::memcpy(four, &block[k % 32 / 4 * n], 4);
    return std::bit_cast<float>(block[8 * n]) * static_cast<float>(four[k % 4]);
  }

  Pages memory;
  Operand operand;
};

Doubles product(const Floats& x, const Floats& weights, int rows, int columns, int k) {
  Doubles result;
  for (int row = 0; row < rows; row++) {
    for (int column = 0; column < columns; column++) {
      double sum = 0;
      for (int i = 0; i < k; i++) {
        sum += static_cast<double>(x[static_cast<size_t>(row * k + i)]) *
               static_cast<double>(weights[static_cast<size_t>(column * k + i)]);
      }
      result.push_back(sum);
    }
  }
  return result;
}

struct Case {
  Kind kind;
  Quantize quantize;
  Tile tile;
  Activations activations;
};

constexpr Case kCases[] = {
    {Kind::F32, Quantize::W4, Tile::W4, Activations::Int8},
    {Kind::F32, Quantize::W8, Tile::W8, Activations::Int8},
    {Kind::F32, Quantize::W4, Tile::W4, Activations::Float},
    {Kind::F32, Quantize::W8, Tile::W8, Activations::Float},
    {Kind::F32, Quantize::None, Tile::F32, Activations::Float},
    {Kind::F16, Quantize::None, Tile::F16, Activations::Float},
    {Kind::BF16, Quantize::None, Tile::BF16, Activations::Float},
};

double tolerance(Activations activations) {
  return activations == Activations::Int8 ? 0.015 : 2e-6;
}

void test_matmul(const Kernels& kernels, const Case& c, int rows, int columns, int k) {
  const Source source(c.kind, columns, k);
  const Packed packed = pack_matrix(source.tensor, c.quantize);
  CHECK(packed.matrix.tile == c.tile);
  CHECK(distance(packed.weights, source.values) < (c.tile == Tile::W4 ? 0.1 : 0.01));
  const Floats x = random_floats(static_cast<size_t>(rows) * static_cast<size_t>(k), 3);
  const Rows input(kernels, x, rows, k, c.activations);
  const auto stride = static_cast<size_t>(round_up(columns, 32));
  const Floats bias = random_floats(stride, 4);
  Floats out(static_cast<size_t>(rows) * stride, 2.0f);
  const int tiles = static_cast<int>(stride) / kColumnTile;
  kernels.matmul({packed.matrix, input.operand, 0, 1, out.data(), stride, bias.data(), true});
  kernels.matmul({packed.matrix, input.operand, 1, tiles, out.data(), stride, bias.data(), true});
  Doubles found;
  for (size_t row = 0; row < static_cast<size_t>(rows); row++) {
    for (size_t column = 0; column < static_cast<size_t>(columns); column++) {
      found.push_back(static_cast<double>(out[row * stride + column]) - 2.0 -
                      static_cast<double>(bias[column]));
    }
  }
  CHECK(distance(found, product(x, packed.weights, rows, columns, k)) < tolerance(c.activations));
}

void test_gated(const Kernels& kernels, Activations activations, bool gelu) {
  const int rows = 11, columns = 48, k = 96;
  Source gate_source(Kind::F32, columns, k), up_source(Kind::F32, columns, k);
  const Packed gate = pack_matrix(gate_source.tensor, Quantize::W8);
  const Packed up = pack_matrix(up_source.tensor, Quantize::W4);
  const Floats x = random_floats(static_cast<size_t>(rows * k), 5);
  const Rows input(kernels, x, rows, k, activations);
  const Rows output(rows, columns, activations);
  kernels.gated(
      {gate.matrix, up.matrix, nullptr, nullptr, input.operand, output.operand, 0, 2, gelu});
  const Doubles gates = product(x, gate.weights, rows, columns, k);
  const Doubles ups = product(x, up.weights, rows, columns, k);
  Doubles wanted;
  for (size_t i = 0; i < gates.size(); i++) {
    const double g = gates[i];
    const double inner = std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g);
    const double act = gelu ? 0.5 * g * (1 + std::tanh(inner)) : g / (1 + std::exp(-g));
    wanted.push_back(act * ups[i]);
  }
  Floats found;
  for (int row = 0; row < rows; row++) {
    for (int i = 0; i < columns; i++) found.push_back(output.at(row, i));
  }
  CHECK(distance(found, wanted) < (activations == Activations::Int8 ? 0.02 : 2e-6));
}

void test_head(const Kernels& kernels, Activations activations) {
  const int rows = 70, columns = 83, k = 64;
  Source source(Kind::F32, columns, k);
  // Two equal columns: the lower one must win.
  std::copy_n(source.values.data() + 5 * k, k, source.values.data() + 70 * k);
  std::memcpy(source.stored.data(), source.values.data(), source.stored.size());
  const Packed packed = pack_matrix(source.tensor, Quantize::W8);
  Floats x = random_floats(static_cast<size_t>(rows * k), 6);
  std::copy_n(source.values.data() + 5 * k, k, x.data());
  for (int i = 0; i < k; i++) x[static_cast<size_t>(i)] *= 100;
  const Rows input(kernels, x, rows, k, activations);
  Floats logits(static_cast<size_t>(rows * columns));
  std::vector<float*> places;
  for (int row = 0; row < rows; row++) {
    places.push_back(row % 3 == 2 ? nullptr : logits.data() + row * columns);
  }
  Floats best(static_cast<size_t>(rows));
  std::vector<int32_t> id(static_cast<size_t>(rows));
  kernels.head({packed.matrix, input.operand, 0, 6, places.data(), best.data(), id.data()});
  CHECK(id[0] == 5);
  for (int row = 0; row < rows; row++) {
    if (places[static_cast<size_t>(row)] == nullptr) continue;
    const float* line = places[static_cast<size_t>(row)];
    const float* most = std::max_element(line, line + columns);
    CHECK(id[static_cast<size_t>(row)] == static_cast<int32_t>(most - line));
    CHECK(best[static_cast<size_t>(row)] == *most);
  }
}

void test_rows(const Kernels& kernels) {
  const int n = 80, count = 75;
  Floats x = random_floats(n, 1), y = random_floats(n, 2), weight = random_floats(n, 3);
  for (int i = count; i < n; i++) {
    x[static_cast<size_t>(i)] = y[static_cast<size_t>(i)] = weight[static_cast<size_t>(i)] = 0;
  }
  const auto normed = [&](const Floats& values) {
    double squares = 0;
    for (float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    const double factor = 1 / std::sqrt(squares / count + 1e-5);
    Doubles result;
    for (size_t i = 0; i < values.size(); i++) {
      result.push_back(static_cast<double>(values[i]) * factor * static_cast<double>(weight[i]));
    }
    return result;
  };
  const Rows operand(5, n, Activations::Float);
  kernels.norm(x.data(), weight.data(), 1e-5f, n, count, operand.operand, 3);
  Floats found;
  for (int i = 0; i < n; i++) found.push_back(operand.at(3, i));
  CHECK(distance(found, normed(x)) < 1e-6);

  Doubles sum = normed(y);
  for (size_t i = 0; i < sum.size(); i++) sum[i] += static_cast<double>(x[i]);
  Floats added = x;
  kernels.add_norm(added.data(), y.data(), weight.data(), 1e-5f, n, count);
  CHECK(distance(added, sum) < 1e-6);
}

void test_rope(const Kernels& kernels, int dim) {
  const int heads = 3, half = dim / 2;
  Floats x = random_floats(static_cast<size_t>(heads * dim), 7), cosine, sine;
  for (int i = 0; i < half; i++) {
    cosine.push_back(std::cos(0.1f * static_cast<float>(i)));
    sine.push_back(std::sin(0.1f * static_cast<float>(i)));
  }
  Doubles wanted;
  for (int h = 0; h < heads; h++) {
    for (int i = 0; i < dim; i++) {
      const double angle = 0.1 * (i % half);
      const auto at = [&](int j) {
        return static_cast<double>(x[static_cast<size_t>(h * dim + j)]);
      };
      wanted.push_back(i < half ? at(i) * std::cos(angle) - at(i + half) * std::sin(angle)
                                : at(i) * std::cos(angle) + at(i - half) * std::sin(angle));
    }
  }
  kernels.rope(x.data(), heads, dim, dim, cosine.data(), sine.data());
  CHECK(distance(x, wanted) < 1e-6);
}

// A sequence in shuffled pages, and the queries of its last rows.
struct PagedSequence {
  static constexpr int kHeads = 2, kGroup = 3, kTokens = 333, kRows = 5;
  static constexpr int kQueries = kRows * kGroup;
  static constexpr int kSegments = (kTokens + kSegmentTokens - 1) / kSegmentTokens;

  PagedSequence(const Kernels& kernels, KvFormat format, int head_dim, int window)
      : dim(static_cast<size_t>(head_dim)),
        keys(random_floats(dim * kHeads * kTokens, 1)),
        values(random_floats(dim * kHeads * kTokens, 2)),
        queries(random_floats(dim * kHeads * kQueries, 3)),
        table((kTokens + kPageTokens - 1) / kPageTokens),
        page(kv_head_bytes(format, head_dim) * kHeads),
        memory(page * table.size()),
        query(queries.size() * sizeof(float)) {
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(5));
    const size_t width = dim * kHeads;
    for (size_t t = 0; t < kTokens; t++) {
      const size_t place = page * static_cast<size_t>(table[t / kPageTokens]);
      kernels.store_kv(format, keys.data() + t * width, values.data() + t * width, kHeads, head_dim,
                       static_cast<int>(t) % kPageTokens, memory.data() + place);
    }
    kernels.store_query(format, queries.data(),
                        static_cast<float>(std::numbers::log2e / std::sqrt(head_dim)),
                        static_cast<int>(queries.size()), query.data());
    for (int q = 0; q < kQueries; q++) {
      last.push_back(kTokens - kRows + q / kGroup);
      first.push_back(window == 0 ? 0 : std::max(0, last.back() + 1 - window));
    }
  }

  // What attention gives head h's query q, by definition.
  Doubles reference(size_t h, size_t q) const {
    Doubles mixed(dim, 0.0);
    const float* own = queries.data() + (h * kQueries + q) * dim;
    double total = 0;
    for (auto t = static_cast<size_t>(first[q]); t <= static_cast<size_t>(last[q]); t++) {
      const size_t at = (t * kHeads + h) * dim;
      double score = 0;
      for (size_t i = 0; i < dim; i++) {
        score += static_cast<double>(own[i]) * static_cast<double>(keys[at + i]);
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
      total += weight;
      for (size_t i = 0; i < dim; i++) mixed[i] += weight * static_cast<double>(values[at + i]);
    }
    for (double& value : mixed) value /= total;
    return mixed;
  }

  size_t dim;
  Floats keys, values;  // [token][head][dim]
  Floats queries;       // [head][query][dim]
  std::vector<int32_t> table;
  size_t page;
  Pages memory, query;
  std::vector<int32_t> first, last;
};

// Results of attention over some segments.
struct Attended {
  explicit Attended(const PagedSequence& s)
      : out(s.queries.size(), 0.0f),
        peak(s.queries.size() / s.dim, kNoScore),
        sum(peak.size(), 0.0f) {}

  void attend(const Kernels& kernels, KvFormat format, const PagedSequence& s, int from, int to) {
    kernels.attend({format, s.memory.data(), s.page, s.table.data(),
                    static_cast<int>(s.table.size()), static_cast<int>(s.dim), s.kHeads, s.kQueries,
                    from, to, s.first.data(), s.last.data(), s.query.data(), out.data(),
                    peak.data(), sum.data()});
  }

  Floats out, peak, sum;
};

void test_attention(const Kernels& kernels, KvFormat format, int dim, int window) {
  const PagedSequence s(kernels, format, dim, window);
  Attended whole(s);
  whole.attend(kernels, format, s, 0, s.kSegments);
  Doubles wanted, found;
  for (size_t index = 0; index < whole.sum.size(); index++) {
    for (double value : s.reference(index / s.kQueries, index % s.kQueries))
      wanted.push_back(value);
    for (size_t i = 0; i < s.dim; i++) {
      found.push_back(static_cast<double>(whole.out[index * s.dim + i] / whole.sum[index]));
    }
  }
  CHECK(distance(found, wanted) < (format == KvFormat::BF16 ? 0.01 : 2e-6));

  // Segments on their own, folded in order, are the same bits.
  Attended folded(s), part(s);
  for (int segment = 0; segment < s.kSegments; segment++) {
    part.attend(kernels, format, s, segment, segment + 1);
    for (size_t i = 0; i < part.sum.size(); i++) {
      kernels.merge(folded.out.data() + i * s.dim, &folded.peak[i], &folded.sum[i],
                    part.out.data() + i * s.dim, part.peak[i], part.sum[i], dim);
    }
  }
  CHECK(folded.out == whole.out);
  CHECK(folded.sum == whole.sum);
}

void test_halves() {
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = half_to_float(half);
    if (std::isnan(wide)) continue;
    CHECK(float_to_half(wide) == half);
  }
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(65519.0f) == 0x7bff);
  CHECK(float_to_half(1.0f + 0x1p-11f) == 0x3c00);
  CHECK(float_to_half(1.0f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(float_to_half(0x1p-25f) == 0);
  CHECK(float_to_half(0x1.8p-25f) == 1);
}

void test_isa(const Kernels& kernels) {
  for (const Case& c : kCases) {
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 31}) test_matmul(kernels, c, rows, 48, 128);
    test_matmul(kernels, c, 5, 33, 96);
    test_matmul(kernels, c, 131, 64, 32);
    test_matmul(kernels, c, 3, 16, 40);
  }
  for (Activations activations : {Activations::Int8, Activations::Float}) {
    test_gated(kernels, activations, false);
    test_gated(kernels, activations, true);
    test_head(kernels, activations);
  }
  test_rows(kernels);
  for (int dim : {16, 48, 64, 128}) test_rope(kernels, dim);
  for (KvFormat format : {KvFormat::BF16, KvFormat::F32}) {
    for (int dim : {16, 64, 80, 128, 256}) {
      test_attention(kernels, format, dim, 0);
      test_attention(kernels, format, dim, 100);
    }
  }
}

}  // namespace

int main() {
  test_halves();
  int tested = 0;
  for (const char* isa : {"portable", "avx2", "avx512", "avx512_bf16", "neon"}) {
    const Kernels* kernels = nullptr;
    try {
      kernels = &select_kernels(isa);
    } catch (const Error& error) {
      std::printf("skipped: %s\n", error.what());
      continue;
    }
    test_isa(*kernels);
    tested++;
  }
  CHECK(tested > 0);
  CHECK(contains(message_of([] { select_kernels("sse9"); }), "unknown instruction set sse9"));
}

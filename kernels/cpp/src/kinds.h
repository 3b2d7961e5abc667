// Tensor element kinds: their names, block shapes and conversion to fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace turing {

// Numbered as in the GGUF format.
enum class Kind : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  IQ4_XS = 23,
  BF16 = 30,
};

struct KindInfo {
  Kind kind;
  const char* name;
  int block;  // elements per block
  int bytes;  // bytes per block
  // Converts `count` elements (whole blocks) to fp32.
  void (*to_float)(const std::byte* from, float* to, int64_t count);
};

// Null when the kind cannot be read.
const KindInfo* find_kind(uint32_t kind);
const KindInfo& info(Kind kind);
// The format's name of a kind, also of the ones that cannot be read.
std::string kind_name(uint32_t kind);

// A named array inside a checkpoint file. `shape` has the fastest dimension last.
struct Tensor {
  std::string name;
  Kind kind = Kind::F32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;

  int64_t count() const;
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const { return count() / columns(); }
  size_t row_bytes() const;
  const std::byte* row(int64_t index) const { return data + index * row_bytes(); }
  // Writes columns() floats.
  void row_to_float(int64_t index, float* to) const;
};

}  // namespace turing

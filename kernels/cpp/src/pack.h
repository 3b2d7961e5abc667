// Repacking of weights into the tiles that the kernels read.
#pragma once

#include <cstdint>
#include <vector>

#include "kinds.h"
#include "memory.h"
#include "pool.h"
#include "simd/kernels.h"

namespace turing {

// What becomes of matrices that the file stores as F32, F16 or BF16.
enum class Quantize { None, W4, W8 };

// Where row `row` of a matrix with split rotary pairs (i, i + d/2) lies in a file that keeps them
// adjacent (2 i, 2 i + 1) in heads of `paired_head` rows; 0 = the same row.
int64_t source_row(int64_t row, int paired_head);

// Whether packing a tensor of this kind into such tiles loses nothing.
bool keeps_exactly(Kind kind, Tile tile);

// Writes the weights of a matrix's row, as its tiles define them, `columns` floats.
void unpack_row(const Matrix& matrix, int row, int columns, float* out);

// Collects matrices, then packs all of them in parallel into one piece of memory.
class Packer {
 public:
  // `exact` keeps every weight as the file defines it, where needed as F32; otherwise kinds
  // without a tile of their own are rounded to W4 or W8.
  Packer(Quantize quantize, bool exact) : quantize_(quantize), exact_(exact) {}

  // `matrix` is filled in by pack(); its row i is the tensor's source_row(i, paired_head).
  void add(const Tensor& tensor, Matrix& matrix, int paired_head = 0);
  // Matrices whose rounding to W4 would cost too much, such as the head, stay at W8.
  void add_at_least_w8(const Tensor& tensor, Matrix& matrix);

  // Packs everything; the result must live as long as the matrices.
  Pages pack(Pool& pool);

 private:
  struct Job {
    const Tensor* tensor;
    Matrix* matrix;
    int paired_head;
    int tiles;
    size_t offset;
  };

  Tile tile_for(Kind kind, bool w4_allowed) const;
  void add_job(const Tensor& tensor, Matrix& matrix, int paired_head, Tile tile);

  Quantize quantize_;
  bool exact_;
  std::vector<Job> jobs_;
  size_t bytes_ = 0;
};

}  // namespace turing

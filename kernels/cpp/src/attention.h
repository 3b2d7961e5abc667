// Attention of a step's rows to the paged keys and values, as independent items.
#pragma once

#include <vector>

#include "batch.h"
#include "kv.h"
#include "memory.h"
#include "simd/kernels.h"
#include "weights.h"

namespace turing {

// Projected rows, [rows][heads * d | kv_heads * d | kv_heads * d], and the angles of the layer.
struct Projected {
  float* rows;
  size_t stride;
  const float* cosine;  // [rows][head_dim / 2]
  const float* sine;
};

class Attention {
 public:
  Attention(const ModelSpec& spec, const Kernels& kernels, const KvCache& cache, int threads);

  // Cuts the batch into items. The batch must stay unchanged until the step is done.
  void plan(const Batch& batch);

  int items() const { return static_cast<int>(items_.size()); }
  // Whether keys and values of several rows must be stored before the items run.
  bool stores() const { return stores_; }
  // Whether items leave segments behind that merge() has to put together.
  bool split() const { return split_; }

  // Writes a row's keys and values into its page, if its span has several rows.
  void store(const Layer& layer, int index, const Projected& projected, int row) const;
  // Computes an item; without split() the result goes to its rows of `out`.
  void run(const Layer& layer, int index, const Projected& projected, int item, int worker,
           const Operand& out);
  // Puts a row's segments together and into row `out_row` of `out`.
  void merge(int row, int worker, const Operand& out, int out_row);

 private:
  struct Item {
    int span;
    int row0, rows;
    int head0, heads;
    int segment0, segment1;
    int part;  // index of the first segment's part, -1 = not split
    int64_t cost;
  };
  struct Scratch {
    Pages query, out, peak, sum, gathered;
    std::vector<int32_t> first, last;
  };

  void plan_span(const Batch& batch, int index, int heads_per_item);
  void plan_split(const Batch& batch, int index);
  void deal();
  void store_row(const Layer& layer, int index, const Projected& projected, int row, int head0,
                 int heads) const;
  void fill_queries(const Layer& layer, const Projected& projected, const Item& item,
                    Scratch& scratch) const;
  AttendJob job(const Layer& layer, int index, const Item& item, Scratch& scratch) const;
  void write_rows(const Item& item, Scratch& scratch, const Operand& out) const;

  const ModelSpec& spec_;
  const Kernels& kernels_;
  const KvCache& cache_;
  int threads_;
  int group_;  // query heads per KV head
  int unit_;   // KV heads whose output fills whole blocks of an operand

  const Batch* batch_ = nullptr;
  std::vector<Item> items_;
  std::vector<int> first_part_;  // per span
  int parts_ = 0;
  bool stores_ = false;
  bool split_ = false;
  std::vector<Scratch> scratch_;
  // Per part: [group][head_dim] sums, then peaks and sums of the group.
  Pages part_out_, part_peak_, part_sum_;
};

}  // namespace turing
